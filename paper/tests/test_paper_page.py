"""docs/paper.md cannot rot: all 68 elements are there, and everything that it refers to in the code exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import numpy as np
import pytest

from dgnet.models.registry import all_models
from dgnet_paper.scenarios import get
from dgnet_paper.study import stored
from dgnet_paper.study.targets import TARGETS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "paper.md").read_text()
CODE = sorted(set(re.findall(r"`([\w.]+)::([\w.]+)`", TEXT)))
TESTS = sorted(set(re.findall(r"`((?:paper/)?tests/[\w/]+\.py)::(\w+)`", TEXT)))


def test_all_elements_are_there() -> None:
    wanted = {"Method and training": 20, "Theory": 4, "Data sets and their generator": 12, "Baselines": 8, "Tables of results": 8,
              "Figures of results": 16}
    numbers = []
    for title, count in wanted.items():
        section = TEXT.split(f"\n## {title} ({count})\n")[1].split("\n## ")[0]
        rows = re.findall(r"^\| (\d+) \| (.+?) \| (.+?) \| (.+) \|$", section, re.M)
        assert len(rows) == count, title
        numbers += [int(number) for number, *_ in rows]
        for number, _, where, status in rows:
            assert "`" in where and status.startswith(("as written", "differs", "does not hold")), number
    assert numbers == list(range(1, 69))


@pytest.mark.parametrize(("module", "name"), CODE, ids=["::".join(pair) for pair in CODE])
def test_every_reference_to_code_resolves(module: str, name: str) -> None:
    found: object = importlib.import_module(module if module.startswith("dgnet_paper.") else f"dgnet.{module}")
    for part in name.split("."):
        found = getattr(found, part)


def test_every_named_test_exists() -> None:
    assert TESTS
    for path, name in TESTS:
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M), f"{path}::{name}"


def test_targets_and_models_exist() -> None:
    assert set(re.findall(r"target `([\w-]+)`", TEXT)) <= set(TARGETS) and {"dgnet", "dgnet-paper"} <= set(all_models())


def test_figures_of_the_theory_are_those_of_the_stored_cells() -> None:
    row = {n: re.search(rf"^\| {n} \|.*$", TEXT, re.M).group() for n in (21, 22, 23)}  # type: ignore[union-attr]
    cells = stored.load([ROOT / "docs" / "results" / "study"])
    for scenario, field in (("laser-heat", "T"), ("fitzhugh-nagumo", "u"), ("fitzhugh-nagumo", "v")):
        numbers = cells[f"operator_{scenario}_paper_converged_dgnet_s0"]["numbers"]
        found = numbers["fields"][field]
        gamma, eta = found["theorem2"]["gamma"], found["theorem2"]["eta"]
        assert f"{gamma:.3g} against" in row[23] and f"{eta:.1e}".replace("e-0", "e-") in row[23]
        assert not found["theorem2"]["applies"]
        assert f"{found['size']['frobenius_ratio']:.2f} on {scenario}" in TEXT.replace("\n", " ")
        assert f"{numbers['consistency']['removed']:.2f} " in row[21]
        assert field == "v" or f"{found['physics']['log_norm_euclidean']:+.2g}" in row[22]


def test_shares_of_edges_that_are_not_delaunay() -> None:
    """An inner edge is Delaunay where its opposite angles sum to at most 180 degrees: where its weight is not negative."""
    row = re.search(r"^\| 3 \|.*$", TEXT, re.M).group()  # type: ignore[union-attr]
    found, squares = {}, ("allen-cahn", "fisher-kpp", "fitzhugh-nagumo")
    for name in (*squares, "laser-heat", "cylinder", "sediments", "obstacles", "light-reaction"):
        mesh = get(name, "paper").mesh
        sides = np.sort(np.concatenate([mesh.cells[:, [k, k - 1]] for k in range(3)]), 1) @ np.array([mesh.n_nodes, 1])
        inner = np.unique(sides, return_counts=True)[1] == 2
        found[name] = inner.sum(), (mesh.cotangent_weights[inner] < -1e-12).sum(), len(inner)
    assert all(round(100 * bad / count) == 17 for count, bad, _ in list(found.values())[:3]) and "17% of the inner edges" in row
    assert f"{found['laser-heat'][1]} of {found['laser-heat'][2]:,} edges" in row
    assert not any(bad for _, bad, _ in list(found.values())[4:])

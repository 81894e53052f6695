"""docs/paper.md cannot rot: all 68 elements are there, and everything that it refers to in the code exists."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from dgnet.models.registry import MODELS
from dgnet.paper.targets import TARGETS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "paper.md").read_text()
CODE = sorted(set(re.findall(r"`((?!tests/)[\w.]+)::([\w.]+)`", TEXT)))
TESTS = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", TEXT)))


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
    found: object = importlib.import_module(f"dgnet.{module}")
    for part in name.split("."):
        found = getattr(found, part)


def test_every_named_test_exists() -> None:
    assert TESTS
    for path, name in TESTS:
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text(), re.M), f"{path}::{name}"


def test_targets_and_models_exist() -> None:
    assert set(re.findall(r"target `([\w-]+)`", TEXT)) <= set(TARGETS) and {"dgnet", "dgnet-paper"} <= set(MODELS)

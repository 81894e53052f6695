"""`python -m benchmarks any-mesh`: test parts, their problems, ratios and the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import any_mesh
from dgnet.operators import Geometry
from dgnet.problems import Dirichlet
from dgnet_paper.universal.bodies import KINDS, TEST, TRAIN, load_parts, random_parts, save_parts
from dgnet_paper.universal.problems import COURANT, PECLET, STEPS, UNSEEN, draw, driven, unseen_parts, unseen_problem


def test_parts_of_training_and_test_have_no_shape_in_common() -> None:
    for dim, least in ((2, 60), (3, 30)):
        kinds = {kind for kind, _ in unseen_parts(dim)}
        assert kinds == set(TEST[dim]) and not kinds & set(TRAIN[dim]) and len(unseen_parts(dim)) >= least
        assert all(KINDS[kind][0] == dim for kind in (*TRAIN[dim], *TEST[dim]))


def test_a_problem_is_the_same_every_time_and_within_its_ranges() -> None:
    one, two = unseen_problem(2, 3), unseen_problem(2, 3)
    x = torch.tensor(one.mesh.points)
    assert one.dt == two.dt and torch.equal(one.samples(x), two.samples(x)) and torch.equal(one.start(x), two.start(x))
    found = [draw(*unseen_parts(2)[k], np.random.default_rng([5, k])) for k in range(20)]
    assert all(0.003 <= p.fourier <= 3 and p.dt == pytest.approx(p.fourier * p.mesh.spacing**2) for p in found)
    assert {p.conditions_kind for p in found} == {"dirichlet", "insulated", "robin", "mixed"}


@pytest.mark.parametrize("kind", UNSEEN)
def test_sources_of_unseen_kinds_heat_the_part_from_rest(kind: str) -> None:
    part = driven(unseen_problem(2, 0), kind, np.random.default_rng(0))
    x = torch.tensor(part.mesh.points)
    assert not part.start(x).any() and part.samples(x).shape == (2, STEPS, len(x), 1) and float(part.samples(x).abs().max()) > 0


@pytest.mark.parametrize("dim", [2, 3])
def test_sources_starts_and_held_values_are_made_where_the_points_are(dim: int) -> None:
    x, t = (torch.empty(*shape, dtype=torch.float64, device="meta") for shape in ((10, dim), (2,)))
    parts = [unseen_problem(dim, k) for k in range(4)]
    for part in [*parts, *(driven(parts[0], kind, np.random.default_rng(0)) for kind in UNSEEN)]:
        assert part.start(x).device.type == "meta"
        assert part.source is None or part.source(x, t).device.type == "meta"
        held = [c.value for c in part.conditions if isinstance(c, Dirichlet)]
        assert all(value(x, 0.1).device.type == "meta" for value in held if callable(value))


def test_rows_and_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a coarse stand-in for the truth; the real one takes seconds for every part."""
    small = min(range(len(unseen_parts(2))), key=lambda k: unseen_parts(2)[k][1].n_nodes)
    part = unseen_problem(2, small)
    rows = [any_mesh.row(part, "gear", lambda p: p.truth(refine=1))]
    assert rows[0] is not None and set(rows[0]["ratios"]) == set(any_mesh.models())
    assert min(rows[0]["ratios"][name] for name in any_mesh.RIVALS) == pytest.approx(1.0)
    assert rows[0]["ratios"]["universal-quadratic"] < 0.9
    cost = {"nodes": 1} | {f"{name}: {what}": 1.0 for name in ("universal", "universal-quadratic") for what in ("step", "prepare")}
    found = {"rows": rows, "dim": 2, "flow": False, "unseen_sources": {"ring": rows}, "cost": cost, "hardware": "a CPU"}
    page = any_mesh.table(found)
    for name in ("universal", "universal-quadratic", "quadratic, Crank–Nicolson", "linear, mesh refined once"):
        assert f"| {name} |" in page
    assert "below 0.9" in page and "ring" in page


def test_parts_in_a_file(tmp_path: Path) -> None:
    parts = unseen_parts(3)[:2]
    save_parts(tmp_path / "parts.npz", parts)
    for (kind, mesh), (other, same) in zip(parts, load_parts(tmp_path / "parts.npz")):
        assert kind == other and np.array_equal(mesh.cells, same.cells) and np.allclose(mesh.points, same.points)


def test_test_parts_are_drawn_again() -> None:
    """Where gmsh is installed: the first test part has the number of nodes that the same seed gives."""
    pytest.importorskip("gmsh", exc_type=ImportError)
    kind, mesh = random_parts(TEST[2], 1, (150, 700), 102)[0]
    shipped_kind, shipped = unseen_parts(2)[0]
    assert kind == shipped_kind and abs(mesh.n_nodes - shipped.n_nodes) <= 0.05 * shipped.n_nodes  # versions of gmsh differ


def test_a_flow_keeps_its_volume_and_has_the_numbers_that_were_drawn() -> None:
    for k in range(6):
        p = unseen_problem(2, k, flow=True)
        v, h = torch.tensor(p.pde.velocity), p.mesh.spacing
        fastest = float(v.norm(dim=1).max())
        peclet, courant = fastest * h, fastest * p.dt / h
        assert PECLET[0] <= peclet <= PECLET[1] and COURANT[0] <= courant <= COURANT[1]
        assert p.fourier == pytest.approx(courant / peclet)
        g = Geometry.of(p.mesh)
        through = (g.gradients * v[g.cells]).sum((1, 2)) * g.volumes  # what leaves a cell
        assert float(through.abs().sum()) < 0.25 * float(v.norm(dim=1).mean()) * float(g.volumes.sum()) / h
        assert (p.conditions_kind == "inflow") == ("inflow" in p.mesh.boundaries)

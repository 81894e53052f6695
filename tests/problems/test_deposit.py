"""Narrow spots bring what they bring: their integral over the mesh, for every model, wherever they are and however narrow."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import norm

import dgnet as dg
from dgnet import cli
from dgnet.errors import InputError
from dgnet.mesh import Mesh, box
from dgnet.models import Classical, Model, Refined, rollout
from dgnet.models.universal import Universal
from dgnet.problems import PDE, Curve, Problem, SpotTable
from dgnet.problems.deposit import Deposit

FLAT, SOLID = box((12, 10), upper=(1.2, 1.0), perturb=0.25), box((5, 5, 4), upper=(1.0, 1.0, 0.8), perturb=0.2)
MODELS: dict[str, Model] = {"classical": Classical(), "lumped": Classical(0.0), "quadratic": Classical(degree=2),
                            "refined": Refined(Classical()), "universal": Universal(), "refined universal": Refined(Universal()),
                            "universal quadratic": Universal(degree=2)}


def still(place: tuple[float, ...], radius: float, power: float = 1.0) -> SpotTable:
    return SpotTable(("spot",), (np.array([0.0, 1e9]),), (np.array([[*place, radius, power]] * 2),))


def on_box(place: tuple[float, ...], radius: float, upper: tuple[float, ...]) -> float:
    """The integral of a spot of peak 1 over the box from 0 to `upper`."""
    sides = [norm.cdf((b - x) / radius) - norm.cdf(-x / radius) for x, b in zip(place, upper)]
    return float(np.prod(sides) * (np.sqrt(2 * np.pi) * radius) ** len(place))


def brought(model: Model, problem: Problem, spots: SpotTable, steps: int = 5) -> float:
    """What the content of an insulated part gains per time from one step to the last."""
    f = model.taking(spots, problem).average(torch.tensor(model.points(problem)), 0, steps, problem.dt)
    u = torch.zeros(1, problem.mesh.n_nodes, 1, dtype=torch.float64)
    with torch.no_grad():
        if isinstance(model, Refined):  # its nodes are those of the mesh refined once
            fine = Problem(problem.mesh.refined(), problem.pde, [], problem.dt)
            end = rollout(model.model, fine, torch.zeros(1, fine.mesh.n_nodes, 1, dtype=torch.float64), f)[0, -1, :, 0]
            return float(end @ fine.mass.row_sums()[0, 0]) / (steps * problem.dt)
        if isinstance(model, Classical | Universal) and model.degree == 2:  # its content needs the middles, too
            state, wide = model.prepare(problem, 1, steps), problem.quadratic
            u = torch.zeros(1, wide.n, 1, dtype=torch.float64)
            for k in range(steps):
                u = state.step(u, f[:, k], k * problem.dt, k)
            return float(u[0, :, 0] @ wide.mass.row_sums()[0, 0]) / (steps * problem.dt)
        end = rollout(model, problem, u, f)[0, -1, :, 0]
    return float(end @ problem.mass.row_sums()[0, 0]) / (steps * problem.dt)


def test_a_laser_of_one_millimetre_brings_its_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spot of 1 mm on a spacing of 4 mm, off the nodes and on one: the command finds P 2 pi r^2 t, not a multiple of it."""
    dg.save_mesh(box((20, 20), upper=(0.08, 0.08)), tmp_path / "plate.msh")
    (tmp_path / "problem.toml").write_text(
        'problem = { name = "plate", fields = ["T"], dt = 0.5, offset = { T = 293.0 } }\nmesh = { file = "plate.msh" }\n'
        "pde = { conductivity = 20.0, density = 8000, capacity = 450 }\n")
    exact = 2.5e9 * 2 * np.pi * 1e-6 * 10
    for place in ("0.0337,0.0415", "0.04,0.04"):
        (tmp_path / "spot.csv").write_text(f"t,x,y,radius,power\n0,{place},0.001,2.5e9\n10,{place},0.001,2.5e9\n")
        command = ["simulate", tmp_path, "--model", "classical", "--source", tmp_path / "spot.csv", "--steps", 20, "--json",
                   tmp_path / "found.json"]
        monkeypatch.setattr("sys.argv", ["dgnet", *map(str, command)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert stop.value.code == 0
        found = json.loads((tmp_path / "found.json").read_text())
        assert found["balance"]["T"]["source"] == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("radius", [2e-4, 0.01, 0.03, 0.06])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_takes_up_the_integral(name: str, radius: float) -> None:
    problem = Problem(FLAT, PDE(diffusion=0.05), [], 0.2)
    radius *= 0.5 if name.startswith("refined") else 1.0  # as narrow on its own mesh
    for place in ((0.43, 0.57), (0.0, 0.5), (1.2, 1.0), (0.7, 1.0 + radius)):
        exact = on_box(place, radius, (1.2, 1.0))
        assert brought(MODELS[name], problem, still(place, radius)) == pytest.approx(exact, rel=1e-3), place


@pytest.mark.parametrize("name", ["classical", "quadratic", "universal", "universal quadratic", "refined", "refined universal"])
def test_in_three_dimensions(name: str) -> None:
    """On a surface, at an edge, inside. The mesh refined once cuts octahedra along one diagonal: middles count unequally."""
    problem = Problem(SOLID, PDE(diffusion=0.05), [], 0.2)
    for place in ((0.4, 0.55, 0.8), (0.0, 0.5, 0.0), (0.52, 0.4, 0.37)):
        exact = on_box(place, 0.05, (1.0, 1.0, 0.8))
        assert brought(MODELS[name], problem, still(place, 0.05)) == pytest.approx(exact, rel=1e-3), place


def test_materials_that_change_with_the_field() -> None:
    """Content in the enthalpy: capacity 2 + u / 50 of a part that stays nearly uniform gains what the spot brings."""
    curve = Curve([0.0, 100.0], [2.0, 4.0], name="capacity")
    problem = Problem(FLAT, PDE(diffusion=50.0, capacity=curve), [], 0.2)
    f = still((0.43, 0.57), 0.02, 2e4).on(FLAT).average(torch.tensor(FLAT.points), 0, 10, 0.2)
    with torch.no_grad():
        end = rollout(Classical(), problem, torch.zeros(1, FLAT.n_nodes, 1, dtype=torch.float64), f)[0, -1, :, 0]
    content = FLAT.dual_volumes() @ (2 * end + end**2 / 100).numpy()
    assert content == pytest.approx(2.0 * 2e4 * 2 * np.pi * 0.02**2, rel=1e-3)


def brute(mesh: Mesh, place: np.ndarray, radius: float) -> tuple[float, np.ndarray]:
    """Integral and centre of mass of a spot by the centroids of a mesh refined four times."""
    fine = mesh.refined(4)
    value = fine.volumes * np.exp(-((fine.centroids - place) ** 2).sum(1) / (2 * radius**2))
    return float(value.sum()), value @ fine.centroids / value.sum()


def test_integrals_and_centres_on_a_part_with_a_hole() -> None:
    angle = np.linspace(0, 2 * np.pi, 14, endpoint=False)
    ring = np.concatenate([r * np.stack([np.cos(angle + r), np.sin(angle + r)], 1) for r in (0.4, 0.6, 0.8)])
    cells = Mesh.delaunay(ring).cells
    mesh = Mesh(ring, cells[np.linalg.norm(ring[cells].mean(1), axis=1) > 0.37])
    rng = np.random.default_rng(2)
    places = np.concatenate([rng.uniform(-0.8, 0.8, (8, 2)), ring[[0, 20, 40]], 0.5 * (ring[0] + ring[1])[None]])
    for radius in (0.05, 0.15):
        found, centre = Deposit.of(mesh).integrals(places, np.full(len(places), radius))
        for k, place in enumerate(places):
            exact, middle = brute(mesh, place, radius)
            assert abs(found[k] - exact) < 2e-3 * 2 * np.pi * radius**2
            assert exact < 1e-2 * radius**2 or np.abs(centre[k] - middle).max() < 0.02 * radius


def test_the_centre_of_mass_is_that_of_the_spot() -> None:
    problem = Problem(FLAT, PDE(diffusion=1.0), [], 0.2)
    for place in ((0.43, 0.57), (0.31, 0.12), (0.8, 0.85)):
        f = still(place, 0.02).on(FLAT)(torch.tensor(FLAT.points), torch.zeros(1))[0, 0, :, 0]
        load = problem.source_mass.to_scipy() @ f.numpy()
        assert np.abs(load @ FLAT.points / load.sum() - place).max() < 1e-4 * FLAT.spacing and f.min() >= 0


def test_wide_spots_have_their_values() -> None:
    x = torch.tensor(np.concatenate([FLAT.points, FLAT.middles]))
    wide = still((0.33, 0.02), 1.6 * FLAT.spacing)
    assert torch.equal(wide.on(FLAT)(x, torch.zeros(2)), wide(x, torch.zeros(2)))


def test_a_path_across_the_rim_brings_its_time_inside() -> None:
    """A spot that comes in over the left side and leaves over the top, quick against its radius."""
    rows = np.array([[-0.3, 0.4, 0.015, 2.0], [0.7, 0.4, 0.015, 2.0], [0.7, 1.2, 0.015, 2.0]])
    path = SpotTable(("path",), (np.array([0.0, 1.0, 1.8]),), (rows,))
    f = path.on(FLAT).average(torch.tensor(FLAT.points), 0, 9, 0.2)[0, :, :, 0]
    total = 0.2 * float((f @ torch.tensor(FLAT.dual_volumes())).sum())
    assert total == pytest.approx((1.8 - 0.3 - 0.2) * 2 * 2 * np.pi * 0.015**2, rel=2e-3)


def test_a_graded_mesh_and_one_cell() -> None:
    x = np.linspace(0, 1, 13) ** 3
    graded = Mesh.delaunay(np.array([(a, b) for a in x for b in x]) + 1e-6 * np.random.default_rng(0).random((169, 2)))
    one = Mesh([[0, 0], [1, 0], [0, 1]], [[0, 1, 2]])
    for mesh, place in ((graded, (0.05, 0.4)), (graded, (0.8, 0.7)), (one, (0.2, 0.3))):
        f = still(place, 1e-3).on(mesh)(torch.tensor(mesh.points), torch.zeros(1))[0, 0, :, 0].numpy()
        assert f @ mesh.dual_volumes() == pytest.approx(2e-6 * np.pi, rel=1e-3)


def test_outside_and_elsewhere() -> None:
    nodes = torch.tensor(FLAT.points)
    assert not still((2.5, 0.5), 0.01).on(FLAT)(nodes, torch.zeros(1)).any()
    with pytest.raises(InputError, match="at its 143 nodes"):
        still((0.5, 0.5), 0.01).on(FLAT)(nodes[:7], torch.zeros(1))


@pytest.mark.parametrize("radius", [0.02, 0.4])
def test_points_that_are_whole_numbers(radius: float) -> None:
    """A mesh in millimetres: the values are those at the same points in double precision, not cut to whole numbers."""
    mesh = box((4, 4), upper=(4.0, 4.0))
    spot = SpotTable(("s",), (np.array([0.0, 1.0]),), (np.array([[1.0, 2.0, radius, 0.5]] * 2),))
    x, t = torch.tensor(mesh.points), torch.tensor([0.5], dtype=torch.float64)
    assert bool((x == x.round()).all())
    for table in (spot, spot.on(mesh)):
        assert torch.equal(table(x.long(), t), table(x, t)) and float(table(x, t).max()) > 0

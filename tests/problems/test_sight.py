"""What mesh and step cannot see is said, with the right size, and nothing is said that is not so."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.special import erfc, erfcx

import dgnet as dg
from dgnet import cli
from dgnet.mesh import Mesh, box
from dgnet.models import Classical, rollout
from dgnet.models.adaptive import Adaptive
from dgnet.prediction.to_files import predict_to_files
from dgnet.problems import PDE, Condition, Curve, Dirichlet, Neumann, Periodic, Problem, Robin, SpotTable, TimeTable
from dgnet.problems.conditions import Value
from dgnet.problems.sight import Bounds, Doubt, cell_doubts, doubts, rod, spot_doubts
from dgnet.problems.units import Units
from dgnet.training.simulator import simulator

Tensor = torch.Tensor
STRIP = box((60, 1), upper=(6.0, 0.1))


def still(place: tuple[float, ...], radius: float) -> SpotTable:
    return SpotTable(("laser",), (np.array([0.0, 9.0]),), (np.array([[*place, radius, 1.0]] * 2),))


def uniform(mesh: Mesh, value: float = 293.0) -> Tensor:
    return torch.full((mesh.n_nodes, 1), value, dtype=torch.float64)


def kinds(found: list[Doubt]) -> list[str]:
    return [doubt.kind for doubt in found]


def states(p: Problem, start: Tensor, steps: int, source: Tensor | None = None, model: Classical | None = None) -> Tensor:
    with torch.no_grad():
        return rollout(model or Classical(), p, start[None], source, steps)[0]


# ---------------------------------------------------------------------- jumps


@pytest.mark.parametrize("fourier", [0.02, 0.3, 3.0, 30.0])
def test_a_held_side_that_differs_from_the_start(fourier: float) -> None:
    """60 K on a long strip: the error that is named is the largest against the exact erfc, and it lasts as long."""
    p = Problem(STRIP, PDE(("T",), diffusion=1.0), [Dirichlet("left", 353.0)], fourier * 0.01)
    u = states(p, uniform(STRIP), 12).numpy()[..., 0]
    x = STRIP.points[:, 0]
    errors = [np.abs(u[k] - 293 - 60 * erfc(x / (2 * np.sqrt(k * p.dt)))).max() for k in range(1, 13)]
    found = doubts(p, uniform(STRIP), units=Units("mm", "s", {"T": "K"}))
    assert max(errors) > 2.5
    if not found:
        assert max(errors) < 3.6
        return
    (doubt,) = found
    assert doubt.kind == "start" and "'left'" in doubt.text and "60 K" in doubt.text
    assert doubt.numbers["error"] == pytest.approx(max(errors), rel=0.4)
    late = next((k + 1 for k, e in enumerate(errors) if e <= 0.6), None)
    assert late is None or abs(doubt.numbers["steps"] - late) <= 4


@pytest.mark.parametrize("fourier", [0.02, 0.3, 3.0])
@pytest.mark.parametrize("table", [True, False])
def test_a_held_side_that_jumps_later(fourier: float, table: bool) -> None:
    """By 60 K in the fifth step: the error of a start that differs by as much."""
    dt = fourier * 0.01
    when = np.array([0.0, 4.3 * dt, 4.3 * dt, 9 * dt])
    held = TimeTable(when, [293.0, 293.0, 353.0, 353.0]) if table else lambda x, t: 293.0 + 60.0 * (t >= when[1]) + 0 * x[:, 0]
    p = Problem(STRIP, PDE(("T",), diffusion=1.0), [Dirichlet("left", held)], dt)
    found = doubts(p, uniform(STRIP), steps=8, units=Units("mm", "s", {"T": "K"}))
    assert len(found) == (fourier < 1)  # and below the limit with long steps, since those around a jump are L-stable
    assert all(doubt.kind == "later" and "'left' holds of T jumps by 60 K" in doubt.text for doubt in found)
    assert doubts(p, uniform(STRIP), steps=3) == []


@pytest.mark.parametrize("value", [
    TimeTable([0.0, 0.5, 2.0], [0.0, 0.0, 60.0]), TimeTable([0.0, 3.0, 3.0], [0, 0, 9]),
    lambda x, t: np.sin(6.0 * t) + 0 * x[:, 0]])
def test_ramps_waves_and_what_comes_after_the_last_step_are_no_jumps(value: Value) -> None:
    for c in (Dirichlet("left", value), Robin("left", 1.0, value)):
        assert "later" not in kinds(doubts(Problem(STRIP, PDE(diffusion=1.0), [c], 0.05), uniform(STRIP, 0.0), steps=40))


def test_surroundings_that_jump_later() -> None:
    for coefficient, named in ((200.0, True), (1e-3, False)):
        held = TimeTable([0.0, 0.21, 0.21], [293.0, 293.0, 353.0])
        p = Problem(STRIP, PDE(diffusion=1.0), [Robin("left", coefficient, held)], 0.02)
        assert ("later" in kinds(doubts(p, uniform(STRIP)))) == named


def test_adaptive_steps_leave_the_error_of_the_mesh() -> None:
    p = Problem(STRIP, PDE(("T",), diffusion=1.0), [Dirichlet("left", 353.0)], 0.03)
    with torch.no_grad():
        u = rollout(Adaptive(Classical(), 1e-3), p, uniform(STRIP)[None], steps=2)[0, 1, :, 0].numpy()
    assert np.abs(u - 293 - 60 * erfc(STRIP.points[:, 0] / (2 * np.sqrt(0.03)))).max() < 0.05 * 60
    assert doubts(p, uniform(STRIP), short=True) == []


@pytest.mark.parametrize("coefficient", [0.2, 5.0, 200.0])
def test_surroundings_that_differ_from_the_start(coefficient: float) -> None:
    p = Problem(STRIP, PDE(("T",), diffusion=1.0), [Robin("left", coefficient, 353.0)], 0.02)
    u, z = states(p, uniform(STRIP), 1).numpy()[1, :, 0], STRIP.points[:, 0] / (2 * np.sqrt(0.02))
    exact = erfc(z) - np.exp(-z * z) * erfcx(z + coefficient * np.sqrt(0.02))
    error = np.abs(u - 293 - 60 * exact).max()
    found = doubts(p, uniform(STRIP))
    assert (error > 3.0) == bool(found)
    if found:
        assert found[0].numbers["error"] == pytest.approx(error, rel=0.3) and "surroundings of 'left'" in found[0].text


def test_starts_that_jump_inside_and_starts_that_do_not() -> None:
    p = Problem(STRIP, PDE(diffusion=1.0), [], 0.05)
    x = torch.tensor(STRIP.points[:, :1])
    step = (x < 3.05).double()
    u = states(p, step, 1).numpy()[1, :, 0]
    assert np.abs(u - 0.5 * erfc((STRIP.points[:, 0] - 3.05) / (2 * np.sqrt(0.05)))).max() < 0.04 and doubts(p, step) == []
    assert doubts(p, torch.exp(-((x - 3) ** 2))) == [] and doubts(p, 0 * x) == [] and doubts(p, 3.0 * x) == []
    reacting = Problem(STRIP, PDE(diffusion=1.0, reaction=lambda u: u - u**3), [], 0.05)
    assert doubts(reacting, step, states=states(p, step, 3)) == []


def test_a_start_that_has_the_value_of_its_wall() -> None:
    p = Problem(STRIP, PDE(diffusion=1.0), [Dirichlet("left", lambda x, t: 1.0 + t + 0 * x[:, 0])], 0.05)
    assert doubts(p, torch.ones(STRIP.n_nodes, 1) - 0.1 * torch.tensor(STRIP.points[:, :1])) == []


def test_a_rod_against_one_on_a_much_finer_grid() -> None:
    for inside in (False, True):
        assert rod(1.0, 1.0, np.inf, inside, 1, 64)[0] < 0.04  # with short steps the mesh alone errs
    assert rod(1.0, 1.0, 1e-3)[0] < 1e-3 < 0.05 < rod(1.0)[0]


# ---------------------------------------------------------------------- overshoot


def test_a_spike_and_walls_at_400() -> None:
    mesh = box((20, 20))
    p, spike = Problem(mesh, PDE(diffusion=1.0), [], 10 / 400), torch.zeros(441, 1, dtype=torch.float64)
    spike[220] = 1.0
    made = states(p, spike, 5, model=Classical(start=0))
    said = {d.kind: d for d in doubts(p, spike, states=made)}["overshoot"]
    assert said.numbers["size"] == pytest.approx(-float(made.min())) and said.numbers["node"] == 220 and said.numbers["size"] > 0.8
    walls = Problem(mesh, PDE(("T",), diffusion=1.0), [Dirichlet("boundary", 400.0)], 0.05)
    made = states(walls, uniform(mesh, 300.0), 8, model=Classical(start=0))
    (said,) = (d for d in doubts(walls, states=made, units=Units("m", "s", {"T": "K"})) if d.kind == "overshoot")
    step, node = divmod(int(made.argmax()), mesh.n_nodes)
    assert float(made.max()) > 400.5 and said.numbers["node"] == node and said.numbers["time"] == pytest.approx(0.05 * step)
    assert "T exceeds 400 K, the highest that start, conditions and sources allow, by" in said.text


def random_problem(seed: int) -> tuple[Problem, Tensor, Tensor, int]:
    """All kinds of conditions, decay, capacities, sources of both signs, values that change in time."""
    rng = np.random.default_rng(seed)
    mesh, steps = box((6, 5)), 8
    x = torch.tensor(mesh.points)

    def value() -> object:
        a, b, w = rng.uniform(-1, 3, 3)
        return (lambda x, t: a + 0.5 * torch.sin(w * t + x[:, 0])) if rng.random() < 0.5 else float(b)

    rules: list[Condition] = []
    for name in ("left", "right", "top"):
        kind = rng.integers(4)
        flux = float(rng.choice([-1.0, 0.0, 1.0]))
        rules += [[Dirichlet(name, value())], [Robin(name, float(rng.uniform(0, 9)), value())], [Neumann(name, flux)], []][kind]
    capacity = torch.tensor(rng.uniform(0.3, 4, mesh.n_cells)) if rng.random() < 0.5 else 1.0
    pde = PDE(diffusion=float(rng.uniform(0.01, 1)), decay=float(rng.choice([0.0, 2.0])), capacity=capacity)
    start = 2 + torch.sin(rng.uniform(1, 4) * x[:, :1]) * torch.cos(rng.uniform(1, 4) * x[:, 1:])
    source = torch.tensor(float(rng.choice([0.0, 1.0])) * rng.standard_normal((1, steps, mesh.n_nodes, 1)))
    return Problem(mesh, pde, rules, float(rng.choice([0.02, 0.5]))), start, source, steps


@pytest.mark.parametrize("seed", range(40))
def test_what_obeys_the_principle_is_never_blamed(seed: int) -> None:
    """Backward Euler with lumped mass on right angles has the maximum principle, step by step."""
    p, start, source, steps = random_problem(seed)
    made = states(p, start, steps, source, Classical(0.0, theta=1.0))
    assert "overshoot" not in kinds(doubts(p, start, states=made, averages=source))
    worse = made.clone()
    bounds = Bounds(p)
    bounds.sources(0, source[0].numpy())
    for k, u in enumerate(made.numpy()):
        bounds.state(k, u)
    if np.isfinite(bounds.low).all():  # a state that is lowered below the bound is
        worse[-1, 3] = float(bounds.low[0]) - 0.1 * float(bounds.span[1, 0] - bounds.low[0]) - 0.1
        (said,) = (d for d in doubts(p, start, states=worse, averages=source) if d.kind == "overshoot")
        assert said.numbers["node"] == 3 and "falls below" in said.text


def test_no_principle_no_word() -> None:
    mesh = box((6, 5))
    grown = torch.stack([uniform(mesh, 1.0), uniform(mesh, 5.0)])
    for pde in (PDE(reaction=lambda u: u), PDE(decay=-1.0)):
        assert doubts(Problem(mesh, pde, [], 0.1), states=grown) == []
    heated = Problem(mesh, PDE(diffusion=1.0), [Neumann("left", 3.0)], 0.1)
    assert doubts(heated, states=grown) == [] and kinds(doubts(heated, states=grown.flip(0))) == ["overshoot"]
    cooled = Problem(mesh, PDE(diffusion=1.0), [Neumann("left", lambda x, t: -3.0 * t + 0 * x[:, 0])], 0.1)
    assert kinds(doubts(cooled, states=grown)) == ["overshoot"] and doubts(cooled, states=grown.flip(0)) == []
    melting = PDE(diffusion=1.0, capacity=Curve([0.0, 9.0], [2.0, 3.0], name="capacity"))
    source = torch.full((1, mesh.n_nodes, 1), 90.0)
    assert doubts(Problem(mesh, melting, [], 0.1), states=grown, averages=source) == []
    assert kinds(doubts(Problem(mesh, melting, [], 0.1), states=grown, averages=0.5 * source)) == ["overshoot"]


def test_fields_and_batches_each_have_their_bounds() -> None:
    mesh = box((6, 5))
    p = Problem(mesh, PDE(("a", "b"), diffusion=1.0), [Dirichlet("left", 7.0, "b")], 0.1)
    made = torch.zeros(2, 3, mesh.n_nodes, 2)
    made[1, 2, 4] = 6.0
    found = [d for d in doubts(p, states=made) if d.kind == "overshoot"]
    assert len(found) == 1 and found[0].numbers["field"] == "a" and found[0].numbers["bound"] == 0.0


# ---------------------------------------------------------------------- spots and other sources


def test_spots_by_their_width() -> None:
    mesh = box((20, 20), upper=(72.0, 72.0))
    (doubt,) = spot_doubts(mesh, still((30.0, 40.0), 1.0), Units("mm", "s"))
    assert "spot 'laser' has a radius of 1 mm, the mesh a spacing of 3.93 mm" in doubt.text
    assert spot_doubts(mesh, still((30.0, 40.0), 5.0)) == []
    assert [d.kind for d in spot_doubts(mesh, still((300.0, 40.0), 5.0))] == ["missed"]
    assert "wider than the part" in spot_doubts(mesh, still((30.0, 40.0), 500.0))[0].text
    off = SpotTable(("off",), (np.array([0.0, 9.0]),), (np.array([[30.0, 40.0, 1.0, 0.0]] * 2),))
    late = SpotTable(("late",), (np.array([5.0, 9.0]),), (np.array([[30.0, 40.0, 1.0, 1.0]] * 2),))
    assert spot_doubts(mesh, off) == [] and spot_doubts(mesh, late, end=4.0) == [] and spot_doubts(mesh, None) == []
    rules = [Periodic("left", "right")]
    assert "periodic boundary 'left'" in spot_doubts(mesh, still((3.0, 40.0), 5.0), conditions=rules)[0].text
    assert spot_doubts(mesh, still((36.0, 40.0), 5.0), conditions=rules) == []


def test_functions_that_fall_between_the_nodes() -> None:
    mesh = box((12, 12))
    p = Problem(mesh, PDE(diffusion=1.0), [], 0.1)
    for width, resolved in ((0.015, False), (0.15, True)):
        lamp = dg.FunctionSource(lambda x, t, w=width: torch.exp(-((x - 0.46) ** 2).sum(1) / (2 * w**2)))
        found = doubts(p, source=lamp)
        assert kinds(found) == ([] if resolved else ["source"])
    table = torch.rand(mesh.n_nodes)
    assert doubts(p, source=dg.FunctionSource(lambda x, t: table)) == []  # by node: nothing can be said


# ---------------------------------------------------------------------- the mesh


def test_one_layer_of_cells() -> None:
    strip, plate = box((20, 1), upper=(2.0, 0.1)), box((20, 3), upper=(2.0, 0.3))
    for mesh, thin in ((strip, True), (plate, False)):
        held = Problem(mesh, PDE(diffusion=1.0), [Dirichlet("top", 0.0)], 0.1)
        assert ("thin" in kinds(doubts(held))) == thin
        for rule in (Robin("top", 0.1, 0.0), Neumann("top", 1.0), Dirichlet("left", 0.0)):
            found = doubts(Problem(mesh, PDE(diffusion=1.0), [rule], 0.1))
            assert "thin" not in kinds(found), rule  # nothing to bend
    solid = Problem(box((6, 6, 1), upper=(1.0, 1.0, 0.1)), PDE(diffusion=1.0), [Robin("front", 50.0, 0.0)], 0.1)
    assert "% of the part is one cell thick" in doubts(solid)[0].text


def test_a_coating_of_one_layer() -> None:
    mesh = box((12, 12))
    for layers, said in ((1, True), (3, False)):
        inside = mesh.centroids[:, 1] > 1 - layers / 12
        named = Mesh(mesh.points, mesh.cells, mesh.boundaries, {"coating": np.flatnonzero(inside)})
        k = torch.tensor(np.where(inside, 50.0, 1.0))
        assert ("region" in kinds(doubts(Problem(named, PDE(diffusion=k), [], 0.1)))) == said
        assert doubts(Problem(named, PDE(diffusion=1.0), [], 0.1)) == []  # the same material


def test_flat_cells() -> None:
    points = np.array([[0, 0], [1, 0], [1, 1], [0, 1], [0.5, 0.0005]])
    mesh = Mesh(points, [[0, 4, 3], [4, 2, 3], [4, 1, 2], [0, 1, 4]])
    assert "1 of 4 cells are nearly flat" in cell_doubts(mesh)[0].text and not cell_doubts(box((3, 3)))


# ---------------------------------------------------------------------- the commands

PROBLEM = """
problem = { name = "plate", fields = ["T"], dt = 5.0, offset = { T = 293.0 } }
units = { length = "m", time = "s", T = "K" }
mesh = { file = "plate.msh" }
pde = { conductivity = 15.0, density = 8000, capacity = 450 }
[[boundary]]
name = "left"
kind = "dirichlet"
value = 353.0
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    dg.save_mesh(box((20, 20), upper=(0.08, 0.08)), tmp_path / "plate.msh")
    (tmp_path / "problem.toml").write_text(PROBLEM)
    (tmp_path / "laser.csv").write_text("t,x,y,radius,power\n0,0.03,0.05,0.001,1e8\n40,0.05,0.05,0.001,1e8\n")
    return tmp_path


def test_simulate_says_it_and_writes_it(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for model in ("universal", "classical", "quadratic"):
        command = ["dgnet", "simulate", folder, "--model", model, "--source", folder / "laser.csv", "--steps", 8, "--json",
                   folder / "found.json"]
        monkeypatch.setattr("sys.argv", [str(word) for word in command])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        shown, found = capsys.readouterr().out, json.loads((folder / "found.json").read_text())
        assert stop.value.code == 0 and {"spots"} <= {d["kind"] for d in found["doubts"]}
        assert "Warning: the spot has a radius of 0.001 m, the mesh a spacing of" in shown


def test_an_interrupted_run_says_what_a_whole_one_says(folder: Path) -> None:
    def run(out: str, stop_at: int = 99) -> dict:
        def sink(k: int, u: np.ndarray) -> None:
            if k == stop_at:
                raise KeyboardInterrupt

        return predict_to_files(simulator(folder, "classical"), source=folder / "laser.csv", initial=folder / "spike.npy", steps=30,
                        out=folder / out, sink=sink)

    np.save(folder / "spike.npy", np.where(np.arange(441) == 220, 400.0, 293.0))
    whole = run("whole.h5")["doubts"]
    with pytest.raises(KeyboardInterrupt):
        run("part.h5", 20)
    again = run("part.h5")
    assert again["doubts"] == whole and whole


def test_quiet_where_there_is_nothing_to_say(folder: Path) -> None:
    (folder / "problem.toml").write_text(PROBLEM.replace("value = 353.0", "value = 293.0"))
    (folder / "laser.csv").write_text("t,x,y,radius,power\n0,0.03,0.05,0.012,1e6\n40,0.05,0.05,0.012,1e6\n")
    for model in ("universal", "classical", "quadratic"):
        assert predict_to_files(simulator(folder, model), source=folder / "laser.csv", steps=8)["doubts"] == []

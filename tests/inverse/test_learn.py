"""Training from readings at points alone: coefficients, a reaction, terms, curves, corrections of the operator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dgnet.cli import app
from dgnet.discovery.found import reaction_curve
from dgnet.errors import InputError
from dgnet.inverse import Point, Readings
from dgnet.inverse.fit_to_readings import Experiment, learn
from dgnet.mesh import Mesh, box, save
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.problems import PDE, Condition, Dirichlet, Problem
from dgnet.training import run as runs

Tensor = torch.Tensor
DT, STEPS, MESH, FINE = 0.2, 12, box((6, 6)), box((24, 24))
SENSORS = tuple(Point((a, b), f"s{k}{j}") for k, a in enumerate((0.2, 0.5, 0.8)) for j, b in enumerate((0.25, 0.75)))
MIDDLES = ((0.3, 0.3), (0.7, 0.5), (0.5, 0.8))


def bump(mesh_points: np.ndarray, middle: Sequence[float], width: float = 0.05) -> Tensor:
    return torch.exp(-(torch.tensor(mesh_points) - torch.tensor(middle)).square().sum(1) / width)[:, None]


def problem(pde: PDE, mesh: Mesh = MESH, conditions: Sequence[Condition] = ()) -> Problem:
    return Problem(mesh, pde, list(conditions), DT)


def experiments(true: Problem, noise: float = 0.005, heated: bool = False) -> list[Experiment]:
    """Noisy readings of the classical solver on the mesh of the truth."""
    found = []
    for k, middle in enumerate(MIDDLES):
        def begun(x: np.ndarray, middle: Sequence[float] = middle) -> tuple[Tensor, Tensor | None]:
            """Heated from 0, or from a bump on."""
            heat = 3 * bump(x, middle, 0.02)[None].repeat(STEPS, 1, 1) if heated else None
            return (0 * bump(x, middle) if heated else 0.1 + 0.8 * bump(x, middle)), heat

        start, heat = begun(true.mesh.points)
        states = rollout(Classical(), true, start[None], None if heat is None else heat[None], STEPS)
        seen = true.mesh.interpolate(states[0], [s.place for s in SENSORS])[..., 0]
        seen = seen + noise * np.ptp(seen) * np.random.default_rng(k).standard_normal(seen.shape)
        found.append(Experiment(Readings(DT * np.arange(STEPS + 1), seen, SENSORS), *begun(MESH.points)))
    return found


def test_a_coefficient() -> None:
    guess = problem(PDE(diffusion=0.02))
    model = DGNet(DGNetConfig(decoder="none", network=False, calibrate=("diffusion",)), guess).double()
    found = learn(model, guess, experiments(problem(PDE(diffusion=0.03))))
    factor, sd = model.coefficients()["diffusion"], found.sd["diffusion"]
    assert factor == pytest.approx(1.5, rel=0.03) and abs(np.log(factor / 1.5)) < 3 * sd < 0.05
    assert found.after < 0.3 * found.before and found.held is None and not found.notes


@pytest.mark.slow
def test_a_reaction_of_one_field() -> None:
    guess = problem(PDE(diffusion=0.01))
    model = DGNet(DGNetConfig(decoder="none", network=False, reaction="learned", reaction_table=8), guess).double()
    found = learn(model, guess, experiments(problem(PDE(diffusion=0.01, reaction=lambda u: 2 * u * (1 - u)))))
    curve = reaction_curve(model)
    assert curve is not None
    inside = (curve.u > 0.15) & (curve.u < 0.9)
    off = curve.r - 2 * curve.u * (1 - curve.u)
    assert np.abs(off[inside]).max() < 0.05 and (np.abs(off[inside]) < 3 * curve.deviation[inside]).mean() > 0.9
    assert found.after < 0.05 * found.before and 2 < found.determined < 10


def test_corrections_of_the_operator_are_judged_by_readings_held_out() -> None:
    """The truth is that of a mesh with a quarter of the spacing: the coarse operator is wrong by 12% of the readings."""
    cold = [Dirichlet("left", 0.0)]
    guess = problem(PDE(diffusion=0.01), conditions=cold)
    torch.manual_seed(0)
    model = DGNet(DGNetConfig(free=False, hidden=16, layers=1), guess).double()
    found = learn(model, guess, experiments(problem(PDE(diffusion=0.01), FINE, cold), noise=0.002, heated=True), seconds=2.0)
    assert found.held is not None and found.held[1] < 0.7 * found.held[0] and found.after < found.before
    with pytest.raises(InputError, match="no experiment"):
        learn(model, guess, [])


def test_the_command_makes_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("problem.toml").write_text('problem = { name = "plate", fields = ["u"], dt = 0.2 }\nmesh = { file = "plate.npz" }\n'
                                    'pde = { diffusion = 0.02, calibrate = ["diffusion"] }\nmodel = { decoder = "none" }\n')
    save(MESH, Path("plate.npz"))
    Path("sensors.csv").write_text("sensor,x,y\n" + "".join(f"{s.name},{s.place[0]},{s.place[1]}\n" for s in SENSORS))
    words = []
    for k, e in enumerate(experiments(problem(PDE(diffusion=0.03)))):
        rows = "".join(f"{t}," + ",".join(map(str, row)) + "\n" for t, row in zip(e.readings.times, e.readings.values))
        Path(f"r{k}.csv").write_text(f"t,{','.join(s.name for s in SENSORS)}\n{rows}")
        np.save(f"u{k}.npy", e.start.numpy())
        words += ["--readings", f"r{k}.csv", "--initial", f"u{k}.npy"]
    done = CliRunner().invoke(app, ["train", ".", "--out", "run", "--sensors", "sensors.csv", *words], catch_exceptions=False)
    assert done.exit_code == 0 and "times the value in problem.toml" in done.output, done.output
    run = runs.Run.open(Path("run"))
    assert run.dgnet.coefficients()["diffusion"] == pytest.approx(1.5, rel=0.03)
    rolled = CliRunner().invoke(app, ["rollout", "run", "--initial", "u0.npy", "--steps", "4", "--out", "out.h5"],
                                catch_exceptions=False)
    assert rolled.exit_code == 0, rolled.output
    for more, what in ((["--sensors", "sensors.csv"], "belongs to --readings"),
                       (["--readings", "r0.csv"], "needs the folder of a problem and a table of --sensors"),
                       (["--readings", "r0.csv", "--sensors", "sensors.csv", "--model", "mgn"], "--model does not apply here"),
                       (["--readings", "r0.csv", "--sensors", "sensors.csv", *["--initial", "u0.npy"] * 3], "3 times for 1")):
        with pytest.raises(InputError, match=what):
            CliRunner().invoke(app, ["train", ".", "--out", "other", *more], catch_exceptions=False)

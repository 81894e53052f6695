"""Steps as short as a tolerance asks for: errors follow it, stored times stay, commands say what was done."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import dgnet as dg
from dgnet.errors import InputError, SolveError
from dgnet.models import Adaptive, Refined
from dgnet_paper.model import PaperConfig
from tests.projects.conftest import command

F64 = torch.float64
TOML = """
[problem]
fields = ["u"]
dt = 0.5
offset = { u = 1.0 }
[mesh]
shape = "rectangle"
size = [1, 1]
spacing = 0.25
[pde]
diffusion = 0.05
reaction = { function = "pull" }
[[boundary]]
name = "left"
kind = "dirichlet"
value = 2.0
"""


def wave(x: torch.Tensor) -> torch.Tensor:
    return torch.cos(torch.pi * x[:, :1])[None]


@pytest.mark.parametrize("reaction", [None, lambda u: -10 * u**3], ids=["linear", "reaction"])
def test_the_error_follows_the_tolerance(reaction) -> None:
    problem = dg.Problem(dg.box((8, 1)), dg.PDE(diffusion=0.2, reaction=reaction), [], dt=0.5)
    start = wave(torch.tensor(problem.mesh.points))
    short = dg.Problem(problem.mesh, problem.pde, problem.conditions, dt=0.5 / 256)
    with torch.no_grad():
        exact = dg.rollout(dg.Classical(), short, start, steps=256)[:, ::256]
        errors, taken = [], []
        for tolerance in (1e-2, 1e-3, 1e-4):
            model = Adaptive(dg.Classical(), tolerance)
            states = dg.rollout(model, problem, start, steps=1)
            assert states.shape == exact.shape
            errors.append(float((states - exact).abs().max() / (exact.max() - exact.min())))
            taken.append(model.taken)
    assert all(e < 3 * tolerance for e, tolerance in zip(errors, (1e-2, 1e-3, 1e-4)))
    assert errors[2] < errors[0] / 2 and taken[0] <= taken[1] < taken[2]


def test_steps_become_longer_again_and_short_only_where_needed() -> None:
    """A front that dies out within a tenth of the time."""
    problem = dg.Problem(dg.box((8, 1)), dg.PDE(diffusion=0.0, reaction=lambda u: -20 * u), [], dt=1.0)
    model = Adaptive(dg.Classical(), 1e-3)
    with torch.no_grad():
        last = dg.rollout(model, problem, torch.ones(1, problem.mesh.n_nodes, 1, dtype=F64), steps=3)
    assert float(last[:, 1:].abs().max()) < 1e-3
    assert model.taken < 0.5 * 3 / model.shortest  # even steps would be this many


def test_quadratic_elements_a_learned_model_and_a_tolerance_out_of_reach() -> None:
    problem = dg.Problem(dg.box((4, 1)), dg.PDE(diffusion=0.2), [], dt=0.5)
    start = wave(torch.tensor(problem.mesh.points))
    with torch.no_grad():
        plain = dg.rollout(Adaptive(dg.Classical(), 1e-4), problem, start, steps=2)
        single = dg.Problem(problem.mesh, problem.pde, [], dt=0.5, dtype=torch.float32)
        learned = dg.rollout(Adaptive(dg.DGNet(dg.DGNetConfig(hidden=4, layers=1), single), 1e-4), single, start.float(), steps=2)
        quadratic = Adaptive(dg.Classical(degree=2), 1e-4)
        better = dg.rollout(quadratic, problem, wave(torch.tensor(quadratic.points(problem))), steps=2)
    assert learned.dtype == torch.float32 and torch.allclose(learned.double(), plain, atol=1e-5)
    exact = start[0] * torch.exp(torch.tensor(-0.2 * torch.pi**2))
    assert float((better[0, -1] - exact).norm()) < 0.3 * float((plain[0, -1] - exact).norm())
    with pytest.raises(SolveError, match="still miss the tolerance"):
        dg.rollout(Adaptive(dg.Classical(), 1e-16), problem, start, steps=1)
    with pytest.raises(InputError, match="must lie between 0 and 1"):
        Adaptive(dg.Classical(), 2.0)
    with pytest.raises(InputError, match="adaptive already"):
        Adaptive(Adaptive(dg.Classical(), 1e-2), 1e-3)


def test_models_whose_corrections_are_for_one_length_of_step_are_refused() -> None:
    """Universal weights under halved steps had four times the error of even ones, and lost half a percent of a source."""
    problem = dg.Problem(dg.box((4, 1)), dg.PDE(diffusion=0.2), [], dt=0.5)
    residual = dg.DGNet(PaperConfig(hidden=4, layers=1, residual=True), problem)
    for model in (dg.Universal(), dg.Universal(degree=2), Refined(dg.Universal()), residual,
                  dg.DGNet(dg.DGNetConfig(early_steps=2), problem)):
        with pytest.raises(InputError, match="cannot be adaptive"):
            Adaptive(model, 1e-3)
    assert Adaptive(Refined(dg.Classical(degree=2)), 1e-3).solves


def test_reactions_that_are_fast_against_the_step_of_a_material() -> None:
    """c(T) T' = -50 (T - 20) with c = 1 + T/50: c0 log(T - 20) + (T - 20)/50 falls by 50 t, c0 = 1.4. Steps that are not adaptive
    would grow without bound inside of the table, so they are refused."""
    wide = dg.Curve([-1e6, 0.0, 100.0, 1e6], [1.0, 1.0, 3.0, 3.0], name="capacity")
    pde = dg.PDE(("T",), diffusion=dg.Curve([-1e6, 1e6], [1.0, 1.0], name="conductivity"), capacity=wide,
                 reaction=lambda u: -50 * (u - 20))
    problem, start = dg.Problem(dg.box((2, 2)), pde, [], dt=0.1), torch.full((2, 9, 1), 80.0, dtype=F64)
    with pytest.raises(SolveError, match=r"too fast for steps of 0\.1"):
        dg.rollout(dg.Classical(), problem, start, steps=4)
    last = float(dg.rollout(Adaptive(dg.Classical(), 1e-5), problem, start, steps=1)[1, -1, 0, 0]) - 20
    fallen = 1.4 * torch.tensor(60 / last).log() + (60 - last) / 50
    assert abs(float(fallen) - 5.0) < 0.01


def test_a_step_that_leaves_a_table_is_tried_again() -> None:
    """One step of two seconds overshoots below zero, where the table ends; the solution does not."""
    k = dg.Curve([0.0, 100.0], [1.0, 2.0], name="conductivity")
    problem = dg.Problem(dg.box((4, 4)), dg.PDE(("T",), diffusion=k), [dg.Robin("boundary", 5.0, 10.0)], dt=2.0)
    start = torch.full((1, 25, 1), 90.0, dtype=F64)
    with pytest.raises(InputError, match="conductivity begins at 0"):
        dg.rollout(dg.Classical(start=0), problem, start, steps=1)
    assert float(dg.rollout(Adaptive(dg.Classical(start=0), 1e-2), problem, start, steps=1).min()) > 9.9
    with pytest.raises(InputError, match="conductivity ends at 100"):
        dg.rollout(Adaptive(dg.Classical(), 1e-2), problem, start + 20, steps=1)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "problem.toml").write_text(TOML)
    (tmp_path / "physics.py").write_text("def pull(u):\n    return 4 * (1 - u)\n")
    call = ("simulate", tmp_path, "--steps", 2, "--adaptive", 1e-2)
    assert command(monkeypatch, *call, "--model", "classical") == 0
    said = capsys.readouterr().out
    assert "2 steps of 0.5" in said and "kept the tolerance 0.01" in said
    assert command(monkeypatch, *call) == 2
    assert "universal weights correct steps of one length" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["dg1", "dg2"])
@pytest.mark.parametrize("kind", ["cooled", "held", "jump", "held jump", "lamp", "quadratic"])
def test_steps_longer_than_stored_ones(kind: str, scheme: str) -> None:
    """128 stored steps by a fraction of as many, within the tolerance of steps four times shorter, wherever the rollout is cut."""
    conditions = {"cooled": [dg.Robin("left", 1.0, 0.0)], "held": [dg.Dirichlet("left", lambda x, t: np.sin(2 * t) + x[:, 1])],
                  "jump": [dg.Robin("left", 5.0, dg.TimeTable([0.0, 1.0, 1.0], [0.0, 0.0, 2.0]))],
                  "held jump": [dg.Dirichlet("left", dg.TimeTable([0.0, 1.01, 1.01], [0.0, 0.0, 2.0]))]}.get(kind, [])
    mesh, steps, end = dg.box((6, 4), perturb=0.2), 128, 4.0
    p, degree = dg.Problem(mesh, dg.PDE(diffusion=0.1), conditions, end / steps), 2 if kind == "quadratic" else 1
    fine, base = replace(p, dt=p.dt / 4), dg.Classical(scheme=scheme, backend="lu", degree=degree)
    x, glow = torch.tensor(base.points(p)), dg.FunctionSource(lambda x, t: np.sin(2 * t) * x[:, 0])
    start = torch.cos(torch.pi * x[:, :1])[None]
    f = dg.step_average(glow, x, torch.arange(steps, dtype=F64) * p.dt, p.dt) if kind == "lamp" else None
    with torch.no_grad():
        exact = dg.rollout(replace(base, scheme="dg2"), fine, start, None if f is None else f.repeat_interleave(4, 1),
                           steps=4 * steps)[:, ::4]
        model = Adaptive(base, 1e-3)
        found = dg.rollout(model, p, start, f, steps=steps)
        assert float((found - exact).abs().max()) < 5e-3 * float(exact.max() - exact.min())
        assert model.taken < (110 if scheme == "dg1" else 70) or "jump" in kind  # which costs a hundred short steps of dG(1)
        if f is None:
            for cut in (3, 50):
                first, pause = dg.rollout(model, p, start, steps=cut, pause=True)
                assert torch.equal(torch.cat([first, dg.rollout(model, p, pause, steps=steps - cut)[:, 1:]], 1), found)
    u = start.clone().requires_grad_()
    dg.rollout(model, p, u, None if f is None else f[:, :8], steps=8).sum().backward()
    assert u.grad is not None and float(u.grad.abs().max()) > 0


@torch.no_grad()
@pytest.mark.parametrize("change", ["source", "held value"])
def test_a_pause_within_a_long_step_meets_what_is_new(change: str) -> None:
    """A source or a boundary value that begins after a pause acts at once, not where the polynomial of the long step ends."""
    p = dg.Problem(dg.box((6, 6)), dg.PDE(diffusion=0.1), [dg.Dirichlet("left", 0.0)], dt=0.001)
    x = torch.tensor(p.mesh.points)
    start = (torch.sin(3 * x[:, :1]) * torch.cos(2 * x[:, 1:]))[None]
    model = Adaptive(dg.Classical(scheme="dg2"), 1e-3)
    _, pause = dg.rollout(model, p, start, steps=33, pause=True)
    assert "course" in pause.memory
    f = torch.full((1, 20, len(x), 1), 50.0, dtype=F64) if change == "source" else None
    p = p if f is not None else replace(p, conditions=[dg.Dirichlet("left", 1.0)])
    exact = dg.rollout(dg.Classical(), p, pause.values, f, steps=20)
    assert float((dg.rollout(model, p, pause, f, steps=20) - exact).abs().max()) < 0.02

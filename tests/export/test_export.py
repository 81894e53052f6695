"""`dgnet export`: the step as a program that runs without the package, and matches it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import meshio
import numpy as np
import pytest
import torch

from dgnet import cli
from dgnet.errors import InputError
from dgnet.export import Solve, Step, export
from dgnet.export import plain as module
from dgnet.export.record import probe
from dgnet.mesh import box
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.models.registry import configure, entry
from dgnet.operators import EdgeMatrix
from dgnet.problems import PDE, Case, Dirichlet, Neumann, Periodic, Problem, Robin, Units, base_problem
from dgnet.recipe import Recipe, Stage
from dgnet.stepping.bounds import Bounds
from dgnet.training.plan import Plan
from dgnet.training.run import Run, train
from dgnet.training.simulator import Simulator
from dgnet_paper.model import PaperConfig
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.generate import generate

Tensor = torch.Tensor

# what a user without dgnet does; isolated (-I), and the package cannot be found even by accident
OUTSIDE = """
import sys
sys.modules["dgnet"] = None
import torch
folder = sys.argv[1]
data = torch.load(f"{folder}/data.pt", weights_only=True)
step = torch.export.load(f"{folder}/step.pt2").module()
u = data["u"]
for f in data["sources"]:
    u = step(u, f)
assert not any(name.startswith("dgnet.") for name in sys.modules)
torch.save(u, f"{folder}/out.pt")
"""


def outside(folder: Path, u: Tensor, sources: list[Tensor]) -> Tensor:
    torch.save({"u": u, "sources": sources}, folder / "data.pt")
    done = subprocess.run([sys.executable, "-I", "-c", OUTSIDE, str(folder)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "out.pt", weights_only=True)


def close(a: Tensor, b: Tensor) -> bool:
    return float((a - b).abs().max()) <= 1e-5 * float(b.abs().max())


def reaction(u: Tensor) -> Tensor:
    return u - u**3


def coupled(u: Tensor) -> Tensor:
    a, b = u[..., 0], u[..., 1]
    return torch.stack([a - a**3 - b, 0.5 * a.clamp(min=0.0) - b], -1)


def saturated(model: DGNet, seed: int = 0) -> DGNet:
    """Weights of every learned part away from zero."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=g))
        model.mean.fill_(0.2)
        model.rate.fill_(0.5)
    return model


CASES = {
    "diffusion": (PDE(diffusion=0.05), (), DGNetConfig(hidden=8, layers=1)),
    "walls": (PDE(("u", "v"), diffusion={"u": 0.05, "v": 0.2}, decay=0.3),
              (Dirichlet("left", 1.5), Dirichlet("top", 0.5, "v"), Robin("right", 2.0, 0.4), Neumann("bottom", 0.7)),
              DGNetConfig(hidden=8, layers=1, free=True)),
    "reaction": (PDE(diffusion=0.02, reaction=reaction), (Dirichlet("left", 0.3),), DGNetConfig(hidden=8, layers=1)),
    "learned": (PDE(("u", "v"), diffusion=0.02), (Periodic("left", "right"),),
                DGNetConfig(hidden=8, layers=1, reaction="learned", reaction_hidden=8)),
    "flow": (PDE(diffusion=0.02, velocity=(0.7, 0.3)), (Dirichlet("left", 1.0),),
             DGNetConfig(hidden=8, layers=1, learn_streamline=True, learn_swirl=True)),
    "edge": (PDE(diffusion=0.05), (), PaperConfig(decoder="edge", hidden=8, layers=1, consistent=0.0)),
    "fields": (PDE(("u", "v"), diffusion=0.02, reaction=coupled), (), DGNetConfig(hidden=8, layers=1)),
    "quick": (PDE(("u", "v"), diffusion={"u": 0.05, "v": 0.2}), (Dirichlet("top", 0.5, "v"),), DGNetConfig(hidden=8, layers=1)),
    "stiff": (PDE(diffusion=4.0), (), DGNetConfig(hidden=8, layers=1)),
    "calibrated": (PDE(diffusion=0.05, decay=0.4), (Robin("left", 0.5, 1.0),),
                   DGNetConfig(hidden=8, layers=1, calibrate=("diffusion", "decay", "convection"))),
    "space": (PDE(diffusion=0.05), (Dirichlet("left", 1.0),), DGNetConfig(hidden=8, layers=1)),
}


@pytest.mark.parametrize("case", CASES)
def test_plain_form_is_the_step(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if case != "quick":
        monkeypatch.setattr(module, "_QUICK", 0)  # or the few nodes of a test would always have the explicit inverse
    if case == "stiff":
        monkeypatch.setattr(module, "_UNROLLED", 20)
    pde, conditions, config = CASES[case]
    mesh = box((3, 3, 3), perturb=0.2) if case == "space" else box((7, 6), perturb=0.0 if case == "learned" else 0.2)
    problem = Problem(mesh, pde, conditions, 0.05, dtype=torch.float32)
    torch.manual_seed(1)
    model = saturated(DGNet(config, problem))
    with torch.no_grad():
        state = model.prepare(problem)
        state.settle()
        step = Step(state.solver, model.reaction_net if config.reaction == "learned" else None)
        u, f = probe(model, problem, 3)
        assert close(step(u, f), state.step(u, f, 0.0, 1))
        assert close(step(step(u, f), f), state.step(state.step(u, f, 0.0, 1), f, problem.dt, 2))
        assert close(step(u, 0 * f), state.step(u, None, 0.0, 1))
    assert ("dense" in step.solve.label) == (case in ("stiff", "quick"))


def test_too_stiff_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_DENSE", 10)
    problem = Problem(box((7, 6)), PDE(diffusion=1.0), (), 0.05, dtype=torch.float32)
    flat = EdgeMatrix(problem.mass.pattern, problem.mass.values[:, 0])
    with pytest.raises(InputError, match="too stiff"):
        Solve(flat, Bounds(1e-9, 2.0), torch.float32)


# ---------------------------------------------------------------------- whole runs


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(get("laser-heat", "small"), tmp_path_factory.mktemp("data"), truth="same-mesh", trajectories=2)


def trained(data: Path, folder: Path, model: str = "dgnet", config: object = None) -> Path:
    recipe = Recipe("short", (Stage(3, 3, batch=2, lr=1e-2),), hold_out=1)
    plan = Plan(configure(model) if config is None else config, recipe, model=model)
    train(get("laser-heat", "small"), "same-mesh", data, folder, plan)
    return folder


def test_a_run_steps_without_the_package(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained(data, tmp_path / "run", config=DGNetConfig(hidden=8, layers=1))
    out = tmp_path / "there" / "step.pt2"
    monkeypatch.setattr("sys.argv", ["dgnet", "export", str(folder), "--out", str(out), "--json", str(tmp_path / "x.json")])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code
    assert all(name in capsys.readouterr().out for name in ("step.pt2",))
    assert sorted(p.name for p in out.parent.iterdir()) == ["step.json", "step.pt2", "step.vtu"]
    about = json.loads((out.parent / "step.json").read_text())
    scenario, run = get("laser-heat", "small"), Run.open(folder)
    assert about["dt"] == scenario.dt and about["fields"] == ["T"] and about["offset"] == [298.15] and about["batch"] is None
    assert about["training_range"]["fields"]["T"]["state"]["high"] > 310 and about == json.loads((tmp_path / "x.json").read_text())
    assert np.allclose(meshio.read(out.parent / about["mesh"]).points[:, :2], scenario.mesh.points)
    problem = base_problem(scenario, "cpu")
    with torch.no_grad():
        for batch in (1, 4):
            state = run.model.prepare(problem, batch)
            state.settle()
            u, _ = probe(run.model, problem, batch)
            sources = [probe(run.model, problem, batch)[1] * k for k in (1.0, 0.0, 2.0)]
            expected = u
            for k, f in enumerate(sources):
                expected = state.step(expected, f, k * scenario.dt, k)
            if batch == 1:
                found, step = u, torch.export.load(out).module()
                for f in sources:
                    found = step(found, f)
            else:
                found = outside(out.parent, u, sources)
            assert close(found, expected)


def test_a_baseline_is_traced_as_it_is(data: Path, tmp_path: Path) -> None:
    run = Run.open(trained(data, tmp_path / "run", "mgn", replace(entry("mgn").settings["comparable"], hidden=16)))
    result = export(run, tmp_path / "step.pt2", batch=2)
    assert result.record["batch"] == 2 and not result.extra
    problem = base_problem(run.case, "cpu")
    u, f = probe(run.model, problem, 2)
    with torch.no_grad():
        expected = run.model.prepare(problem).step(u, f, 0.0, 1)
    found = torch.export.load(tmp_path / "step.pt2").module()(u, f)
    assert close(found.detach(), expected)


def fake(pde: PDE, conditions: tuple = (), folder: Path = Path("nowhere")) -> Simulator:
    """A run that was never trained."""
    case = Case(name="mine", title="Heat in a box", equation="", build_mesh=lambda: box((4, 4)), pde=pde, conditions=conditions,
                dt=0.05, steps=100, offset=(298.15,) * len(pde.fields), units=Units())
    return Simulator(case=case, model=DGNet(DGNetConfig(hidden=8, layers=1, start=0), base_problem(case, "cpu")), folder=folder)


def test_what_cannot_be_exported_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must end in"):
        export(fake(PDE(diffusion=0.1)), tmp_path / "step.pt")
    with pytest.raises(InputError, match="changes in time"):
        export(fake(PDE(diffusion=0.1), (Dirichlet("left", lambda x, t: x[:, 0] + t),)), tmp_path / "step.pt2")
    with pytest.raises(InputError, match="changes in time"):
        export(fake(PDE(diffusion=0.1, velocity=lambda t: torch.ones(16, 2) * t)), tmp_path / "step.pt2")

    def branching(u: Tensor) -> Tensor:
        return u if float(u.max()) > 0 else -u

    with pytest.raises(InputError, match="cannot be traced") as caught:
        export(fake(PDE(diffusion=0.1, reaction=branching)), tmp_path / "step.pt2")
    assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())


def test_a_program_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Step.advanced
    monkeypatch.setattr(Step, "advanced", lambda self, u, right: 1.001 * original(self, u, right))
    with pytest.raises(InputError, match="would differ"):
        export(fake(PDE(diffusion=0.1)), tmp_path / "step.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("config, words", [
    (DGNetConfig(hidden=8, layers=1, learn_start=True), "a filter of its start"),
    (DGNetConfig(hidden=8, layers=1, early_steps=2), "early steps"),
    (PaperConfig(hidden=8, layers=1, residual=True), "a network of states"),
])
@pytest.mark.parametrize("kind", ["pt2", "onnx"])
def test_a_program_holds_one_step(kind: str, config: DGNetConfig, words: str, tmp_path: Path) -> None:
    run = fake(PDE(diffusion=0.1))
    run = replace(run, model=saturated(DGNet(config, base_problem(run.case, "cpu"))))
    with pytest.raises(InputError, match=f"{words}.*a program holds one step"):
        export(run, tmp_path / f"step.{kind}")
    assert not list(tmp_path.iterdir())

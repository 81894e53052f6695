"""`dgnet export --out step.c`: a C file that compiles without a warning and makes the same states as the library."""

import ctypes
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dgnet import cli
from dgnet.errors import InputError
from dgnet.export import c_file, export
from dgnet.export.c_file import FLAGS, Compiled, find_compiler, written
from dgnet.export.record import probe
from dgnet.mesh import box
from dgnet.mesh.io import save as save_mesh
from dgnet.models import Classical, Model, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.models.universal import Universal
from dgnet.problems import PDE, Dirichlet, Neumann, Periodic, Robin
from dgnet.problems.case import base_problem
from dgnet.problems.spot_table import SpotTable
from dgnet.training.simulator import Simulator
from dgnet_paper.model import PaperConfig
from tests.export.test_export import fake, reaction, saturated
from tests.prediction.test_simulate import PROBLEM

compiler = find_compiler() or ""
pytestmark = pytest.mark.skipif(not compiler, reason="no C compiler")
Tensor = torch.Tensor


def growth(u: Tensor) -> Tensor:
    """Two fields, with what reactions use: powers, clamps, functions, slices, a choice."""
    a, b = u[..., 0], u[..., 1:].squeeze(-1)
    first = torch.where(a > 0.1, a.clamp(min=0.0) * (1 - a) - a * b, torch.tanh(a)) + 0.1 * torch.exp(-(b**2))
    return torch.stack([first, 0.5 * torch.sin(a) - 0.3 * b.abs().sqrt()], -1)


CASES = {
    "walls": (PDE(("u", "v"), diffusion={"u": 0.05, "v": 0.2}, decay=0.3),
              (Dirichlet("left", 1.5), Dirichlet("top", 0.5, "v"), Robin("right", 2.0, 0.4), Neumann("bottom", 0.7)),
              DGNetConfig(hidden=8, layers=1, free=True)),
    "known": (PDE(("u", "v"), diffusion=0.02, reaction=growth), (Periodic("left", "right"),), DGNetConfig(hidden=8, layers=1)),
    "network": (PDE(("u", "v"), diffusion=0.02), (), DGNetConfig(hidden=8, layers=1, reaction="learned", reaction_hidden=12)),
    "table": (PDE(diffusion=0.02, capacity=3.0), (), DGNetConfig(hidden=8, layers=1, reaction="learned", reaction_table=8,
                                                                  odd_reaction=True)),
    "flow": (PDE(diffusion=0.02, velocity=(0.7, 0.3), reaction=reaction), (Dirichlet("left", 1.0),),
             DGNetConfig(hidden=8, layers=1, learn_streamline=True, learn_swirl=True)),
    "start": (PDE(diffusion=0.05, reaction=reaction), (), DGNetConfig(hidden=8, layers=1, learn_start=True, early_steps=3)),
    "iteration": (PDE(diffusion=0.05), (Dirichlet("left", 1.0),), DGNetConfig(hidden=8, layers=1, learn_start=True, early_steps=3)),
    "classical": (PDE(diffusion=0.05), (Robin("right", 2.0, 0.4),), None),
    "universal": (PDE(diffusion=0.05), (Robin("right", 2.0, 0.4), Dirichlet("top", 1.0)), None),
}


def run_of(case: str) -> Simulator:
    pde, conditions, config = CASES[case]
    run = fake(pde, conditions)
    scenario = replace(run.case, build_mesh=lambda: box((7, 6), perturb=0.0 if case == "known" else 0.2))
    torch.manual_seed(1)
    if config is None:
        return replace(run, case=scenario, model=Universal() if case == "universal" else Classical(start=0))
    model = saturated(DGNet(replace(config, start=0), base_problem(scenario, "cpu")))
    if config.reaction_table:
        model.fit_statistics(torch.randn(2, 3, 56, 1), None, 0.05)
    return replace(run, case=scenario, model=model)


@pytest.mark.parametrize("case", CASES)
def test_the_c_file_is_the_step(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if case == "iteration":
        monkeypatch.setattr(c_file, "_TOUCHED", 0.0)
    run = run_of(case)
    problem = base_problem(run.case, "cpu")
    made = written(run, problem, "mine")
    u, f = (0.3 * x for x in probe(run.model, problem, 1))  # larger ones would make u - u^3 fast, and the library implicit
    with torch.no_grad():
        expected = rollout(run.model, problem, u, f[:, None].expand(-1, 100, -1, -1), 100)
    for real in ("double", "float"):
        c = Compiled(made, tmp_path, compiler, real)
        assert not c.messages  # of FLAGS: -Wall -Wextra -pedantic
        c.array("state", u.numel())[:] = u.numpy().ravel()
        c.array("source", u.numel())[:] = f.numpy().ravel()
        for k in range(1, 101):
            c.step()
            if k in (1, 3, 4, 100):
                found = torch.from_numpy(c.array("state", u.numel()).copy()).view(u.shape)
                assert float((found - expected[:, k]).abs().max()) <= 1e-5 * float(expected.abs().max()), (real, k)
        c.close()
    assert (made.solver == "direct") == (case != "iteration")
    assert ("#define EDGES 0\n" in made.source) == (case != "universal")


def test_boundary_values_change_on_the_way(tmp_path: Path) -> None:
    conditions = (Dirichlet("left", 1.5), Robin("right", 2.0, 0.4), Neumann("bottom", 0.7))
    changed = (Dirichlet("left", -0.5), Robin("right", 2.0, 3.0), Neumann("bottom", 0.0))
    run, other = fake(PDE(diffusion=0.1), conditions), fake(PDE(diffusion=0.1), changed)
    run, other = replace(run, model=Classical(start=0)), replace(other, model=Classical(start=0))
    problem = base_problem(run.case, "cpu")
    made = written(run, problem, "mine")
    assert [b.name for b in made.boundaries] == ["left_value", "right_ambient", "bottom_flux"]
    c = Compiled(made, tmp_path, compiler)
    c.step()
    for k, value in enumerate((-0.5, 3.0, 0.0)):
        c.function("set_boundary")(c.model, k, value)
    c.step()
    u = rollout(Classical(start=0), problem, torch.full((1, 25, 1), 298.15), steps=1)[:, 1]
    u = rollout(Classical(start=0), base_problem(other.case, "cpu"), u, steps=1)[:, 1]
    np.testing.assert_allclose(c.array("state", 25), u.numpy().ravel(), rtol=2e-6)
    c.close()


@pytest.mark.parametrize("model", [Classical(start=0), Universal()], ids=lambda m: m.name)
def test_a_spot_is_averaged_along_its_way(model: Model, tmp_path: Path) -> None:
    run = replace(fake(PDE(diffusion=0.1), (Robin("left", 1.0, 2.0),)), model=model)
    run = replace(run, case=replace(run.case, offset=(0.5,)))
    problem, dt, place = base_problem(run.case, "cpu"), run.case.dt, ctypes.c_double * 2
    c = Compiled(written(run, problem, "mine"), tmp_path, compiler)
    call = c.function("spot")
    call.argtypes = [ctypes.c_void_p, ctypes.c_int, place, place, ctypes.c_double, ctypes.c_double]
    call(c.model, 0, place(0.1, 0.2), place(0.9, 0.5), 0.15, 7.0)
    table = SpotTable(("spot",), (np.array([0.0, dt]),), (np.array([[0.1, 0.2, 0.15, 7.0], [0.9, 0.5, 0.15, 7.0]]),))
    f = table.average(torch.tensor(model.points(problem)), 0, 1, dt).float()
    states = rollout(model, problem, torch.full((1, 25, 1), 0.5), torch.cat([f, 0 * f], 1))
    for k in (1, 2):
        c.step()
        np.testing.assert_allclose(c.array("state", 25), states[0, k].numpy().ravel(), rtol=1e-6)
        clear = c.function("clear_spots")
        clear.argtypes = [ctypes.c_void_p]
        clear(c.model)
    c.close()


MAIN = """
#include <stdio.h>
#include "plate.h"
int main(void)
{
    plate_model *m = plate_new();
    if (m == NULL) return 1;
    for (int i = 0; i < PLATE_NODES; i++) plate_state(m)[i] = i;
    for (int k = 0; k < 5; k++) if (plate_step(m)) return 1;
    printf("%.9g %.9g %s\\n", plate_time(m), (double)plate_state(m)[7], plate_boundary(0));
    plate_free(m);
    return 0;
}
"""


def test_a_program_uses_the_files(tmp_path: Path) -> None:
    run = replace(fake(PDE(diffusion=0.1), (Robin("left", 1.0, 2.0),)), model=Classical(start=0))
    result = export(run, tmp_path / "plate.c")
    assert sorted(p.name for p in result.paths) == sorted(p.name for p in tmp_path.iterdir())
    assert result.record["compared"] and result.record["boundaries"] == {"left_ambient": 2.0}
    (tmp_path / "main.c").write_text(MAIN)
    for real in ("double", "float"):
        command = [compiler, *FLAGS, f"-DDGNET_REAL={real}", "main.c", "plate.c", "-o", "main", "-lm"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr
        said = subprocess.run(["./main"], cwd=tmp_path, capture_output=True, text=True).stdout.split()
        problem = base_problem(run.case, "cpu")
        u = rollout(Classical(start=0), problem, torch.arange(25.0).view(1, 25, 1), steps=5)[0, -1, 7, 0]
        assert said[::2] == ["0.25", "left_ambient"] and float(said[1]) == pytest.approx(float(u), rel=1e-5)


def test_names_of_all_kinds(tmp_path: Path) -> None:
    """Names are the user's: those of C's own words, and what would end a comment or a string."""
    mesh = box((4, 4))
    mesh = replace(mesh, boundaries={'odd "*/ name\\ ??)': mesh.boundaries["left"]})
    run = fake(PDE(diffusion=0.1))
    case = replace(run.case, title="*/ int x; /* ??/", build_mesh=lambda: mesh, pde=PDE(("int",), diffusion=0.1),
                   conditions=(Dirichlet('odd "*/ name\\ ??)', 1.5),))
    run = replace(run, case=case, model=Classical(start=0))
    for name in ("int", "points", "exp"):
        result = export(run, tmp_path / f"{name}.c")
        assert result.record["compared"]
        made = written(run, base_problem(run.case, "cpu"), result.record["prefix"])
        assert not Compiled(made, tmp_path, compiler).messages


@pytest.mark.parametrize("name", ["my-plate.v2", "1 [x]", "it's 100%", "Übung 温度", "-a&b;$(ls)", "int", "x" * 200])
def test_a_file_of_any_name_compiles(name: str, tmp_path: Path) -> None:
    """The file as it lies there, beside its header."""
    run = replace(fake(PDE(diffusion=0.1), (Robin("left", 1.0, 2.0),)), model=Classical(start=0))
    result = export(run, tmp_path / f"{name}.c")
    assert (tmp_path / f"{name}.h").exists() and result.record["header"] == f"{name}.h"
    done = subprocess.run([compiler, *FLAGS, "-c", f"./{name}.c", "-o", "step.o"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a\x1bb", "a??'b"])
def test_names_that_no_include_can_hold(name: str, tmp_path: Path) -> None:
    run = replace(fake(PDE(diffusion=0.1)), model=Classical(start=0))
    with pytest.raises(InputError, match="cannot include a header of this name"):
        export(run, tmp_path / f"{name}.c")
    assert not list(tmp_path.iterdir())


def test_problems_leave_by_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    save_mesh(box((8, 8), perturb=0.2), tmp_path / "plate.msh")
    (tmp_path / "problem.toml").write_text(PROBLEM)

    def dgnet(*words: str) -> str:
        monkeypatch.setattr("sys.argv", ["dgnet", *words])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        assert not stop.value.code
        return capsys.readouterr().out

    for model in ("classical", "universal"):
        assert "81 nodes" in dgnet("export", str(tmp_path), "--model", model, "--out", str(tmp_path / "out" / f"{model}.c"))
    texts = [(tmp_path / "out" / f"{model}.c").read_text() for model in ("classical", "universal")]
    assert ["#define EDGES 0\n" in text for text in texts] == [True, False]


def test_what_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    def bessel(u: Tensor) -> Tensor:
        return torch.special.bessel_j0(u)

    def far(u: Tensor) -> Tensor:
        return u - u.mean()

    def branching(u: Tensor) -> Tensor:
        return u if float(u.abs().max()) < 1e30 else -u

    def refused(run: Simulator, words: str) -> None:
        with pytest.raises(InputError, match=words) as caught:
            export(run, tmp_path / "step.c")
        assert "\n" not in str(caught.value) and not list(tmp_path.iterdir())

    refused(fake(PDE(diffusion=0.1, reaction=bessel)), "bessel_j0")
    refused(fake(PDE(diffusion=0.1, reaction=far)), "other nodes")
    refused(fake(PDE(diffusion=0.1, reaction=branching)), "tensor operations")
    refused(fake(PDE(diffusion=0.1, velocity=lambda t: torch.ones(25, 2) * t)), "changes in time")
    plain = fake(PDE(diffusion=0.1))
    model = DGNet(PaperConfig(hidden=8, layers=1, residual=True), base_problem(plain.case, "cpu"))
    refused(replace(plain, model=model), "network of states")
    refused(replace(plain, model=Classical(degree=2)), "cannot be written as C")

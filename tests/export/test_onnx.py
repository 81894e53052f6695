"""`dgnet export --out step.onnx`: onnxruntime makes the same states as the library."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dgnet.errors import InputError
from dgnet.export import Step, export, plain
from dgnet.export.program import _traced, to_onnx
from dgnet.export.record import probe
from dgnet.mesh import box
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNet
from dgnet.models.universal import Universal
from dgnet.problems import PDE, Dirichlet, Problem, Robin
from dgnet.problems.case import base_problem
from tests.export.test_export import CASES, close, fake, saturated

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.mark.parametrize("case", ["walls", "learned", "quick"])
def test_the_graph_is_the_step(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if case == "walls":  # the others have the explicit inverse: a graph of a hundred operations less
        monkeypatch.setattr(plain, "_QUICK", 0)
    pde, conditions, config = CASES[case]
    problem = Problem(box((7, 6)), pde, conditions, 0.05, dtype=torch.float32)
    torch.manual_seed(1)
    model = saturated(DGNet(config, problem))
    with torch.no_grad():
        state = model.prepare(problem)
        state.settle()
        u, f = probe(model, problem, 3)
        program, _ = _traced(Step(state.solver, model.reaction_net if case == "learned" else None), (u, f), None, case)
        data, columns = to_onnx(program), state.solver.operators.mass.pattern.ell[0].long()
        assert data.count(columns.numpy().tobytes()) == 1  # of all matrices of a pattern, once in the file
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        for size in (1, 3):
            expected, found = u[:size], u[:size].numpy()
            for k in range(3):
                expected = state.step(expected, f[:size], 0.0, k + 1)
                (found,) = session.run(None, {"u": found, "source": f[:size].numpy()})
            assert close(torch.from_numpy(found), expected)


def test_files_and_description(tmp_path: Path) -> None:
    result = export(fake(PDE(diffusion=0.1)), tmp_path / "there" / "step.onnx", batch=2)
    assert sorted(p.name for p in result.paths) == sorted(p.name for p in (tmp_path / "there").iterdir())
    assert result.record["batch"] == 2 and result.record["bytes"] == result.program.stat().st_size
    session = onnxruntime.InferenceSession(str(result.program))
    assert [i.shape for i in session.get_inputs()] == [[2, 25, 1]] * 2
    assert any("InferenceSession('step.onnx')" in line for line in result.record["call"])


def test_an_operation_without_counterpart_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no counterpart"):
        export(fake(PDE(diffusion=0.1, reaction=lambda u: torch.special.bessel_j0(u))), tmp_path / "step.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_universal_weights_leave_as_a_program(kind: str, tmp_path: Path) -> None:
    """Two files: the start at the nodes becomes a state with a memory for each edge, and its step repeats the rollout."""
    run = replace(fake(PDE(diffusion=0.1), (Robin("right", 2.0, 0.4), Dirichlet("top", 1.0))), model=Universal())
    made, problem = export(run, tmp_path / f"step.{kind}"), base_problem(run.case, "cpu")
    assert set(made.extra) == {"start"} and "memory of each edge" in made.record["output"]
    g, n = torch.Generator().manual_seed(0), problem.mesh.n_nodes
    u, f = torch.rand(2, n, 1, generator=g), torch.rand(2, 20, n, 1, generator=g)
    expected = rollout(run.model, problem, u, f)
    if kind == "onnx":
        first, each = (onnxruntime.InferenceSession(str(path)) for path in (made.extra["start"], made.program))
        (now,) = first.run(None, {"u": u.numpy()})
        for k in range(20):
            (now,) = each.run(None, {"u": now, "source": f[:, k].numpy()})
        found = torch.from_numpy(now)
    else:
        first, each = (torch.export.load(path).module() for path in (made.extra["start"], made.program))
        found = first(u)
        for k in range(20):
            found = each(found, f[:, k].contiguous())
    assert found.shape == (2, n + len(problem.mesh.edges), 1)
    assert close(found[:, :n], expected[:, -1]) and not close(rollout(Classical(start=0), problem, u, f)[:, -1], expected[:, -1])

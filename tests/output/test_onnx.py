"""`dgnet export --out step.onnx`: onnxruntime makes the same states as the library."""

from pathlib import Path

import pytest
import torch

from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.models.dgnet import DGNet
from dgnet.output.export import Step, export, plain
from dgnet.output.export.program import _traced
from dgnet.output.export.record import probe
from dgnet.problems import PDE, Discretisation
from tests.output.test_export import CASES, close, fake, saturated

pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

from dgnet.output.export.onnx_graph import to_onnx  # noqa: E402  (after the packages that it needs)


@pytest.mark.parametrize("case", ["walls", "learned", "reaction", "fields", "quick"])
def test_the_graph_is_the_step(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if case != "quick":
        monkeypatch.setattr(plain, "_QUICK", 0)
    pde, conditions, config = CASES[case]
    problem = Discretisation(box((7, 6)), pde, conditions, 0.05, dtype=torch.float32)
    torch.manual_seed(1)
    model = saturated(DGNet(config, problem))
    with torch.no_grad():
        state = model.prepare(problem)
        u, f = probe(model, problem, 3)
        program, batch = _traced(Step(state.solver, model, state.graph), (u, f), None, case)
        session = onnxruntime.InferenceSession(to_onnx(program, batch is None), providers=["CPUExecutionProvider"])
        for size in (1, 3):
            expected, found = u[:size], u[:size].numpy()
            for k in range(3):
                expected = model.step(state, expected, f[:size], 0.0, k + 1)
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

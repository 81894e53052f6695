"""The benchmark of a step: its rivals compute the same, and its page has every row."""

import numpy as np
import pytest
import torch

from benchmarks import step
from dgnet.mesh import box
from dgnet.models import Classical, rollout


def test_the_loop_of_the_rival_makes_the_same_states() -> None:
    p = step.problem(box((6, 6)))
    u, f = step.given(p, 8)
    plain = step.Plain(p)
    with torch.no_grad():
        ours = rollout(Classical(start=0, backend="lu"), p, u, f)[0, -1, :, 0].numpy()
    np.testing.assert_allclose(plain.loop(plain.factor(), u[0, :, 0].numpy(), f[0, :, :, 0].numpy()), ours, rtol=1e-10)


def test_rows_and_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "SIZES", {"500": 6, "10k": 6})
    monkeypatch.setattr(step, "STEPS", {"500": 4})
    monkeypatch.setattr(step, "GRADIENT_STEPS", 10)
    monkeypatch.setattr(step, "REACTION_STEPS", 5)
    monkeypatch.setattr(step, "LONG", 30)
    lines: list[str] = []
    found = step.run(["500"], repeats=1, tell=lines.append)
    assert [row["kind"] for row in found["rows"]] == ["checkpoint", "step", "gradient", "setup", "back"] and len(lines) == 5
    assert found["rows"][2]["gap"] < 1e-9  # the same gradient as by hand
    assert step.table(found).count("\n- ") == 5

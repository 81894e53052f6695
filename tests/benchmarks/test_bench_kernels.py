"""`python -m benchmarks kernels` at a small size: its figures are there."""

import pytest

from benchmarks import kernels


def test_kernels_are_measured_and_repeat_the_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_TOGETHER", 2)
    found = kernels.run(sensors=2, steps=3)
    assert [r["dtype"] for r in found["rows"]] == ["float64", "float32"]
    assert found["rows"][0]["error"] < 1e-10 and found["rows"][1]["error"] < 1e-5
    assert all(r[name] > 0 for r in found["rows"] for name in ("make_s", "rollout_s", "reading_source_s", "reading_start_s"))
    assert "| float64 |" in kernels.table(found)

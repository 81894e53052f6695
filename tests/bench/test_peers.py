"""`dgnet bench peers`: programs that solve the same problem give the same answer, and the table tells what was run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dgnet.bench import peers, peers_run
from dgnet.bench.peers import AUTO, REFERENCE, Bench, Worker
from dgnet.errors import InputError

ABSENT = ("petsc4py", "dolfinx", "torchfem", "tensormesh")


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Programs run in this process; those that dgnet does not bring are not installed."""
    def inside(self: Bench, name: str, path: Path) -> tuple[dict[str, Any], np.ndarray | None]:
        out = self.folder / "answer.npy"
        result = peers_run.measured(name, str(path), str(out))
        return result, np.load(out) if "total_s" in result else None

    monkeypatch.setattr(Bench, "run", inside)
    for name in ABSENT:
        monkeypatch.setitem(sys.modules, name, None)
    return Bench("/usr/bin/python3", repeats=2)


@pytest.mark.parametrize("cells", [(6, 5), (3, 3, 2)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_programs_agree(bench: Bench, cells: tuple[int, ...], dtype: str) -> None:
    with bench:
        truth = bench.answer(REFERENCE, bench.pose(cells, 20.0, "float64", 5))
        path, limit = bench.pose(cells, 20.0, dtype, 5), peers.LIMIT[dtype]
        rows = bench.measure([AUTO, "dgnet lu", "dgnet iterative", "SciPy CG", "PETSc Cholesky"], path, limit, cells, truth)
        assert not any(row["missed"] for name, row in rows.items() if name != "PETSc Cholesky")
        assert "not installed" in rows["PETSc Cholesky"]["missing"]
        timed = [row for row in rows.values() if "total_s" in row]
        assert all(r["runs"] == 2 and r["total_s"] >= r["setup_s"] >= 0 and r["step_s"] > 0 for r in timed)
        moved = bench.measure([AUTO], path, limit, cells, truth * (1 + 2 * limit))
        assert moved[AUTO]["missed"]


def test_gradients_agree(bench: Bench) -> None:
    with bench:
        path = bench.pose((5, 4), 2.0, "float64", 4)
        ours, by_hand = (bench.answer(name, path) for name in peers.GRADIENTS[:2])
        assert np.allclose(ours, by_hand, rtol=1e-9, atol=0) and ours.shape == (31,)


def test_rows_and_page(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "QUICK", {"2D": (4, 4), "3D": (2, 2, 2)})
    with pytest.raises(InputError, match="unknown size '2D 10k'"):
        peers.run(quick=True, sizes=["2D 10k"])
    result = peers.run(quick=True, repeats=2)
    assert [(r["size"], r["stiffness"], r["dtype"]) for r in result["rows"]] == [
        (size, s, dtype) for size in ("2D", "3D") for s in peers.STIFFNESS for dtype in peers.LIMIT]
    assert [(g["size"], g["stiffness"]) for g in result["gradients"]] == [("2D", s) for s in peers.STIFFNESS]
    assert all(row["programs"]["PETSc CG + ICC"]["missing"] for row in result["rows"] if row["dtype"] == "float64")
    page = peers.markdown(json.loads(json.dumps(result, allow_nan=False)))
    assert page.count("| 2D (20) | 1.00 | ") + page.count("| 2D (20) | **1.00** | ") == 7 and page.count("not installed") >= 20
    found = peers.verdict(result["rows"])
    assert found["cases"] == 8 and found["first"] <= found["within"] <= 8


def test_steps_that_were_not_run_are_added(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "SIZES", {"2D": (4, 4)})
    result = peers.run(stiffness=[2.0], steps=3, repeats=1)
    row = result["rows"][0]["programs"][AUTO]
    assert row["total_s"] == pytest.approx(row["setup_s"] + peers.STEPS * row["step_s"], rel=0.5) and len(result["rows"]) == 2
    assert "Not all steps were run (2D: 3): times are set-up + 100 times" in peers.markdown(result)


def test_a_process_that_ends_is_a_row(tmp_path: Path) -> None:
    with Worker([sys.executable, "-c", "pass"]) as worker:
        assert worker.run(AUTO, tmp_path / "case.npz", tmp_path / "out.npy") == {"failed": "its process ended"}

"""`python -m benchmarks peers`: programs that solve the same problem give the same answer, and the page tells what was run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import peers, peers_run
from benchmarks.peers import AUTO, BY_HAND, COLUMNS, GRADIENTS, REFERENCE, Bench, Measurement, Worker
from dgnet.errors import InputError

ABSENT = ("petsc4py", "dolfinx", "torchfem", "tensormesh")
SLOW = "torch-fem, CG"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    """Programs run in this process; those that dgnet does not bring are not installed."""
    def inside(self: Bench, name: str, path: Path, steps: int | None = None) -> tuple[dict[str, Any], np.ndarray | None]:
        out = self.folder / "answer.npy"
        result = peers_run.measured(name, str(path), str(out), steps)
        return result, np.load(out) if "total_s" in result else None

    monkeypatch.setattr(Bench, "run", inside)
    for name in ABSENT:
        monkeypatch.setitem(sys.modules, name, None)
    return Bench("/usr/bin/python3", repeats=2)


def measured(bench: Bench, names: list[str], cells: tuple[int, ...], dtype: str, steps: int = 5,
             truth: dict[int, np.ndarray] | None = None) -> dict[str, dict[str, Any]]:
    exact, path = (bench.pose(cells, 20.0, d, steps) for d in ("float64", dtype))
    return Measurement(bench, path, exact, REFERENCE, steps, {} if truth is None else truth, {}).run(names, peers.LIMIT[dtype])


@pytest.mark.parametrize("cells", [(6, 5), (3, 3, 2)])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_programs_agree(bench: Bench, cells: tuple[int, ...], dtype: str) -> None:
    with bench:
        truth: dict[int, np.ndarray] = {}
        rows = measured(bench, [AUTO, "dgnet lu", "dgnet iterative", "SciPy CG", "PETSc Cholesky"], cells, dtype, truth=truth)
        assert not any(row["missed"] for name, row in rows.items() if name != "PETSc Cholesky")
        assert "not installed" in rows["PETSc Cholesky"]["missing"]
        timed = [row for row in rows.values() if "total_s" in row]
        assert all(r["runs"] == 2 and r["total_s"] >= r["setup_s"] >= 0 and r["step_s"] > 0 and r["mesh_s"] > 0 for r in timed)
        wrong = {5: truth[5] * (1 + 2 * peers.LIMIT[dtype])}
        assert measured(bench, [AUTO], cells, dtype, truth=wrong)[AUTO]["missed"]


def test_gradients_agree(bench: Bench) -> None:
    with bench:
        path = bench.pose((5, 4), 2.0, "float64", 4)
        names = [*GRADIENTS["dgnet"], *GRADIENTS["adjoint by hand, best"]]
        rows = Measurement(bench, path, path, BY_HAND, 4, truth := {}, {}).run(names, 1e-10)
        assert truth[4].shape == (31,) and [rows[name]["missed"] for name in names] == [False] * 3
        twice = {4: np.concatenate([2 * truth[4][:1], truth[4][1:]])}  # the part of the diffusivity alone
        assert Measurement(bench, path, path, BY_HAND, 4, twice, {}).run(names[:1], 0.4)[names[0]]["missed"]


def test_rows_and_page(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "QUICK", {"2D": (4, 4), "3D": (2, 2, 2)})
    with pytest.raises(InputError, match="unknown size '2D 10k'"):
        peers.run(quick=True, sizes=["2D 10k"])
    result = peers.run(quick=True, repeats=2)
    cases = [(size, s) for size in ("2D", "3D") for s in peers.STIFFNESS]
    assert [(r["size"], r["stiffness"], r["dtype"]) for r in result["rows"]] == [(*case, d) for case in cases for d in peers.LIMIT]
    assert [(g["size"], g["stiffness"]) for g in result["gradients"]] == cases
    assert all(row["programs"]["PETSc CG + ICC"]["missing"] for row in result["rows"] if row["dtype"] == "float64")
    json.dumps(result, allow_nan=False)


@pytest.mark.parametrize("most", [-1.0, 1e9])
def test_a_slow_guest_runs_a_few_steps(bench: Bench, monkeypatch: pytest.MonkeyPatch, most: float) -> None:
    """Its time for all of them is extrapolated, its answer compared after the steps that it ran."""
    from benchmarks import peers_torch

    monkeypatch.setitem(peers_torch.PROGRAMS, SLOW, peers_run.scipy_steps("cg"))
    monkeypatch.setattr(peers, "MOST", most)
    monkeypatch.setattr(peers, "SHORT", 3)
    with bench:
        row = measured(bench, [AUTO, SLOW], (6, 5), "float64", steps=7)[SLOW]
    assert not row["missed"] and (row["runs"], row["extrapolated"]) == ((1, True) if most < 0 else (2, False))
    if most < 0:
        assert row["total_s"] == row["setup_s"] + 7 * row["step_s"]


def test_processes(tmp_path: Path) -> None:
    """One that ends is a failure, one that takes too long is ended, and the next run gets a new one."""
    case, out = tmp_path / "case.npz", tmp_path / "out.npy"
    with Worker([sys.executable, "-c", "pass"]) as worker:
        assert worker.run(AUTO, case, out) == {"failed": "its process ended"}
    with Worker([sys.executable, "-c", "input()\nwhile True: pass"]) as worker:
        assert worker.run(SLOW, case, out, 10, 0.05) == {"failed": "10 steps take more than 0.05 s", "over_s": 0.05}
        assert worker.process.poll() is not None


def test_a_program_that_fails_says_why(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(case: peers_run.Case) -> peers_run.Run:
        def run(mark: peers_run.Mark) -> tuple[np.ndarray, str]:
            raise RuntimeError("[enforce fail] can't allocate memory: you tried to allocate 79769765888 bytes.")

        return run

    monkeypatch.setitem(peers_run.PROGRAMS, "SciPy CG", greedy)
    with bench:
        row = measured(bench, [AUTO, "SciPy CG"], (4, 4), "float64")["SciPy CG"]
    assert row == {"failed": "asks for 80 GB at once, more than the 12 GB that a program may take"}


def test_every_program_is_known() -> None:
    from benchmarks import peers_torch

    names = {n for some in (*COLUMNS.values(), *GRADIENTS.values()) for n in some}
    assert names | {peers.ASSEMBLY} == peers_run.PROGRAMS.keys() | peers_torch.PROGRAMS.keys()
    assert set(peers.HOSTS) | set(peers.GUESTS) | set(peers.SYSTEM) == names | {peers.ASSEMBLY}

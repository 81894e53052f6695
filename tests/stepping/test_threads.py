"""Many right-hand sides of a factorisation: in narrow parts where BLAS has threads, on several cores from `LARGE` rows on."""

import threading

import numpy as np
import pytest
import torch

from dgnet.mesh import box
from dgnet.operators import EdgeMatrix, Geometry, mass, stiffness
from dgnet.stepping import host
from dgnet.stepping.backends import LU


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("large", [10, 10**6])
def test_parts_are_the_columns_of_the_whole(dtype, tolerance, large, monkeypatch, two_threads):
    g = Geometry.of(box((9, 8), perturb=0.2))
    A = EdgeMatrix(g.pattern, (mass(g, 1.0) + stiffness(g) * 0.01).values[None].to(dtype))
    prepared = LU(A, True)
    b = np.random.default_rng(0).normal(size=(A.pattern.n, 11))
    monkeypatch.setattr(host, "threaded_blas", lambda: False)
    whole = prepared.array(b)
    monkeypatch.setattr(host, "threaded_blas", lambda: True)
    monkeypatch.setattr(host, "LARGE", large)
    np.testing.assert_allclose(prepared.array(b), whole, rtol=0, atol=10 * tolerance * np.abs(whole).max())
    assert (prepared.array(b[:, 0].copy()) == prepared.array(b[:, :1].copy())[:, 0]).all()


def test_a_second_core_is_for_many_rows_and_failures_pass_through(monkeypatch, two_threads):
    monkeypatch.setattr(host, "threaded_blas", lambda: True)
    seen: list[tuple[int, int]] = []

    def solve(b: np.ndarray) -> np.ndarray:
        seen.append((b.shape[1], threading.get_ident()))
        return 2 * b

    few, many = np.ones((host.LARGE - 1, 10)), np.ones((host.LARGE, 10))
    for b, elsewhere in ((few, False), (many, True)):
        seen.clear()
        assert (host.in_narrow_parts(solve, b) == 2).all() and sorted(width for width, _ in seen) == [2, 4, 4]
        assert all((thread != threading.get_ident()) == elsewhere for _, thread in seen)
    with pytest.raises(ZeroDivisionError):
        host.in_narrow_parts(lambda b: 1 // 0, many)
    torch.set_num_threads(1)
    seen.clear()
    host.in_narrow_parts(solve, many)
    assert all(thread == threading.get_ident() for _, thread in seen)

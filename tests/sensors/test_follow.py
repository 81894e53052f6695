"""Following a part: filter and smoother against dense textbook computations, bands against a finer truth, alarms, faults."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.problems import PDE, Discretisation, Robin
from dgnet.sensors import Follower, Point, Prior

Tensor = torch.Tensor
DT = 0.1
SENSORS = tuple(Point(p, f"s{k}") for k, p in enumerate([(0.2, 0.3), (0.7, 0.2), (0.45, 0.55), (0.8, 0.8), (0.25, 0.75)]))


def plate(cells: int = 6) -> Discretisation:
    return Discretisation(box((cells, cells), perturb=0.2), PDE(diffusion=0.05), [Robin("boundary", 0.2, 1.0)], DT)


def dense(part: Follower) -> tuple[np.ndarray, ...]:
    """F, c, Q, the mean and covariance of the start, and W of x = (u, a, v), from matrices assembled here:

    u+ = (M + dt/2 K)^-1 ((M - dt/2 K) u + dt (M shapes a + g)).
    """
    p, dyn, u = part.problem, part.dynamics, part.dynamics.unknowns
    n, J, S = p.mesh.n_nodes, dyn.J, len(part.sensors)
    M, K = (A.to_scipy().toarray() for A in (p.mass, p.stiffness(0.0)))
    left, W = np.linalg.inv(M + 0.5 * DT * K), dyn.weights[..., 0].numpy()
    F, c = np.zeros((n + J + S,) * 2), np.zeros(n + J + S)
    F[:n, :n], F[:n, n:n + J] = left @ (M - 0.5 * DT * K), DT * left @ M @ u.shapes("field", 0)[..., 0].numpy().T
    F[n:n + J, n:n + J], F[n + J:, :n] = np.diag(dyn.rho), W
    c[:n] = DT * left @ p.load(0.0)[:, 0].numpy()
    Q, P = np.zeros_like(F), np.zeros_like(F)
    Q[n:n + J, n:n + J] = np.diag(dyn.variance * (1 - dyn.rho**2))
    start = u.smooth()[..., 0].numpy().T
    P[:n, :n] = start @ np.diag(u.variances("start", part.priors["start"])) @ start.T
    P[n:n + J, n:n + J] = np.diag(dyn.variance)
    return F, c, Q, np.concatenate([np.ones(n), np.zeros(J + S)]), P, W


def followed(rank: int | None = None, cells: int = 6) -> tuple[Follower, list[tuple[float, np.ndarray]]]:
    """At steps, between them, several in one step, a gap."""
    rng = np.random.default_rng(0)
    part = Follower(plate(cells), SENSORS, {"start": Prior(0.3, 0.5), "field": Prior(0.5, 0.4, 1.0)}, noise=0.05,
                    start=torch.ones((cells + 1) ** 2, 1), rank=rank)
    rows = []
    for time in (0.0, 0.1, 0.2, 0.23, 0.27, 0.4, 0.75, 0.8, 0.9):
        values = 1 + 0.05 * rng.standard_normal(5)
        values[rng.random(5) < 0.2] = np.nan
        rows.append((time, values))
        assert part.update(time, values).used.sum() == np.isfinite(values).sum()
    return part, rows


def observed(W: np.ndarray, J: int, time: float, values: np.ndarray) -> tuple[int, np.ndarray]:
    """The step that a reading belongs to, and H."""
    step = int(np.ceil(time / DT - 1e-9))
    share, S = (time / DT - (step - 1) if step else 1.0), len(W)
    return step, np.concatenate([share * W, np.zeros((S, J)), (1 - share) * np.eye(S)], axis=1)[np.isfinite(values)]


def test_the_filter_is_that_of_the_textbook() -> None:
    part, rows = followed()
    F, c, Q, m, P, W = dense(part)
    k = 0
    for time, values in rows:
        step, H = observed(W, part.dynamics.J, time, values)
        while k < step:
            m, P, k = F @ m + c, F @ P @ F.T + Q, k + 1
        gain = P @ H.T @ np.linalg.inv(H @ P @ H.T + part.noise**2 * np.eye(len(H)))
        m, P = m + gain @ (values[np.isfinite(values)] - H @ m), P - gain @ H @ P
    assert part.exact and part.step == 9
    assert part.filter.mean == pytest.approx(m, abs=1e-10)
    assert part.filter.root @ part.filter.root.T == pytest.approx(P, abs=1e-10)


def test_the_smoother_is_the_regression_on_all_readings() -> None:
    """All steps at once as one Gaussian vector, conditioned on all readings."""
    part, rows = followed()
    F, c, Q, m, P, W = dense(part)
    d, steps = len(m), part.step + 1
    mean, cov = np.zeros((steps, d)), np.zeros((steps, d, steps, d))
    mean[0], cov[0, :, 0] = m, P
    for k in range(1, steps):
        mean[k] = F @ mean[k - 1] + c
        for j in range(k):
            cov[k, :, j] = F @ cov[k - 1, :, j]
            cov[j, :, k] = cov[k, :, j].T
        cov[k, :, k] = F @ cov[k - 1, :, k - 1] @ F.T + Q
    mean, cov = mean.ravel(), cov.reshape(steps * d, steps * d)
    y, H = [], []
    for time, values in rows:
        step, rows_of = observed(W, part.dynamics.J, time, values)
        H.append(np.zeros((len(rows_of), steps * d)))
        H[-1][:, step * d:(step + 1) * d] = rows_of
        y.append(values[np.isfinite(values)])
    G = np.concatenate(H)
    gain = cov @ G.T @ np.linalg.inv(G @ cov @ G.T + part.noise**2 * np.eye(len(G)))
    mean, cov = (mean + gain @ (np.concatenate(y) - G @ mean)).reshape(steps, d), (cov - gain @ G @ cov).reshape(steps, d, steps, d)
    for back, (found, root, C) in enumerate(part.filter.smoothed()):
        k = part.step - back
        assert found == pytest.approx(mean[k], abs=1e-10) and root @ C @ root.T == pytest.approx(cov[k, :, k], abs=1e-10), k
    assert back == part.step


def test_few_directions_are_nearly_the_exact_filter() -> None:
    exact, _ = followed(cells=16)
    assert exact.exact and exact.dynamics.d == 289 + 64 + 5
    for rank, gap in ((60, 0.3), (150, 0.05)):
        thin = followed(rank, 16)[0]
        one, other = exact.estimate(), thin.estimate()
        assert not thin.exact and 0 < thin.filter.lost < 0.05 and thin.filter.root.shape[1] == rank
        assert np.abs(other.sd / one.sd - 1).max() < gap
        assert (np.abs(other.mean - one.mean) / one.sd).max() < gap


def test_a_forecast_is_the_filter_without_readings() -> None:
    part, _ = followed()
    ahead = part.forecast(4, [[0.5, 0.5]])
    for _ in range(4):
        part.update(part.t0 + DT * (part.step + 1), np.full(5, np.nan))
    mean, sd = part.at([[0.5, 0.5]])
    assert ahead.times[-1] == pytest.approx(1.3) and ahead.mean.shape == (5, 1)
    assert (ahead.mean[-1], ahead.sd[-1]) == (pytest.approx(mean), pytest.approx(sd))
    assert ahead.fields[0].mean == pytest.approx(part.estimate().mean)


def test_it_goes_on_from_a_file(tmp_path: Path) -> None:
    part, _ = followed()
    part.save(tmp_path / "state.npz")
    again = Follower.load(tmp_path / "state.npz", plate(), SENSORS, start=torch.ones(49, 1))
    for one in (part, again):
        one.update(1.04, [1.1, 0.9, 1.0, np.nan, 1.2])
    assert again.filter.mean == pytest.approx(part.filter.mean, abs=1e-12) and again.consistency == part.consistency
    assert json.dumps(again.watch.state()) == json.dumps(part.watch.state()) and again.priors == part.priors
    with pytest.raises(InputError, match="another problem"):
        Follower.load(tmp_path / "state.npz", plate(5), SENSORS)
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match="does not hold the state"):
        Follower.load(tmp_path / "bad.npz", plate(), SENSORS)

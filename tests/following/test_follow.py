"""Following a part: filter and smoother against dense textbook computations, bands against a finer truth, alarms, faults."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch

from dgnet.errors import InputError
from dgnet.following import Follower, Prior, follow
from dgnet.following.dynamics import Driven
from dgnet.following.unknown_inputs import Unknowns
from dgnet.inverse import Finer, Known, Point, Readings, Rollout
from dgnet.inverse.sensor import rows as weights
from dgnet.mesh import box
from dgnet.models import Classical, Model, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.models.universal import Universal
from dgnet.problems import PDE, FunctionSource, Neumann, Problem, Robin, SpotTable, step_average
from dgnet_paper.reference.transport import solve
from tests.inverse.test_kernels import drawn, sensors_of

Tensor = torch.Tensor
DT = 0.1
SENSORS = tuple(Point(p, f"s{k}") for k, p in enumerate([(0.2, 0.3), (0.7, 0.2), (0.45, 0.55), (0.8, 0.8), (0.25, 0.75)]))


def plate(cells: int = 6) -> Problem:
    return Problem(box((cells, cells), perturb=0.2), PDE(diffusion=0.05), [Robin("boundary", 0.2, 1.0)], DT)


def dense(part: Follower) -> tuple[np.ndarray, ...]:
    """F, c, Q, the mean and covariance of the start, and W of x = (u, a, v), from matrices assembled here:

    u+ = (M + dt/2 K)^-1 ((M - dt/2 K) u + dt (M shapes a + g)).
    """
    p, dyn, u = part.problem, part.dynamics, part.dynamics.unknowns
    n, J, S = p.mesh.n_nodes, dyn.J, len(part.sensors)
    M, K = (A.to_scipy().toarray() for A in (p.mass, p.stiffness(0.0)))
    left, W = np.linalg.inv(M + 0.5 * DT * K), dyn.weights[..., 0].numpy()
    F, c = np.zeros((n + J + S,) * 2), np.zeros(n + J + S)
    F[:n, :n], F[:n, n:n + J] = left @ (M - 0.5 * DT * K), DT * left @ M @ u.sources[..., 0].numpy().T
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
                    start=torch.ones((cells + 1) ** 2, 1), rank=rank, finer=False, model=Classical(start=0))
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
    for rank, gap in ((60, 0.3), (150, 0.1)):
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
    again = Follower.load(tmp_path / "state.npz", plate(), SENSORS, start=torch.ones(49, 1), model=Classical(start=0))
    for one in (part, again):
        one.update(1.04, [1.1, 0.9, 1.0, np.nan, 1.2])
    assert again.filter.mean == pytest.approx(part.filter.mean, abs=1e-12) and again.consistency == part.consistency
    assert json.dumps(again.watch.state()) == json.dumps(part.watch.state()) and again.priors == part.priors
    with pytest.raises(InputError, match="another part: the mesh was 49 nodes"):
        Follower.load(tmp_path / "state.npz", plate(5), SENSORS)
    (tmp_path / "bad.npz").write_bytes(b"nothing")
    with pytest.raises(InputError, match="does not hold the state"):
        Follower.load(tmp_path / "bad.npz", plate(), SENSORS)


@pytest.mark.parametrize("finer", [False, True], ids=["one mesh", "finer meshes"])
def test_a_file_between_a_fault_and_its_discovery_changes_nothing(finer: bool, tmp_path: Path) -> None:
    """A sensor drifts: when it is blamed, rows that had believed it are taken again without it, those before the file, too."""
    places = [Point((0.2, 0.3), "a", lag=0.25), Point((0.7, 0.6), "b"), Point((0.4, 0.8), "c"), Point((0.6, 0.2), "d")]
    problem = Problem(box((6, 6)), PDE(diffusion=0.05), [Robin("boundary", 0.5, 1.0)], DT)
    start, rng = torch.ones(49, 1), np.random.default_rng(0)
    times = DT * np.arange(1, 25) - 0.3 * DT
    values = 1 + 0.01 * rng.standard_normal((24, 4))
    values[9:, 1] += 0.02 * np.arange(15)
    whole = Follower(problem, places, {"field": Prior(0.05, 0.5, 1.0)}, noise=0.01, start=start, finer=finer)
    said = [whole.update(time, row) for time, row in zip(times, values)]
    faults = [k for k, update in enumerate(said) if any(event.kind == "sensor" for event in update.events)]
    assert faults
    for cut in range(faults[0] - 4, faults[0] + 2):
        part = Follower(problem, places, {"field": Prior(0.05, 0.5, 1.0)}, noise=0.01, start=start, finer=finer)
        for time, row in zip(times[:cut], values):
            part.update(time, row)
        part.save(tmp_path / "state.npz")
        part = Follower.load(tmp_path / "state.npz", problem, places, start=start)
        more = [part.update(time, row) for time, row in zip(times[cut:], values[cut:])]
        assert [event for update in more for event in update.events] == [event for update in said[cut:] for event in update.events]
        assert part.estimate().mean == pytest.approx(whole.estimate().mean, abs=1e-9)
        assert part.estimate().sd == pytest.approx(whole.estimate().sd, abs=1e-9) and part.consistency == whole.consistency


# ---------------------------------------------------------------------- against the truth of a finer mesh

STEPS, NOISE = 50, 0.02
PLACES = ((1, 1), (4, 2), (7, 1), (2, 4), (5, 4), (7, 5), (1, 7), (4, 6), (6, 7), (3, 7))
GRID = tuple(Point((x / 8, y / 8), f"g{x}{y}") for x, y in PLACES)
SQUARE = Problem(box((8, 8)), PDE(diffusion=0.05), [Robin("boundary", 0.2, 1.0)], DT)
ASSUMED = {"start": Prior(0.5, 0.7), "field": Prior(0.9, 0.6, 1.5)}
"""About what `truths` draws from."""
ONES = torch.ones(81, 1)


@lru_cache
def truths(repeats: int, lamp: float = 0.0, seed: int = 0) -> np.ndarray:
    """[B, T+1, N]: twenty spots everywhere with random strengths that change within 1.5 s, and a lamp from t = 3 on.

    By the independent reference on a mesh with half the spacing and quadratic elements.
    """
    rng, count = np.random.default_rng(seed), 20
    middles = torch.tensor(rng.uniform(-0.1, 1.1, (repeats, count, 2)))
    radii = torch.tensor(rng.uniform(0.15, 0.3, (repeats, count)))
    knots, keep = np.arange(0, STEPS * DT + 1, 0.25), np.exp(-0.25 / 1.5)
    strengths = np.empty((repeats, count, len(knots)))
    strengths[..., 0] = rng.standard_normal((repeats, count))
    for k in range(1, len(knots)):
        strengths[..., k] = keep * strengths[..., k - 1] + np.sqrt(1 - keep**2) * rng.standard_normal((repeats, count))
    begin = torch.tensor(0.2 * rng.standard_normal((repeats, count)))

    def near(x: Tensor, widths: Tensor) -> Tensor:
        return torch.exp(-((x[None, None] - middles[:, :, None]) ** 2).sum(-1) / (2 * widths[..., None] ** 2))

    def source(x: Tensor, t: Tensor) -> Tensor:
        at = np.array([[np.interp(t.numpy(), knots, row) for row in some] for some in strengths])
        spots = 0.5 * torch.einsum("bjt,bjn->btn", torch.tensor(at), near(x, radii))
        glow = torch.exp(-((x - torch.tensor((0.55, 0.6))) ** 2).sum(1) / (2 * 0.15**2))
        return (spots + lamp * (t > 3.0)[:, None] * glow)[..., None]

    def start(x: Tensor) -> Tensor:
        return (1 + torch.einsum("bj,bjn->bn", begin, near(x, torch.full_like(radii, 0.25))))[..., None]

    return solve(SQUARE.mesh, SQUARE.pde, SQUARE.conditions, start, dt=DT, steps=STEPS, refine=1, degree=2, substeps=2,
                 order=2, source=source)[..., 0].numpy()


def read(states: np.ndarray, seed: int = 0) -> np.ndarray:
    """Noisy readings [T+1, S]."""
    seen = SQUARE.mesh.interpolate(states[..., None], [s.place for s in GRID])[..., 0]
    return seen + NOISE * np.random.default_rng(seed).standard_normal(seen.shape)


def test_bands_hold_the_truth_and_no_alarm_is_raised() -> None:
    inside, chi = [], []
    for b, states in enumerate(truths(4)):
        part = Follower(SQUARE, GRID, ASSUMED, noise=NOISE, start=ONES)
        for k, values in enumerate(read(states, b)):
            done = part.update(DT * k, values)
            assert not [e for e in done.events if e.kind == "alarm"]
            low, high = part.estimate().band()
            inside.append((low[:, 0] < states[k]) & (states[k] < high[:, 0]))
        chi.append(part.consistency[0])
    assert 0.85 < np.mean(inside) < 0.95 and 0.6 < np.mean(chi) < 1.1


def test_an_unknown_lamp_raises_an_alarm_and_is_found() -> None:
    states = truths(1, lamp=8.0)[0]
    part, kinds = Follower(SQUARE, GRID, ASSUMED, noise=NOISE, start=ONES), []
    for k, values in enumerate(read(states)):
        kinds += [(e.kind, e.time, e.sensors) for e in part.update(DT * k, values).events]
    assert next(kind for kind, *_ in kinds if kind != "sensor") == "alarm" and kinds[0][1] > 3.0
    assert next(time for kind, time, _ in kinds if kind == "alarm") < 3.6
    assert next(sensors for kind, _, sensors in kinds if kind == "alarm")[0] == "g54"  # the nearest one
    low, high = part.estimate().band()
    assert ((low[:, 0] < states[-1]) & (states[-1] < high[:, 0])).mean() > 0.8 and part.scale > 1
    hot = part.driving()
    assert hot is not None and np.linalg.norm(SQUARE.mesh.points[hot.mean[:, 0].argmax()] - (0.55, 0.6)) < 0.2
    past = part.smooth(fields=True)
    error = [np.abs(f.mean[:, 0] - states[k]).mean() for k, f in enumerate(past.fields)]
    assert len(error) == STEPS + 1 and max(error[:30]) < 0.1


def test_faults_are_named_and_worked_around() -> None:
    states = truths(4)[0]
    good = read(states)
    bad = good.copy()
    bad[20:24, 0] = np.nan
    bad[15:, 2] = bad[15, 2]  # dead
    bad[25:, 5] += np.linspace(0, 2.0, len(bad) - 25)  # drifts
    bad[18, 7] += 5.0  # one wrong reading
    part, said = Follower(SQUARE, GRID, ASSUMED, noise=NOISE, start=ONES), []
    for k, values in enumerate(bad):
        said += part.update(DT * k, values).events
        if k == 30:  # what the drifting sensor said before it was found out is forgotten: 0.12 K otherwise
            assert np.sqrt(((part.estimate().mean[:, 0] - states[k]) ** 2).mean()) < 0.05
            assert not part.update(DT * 28, good[28]).used.any()
    told = [(e.kind, *e.sensors) for e in said]
    assert ("sensor", "g11") in told and ("back", "g11") in told and ("sensor", "g71") in told and ("sensor", "g75") in told
    assert "alarm" not in [kind for kind, *_ in told]
    assert ("sensor", "g46") in told and part.watch.out == {2, 5}  # one wrong reading does not make a sensor faulty
    for time, words in ((1.0, "comes after"), (float("nan"), "no time"), (1e6, "another unit"), (9.0, "no readings from")):
        assert words in part.update(time, good[0]).events[0].text


@pytest.mark.slow
def test_learned_strengths_give_bands_that_hold_the_truth() -> None:
    inside = []
    for b, states in enumerate(truths(12, seed=5)):
        values = read(states, b)
        part = follow(SQUARE, Readings(DT * np.arange(31), values[:31], GRID), ["start", "field"], start=ONES)
        for k in range(31, STEPS + 1):
            part.update(DT * k, values[k])
            low, high = part.estimate().band()
            inside.append((low[:, 0] < states[k]) & (states[k] < high[:, 0]))
    assert 0.85 < np.mean(inside) < 0.95


# ---------------------------------------------------------------------- models, drives, steps that are not linear


def far_from_zero(p: Problem) -> DGNet:
    torch.manual_seed(0)
    net = DGNet(DGNetConfig(hidden=6, layers=1), p)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    return net


@pytest.mark.parametrize("kind", ["damped", "quadratic", "universal", "universal quadratic", "dgnet"])
def test_every_model_is_followed_as_it_rolls_out(kind: str) -> None:
    """A start and a source that are known: the mean is the rollout, in double precision; readings without noise change nothing."""
    p = plate(5)
    single = Problem(p.mesh, p.pde, p.conditions, DT, dtype=torch.float32)
    model: Model = {"damped": lambda: Classical(start=2), "quadratic": lambda: Classical(degree=2), "universal": Universal,
                    "universal quadratic": lambda: Universal(degree=2),
                    "dgnet": lambda: far_from_zero(single)}[kind]()
    glow = FunctionSource(lambda x, t: np.sin(3 * t) * torch.exp(-((x - 0.4) ** 2).sum(1) / 0.1)) if kind != "damped" else None
    part = Follower(single if kind == "dgnet" else p, SENSORS, {"field": Prior(0.5, 0.4, 1.0)}, noise=0.01, start=torch.ones(36, 1),
                    source=glow, model=model, finer=False)
    assert part.dynamics.linear and part.filter.mean.dtype == np.float64
    points = torch.tensor(part.model.points(p))
    source = None if glow is None else step_average(glow, points, DT * torch.arange(6, dtype=torch.float64), DT, panels=8)
    with torch.no_grad():
        states = rollout(part.model, p, torch.ones(1, 36, 1, dtype=torch.float64), source, 6)[0]
    for k in range(1, 7):
        part.update(DT * k, p.mesh.interpolate(states[k], [s.place for s in SENSORS])[:, 0])
    assert part.estimate().mean == pytest.approx(states[-1].numpy(), abs=1e-9) and part.chi_square < 1e-12


def test_flux_ambient_and_spots_are_found() -> None:
    """Drives that are not the field: each from readings of a plate on which it acts, the others unknown, too."""
    p = plate(8)
    spots = SpotTable(("lamp",), (np.array([0.0, 1.0]),), (np.array([[0.3, 0.6, 0.15, 1.0]] * 2),))
    x = torch.tensor(p.mesh.points)
    for driven, wanted in ((replace(p, conditions=[Robin("boundary", 0.2, 1.5)]), (0.5, 0.0, 0.0)),
                           (replace(p, conditions=[*p.conditions, Neumann("left", 0.2)]), (0.0, 0.2, 0.0)), (p, (0.0, 0.0, 0.7))):
        shape = torch.exp(-((x - torch.tensor((0.3, 0.6))) ** 2).sum(1) / (2 * 0.15**2))
        source = (wanted[2] * shape)[None, None, :, None].expand(1, 40, -1, -1)
        with torch.no_grad():
            states = rollout(Classical(), driven, torch.ones(1, 81, 1, dtype=torch.float64), source)[0]
        names = ("ambient", "flux:left", "source")
        part = Follower(p, SENSORS, {name: Prior(0.5, time=20.0) for name in names}, noise=1e-3, start=torch.ones(81, 1),
                        spots=spots, finer=False)
        for k in range(41):
            part.update(DT * k, p.mesh.interpolate(states[k], [s.place for s in SENSORS])[:, 0])
        past = part.smooth()
        assert part.labels == ("ambient", "flux:left", "lamp")
        assert past.drives[20] == pytest.approx(wanted, abs=0.03)
        assert (np.abs(past.drives[20] - wanted) < 4 * past.drives_sd[20] + 1e-3).all()


def test_drives_in_a_rollout_are_those_of_a_filter() -> None:
    """What `learned` puts into rollouts and a filter into its steps: a start, sources, a flux and surroundings, from t = 0.3 on."""
    p, t0, steps = replace(plate(5), conditions=[Robin("boundary", 0.2, lambda x, t: 1 + t + 0 * x[:, 0])]), 0.3, 6
    spots = SpotTable(("lamp",), (np.array([0.0, 1.0]),), (np.array([[0.3, 0.6, 0.15, 1.0], [0.7, 0.5, 0.15, 1.0]]),))
    names, rng = ["start", "field", "source", "flux:left", "ambient"], np.random.default_rng(0)
    unknowns, finer = Unknowns(p, names, spots), Finer(p, Classical())
    numbers = {}
    run = Rollout.of(Known.of(p, torch.ones(36, 1), None, spots, t0), steps, finer, 0)
    for name in names:
        kind = unknowns.kind(name, steps, t0)
        numbers[name] = rng.standard_normal(kind.shape)
        kind.put(run, torch.from_numpy(numbers[name]))
    driven = Driven(p, Classical(), unknowns, None, t0)
    u = torch.ones(1, 36, 1, dtype=torch.float64) + torch.einsum("m,mnf->nf", torch.from_numpy(numbers["start"]), unknowns.smooth())
    states = [u := driven.stepper.begin(u)]
    for k in range(steps):
        states.append(u := driven.driven(k, u, {name: numbers[name][:, k, None] for name in unknowns.drives}))
    there = [Point(tuple(x)) for x in p.mesh.points]  # at nodes fields that are curved in cells are what they are anyway
    assert run.read(there).T.numpy() == pytest.approx(torch.cat(states)[..., 0].numpy(), abs=1e-10)


def test_a_step_that_is_not_linear_is_followed_through_its_derivative() -> None:
    p = Problem(box((6, 6)), PDE(diffusion=0.02, reaction=lambda u: 2 * u * (1 - u)), [], 0.1)
    rng = np.random.default_rng(3)
    with torch.no_grad():
        begin = 0.3 + 0.2 * torch.exp(-((torch.tensor(p.mesh.points) - 0.3) ** 2).sum(1) / 0.1)
        states = rollout(Classical(), p, begin[None, :, None], steps=20)[0]
    part = Follower(p, SENSORS, {"start": Prior(0.15, 0.5)}, noise=0.01, start=torch.full((49, 1), 0.35))
    assert not part.dynamics.linear
    for k in range(21):
        seen = p.mesh.interpolate(states[k], [s.place for s in SENSORS])[:, 0]
        part.update(0.1 * k, seen + 0.01 * rng.standard_normal(5))
    low, high = part.estimate().band()
    true = states[-1].numpy()
    assert ((low < true) & (true < high)).mean() > 0.8 and np.abs(part.estimate().mean - true).max() < 0.03
    assert part.consistency[0] < 1.5
    with pytest.raises(InputError, match="nothing about the noise"):
        follow(plate(), Readings(DT * np.arange(3), np.ones((3, 5)), SENSORS), ["start"], start=torch.ones(49, 1))
    with pytest.raises(InputError, match="has a reaction"):
        follow(p, Readings(0.1 * np.arange(5), np.ones((5, 5)), SENSORS), ["start"])


def test_what_cannot_be_followed_is_refused() -> None:
    for unknown, noise, sensors, words in (
        ({"sauce": Prior(1.0)}, 0.1, SENSORS, "did you mean 'source'"), ({"source": Prior(1.0)}, 0.1, SENSORS, "give the places"),
        ({"start": Prior(1.0)}, 0.0, SENSORS, "noise must be a positive"),
        ({"start": Prior(1.0)}, 0.1, [[3.0, 3.0]], "no sensor can be used"),
    ):
        with pytest.raises(InputError, match=words):
            Follower(plate(), sensors, unknown, noise=noise)
    with pytest.raises(InputError, match="not negative"):
        Prior(-1.0)
    part = Follower(plate(), SENSORS, {"start": Prior(1.0)}, noise=0.1)
    for wrong in (lambda: part.update(0.0, [1.0]), lambda: part.forecast(0)):
        with pytest.raises(InputError, match=r"5 readings|at least 1"):
            wrong()


@pytest.mark.parametrize("seed", [1, 3, 6, 9])  # two and three dimensions, one and two fields, a flow that changes, periodic sides
def test_every_kind_of_problem_is_followed(seed: int) -> None:
    p, t0 = drawn(seed), 0.3
    start = torch.rand(p.mesh.n_nodes, p.n_fields, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        states = rollout(Classical(), p, start[None], steps=6, t0=t0)[0]
    seen = torch.einsum("npf,spf->ns", states, weights(sensors_of(p), p)).numpy()
    part = Follower(p, sensors_of(p), {"start": Prior(0.1, 0.5), "field": Prior(0.1, 0.5, 1.0)}, noise=0.01, start=start, t0=t0,
                    finer=False)
    for k, values in enumerate(seen):
        part.update(t0 + p.dt * k, values)
    assert part.estimate().mean == pytest.approx(states[-1].numpy(), abs=1e-10)
    assert part.smooth().mean == pytest.approx(seen, abs=1e-10)


def test_forecasts_and_files_leave_the_solver_as_it_was(tmp_path: Path) -> None:
    """A reaction turns stiff where little else changes: when steps notice it depends on those before."""
    mesh = box((6, 5), perturb=0.2)
    left = torch.tensor(mesh.points[:, 0] < 0.5)
    p = Problem(mesh, PDE(diffusion=0.02, reaction=lambda u: -8 * u**3), [], 0.05)

    def force(x: torch.Tensor, t: float) -> torch.Tensor:
        k = int(t / 0.05)
        rising = 4 * (k < 6) + 8 * (0.35 + 0.2 * min(k, 6)) ** 3
        return torch.where(x[:, 0] < 0.5, rising, 10.0 * (-1) ** k).double()

    places, start = [[0.2, 0.3], [0.7, 0.6]], torch.where(left, 0.35, 0.0)[:, None].double()
    about = {"start": start, "source": FunctionSource(force)}
    one, other = (Follower(p, places, {"field": Prior(0.01, 0.5, 0.3)}, noise=0.1, **about) for _ in range(2))
    for k in range(1, 8):
        for part in (one, other):
            part.update(0.05 * k, [0.9, 0.1])
        other.forecast(4)
        other.save(tmp_path / "state.npz")
        gone_on = Follower.load(tmp_path / "state.npz", p, places, **about)
        assert gone_on.dynamics.memory().keys() == one.dynamics.memory().keys()
        assert all(torch.equal(x, one.dynamics.memory()[name]) for name, x in gone_on.dynamics.memory().items())
        assert np.array_equal(one.estimate().mean, other.estimate().mean)

"""Sensor kernels give what rollouts give: every model, kind of sensor, operator and precision; files; what is refused."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from dgnet.errors import InputError
from dgnet.inverse import SENSORS, Flux, Kernels, Patch, Placement, Point, Sensor, kernels, read_sensors, readings
from dgnet.inverse import sensor as sensor_module
from dgnet.inverse.sensor import curved_rows, rows
from dgnet.mesh import box, from_cells
from dgnet.models import Classical, Model, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.models.universal import Universal
from dgnet.problems import PDE, Condition, Dirichlet, Neumann, Periodic, Problem, Robin
from dgnet.report import recovered
from dgnet_paper.model import PaperConfig

Tensor = torch.Tensor
RIM: tuple[Condition, ...] = (Dirichlet("left", 0.3), Robin("right", 2.0, 1.0), Neumann("top", 0.1))


def drawn(seed: int, dtype: torch.dtype = torch.float64) -> Problem:
    """A random linear problem: 2D or 3D, one or two fields, with and without flow, capacity, decay, time-dependent data."""
    rng = np.random.default_rng(seed)
    three = rng.random() < 0.25
    mesh = box((3, 2, 3) if three else (5, 4), perturb=0.2, seed=seed)
    fields = ("a", "b") if rng.random() < 0.3 else ("u",)
    flow = 0.5 * rng.standard_normal(mesh.dim)
    moving = rng.random()
    velocity = flow if moving < 0.3 else (lambda t: (1 + t) * torch.tensor(flow, dtype=dtype)) if moving < 0.45 else None
    pde = PDE(fields, diffusion=float(rng.uniform(0.1, 1.0)), decay=float(rng.uniform(0, 0.5)), velocity=velocity,
              capacity=float(rng.uniform(0.5, 2.0)) if rng.random() < 0.3 else 1.0)
    tide = Dirichlet("left", lambda x, t: 0.3 + t + 0 * x[:, 0])
    rims: list[tuple[Condition, ...]] = [(), RIM, (tide, Robin("right", 2.0, 1.0)), (Periodic("left", "right"),)]
    return Problem(mesh, pde, rims[int(rng.integers(len(rims)))], float(rng.uniform(0.01, 0.1)), dtype=dtype)


def sensors_of(p: Problem) -> list[Sensor]:
    middle = (0.43,) * p.mesh.dim
    return [Point((0.31, *middle[1:]), "bead"), Patch(middle, 0.2, "camera", p.pde.fields[-1]), Flux("right", "wall")]


def behind(seen: np.ndarray, lag: float, dt: float) -> np.ndarray:
    """What follows w . u [H+1] with a time constant, w . u linear within each step, by an integrator of the equation."""
    times, out = dt * np.arange(len(seen)), [seen[0]]
    for a, b, u, v in zip(times[:-1], times[1:], seen[:-1], seen[1:]):
        done = solve_ivp(lambda t, y: (u + (t - a) / dt * (v - u) - y) / lag, (a, b), [out[-1]], rtol=1e-11, atol=1e-13)  # noqa: B023
        out.append(done.y[0, -1])
    return np.array(out)


def gap(p: Problem, model: Model, steps: int = 7, seed: int = 0) -> float:
    """Largest difference between readings of kernels and of a rollout, over the range of the readings."""
    g = torch.Generator().manual_seed(seed)
    points = len(model.points(p))
    source = torch.randn(steps, points, p.n_fields, generator=g, dtype=torch.float64).to(p.dtype)
    start = torch.randn(points, p.n_fields, generator=g, dtype=torch.float64).to(p.dtype)
    found = kernels(p, sensors_of(p), steps, model).readings(source, start)
    with torch.no_grad():
        states = rollout(model, p, start[None], source[None])[0]
    wanted = torch.einsum("npf,spf->sn", states.double(), rows(sensors_of(p), p))
    assert found.shape == wanted.shape and found.dtype == p.dtype
    span = wanted.amax(1) - wanted.amin(1)
    return float(((found - wanted).abs().amax(1) / span).max())


@pytest.mark.parametrize("seed", range(6))
def test_kernels_repeat_rollouts(seed: int) -> None:
    assert gap(drawn(seed), Classical(), seed=seed) < 1e-10
    assert gap(drawn(seed, torch.float32), Classical(), seed=seed) < 1e-5


@pytest.mark.slow
def test_kernels_repeat_rollouts_of_fifty_random_problems() -> None:
    for seed in range(50):
        assert gap(drawn(seed), Classical(), 20, seed) < 1e-10, seed
        assert gap(drawn(seed, torch.float32), Classical(), 20, seed) < 1e-5, seed


def far_from_zero(p: Problem, config: DGNetConfig, size: float = 0.2) -> DGNet:
    torch.manual_seed(0)
    net = DGNet(config, p).double()
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(size * torch.randn_like(weight))
    return net


@pytest.mark.parametrize("kind", ["damped", "quadratic", "universal", "universal quadratic", "dgnet", "early"])
def test_every_linear_model_has_kernels(kind: str) -> None:
    p = Problem(box((5, 4), perturb=0.2), PDE(diffusion=0.7), RIM, 0.02)
    model: Model = {"damped": lambda: Classical(start=2), "quadratic": lambda: Classical(degree=2), "universal": Universal,
                    "universal quadratic": lambda: Universal(degree=2),
                    "dgnet": lambda: far_from_zero(p, DGNetConfig(hidden=6, layers=1)),
                    "early": lambda: far_from_zero(p, DGNetConfig(hidden=6, layers=1, early_steps=2))}[kind]()
    assert gap(p, model) < 1e-10


def test_sensors_read_what_they_say() -> None:
    for p in (Problem(box((6, 5), perturb=0.2), PDE(diffusion=0.3), [], 0.1),
              Problem(box((4, 3, 3), perturb=0.2), PDE(diffusion=0.3), [], 0.1)):
        slope = np.array([2.0, -1.0, 0.5])[: p.mesh.dim]
        u = torch.from_numpy(p.mesh.points @ slope)
        middle = (0.4, 0.6, 0.5)[: p.mesh.dim]
        w = rows([Point(middle), Patch(middle, 0.1), Flux("right"), Flux("boundary")], p)[..., 0]
        assert (w @ u).numpy() == pytest.approx([middle @ slope, middle @ slope, -0.3 * 2.0, 0.0], abs=1e-9)


def test_nodes_alone_are_fitted_as_a_rollout_does() -> None:
    p = Problem(box((4, 4)), PDE(diffusion=0.7), RIM, 0.02)
    source = torch.rand(5, 25, 1, dtype=torch.float64)
    found = kernels(p, [[0.3, 0.3]], 5, Universal()).readings(source)
    with torch.no_grad():
        states = rollout(Universal(), p, torch.zeros(1, 25, 1, dtype=torch.float64), source[None])[0]
    assert found[0].numpy() == pytest.approx(p.mesh.interpolate(states, [[0.3, 0.3]])[:, 0, 0], abs=1e-11)


def test_files_hold_all_of_it(tmp_path: Path) -> None:
    p = Problem(box((5, 4)), PDE(diffusion=0.7), RIM, 0.02)
    made = kernels(p, sensors_of(p), 8, Classical(start=1))
    source, start = torch.rand(8, 30, 1, dtype=torch.float64), torch.rand(30, 1, dtype=torch.float64)
    made.save(tmp_path / "k.npz")
    again = Kernels.load(tmp_path / "k.npz")
    assert torch.equal(again.readings(source, start), made.readings(source, start)) and again.names == ("bead", "camera", "wall")
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    for name, words in (("bad.npz", "does not hold sensor kernels"), ("none.npz", "there is no file")):
        with pytest.raises(InputError, match=words):
            Kernels.load(tmp_path / name)


@pytest.mark.parametrize("name", ["lag", "early", "start", "base"])
def test_a_bit_that_changed_in_a_folder_is_found_before_it_is_read(tmp_path: Path, name: str) -> None:
    p = Problem(box((5, 4)), PDE(diffusion=0.7), RIM, 0.02)
    kernels(p, sensors_of(p), 8, Classical(start=1), store=tmp_path / "kernels")
    file = tmp_path / "kernels" / f"{name}.npy"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1  # of the last sensor
    file.write_bytes(content)
    source, start = torch.rand(8, 30, 1, dtype=torch.float64), torch.rand(30, 1, dtype=torch.float64)
    again = Kernels.open(tmp_path / "kernels")
    assert isinstance(again.reading(0, 8, source, start), float)  # the others are whole
    for action in (lambda: again.reading(2, 8, source, start), lambda: again.readings(source, start),
                   lambda: again.starts(start[None]), lambda: again.responses(start[None]), lambda: again.save(tmp_path / "k.npz")):
        with pytest.raises(InputError, match="the kernels of sensor 'wall' are not what was written"):
            action()


def test_what_has_no_kernels_is_refused() -> None:
    mesh = box((3, 3))
    p = Problem(mesh, PDE(diffusion=1.0), [], 0.1)
    strange = far_from_zero(p, PaperConfig(hidden=6, layers=1, residual=True), 0.05)
    for problem, given, model, words in (
        (Problem(mesh, PDE(diffusion=1.0, reaction=torch.sin), [], 0.1), [[0.5, 0.5]], None, "has a reaction"),
        (p, [[0.5, 0.5]], strange, "not linear"),
        (p, [[1.5, 0.5]], None, r"sensor 'sensor 1' at \[1.5, 0.5\] lies outside"),
        (p, [Patch((3.0, 3.0), 0.1, "far")], None, "sensor 'far' .* outside"),
        (p, [Point((0.5,), "short")], None, "needs 2 finite coordinates"),
        (p, [Point((0.5, 0.5), "lost", "v")], None, "reads the field 'v'"),
        (p, [Flux("lid")], None, "no boundary 'lid'"),
        (p, [], None, "at least one sensor"),
    ):
        with pytest.raises(InputError, match=words):
            kernels(problem, given, 3, model)


def test_kernels_in_a_folder_are_those_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    p = Problem(box((5, 4)), PDE(diffusion=0.7), RIM, 0.02)
    model = Classical(start=1)
    made = kernels(p, sensors_of(p), 8, model)
    source, start = torch.rand(8, 30, 1, dtype=torch.float64), torch.rand(30, 1, dtype=torch.float64)
    wanted, shapes = made.readings(source, start), torch.rand(2, 30, 1, dtype=torch.float64)
    module = sys.modules["dgnet.inverse.kernels"]
    monkeypatch.setattr(module, "_BLOCK", 1.0)  # one sensor at a time
    stored = kernels(p, sensors_of(p), 8, model, store=tmp_path / "kernels")
    for again in (stored, Kernels.open(tmp_path / "kernels")):
        assert again.names == made.names and again.lag.shape == made.lag.shape
        assert torch.allclose(again.readings(source, start), wanted, atol=1e-13)
        assert torch.allclose(again.responses(shapes), made.responses(shapes), atol=1e-13)
        assert torch.allclose(again.starts(shapes), made.starts(shapes), atol=1e-13)
    for sensor, step in ((0, 0), (1, 1), (2, 8), (0, 5)):
        assert made.reading(sensor, step, source, start) == pytest.approx(float(wanted[sensor, step]), abs=1e-12)
    with pytest.raises(InputError, match="step 9 is not within"):
        made.reading(0, 9, source)
    stored.save(tmp_path / "k.npz")
    assert torch.equal(Kernels.load(tmp_path / "k.npz").readings(source, start), stored.readings(source, start))
    monkeypatch.setattr(module, "_MOST", 1e4)
    with pytest.raises(InputError, match="give a folder to `store` them"):
        kernels(p, sensors_of(p), 8, model)
    (tmp_path / "kernels" / "lag.npy").write_bytes(b"no")
    with pytest.raises(InputError, match="does not hold sensor kernels"):
        Kernels.open(tmp_path / "kernels")


@pytest.mark.parametrize("seed", range(4))
def test_sensors_that_lag_read_what_the_equation_of_the_lag_says(seed: int) -> None:
    """In lags, first steps that differ, starts and conditions alike; one that does not lag reads as before."""
    p, steps = drawn(seed), 6
    model = (Classical(), Classical(start=2), Classical(degree=2) if not p.periodic else Classical(), Classical())[seed]
    lags = (0.4 * p.dt, 5 * p.dt, 0.0)
    sensors = [replace(s, lag=lag) for s, lag in zip(sensors_of(p), lags)]
    g = torch.Generator().manual_seed(seed)
    source = torch.randn(steps, len(model.points(p)), p.n_fields, generator=g, dtype=torch.float64)
    start = torch.randn(len(model.points(p)), p.n_fields, generator=g, dtype=torch.float64)
    plain = kernels(p, sensors_of(p), steps, model).readings(source, start).numpy()
    found = kernels(p, sensors, steps, model)
    for k, lag in enumerate(lags):
        wanted = behind(plain[k], lag, p.dt) if lag else plain[k]
        np.testing.assert_allclose(found.readings(source, start)[k].numpy(), wanted, atol=1e-8 * np.ptp(plain[k]))
    assert found.reading(1, 4, source[:4], start) == pytest.approx(float(found.readings(source, start)[1, 4]))


def test_a_lag_that_is_no_time_is_refused() -> None:
    for lag in (-0.1, float("nan"), float("inf")):
        with pytest.raises(InputError, match="Point: lag must be a number"):
            Point((0.1, 0.2), "A", lag=lag)


@pytest.mark.parametrize("dim", [2, 3])
def test_curved_readings_of_a_quadratic_field_are_exact(dim: int) -> None:
    """Points, patches (their mean of points) and fluxes; each falls on another side of the linear one."""
    p = Problem(box((5, 4, 4)[:dim], perturb=0.2), PDE(diffusion=0.7), [], 0.1)
    x = p.mesh.points
    A = np.array([[1.0, 0.3, 0.2], [0.3, -0.5, 0.1], [0.2, 0.1, 0.8]])[:dim, :dim]
    u = torch.tensor(np.einsum("ni,ij,nj->n", x, A, x) + x[:, 0])[:, None]
    point, patch, wall = Point((0.31, 0.43, 0.52)[:dim]), Patch((0.31, 0.43, 0.52)[:dim], 0.1), Flux("right")
    seen = torch.einsum("snf,nf->s", curved_rows([point, patch, wall], p), u).tolist()
    at = np.array(point.place)
    spread = np.linspace(-1, 1, 17)
    disc = np.array([c for c in product(spread, repeat=dim) if np.dot(c, c) <= 1]) * 0.1 + at
    slope = (2 * x @ A)[:, 0] + 1  # du/dx is linear along the wall x = 1, so that the mean of its corners is exact
    facets = p.mesh.facets("right")
    size = p.mesh.facet_geometry("right")[0]
    assert seen[0] == pytest.approx(float(at @ A @ at + at[0]), abs=1e-9)
    assert seen[1] == pytest.approx(float((np.einsum("ni,ij,nj->n", disc, A, disc) + disc[:, 0]).mean()), abs=1e-9)
    assert seen[2] == pytest.approx(float(-0.7 * (size * slope[facets].mean(1)).sum()), abs=1e-9)


@dataclass(frozen=True)
class Line(Sensor):
    """The mean along the way from a place to another one."""

    columns: ClassVar = {"to_x": float, "to_y": float}

    place: tuple[float, ...]
    to_x: float
    to_y: float
    name: str = ""
    field: str | None = None
    lag: float = 0.0

    def linear(self, problem):
        share = np.linspace(0, 1, 201)[:, None]
        return from_cells(problem.mesh.points, problem.mesh.cells, (1 - share) * self.place + share * [self.to_x, self.to_y])[0]


def test_a_kind_of_sensor_is_one_class(tmp_path, monkeypatch):
    """Read from a table, it reads linear fields exactly, quadratic ones with curved rows, and is written as it was read."""
    known = (*SENSORS[:-1], Line, SENSORS[-1])
    for module in (sensor_module, readings, recovered):
        monkeypatch.setattr(module, "SENSORS", known)
    (tmp_path / "sensors.csv").write_text("sensor,x,y,to_x,to_y,radius,boundary\na,0.2,0.2,0.8,0.6,,\nb,0.5,0.5,,,,\nc,,,,,,left\n")
    sensors = read_sensors(tmp_path / "sensors.csv", 2)
    assert [type(s) for s in sensors] == [Line, Point, Flux]
    p = Problem(box((9, 9)), PDE(diffusion=1.0), [], dt=0.1)
    x, y = p.mesh.points.T
    assert rows(sensors[:1], p)[0, :, 0].numpy() @ (x + 2 * y) == pytest.approx(0.5 + 0.8)
    assert curved_rows(sensors[:1], p)[0, :, 0].numpy() @ x**2 == pytest.approx((0.8**3 - 0.2**3) / 3 / 0.6, rel=2e-3)
    found = Placement((0, 1, 2), tuple(sensors), np.array([1.0, 0.5, 0.4, 0.3]), np.zeros((3, 1, 1)), np.ones(1))
    recovered.write_placement(found, sensors, p.mesh, tmp_path)
    assert read_sensors(tmp_path / "sensors.csv", 2) == sensors

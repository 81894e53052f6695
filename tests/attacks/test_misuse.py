"""Every argument of every public name in turn replaced by what it is not: a sentence that names it, or a result that is right.

A call ends in an `InputError` (or the `SolveError` of a rollout), or works; then its result is used, and is finite. No other
exception leaves a public name. What a user's own function raises is his.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dgnet as dg
import dgnet_paper
from dgnet.designs import FreeSpot, Target
from dgnet.following import Follower, Prior
from dgnet.inverse import (
    Flux,
    Kernels,
    Patch,
    Point,
    Readings,
    read_readings,
    read_sensors,
    read_spots,
    recover_coefficients,
    recover_track,
)
from dgnet.models import Adaptive, Ready, Refined
from dgnet_paper.reference import solve as reference_solve
from tests.projects.conftest import write_tiny

Tensor = torch.Tensor
DT = 0.1


class Thing:
    """Nothing that anybody asked for."""


def values() -> dict[str, Any]:
    """What an argument is replaced by, made anew each time."""
    return {
        "None": None, "empty list": [], "empty table": {}, "text": "nonsense", "empty text": "", "null": "a\0b", "newline": "a\nb",
        "true": True, "minus one": -1, "zero": 0, "half": 2.5, "huge": 10**400, "large": 1 << 70, "tiny": 1e-320,
        "nan": float("nan"), "inf": float("inf"), "complex": 1 + 2j, "object": Thing(), "class": Thing, "model class": dg.Classical,
        "bytes": b"abc", "set": {1, 2}, "generator": (x for x in (1, 2)), "no arguments": lambda: 0.0, "nothing": lambda *a: None,
        "text from a function": lambda *a: "words", "nan from a function": lambda *a: torch.tensor(float("nan")),
        "wrong shape": lambda *a: torch.ones(3, 2, 5, 7), "dates": np.array(["2020-01-01"], dtype="datetime64[D]"),
        "objects": np.array([{}, []], dtype=object), "words": np.array(["a", "b"]), "ragged": [[1.0, 2.0], [3.0]],
        "truths": [True, False], "list of None": [None, None], "list of texts": ["a", "b"],
        "whole numbers": torch.ones(2, 3, dtype=torch.int64), "complex tensor": torch.ones(1, 9, 1, dtype=torch.complex128),
        "half tensor": torch.ones(1, 9, 1, dtype=torch.float16), "nan tensor": torch.full((1, 9, 1), float("nan")),
        "empty batch": torch.zeros(0, 9, 1), "empty tensor": torch.zeros(0), "number": torch.tensor(1.0),
        "five axes": torch.ones(1, 1, 1, 1, 1), "gradients": torch.ones(3, requires_grad=True), "table of texts": {"u": "words"},
        "table of numbers": {1: 2.0}, "mesh": mesh(), "problem": problem(), "path": Path("nowhere"),
        "enormous": 1e308, "below all": -1e308, "reversed": np.ones((1, 9, 1))[:, ::-1], "half a character": "\ud800",
        "on no device": torch.ones(1, 9, 1, device="meta"), "sparse": torch.eye(9).to_sparse(),
    }


@cache
def mesh() -> dg.Mesh:
    return dg.box((2, 2))


@cache
def problem() -> dg.Problem:
    return dg.Problem(mesh(), dg.PDE(diffusion=0.1), [dg.Dirichlet("left", 1.0)], DT)


def start() -> Tensor:
    return torch.zeros(1, 9, 1, dtype=torch.float64)


def rolled(p: dg.Problem, model: Any = None) -> Tensor:
    return dg.rollout(dg.Classical() if model is None else model, p, torch.zeros(1, p.mesh.n_nodes, p.n_fields), steps=2)


def on(*conditions: Any, **pde: Any) -> Tensor:
    return rolled(dg.Problem(mesh(), dg.PDE(**pde), conditions, DT))


@cache
def data() -> dg.Corpus:
    states = rolled(problem()).float()
    return dg.Corpus(torch.cat([states, states + 0.1]), None, None, DT, (0.0,))


@cache
def small() -> dg.DGNet:
    return dg.DGNet(dg.DGNetConfig(decoder="none", calibrate=("diffusion",)), problem())


@cache
def readings() -> Readings:
    return Readings(DT * np.arange(4), np.linspace(0, 0.5, 8).reshape(4, 2), (Point((0.3, 0.4), "a"), Point((0.7, 0.6), "b")))


def spots() -> dg.SpotTable:
    return dg.SpotTable(("s",), (np.array([0.0, 1.0]),), (np.array([[0.5, 0.5, 0.3, 1.0]] * 2),))


def kernels_of(*sensors: Any) -> Any:
    return dg.kernels(problem(), list(sensors), 2).lag


def lamp(x: Tensor, t: float) -> Tensor:
    return t * x[:, 0]


@dataclass(frozen=True)
class Call:
    """A public name, arguments with which it works, and what is done with its result."""

    name: str
    make: Callable[..., Any]
    valid: Callable[[], dict[str, Any]]
    use: Callable[[Any], Any] | None = None


CALLS = [
    Call("box", dg.box, lambda: dict(cells=(2, 2), lower=(0.0, 0.0), upper=(1.0, 1.0), perturb=0.1, seed=0), lambda m: m.volumes),
    Call("Mesh", dg.Mesh, lambda: dict(points=mesh().points, cells=mesh().cells, boundaries={"left": mesh().boundaries["left"]},
         regions={"a": [0, 1]}), lambda m: rolled(dg.Problem(m, dg.PDE(diffusion=0.1), [], DT))),
    Call("Mesh.interpolate", lambda **k: mesh().interpolate(**k), lambda: dict(values=np.ones(9), points=[[0.5, 0.5]])),
    Call("shipped", dg.shipped, lambda: dict(name="gear-plate-2k")),
    Call("save_mesh", dg.save_mesh, lambda: dict(mesh=mesh(), path="m.npz", point_data={"u": np.ones(9)})),
    Call("load_mesh", dg.load_mesh, lambda: dict(path="mesh.npz")),
    Call("Dirichlet", dg.Dirichlet, lambda: dict(boundary="left", value=1.0, field="u"), lambda c: on(c, diffusion=0.1)),
    Call("Neumann", dg.Neumann, lambda: dict(boundary="left", flux=1.0, field="u"), lambda c: on(c, diffusion=0.1)),
    Call("Robin", dg.Robin, lambda: dict(boundary="left", coefficient=1.0, ambient=1.0, field="u"), lambda c: on(c,
         diffusion=0.1)),
    Call("Periodic", dg.Periodic, lambda: dict(boundary="left", partner="right"), lambda c: on(c, diffusion=0.1)),
    Call("PDE", dg.PDE, lambda: dict(fields=("u",), diffusion=0.1, velocity=[1.0, 0.0], decay=0.1, reaction=lambda u: -u,
         capacity=1.0), lambda pde: rolled(dg.Problem(mesh(), pde, [], DT))),
    Call("Curve", dg.Curve, lambda: dict(at=[-9.0, 9.0], values=[0.1, 0.2], latent=(), extends=True, name="k"), lambda c:
         on(diffusion=c)),
    Call("Curve.melting", lambda **k: dg.Curve([-9.0, 9.0], [1.0, 2.0]).melting(**k), lambda: dict(heat=1.0, low=0.1, high=0.2),
         lambda c: on(diffusion=0.1, capacity=c)),
    Call("Scaled", dg.Scaled, lambda: dict(curve=dg.Curve([-9.0, 9.0], [0.1, 0.2]), by=2.0), lambda c: on(diffusion=c)),
    Call("ByRegion", dg.ByRegion, lambda: dict(parts={"a": 0.1, "b": 0.2}), lambda c: rolled(dg.Problem(dg.Mesh(mesh().points,
         mesh().cells, {}, {"a": range(4), "b": range(4, 8)}), dg.PDE(diffusion=c), [], DT))),
    Call("Problem", dg.Problem, lambda: dict(mesh=mesh(), pde=dg.PDE(diffusion=0.1), conditions=[], dt=DT, consistent=1.0,
         advection_form="galerkin", dtype=torch.float64, device="cpu"), rolled),
    Call("FunctionSource", dg.FunctionSource, lambda: dict(function=lamp), lambda f: dg.step_average(f,
         torch.tensor(mesh().points), torch.arange(2.0), DT)),
    Call("SpotTable", dg.SpotTable, lambda: dict(names=("s",), times=(np.array([0.0, 1.0]),), values=(np.array([[0.5, 0.5, 0.3,
         1.0]] * 2),)), lambda s: s.average(torch.tensor(mesh().points), 0, 3, DT)),
    Call("SpotTable.read", dg.SpotTable.read, lambda: dict(path="spots.csv", dim=2)),
    Call("step_average", dg.step_average, lambda: dict(source=dg.FunctionSource(lamp), x=torch.tensor(mesh().points),
         start=torch.arange(2.0), dt=DT, panels=1, order=4, rule="average")),
    Call("step_moments", dg.step_moments, lambda: dict(source=dg.FunctionSource(lamp), x=torch.tensor(mesh().points),
         start=torch.arange(2.0), dt=DT, count=2, panels=1, order=4)),
    Call("Classical", dg.Classical, lambda: dict(consistent=1.0, backend="auto", start=0, theta=0.5, tolerance=None,
         degree=1, scheme="dg1"), lambda m: rolled(problem(), m)),
    Call("Refined", Refined, lambda: dict(model=dg.Classical()), lambda m: rolled(problem(), m)),
    Call("Adaptive", Adaptive, lambda: dict(model=dg.Classical(), tolerance=0.01), lambda m: rolled(problem(), m)),
    Call("Universal", dg.Universal, lambda: dict(nets=None, degree=1), lambda m: rolled(problem(), m)),
    Call("DGNetConfig", dg.DGNetConfig, lambda: {name: getattr(dg.DGNetConfig(), name) for name in vars(dg.DGNetConfig()) if name
         not in ("hidden", "layers")} | dict(hidden=4, layers=1), lambda c: rolled(problem(), dg.DGNet(c, problem()).double())),
    Call("DGNet", dg.DGNet, lambda: dict(config=dg.DGNetConfig(hidden=4, layers=1), problem=problem(), extra=()), lambda m:
         rolled(problem(), m.double())),
    Call("rollout", dg.rollout, lambda: dict(model=dg.Classical(), problem=problem(), u0=start(), source=torch.zeros(1, 3, 9,
         1).double(), steps=3, pause=False, t0=0.0, checkpoint=False, capture=True, sink=lambda k, u: None, progress=lambda k:
         None)),
    Call("Ready", Ready, lambda: dict(model=dg.Classical(), problem=problem(), batch=1, steps=10, replayed=False), lambda r:
         r.rollout(start(), steps=2)),
    Call("Ready.rollout", lambda **k: Ready(dg.Classical(), problem()).rollout(**k), lambda: dict(start=start(), source=None,
         steps=2)),
    Call("Pause", dg.Pause, lambda: dict(state=start(), step=3, t0=0.0, dt=DT, model="classical", nodes=9, dtype=torch.float64,
         mesh="", size=1.0, memory={}), lambda at: dg.rollout(dg.Classical(), problem(), at, steps=2)),
    Call("Pause.save", lambda **k: dg.Pause(start(), 3, 0.0, DT, "classical", 9, torch.float64).save(**k), lambda:
         dict(path="end.npz")),
    Call("Pause.load", dg.Pause.load, lambda: dict(path="pause.npz")),
    Call("GreenSolver", dg.GreenSolver, lambda: dict(problem=problem(), backend="lu", theta=0.5, tolerance=1e-06, solves=10,
         columns=1, operators=None, scheme="dg1"), lambda s: s.step(start())),
    Call("GreenSolver.step", lambda **k: dg.GreenSolver(problem()).step(**k), lambda: dict(u=start(), f=start(), t=0.0,
         start=True)),
    Call("GreenSolver.impulse", lambda **k: dg.GreenSolver(problem()).impulse(**k), lambda: dict(node=1, field=0, t=0.0)),
    Call("doubts", dg.doubts, lambda: dict(problem=problem(), start=start()[0], spots=spots(), source=dg.FunctionSource(lamp),
         states=rolled(problem()), averages=torch.zeros(2, 9, 1), steps=2, t0=0.0, short=False, units=None)),
    Call("SpotTable.on", lambda **k: spots().on(**k), lambda: dict(mesh=mesh(), brings=np.ones(9)),
         lambda s: s.average(torch.tensor(mesh().points), 0, 3, DT)),
    Call("steady", dg.steady, lambda: dict(problem=problem(), source=start(), t=0.0)),
    Call("Corpus", dg.Corpus, lambda: dict(state=data().state, source_average=torch.zeros(2, 2, 9, 1), velocity=None, dt=DT,
         offset=(0.0,), begin=torch.zeros(2).double(), middles=None, ends=None), lambda c: dg.predict(dg.Classical(), problem(),
         c)),
    Call("predict", dg.predict, lambda: dict(model=dg.Classical(), base=problem(), data=data(), steps=2)),
    Call("judge", dg.judge, lambda: dict(models={"a": dg.Classical()}, base=problem(), data=data(), steps=2, keep=False, first=0)),
    Call("score", dg.score, lambda: dict(predicted=data().state, true=data().state + 0.1, offset=(0.0,), fields=("u",), dt=DT)),
    Call("Stage", dg.Stage, lambda: {name: getattr(dg.Stage(1, 2), name) for name in vars(dg.Stage(1, 2))}, lambda s:
         dg.fit(small(), problem(), data(), data(), dg.Recipe("r", (s,)))),
    Call("Recipe", dg.Recipe, lambda: {name: getattr(dg.Recipe("r", (dg.Stage(1, 2),)), name) for name in vars(dg.Recipe("r",
         ()))}, lambda r: dg.fit(small(), problem(), data(), data(), r)),
    Call("fit", dg.fit, lambda: dict(model=small(), base=problem(), train=data(), valid=data(), recipe=dg.Recipe("r", (dg.Stage(1,
         2),)), seed=0, budget=None, folder="fitted", report=lambda p, n: None, resume=True)),
    Call("uncertainty", dg.uncertainty, lambda: dict(model=small(), base=problem(), train=data(), source=None)),
    Call("reference_solve", reference_solve, lambda: dict(mesh=mesh(), pde=dg.PDE(diffusion=0.1), conditions=[],
         initial=start(), dt=DT, steps=1, refine=0, substeps=1, degree=1, source=None, flow=None, phases=None, device="cpu",
         dtype=torch.float64, progress=lambda k: None, order=3, panels=1, gauss=3, tolerance=1e-08)),
    Call("trajectory", dg.trajectory, lambda: dict(state=np.zeros((3, 9)), mesh=mesh(), dt=DT, source=None, split="train")),
    Call("project", dg.project, lambda: dict(name="p", mesh=mesh(), pde=dg.PDE(diffusion=0.1), conditions=[], dt=DT,
         trajectories=[dg.trajectory(np.zeros((3, 9)), mesh(), DT)] * 2, data="data.h5", offset=(0.0,), calibrate=(),
         per_region=False, unknown_reaction=False, unknown_curves=(), model={"hidden": 4}, training=None)),
    Call("Dataset", dg.Dataset, lambda: dict(path="data.h5"), lambda d: d.close()),
    Call("load_project", dg.load_project, lambda: dict(folder="tiny", report=lambda what, done, total: None, force=False)),
    Call("load_run", dg.load_run, lambda: dict(folder=SHELF, device="cpu", case=None, problem=None, allow_different=False)),
    Call("train", dg.train, lambda: dict(project=tiny(), folder="run", model="classical", seed=0, device="cpu",
         minutes=0.001, trajectories=None, report=lambda p, n: None)),
    Call("evaluate", dg.evaluate, lambda: dict(run=run(), path="data.h5", device="cpu", split="test", limit=1)),
    Call("rollout_run", dg.rollout_run, lambda: dict(run=run(), source=None, trajectory=None, initial="warm.npy", data=None,
         steps=1, out=None, vtk=None, xdmf=None, gif=None, mp4=None, png=None, every=1, device="cpu", report=lambda what, done,
         total: None, sink=lambda k, u: None, dt=None, mesh=None, adaptive=None, band=None, everywhere=False)),
    Call("Point", Point, lambda: dict(place=(0.3, 0.4), name="a", field="u", lag=0.1), kernels_of),
    Call("Patch", Patch, lambda: dict(place=(0.5, 0.5), radius=0.3, name="a", field="u", lag=0.1), kernels_of),
    Call("Flux", Flux, lambda: dict(boundary="left", name="a", field="u", lag=0.1), kernels_of),
    Call("Prior", Prior, lambda: dict(strength=1.0, length=0.5, time=1.0, smoothness=1.5), lambda p: Follower(problem(), [[0.3,
         0.4]], {"field": p}, noise=0.1).estimate()),
    Call("Readings", Readings, lambda: dict(times=readings().times, values=readings().values, sensors=readings().sensors,
         notes=()), lambda r: dg.recover(problem(), r, ["start"], noise=0.1)),
    Call("read_readings", read_readings, lambda: dict(path="readings.csv", sensors=readings().sensors)),
    Call("read_sensors", read_sensors, lambda: dict(path="sensors.csv", dim=2)),
    Call("read_spots", read_spots, lambda: dict(path="places.csv", dim=2)),
    Call("kernels", dg.kernels, lambda: dict(problem=problem(), sensors=[[0.3, 0.4]], horizon=2, model=dg.Classical(), t0=0.0,
         store=None), lambda k: k.lag),
    Call("recover", dg.recover, lambda: dict(problem=problem(), readings=readings(), unknown=["source"], spots=spots(),
         start=start()[0], source=torch.zeros(5, 9, 1), noise=0.1, model=dg.Classical(), finer=False)),
    Call("recover_coefficients", recover_coefficients, lambda: dict(problem=problem(), readings=readings(), names=["diffusion"],
         finer=False)),
    Call("recover_track", recover_track, lambda: dict(problem=problem(), readings=readings(), radius=0.3, finer=False)),
    Call("place", dg.place, lambda: dict(problem=problem(), candidates=[[0.3, 0.4], [0.7, 0.6]], count=1, unknown=["start"],
         horizon=2, noise=0.1, strength=1.0, length=0.5, spots=None, criterion="A", model=dg.Classical())),
    Call("FreeSpot", FreeSpot, lambda: dict(name="h", radius=0.3, power=(0.0, 9.0), place=(0.5, 0.5), knots=3), lambda s:
         dg.design(problem(), [s], [Target("m", 0.5)], 3, starts=1, finer=False)),
    Call("Target", Target, lambda: dict(name="m", value=0.5, place=(0.5, 0.5), radius=0.0, begin=0.0, end=0.3, weight=1.0), lambda
         t: dg.design(problem(), [FreeSpot("h", 0.3, (0.0, 9.0), (0.5, 0.5), knots=3)], [t], 3, starts=1, finer=False)),
    Call("design", dg.design, lambda: dict(problem=problem(), sources=[FreeSpot("h", 0.3, (0.0, 9.0), (0.5, 0.5), knots=3)],
         targets=[Target("m", 0.5)], steps=3, highest=5.0, lowest=-5.0, start=start()[0], model=dg.Classical(), tolerance=0.5,
         starts=1, seed=0, finer=False, correct=False)),
    Call("Follower", Follower, lambda: dict(problem=problem(), sensors=[[0.3, 0.4]], unknown={"start": Prior(1.0, 0.5)}, noise=0.1,
         start=start()[0], source=dg.FunctionSource(lamp), spots=None, model=dg.Classical(), t0=0.0, rank=None, chance=1e-06,
         finer=False),
         lambda f: f.update(0.1, [0.5])),
    Call("Follower.update", lambda **k: follower().update(**k), lambda: dict(time=0.1, readings=[0.5])),
    Call("Follower.forecast", lambda **k: follower().forecast(**k), lambda: dict(steps=1, sensors=[[0.1, 0.1]])),
    Call("Follower.at", lambda **k: follower().at(**k), lambda: dict(sensors=[[0.1, 0.1]])),
    Call("Follower.smooth", lambda **k: follower().smooth(**k), lambda: dict(sensors=[[0.1, 0.1]], fields=False)),
    Call("Follower.save", lambda **k: follower().save(**k), lambda: dict(path="state.npz")),
    Call("Follower.load", Follower.load, lambda: dict(path="state0.npz", problem=problem(), sensors=[[0.3, 0.4]],
         start=start()[0])),
    Call("Field.band", lambda **k: follower().estimate().band(**k), lambda: dict(share=0.9)),
    Call("Kernels.readings", lambda **k: seen().readings(**k), lambda: dict(source=torch.zeros(2, 9, 1), start=torch.zeros(9, 1))),
    Call("Kernels.reading", lambda **k: seen().reading(**k), lambda: dict(sensor=0, step=1, source=torch.zeros(2, 9, 1),
         start=None)),
    Call("Kernels.responses", lambda **k: seen().responses(**k), lambda: dict(shapes=torch.zeros(1, 9, 1))),
    Call("Kernels.starts", lambda **k: seen().starts(**k), lambda: dict(shapes=torch.zeros(1, 9, 1))),
    Call("Kernels.save", lambda **k: seen().save(**k), lambda: dict(path="kernels.npz")),
    Call("Kernels.load", Kernels.load, lambda: dict(path="kernels0.npz", lift=None)),
    Call("Kernels.open", Kernels.open, lambda: dict(folder="kernels", lift=None)),
    Call("Readings.keeping", lambda **k: readings().keeping(**k), lambda: dict(kept=[0])),
    Call("Recovered.get", lambda **k: found().get(**k), lambda: dict(name="start",
         what="sd")),
    Call("Placement.left", lambda **k: placed().left(**k),
         lambda: dict(chosen=[0])),
    Call("Mesh.delaunay", dg.Mesh.delaunay, lambda: dict(points=mesh().points, boundaries={})),
    Call("Mesh.refined", lambda **k: mesh().refined(**k), lambda: dict(times=1)),
    Call("Mesh.facets", lambda **k: mesh().facets(**k), lambda: dict(name="left")),
    Call("Mesh.nodes_on", lambda **k: mesh().nodes_on(**k), lambda: dict(name="left")),
    Call("Mesh.dual_volumes", lambda **k: mesh().dual_volumes(**k), lambda: dict(kind="mixed")),
    Call("Corpus.part", lambda **k: data().part(**k), lambda: dict(rows=[0])),
    Call("Curve.of", dg.Curve.of, lambda: dict(function=lambda u: 1 + u ** 2, low=-1.0, high=1.0, points=5, name="k")),
    Call("Dataset.read", lambda **k: opened("read", **k), lambda: dict(number=0, start=0, steps=1, only=())),
    Call("Dataset.batch", lambda **k: opened("batch", **k), lambda: dict(numbers=[0], start=0, steps=1, device="cpu",
         dtype=torch.float32, ends=False)),
    Call("Dataset.of", lambda **k: opened("of", **k), lambda: dict(split="train")),
    Call("SpotTable.average", lambda **k: spots().average(**k), lambda: dict(x=torch.tensor(mesh().points), start=0, stop=2,
         dt=DT)),
    Call("SpotTable.at", lambda **k: spots().at(**k), lambda: dict(times=[0.0, 0.5])),
    Call("follow", dg.follow, lambda: dict(problem=problem(), readings=readings(), unknown={"start": Prior(1.0, 0.5)}, noise=0.1,
         start=start()[0], source=dg.FunctionSource(lamp), spots=None, model=dg.Classical(), rank=5, learn=3, finer=False)),
]
SHELF = Path(dgnet_paper.__file__).parent / "pretrained" / "laser-heat-converged"


def follower() -> Follower:
    return Follower(problem(), [[0.3, 0.4]], {"start": Prior(1.0, 0.5)}, noise=0.1)


@cache
def tiny() -> Any:
    return dg.load_project("tiny")


@cache
def found() -> Any:
    return dg.recover(problem(), readings(), ["start"], noise=0.1)


@cache
def placed() -> Any:
    return dg.place(problem(), [[0.3, 0.4]], 1, ["start"], 2, noise=0.1, strength=1.0)


@cache
def seen() -> Any:
    return dg.kernels(problem(), [[0.3, 0.4]], 2)


def opened(method: str, **arguments: Any) -> Any:
    with dg.Dataset("data.h5") as found:
        return getattr(found, method)(**arguments)


@cache
def run() -> dg.Run:
    return dg.load_run(SHELF)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that calls read."""
    folder = tmp_path_factory.mktemp("misuse")
    dg.save_mesh(mesh(), folder / "mesh.npz")
    (folder / "spots.csv").write_text("t,x,y,radius,power\n0,0.5,0.5,0.3,1\n1,0.5,0.5,0.3,1\n")
    (folder / "places.csv").write_text("x,y,radius\n0.5,0.5,0.3\n")
    (folder / "sensors.csv").write_text("sensor,x,y\na,0.3,0.4\nb,0.7,0.6\n")
    (folder / "readings.csv").write_text("t,a,b\n0,0,0\n0.1,1,1\n")
    dg.Pause(start(), 3, 0.0, DT, "classical", 9, torch.float64).save(folder / "pause.npz")
    follower().save(folder / "state0.npz")
    seen().save(folder / "kernels0.npz")
    dg.kernels(problem(), [[0.3, 0.4]], 2, store=folder / "kernels")
    np.save(folder / "warm.npy", np.full(run().case.mesh.n_nodes, 310.0))
    states = [dg.trajectory(np.zeros((3, 9)), mesh(), DT, split=split) for split in ("train", "train", "test")]
    dg.project("p", mesh(), dg.PDE(diffusion=0.1), [], DT, states, folder / "data.h5")
    write_tiny(folder / "tiny")
    dg.load_project(folder / "tiny")
    return folder


def finite(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or not value.is_floating_point() or bool(torch.isfinite(value.detach()).all())


def judged(call: Call, name: str, label: str, value: Any) -> str | None:
    """What is wrong with how a call ends; None where nothing is."""
    arguments = {**call.valid(), name: value}
    try:
        result = call.make(**arguments)
        result = result if call.use is None else call.use(result)
    except (dg.InputError, dg.SolveError) as error:
        said = str(error)
        broken = "\n" in said and label != "newline"
        if len(re.findall(r"[A-Za-z]{2,}", said)) < 3 or broken or "Error" in said or "object at 0x" in said:
            return f"{name} = {label}: hardly a sentence: {said[:200]}"
        return None
    except Exception as error:
        at = error.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        where = "" if at is None else f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}"
        return f"{name} = {label}: {type(error).__name__} at {where}: {str(error)[:120]}"
    return None if finite(result) else f"{name} = {label}: a result that is not finite"


LONG = "recover", "recover_track", "rollout_run", "Follower.update", "Follower.smooth", "Follower.forecast"
"""Calls that take long where they work: of them every third value is tried."""


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.name)
def test_no_raw_exception_leaves_a_public_name(call: Call, ground: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ground)
    monkeypatch.setattr("warnings.warn", lambda *a, **k: None)
    assert judged(call, next(iter(call.valid())), "what it should be", next(iter(call.valid().values()))) is None
    every = 3 if call.name in LONG else 1
    found = [judged(call, name, label, value) for name in call.valid() for label, value in list(values().items())[::every]]
    wrong = [line for line in found if line is not None]
    assert not wrong, f"{len(wrong)} of {len(found)}:\n" + "\n".join(wrong)

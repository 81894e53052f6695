"""What public names make of numbers: whole ones are double precision, half and complex ones are refused, nothing is lost."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dgnet as dg
import dgnet.inverse
from dgnet.arguments import array, checked, returned, tensor
from dgnet.following import Follower, Prior
from dgnet.inverse import Point, Readings

Tensor = torch.Tensor
PLATE = dg.Problem(dg.box((4, 4)), dg.PDE(diffusion=0.1), [dg.Dirichlet("left", 1.0), dg.Robin("right", 1.0, 3.0)], dt=0.1)
WHOLE = (torch.int64, torch.int32, torch.int16, torch.uint8)
LEVELS = torch.arange(25).reshape(1, 25, 1) % 7


@pytest.mark.parametrize("dtype", WHOLE)
@pytest.mark.parametrize("model", [dg.Classical(), dg.Universal(), dg.Classical(degree=2), dg.Classical(backend="iterative")],
                         ids=lambda m: m.name)
def test_whole_numbers_are_those_of_double_precision(dtype: torch.dtype, model: Any) -> None:
    start, source = LEVELS.to(dtype), LEVELS.expand(3, -1, -1)[None].to(dtype)
    found = dg.rollout(model, PLATE, start, source)
    assert found.dtype == torch.float64
    assert torch.equal(found, dg.rollout(model, PLATE, start.double(), source.double()))
    assert torch.equal(found, dg.rollout(model, PLATE, start.numpy(), source.tolist()))


def test_a_step_of_whole_numbers() -> None:
    solver = dg.GreenSolver(PLATE)
    found = solver.step(LEVELS, LEVELS)
    assert found.dtype == torch.float64 and torch.equal(found, solver.step(LEVELS.double(), LEVELS.double()))
    assert torch.equal(found, solver.step(LEVELS.tolist(), LEVELS.numpy(), 0))  # type: ignore[arg-type]
    single = solver.step(LEVELS.float(), LEVELS.float())
    assert single.dtype == torch.float32 and torch.allclose(single.double(), found, rtol=1e-5)


def test_whole_numbers_everywhere() -> None:
    """Coefficients, meshes, conditions, sources, readings: each as with the same numbers in double precision."""
    def states(number: Callable[[Any], Any]) -> Tensor:
        mesh = dg.Mesh(number(4 * dg.box((4, 4)).points), dg.box((4, 4)).cells, dg.box((4, 4)).boundaries)
        cells = number(np.arange(mesh.n_cells) % 3 + 1)
        pde = dg.PDE(("u",), diffusion=cells, velocity=number([1, 0]), decay=number(np.arange(25) % 2), capacity=cells)
        problem = dg.Problem(mesh, pde, [dg.Dirichlet("left", lambda x, t: number(x[:, 1].round()))], dt=1)
        x = torch.tensor(mesh.points)
        source = dg.step_average(dg.FunctionSource(lambda x, t: number(x[:, 0].round())), x, number(np.arange(3)), 1)
        return dg.rollout(dg.Classical(), problem, number(LEVELS), source)

    def whole(value: Any) -> Any:
        value = torch.as_tensor(value)
        return value.round().to(torch.int64)

    assert torch.equal(states(whole), states(lambda v: torch.as_tensor(v).round().double()))
    assert torch.equal(states(whole), states(lambda v: torch.as_tensor(v).round().to(torch.int32)))


def test_half_precision_and_complex_numbers_are_refused_by_name() -> None:
    u, x = LEVELS.double(), torch.tensor(PLATE.mesh.points)
    sensors = (Point((0.3, 0.4), "a"),)
    for wrong, words in ((torch.float16, "single or double precision"), (torch.bfloat16, "single or double precision"),
                         (torch.complex64, "real numbers"), (torch.complex128, "real numbers")):
        def bad(value: Any, kind: torch.dtype = wrong) -> Tensor:
            return torch.as_tensor(value).to(kind)

        calls: dict[str, Callable[[], object]] = {
            "u0": lambda: dg.rollout(dg.Classical(), PLATE, bad(u)),
            "source": lambda: dg.rollout(dg.Classical(), PLATE, u, bad(u[None])),
            "diffusion": lambda: dg.PDE(diffusion=bad(0.1)), "velocity": lambda: dg.PDE(velocity=bad([1.0, 0.0])),
            "capacity": lambda: dg.PDE(capacity={"u": bad(0.1)}), "points": lambda: dg.Mesh(bad(x), PLATE.mesh.cells),
            "values": lambda: PLATE.mesh.interpolate(bad(u), x), "by": lambda: dg.Scaled(dg.Curve([0, 1], [1, 2]), bad(2.0)),
            "f": lambda: dg.GreenSolver(PLATE).step(u, bad(u)), "state": lambda: dg.Corpus(bad(u[None]), None, None, 0.1, ()),
            "start": lambda: dg.recover(PLATE, Readings([0.0, 0.1], [[1], [2]], sensors), ["start"], start=bad(u[0])),
            "what the source returns": lambda: dg.step_average(lambda x, t: bad(torch.ones(1, 1, 25, 1)), x, torch.zeros(1), 0.1),
            "a boundary value": lambda: dg.rollout(dg.Classical(), dg.Problem(
                PLATE.mesh, dg.PDE(diffusion=1.0), [dg.Dirichlet("left", lambda x, t: bad(x[:, 0]))], 0.1), u, steps=1),
            "the velocity": lambda: dg.rollout(dg.Classical(), dg.Problem(
                PLATE.mesh, dg.PDE(diffusion=1.0, velocity=lambda t: bad([1.0, 0.0])), [], 0.1), u, steps=1),
            "the reaction": lambda: dg.Problem(PLATE.mesh, dg.PDE(reaction=lambda u: bad(u)), [], 0.1),
            "readings": lambda: Follower(PLATE, [[0.3, 0.4]], {"start": Prior(1.0, 0.5)}, noise=0.1).update(0.1, bad([1.0])),
        }
        for name, call in calls.items():
            with pytest.raises(dg.InputError, match=words) as error:
                call()
            assert name in str(error.value) and str(wrong).split(".")[1] in str(error.value), (name, str(error.value))


def test_what_was_accepted_and_cannot_be() -> None:
    x, lamp = torch.tensor(PLATE.mesh.points), dg.FunctionSource(lambda x, t: x[:, 0])
    for call, words in (
        (lambda: dg.step_average(lamp, x, torch.zeros(1), float("nan")), "dt must be"),
        (lambda: dg.step_average(dg.FunctionSource(lambda x, t: x[:, 0] / 0), x, torch.zeros(1), 0.1), "must be finite, got"),
        (lambda: dg.step_average(dg.FunctionSource(lambda x, t: x), x, torch.zeros(1), 0.1), r"numbers \[25\], got \[25, 2\]"),
        (lambda: dg.step_average(lambda x, t: x, x, torch.zeros(1), 0.1), r"must return numbers \[trajectory, 1, 25, field\]"),
        (lambda: dg.Problem(PLATE.mesh, dg.PDE(), [], 0.1, dtype=torch.int64), "dtype must be torch.float64 or torch.float32"),
        (lambda: dg.Problem(PLATE.mesh, dg.PDE(), [], 0.1, dtype=torch.float16), "dtype must be"),
        (lambda: dg.PDE((1,)), r"fields\[0\] must be a text"), (lambda: dg.PDE(("",)), "names that are not empty"),
        (lambda: dg.PDE("ab"), "fields must be a list"), (lambda: dg.Periodic("left", "left"), "'left' twice"),
        (lambda: dg.rollout(dg.Classical, PLATE, LEVELS, steps=1), r"model must be a Model, .*: give one, Classical\(\.\.\.\)"),
        (lambda: dg.rollout(dg.Classical(), PLATE, LEVELS, steps=2.5), "steps must be a whole number"),
        (lambda: dg.rollout(dg.Classical(), PLATE, LEVELS[:0], steps=1), r"initial state must be \[batch"),
        (lambda: dg.Dirichlet("left", lambda x: x), r"value must be a number, a TimeTable or a function of 2 arguments, .*\(x\)"),
        (lambda: dg.PDE(diffusion=lambda u: u), "give its values"),
        (lambda: dg.rollout_run(Path("here"), steps=0.5), "rollout_run: steps"),
        (lambda: dg.load_mesh(3), "load_mesh: path must be a"), (lambda: dg.load_project(None), "load_project: folder"),
        (lambda: dg.Problem(PLATE.mesh, dg.PDE(reaction=lambda u: u.long()), [], 0.1), "precision, got torch.int64"),
        (lambda: dg.load_mesh("\ud800.msh"), "path must be a"), (lambda: dg.PDE(("\ud800",)), "must be a text"),
        (lambda: dg.Stage(1, 2, skip=2), "skip must be less than the 2 steps"),
        (lambda: Point((0.1, 1e308)), r"place\[1\] must be a finite number"),
        (lambda: PLATE.mesh.interpolate(LEVELS, [[1e308, 0.0]]), "outside"),
        (lambda: Readings([0.0, 0.1], [[1e300], [1.0]], (Point((0.3, 0.4)),)), r"up to 1e\+30"),
        (lambda: Readings([0.0, 0.1], [[1.0]], (Point((0.3, 0.4)),)), r"got \[1, 1\] at \[2\]"),
        (lambda: Follower(PLATE, [[0.3, 0.4]], {"start": Prior(1.0)}, noise=1e300), "noise must be"),
        (lambda: PLATE.mesh.interpolate(LEVELS.double().requires_grad_(), [[0.5, 0.5]]), r"give values.detach\(\)"),
    ):
        with pytest.raises(dg.InputError, match=words):
            call()  # type: ignore[no-untyped-call]


def test_views_in_reverse_order_are_their_numbers() -> None:
    """torch takes no negative strides; users reverse arrays."""
    u = np.linspace(0, 1, 25)[::-1].reshape(1, 25, 1)
    assert torch.equal(dg.rollout(dg.Classical(), PLATE, u, steps=1), dg.rollout(dg.Classical(), PLATE, u.copy(), steps=1))
    assert dg.Curve(np.array([1.0, 0.0])[::-1], [1, 2]).at[1] == 1.0
    assert dg.TimeTable([0, 1], np.array([3.0, 0.0])[::-1]).values[1] == 3.0


def test_weights_and_problems_of_two_precisions() -> None:
    """A network just made has single precision, a problem double."""
    model = dg.DGNet(dg.DGNetConfig(hidden=4, layers=1), PLATE)
    with pytest.raises(dg.InputError, match=r"weights are in single precision, the problem in double: use model.double\(\)"):
        dg.rollout(model, PLATE, LEVELS.double(), steps=1)
    single = dg.Problem(PLATE.mesh, PLATE.pde, PLATE.conditions, PLATE.dt, dtype=torch.float32)
    assert dg.rollout(model, single, LEVELS.float(), steps=1).dtype == torch.float32
    with pytest.raises(dg.InputError, match="weights are in double precision, the problem in single"):
        dg.rollout(model.double(), single, LEVELS.float(), steps=1)


def test_python_s_own_errors_stay() -> None:
    """Missing, unknown and too many arguments are a TypeError, as for every function."""
    for call in (lambda: dg.Dirichlet(), lambda: dg.Dirichlet("left", colour=3), lambda: dg.Periodic("a", "b", "c"),  # type: ignore
                 lambda: dg.rollout(dg.Classical())):  # type: ignore
        with pytest.raises(TypeError, match="argument"):
            call()


def test_numbers_keep_what_they_are() -> None:
    for value in (torch.rand(3, dtype=torch.float64), torch.rand(3)):
        assert tensor(value, "it") is value
    made = tensor([torch.tensor(1.0, dtype=torch.float64, requires_grad=True), torch.tensor(2)], "it")
    assert made.requires_grad and made.dtype == torch.float64
    assert tensor([1, 2.5], "it").tolist() == [1.0, 2.5] and tensor(0.1, "it").item() == 0.1  # not rounded to single
    assert tensor(np.arange(3, dtype=">f8"), "it").tolist() == [0, 1, 2] and array(np.array([True]), "it").dtype == bool
    assert tensor(torch.tensor([True, False]), "it").tolist() == [1.0, 0.0]
    for wrong, words in ((True, "real numbers, got True"), ([1, True], "real numbers"), ("1", "real numbers"),
                         (2**60 + 1, "double precision holds"),
                         (np.array(["2020"], dtype="datetime64[D]"), "real numbers"), ([[1], [1, 2]], "equal length"),
                         (np.ones(2, dtype=np.longdouble), "single or double"), (None, "real numbers"),
                         (np.ma.masked_array([1.0, 2.0], [True, False]), "masked"), (-(2**63), "double precision holds")):
        with pytest.raises(dg.InputError, match=words):
            tensor(wrong, "it")
    with pytest.raises(dg.InputError, match=r"f must return numbers \[2\], got \[3\]"):
        returned(torch.ones(3), (2,), "f")


def test_what_comes_out_of_inference_mode_can_be_used() -> None:
    problem = dg.Problem(dg.box((4, 4)), dg.PDE(diffusion=0.1), [dg.Dirichlet("left", 1.0)], dt=0.1)
    start = torch.zeros(1, 25, 1, dtype=torch.float64)
    for model in (dg.Classical(), dg.Classical(0.0), dg.Universal(), dg.Classical(degree=2), dg.Classical(backend="dense")):
        with torch.inference_mode():
            first = dg.rollout(model, problem, torch.zeros(1, 25, 1, dtype=torch.float64), steps=4)
            stepped = dg.GreenSolver(problem).step(first[:, -1])
        begin = start.clone().requires_grad_()
        states = dg.rollout(model, problem, begin, steps=4)
        assert torch.allclose(states.detach(), first, rtol=0, atol=1e-12) and torch.isfinite(stepped).all()
        assert torch.isfinite(torch.autograd.grad(states.sum(), begin)[0]).all()


def test_every_public_name_is_checked() -> None:
    """A new one is, too: whatever takes arguments is `checked`, and its annotations can be read."""
    free = {"InputError", "SolveError", "Run"}  # exceptions; a Run is opened, not made
    names = {name: getattr(dg, name) for name in dg.__all__ if name not in free}
    sensors, made = vars(dgnet.inverse), ("Point", "Patch", "Flux", "Prior", "Readings", "Target", "FreeSpot", "Follower")
    called = ("kernels", "place", "read_readings", "read_sensors", "read_spots", "recover", "recover_coefficients", "recover_track")
    names |= {name: sensors[name] for name in (*called, *made) if name in sensors}
    for name, thing in names.items():
        call = thing.__init__ if inspect.isclass(thing) else getattr(thing, "__func__", thing)
        assert hasattr(call, "__wrapped__"), f"{name} is not checked"
        assert typing.get_type_hints(call.__wrapped__, include_extras=True) is not None


@checked
def _echo(number: float = 0.0, count: int = 0, path: Path | None = None, names: tuple[str, ...] = (),
          table: dict[str, float] | None = None, either: typing.Literal["a", "b"] = "a", pair: tuple[int, float] = (1, 2.0),
          flag: bool = False) -> tuple[object, ...]:
    return number, count, path, names, table, either, pair, flag


def test_conversions_are_those_without_a_loss() -> None:
    assert _echo(np.float32(0.5), np.int64(3), "a/b", ["x", "y"], {"k": 1}, "b", [1, 2], np.True_) == (  # type: ignore[arg-type]
        0.5, 3, Path("a/b"), ("x", "y"), {"k": 1.0}, "b", (1, 2.0), True)
    assert _echo(torch.tensor(2), torch.tensor(3))[:2] == (2.0, 3)  # type: ignore[arg-type]
    for arguments, words in (
        ({"number": "1"}, "_echo: number must be a number, got '1'"), ({"count": 2.0}, "count must be a whole number, got 2.0"),
        ({"names": "xy"}, "names must be a list"), ({"names": ["x", 3]}, r"names\[1\] must be a text, got 3"),
        ({"table": {"k": "v"}}, r"table\['k'\] must be a number"), ({"table": {1: 2.0}}, "a name in table must be a text"),
        ({"either": "c"}, "either must be 'a' or 'b', got 'c'"), ({"pair": (1, 2, 3)}, "pair must be a list of 2"),
        ({"flag": 1}, "flag must be True or False, got 1"), ({"path": 3}, "path must be a path or None, got 3"),
        ({"number": torch.tensor(1.0, requires_grad=True)}, "number must be a number"),
    ):
        with pytest.raises(dg.InputError, match=words):
            _echo(**arguments)  # type: ignore[arg-type]

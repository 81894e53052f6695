"""Sensor kernels: how each sensor responds to every source at every past step, from one backward rollout per sensor.

A linear step is u_k+1 = A u_k + B f_k + c_k, a reading y_n = w . u_n. Its transpose, applied again and again, gives

    y_n = sum over k < n of (B' A'^(n-1-k) w) . f_k  +  (begin' A'^n w) . u_0  +  what the conditions alone give

The transposes are those of the model's own step (`Model.step`, by reverse differentiation), so the kernels are exact for the
classical solver, universal weights and trained models alike. Where the operator stays the same, the response to a source depends on
the lag n-1-k alone; steps that differ (those after the start or a jump, a flow that changes) have kernels of their own, `early`.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet.arguments import Count, Finite, checked, finite
from dgnet.errors import InputError
from dgnet.files import DAMAGED, arrays_of, plain, read_json, unwritable, write_json, writing
from dgnet.inverse.sensor import Averages, FirstState, Sensors, called, delayed, named, rows
from dgnet.models import Classical, Model, few_threads, rollout
from dgnet.problems import Lift, Problem

Tensor = torch.Tensor

_MOST = 6e9  # bytes of all kernels together in memory
_DISK = 200e9  # and in a folder
_BLOCK = 5e8  # bytes that are worked on at once
_TABLES = ("lag", "early", "start", "base")


@dataclass(frozen=True, eq=False)
class Kernels:
    """Responses of S sensors over H steps to sources and starts at the model's points P (`Model.points`), F fields.

    - `lag` [S, H, P, F]: of the reading after a step to the source of the step that lies j steps before it, j = 0 for the last one
    - `early` [S, H+1, E, P, F]: of reading n to the source of step k < E, where the first E steps differ from all others
    - `start` [S, H+1, P, F]: of reading n to the start
    - `base` [S, H+1]: the readings without source from a start of zero: what boundary conditions give alone
    - `names` of the sensors, `dt`

    All of them may lie in a folder, as .npy files that are read where they are needed (`kernels(..., store=...)`, `open`). The
    tables of a sensor are compared with their checksums before a method reads them for the first time.
    """

    lag: Tensor
    early: Tensor
    start: Tensor
    base: Tensor
    names: tuple[str, ...]
    dt: float
    lift: Lift | None = None
    sums: list[int] = field(default_factory=list)  # checksums of sensors whose tables are still to be compared
    folder: str = ""

    @property
    def horizon(self) -> int:
        return self.start.shape[1] - 1

    def _at_points(self, values: Tensor) -> Tensor:
        """[..., P, F]; values at the mesh's nodes alone are fitted to the other points of the model, as its rollout does."""
        values = values.to(self.lag.dtype)
        if self.lift is not None and values.shape[-2] == self.lift.n_nodes:
            values = self.lift(values)
        points, fields = self.start.shape[2:]
        if tuple(values.shape[-2:]) != (points, fields) or 0 in values.shape:
            raise InputError(f"values must end in [{points} points, {fields} fields], got {list(values.shape)}")
        return finite(values, "values")

    def at_nodes(self, values: Tensor) -> Tensor:
        """Responses to values at the model's points [S, n, P, F] as responses to those at the nodes [S, n, N F]."""
        return (values if self.lift is None else self.lift.back(values)).flatten(2)

    @checked
    def responses(self, shapes: Tensor) -> Tensor:
        """R [S, H+1, J, H]: reading n to the source with the shape j in step k alone; zero for k >= n.

        Shapes are [J, P or N, F] where they stay, [J, H, P or N, F] where each step has its own.
        """
        shapes, H, first = self._at_points(shapes), self.horizon, self.early.shape[2]
        if shapes.dim() not in (3, 4) or (shapes.dim() == 4 and shapes.shape[1] != H):
            raise InputError(f"shapes must be [shapes, points, fields] or [shapes, {H} steps, points, fields], got "
                             f"{list(shapes.shape)}")
        moving = shapes if shapes.dim() == 4 else None
        out = shapes.new_zeros(len(self.names), H + 1, len(shapes), H)
        for s in self._blocks():
            by_lag = None if moving is not None else torch.einsum("shpf,jpf->shj", self.lag[s], shapes)
            for k in range(H):
                now = shapes if moving is None else moving[:, k]
                if k < first:
                    out[s, ..., k] = torch.einsum("snpf,jpf->snj", self.early[s, :, k], now)
                else:
                    found = torch.einsum("shpf,jpf->shj", self.lag[s, : H - k], now) if by_lag is None else by_lag[:, : H - k]
                    out[s, k + 1:, :, k] = found
        return out

    def _blocks(self) -> Iterator[slice]:
        """Sensors whose tables together are small enough to be worked on at once."""
        each = max(1, int(_BLOCK / max(1, sum(getattr(self, name)[0].nbytes for name in _TABLES))))
        for at in range(0, len(self.names), each):
            self._compare(at, at + each)
            yield slice(at, at + each)

    def _compare(self, first: int, last: int) -> None:
        """Refuse tables of sensors that are not what was written; each is looked at once."""
        for s in range(first, min(last, len(self.sums))):
            if self.sums[s] >= 0 and self.sums[s] != _sum_of(getattr(self, name)[s] for name in _TABLES):
                raise InputError(f"{self.folder} is damaged: the kernels of sensor '{self.names[s]}' are not what was written")
            self.sums[s] = -1

    @checked
    def starts(self, shapes: Tensor) -> Tensor:
        """R [S, H+1, J]: reading n to a start with the shape j, [J, P or N, F]."""
        shapes = self._at_points(shapes)
        if shapes.dim() != 3:
            raise InputError(f"shapes must be [shapes, points, fields], got {list(shapes.shape)}")
        return torch.cat([torch.einsum("snpf,jpf->snj", self.start[s], shapes) for s in self._blocks()])

    @checked
    def readings(self, source: Averages | None = None, start: FirstState | None = None) -> Tensor:
        """y [S, T+1] for a source [T, P or N, F] (as `rollout` takes it) and a start [P or N, F]; dot products alone."""
        steps, first = self.horizon if source is None else len(source), self.early.shape[2]
        if steps > self.horizon:
            raise InputError(f"the kernels reach {self.horizon} steps, the source has {steps}")
        whole = self.base[:, : steps + 1].clone()
        start = None if start is None else self._at_points(start)
        source = None if source is None else self._at_points(source)
        for s in self._blocks():
            y = whole[s]
            if start is not None:
                y += torch.einsum("snpf,pf->sn", self.start[s, : steps + 1], start)
            if source is not None:
                for k in range(min(first, steps)):
                    y += torch.einsum("snpf,pf->sn", self.early[s, : steps + 1, k], source[k])
            if source is not None and steps > first:
                products = torch.einsum("shpf,kpf->shk", self.lag[s, : steps - first], source[first:])
                for k in range(first, steps):
                    y[:, k + 1:] += products[:, : steps - k, k - first]
        return whole

    @checked
    def reading(self, sensor: int, step: int, source: Averages | None = None, start: FirstState | None = None) -> float:
        """What one sensor reads after one step: y[sensor, step] of `readings`, at the cost of one dot product."""
        if not 0 <= step <= self.horizon or (source is not None and len(source) < step):
            raise InputError(f"step {step} is not within the {self.horizon} steps of the kernels and those of the source")
        if not 0 <= sensor < len(self.names):
            raise InputError(f"sensors are numbered from 0 to {len(self.names) - 1}, got {sensor}")
        self._compare(sensor, sensor + 1)
        first, y = self.early.shape[2], float(self.base[sensor, step])
        if start is not None:
            y += float(self.start[sensor, step].flatten() @ self._at_points(start).flatten())
        if source is not None and step:
            given = self._at_points(source[:step]).flatten(1).numpy()
            y += float((self.early[sensor, step, : min(first, step)].flatten(1).numpy() * given[:first]).sum())
            # the last step has lag 0: backwards through the source, without a copy of it
            y += float(np.einsum("jp,jp->", self.lag[sensor, : max(0, step - first)].flatten(1).numpy(), given[first:][::-1]))
        return y

    # ------------------------------------------------------------------ files

    @checked
    def save(self, path: Path | str) -> None:
        """Write to an .npz file."""
        self._compare(0, len(self.names))
        arrays = {name: getattr(self, name).cpu().numpy() for name in _TABLES}
        with writing(Path(path)) as part, part.open("wb") as file:
            np.savez(file, names=np.array(self.names, dtype=np.str_), dt=np.array(self.dt), **arrays)

    @classmethod
    @checked
    def load(cls, path: Path | str, lift: Lift | None = None) -> Kernels:
        """What `save` wrote. `lift` is needed only to take values at nodes where the model has more points (`Lift.of(mesh)`)."""
        with arrays_of(Path(path), "sensor kernels") as archive:
            values = {name: torch.from_numpy(archive[name]) for name in _TABLES}
            return cls(*_together(values, len(archive["names"])), names=tuple(map(str, archive["names"])), dt=float(archive["dt"]),
                       lift=lift)

    @classmethod
    @checked
    def open(cls, folder: Path | str, lift: Lift | None = None) -> Kernels:
        """Kernels in a folder (`kernels(..., store=folder)`), read from disk where they are needed; `lift` as of `load`."""
        folder = Path(folder)
        about = read_json(folder / "kernels.json", {"names": list, "dt": float})
        try:  # copy-on-write: nothing of it is ever written
            tables = {name: torch.from_numpy(np.load(plain(folder / f"{name}.npy"), mmap_mode="c", allow_pickle=False))
                      for name in _TABLES}
            return cls(*_together(tables, len(about["names"])), names=tuple(map(str, about["names"])), dt=float(about["dt"]),
                       lift=lift, sums=[int(x) for x in about.get("sums", ())], folder=str(folder))
        except DAMAGED as error:
            raise InputError(f"{folder} does not hold sensor kernels") from error


@checked
def kernels(problem: Problem, sensors: Sensors, horizon: Count, model: Model[Any] | None = None,
            t0: Finite = 0.0, store: Path | str | None = None) -> Kernels:
    """How every sensor responds to any source at any place and past step: one backward rollout per sensor.

    - `problem`: a linear one: no reaction, no material that changes with the solution
    - `sensors`: `Point`, `Patch` and `Flux` of dgnet.inverse, or coordinates [S, d] of points
    - `horizon`: number of steps
    - `model`: whose step; the classical solver unless given. Universal weights and trained DGNets are linear, too
    - `t0`: the time of the start, where boundary data or the flow change in time
    - `store`: a folder for kernels that are large: .npy files, read from there afterwards (`Kernels.open`). In memory they may take
      6 GB, in a folder 200 GB, and those of one sensor 6 GB

    A reading is then a dot product. Kernels repeat the model's rollout to rounding, and take memory for sensors x steps x points.

        >>> import dgnet as dg, torch
        >>> problem = dg.Problem(dg.box((4, 4)), dg.PDE(diffusion=0.1), [dg.Robin("left", 1.0, 20.0)], dt=0.1)
        >>> seen = dg.kernels(problem, [[0.3, 0.6]], horizon=10)
        >>> source, start = torch.rand(10, 25, 1, dtype=torch.float64), torch.rand(25, 1, dtype=torch.float64)
        >>> states = dg.rollout(dg.Classical(), problem, start[None], source[None])
        >>> value = problem.mesh.interpolate(states[0], [[0.3, 0.6]])[:, 0, 0]
        >>> bool(abs(seen.readings(source, start)[0] - torch.tensor(value)).max() < 1e-10)
        True
    """
    model = Classical() if model is None else model  # type: ignore[assignment]
    assert model is not None
    if horizon < 1 or not len(sensors):
        raise InputError(f"kernels need at least one sensor and one step, got {len(sensors)} and {horizon}")
    there = named(sensors)
    refuse_nonlinear(problem, model)
    points = len(model.points(problem))
    first = horizon if problem.time_dependent else _first(problem, model, horizon, t0)
    each = (2 + first) * (horizon + 1.0) * points * problem.n_fields * problem.dtype.itemsize
    size, most = len(there) * each, _MOST if store is None else _DISK
    if size > most or each > _MOST:
        hint = "give a folder to `store` them" if store is None and size < _DISK and each < _MOST else "use fewer sensors or steps"
        raise InputError(f"kernels of {len(there)} sensors over {horizon} steps at {points} points would take {size / 1e9:.0f} GB: "
                         f"{hint}")
    with torch.no_grad(), few_threads(points, str(problem.device)):
        w = rows(there, problem).to(problem.geometry.device, problem.dtype)
        zero = w.new_zeros(1, problem.mesh.n_nodes, problem.n_fields)
        base = torch.einsum("bnpf,spf->sn", rollout(model, problem, zero, steps=horizon, t0=t0), w)
        names, lags = called(there), [s.lag for s in there]
        base = delayed(base, lags, problem.dt)
        lift = Lift.of(problem.mesh, problem.geometry.device) if points != problem.mesh.n_nodes else None
        if store is None:
            return Kernels(*_backwards(model, problem, w, lags, horizon, first, t0), base, names, problem.dt, lift)
        block = max(1, int(_BLOCK / each))
        _stored(Path(store), (_backwards(model, problem, w[at:at + block], lags[at:at + block], horizon, first, t0)
                              for at in range(0, len(w), block)), base, names, problem.dt)
        return Kernels.open(store, lift)


def _first(problem: Problem, model: Model[Any], horizon: int, t0: float) -> int:
    """How many steps differ from all later ones: those after the start, and up to the last jump of boundary data."""
    last = max(model.first_steps, model.stable_steps(problem))
    if problem.data_changes:
        state = model.prepare(problem, 1, horizon)
        last = max([last, *(k + 1 for k in range(horizon) if state.starts(k, t0 + k * problem.dt))])
    return min(horizon, last)


def _stored(folder: Path, parts: Iterator[tuple[Tensor, Tensor, Tensor]], base: Tensor, names: tuple[str, ...], dt: float) -> None:
    """Write kernels of some sensors after the other to .npy files that are as long as all of them need."""
    files: dict[str, np.ndarray] = {}
    at, sums = 0, list[int]()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kernels.json").unlink(missing_ok=True)  # what is not whole cannot be opened
        for found in parts:
            for name, part in zip(("lag", "early", "start"), found):
                value = part.cpu().numpy()
                if name not in files:
                    shape = (len(names), *value.shape[1:])
                    files[name] = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", value.dtype, shape)
                files[name][at:at + len(value)] = value
            sums += [_sum_of((*(part[s] for part in found), base[at + s])) for s in range(len(found[0]))]
            at += len(found[0])
        np.save(folder / "base.npy", base.cpu().numpy())
        for file in files.values():
            if isinstance(file, np.memmap):
                file.flush()
    except OSError as error:
        raise unwritable(folder, error) from error
    write_json(folder / "kernels.json", {"names": names, "dt": dt, "sums": sums})


def _sum_of(tables: Iterable[Tensor]) -> int:
    """CRC-32 of the numbers of some tables, one after the other."""
    found = 0
    for table in tables:
        found = zlib.crc32(np.ascontiguousarray(table.cpu().numpy()).data, found)
    return found


def _together(tables: Mapping[str, Tensor], sensors: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Tables in order; those that do not belong together are refused as damaged files are (`DAMAGED`)."""
    lag, early, start, base = (tables[name] for name in _TABLES)
    S, n, *values = start.shape
    if (S, lag.shape, early.shape, base.shape) != (sensors, (S, n - 1, *values), (S, n, early.shape[2], *values), (S, n)):
        raise ValueError("kernels of other shapes")
    return lag, early, start, base


def _backwards(model: Model[Any], problem: Problem, w: Tensor, lags: Sequence[float], horizon: int, first: int,
               t0: float) -> tuple[Tensor, Tensor, Tensor]:
    """Transposed steps for all sensors at once: `lag`, `early` and `start` of `Kernels`. Sensors that lag read all of it later."""
    state = model.prepare(problem, len(w), horizon)
    points, sensors = len(model.points(problem)), len(w)
    zero = w.new_zeros(1, points, problem.n_fields)
    size = state.begin(zero).shape[1:]  # of what steps work on

    def transposed(forward: Callable[..., Tensor], *inputs: Tensor) -> Callable[[Tensor], tuple[Tensor, ...]]:
        with torch.enable_grad():
            leaves = [x.clone().requires_grad_() for x in inputs]
            out = forward(*leaves)
        return lambda v: torch.autograd.grad(out, leaves, v.to(out.dtype), retain_graph=True, allow_unused=True,
                                             materialize_grads=True)

    def step_back(k: int, batch: int) -> Callable[[Tensor], tuple[Tensor, ...]]:
        return transposed(lambda u, f: state.step(u, f, t0 + k * problem.dt, k),
                          w.new_zeros(batch, *size), zero.expand(batch, -1, -1))

    seen = transposed(lambda u: state.read(u), w.new_zeros(sensors, *size))(w)[0]
    lag = w.new_zeros(sensors, horizon, *zero.shape[1:])
    later = [seen]  # the adjoint state j steps before a reading
    back = step_back(first, sensors) if first < horizon else None
    for j in range(horizon - first):
        assert back is not None
        before, lag[:, j] = back(later[-1])
        later.append(before)
    current = torch.stack([later[max(0, n - first)] for n in range(horizon + 1)])  # [n, S, ...] after the first steps
    early = w.new_zeros(sensors, horizon + 1, first, *zero.shape[1:])
    for k in reversed(range(first)):
        part = current[k + 1:]
        before, source = step_back(k, part.shape[0] * sensors)(part.flatten(0, 1))
        current[k + 1:] = before.unflatten(0, part.shape[:2])
        early[:, k + 1:, k] = source.unflatten(0, part.shape[:2]).transpose(0, 1)
    start = transposed(lambda u: state.begin(u), zero.expand(sensors, -1, -1))
    begun = torch.stack([start(row)[0] for row in current], 1)
    begun[:, 0] = 0.0  # the first reading is of the start as it is given
    begun[:, 0, : problem.mesh.n_nodes] = w
    if any(lags):
        before = lag.new_zeros(sensors, 1, *lag.shape[2:])  # a source has no effect at the beginning of its own step
        lag = delayed(torch.cat([before, lag], 1), lags, problem.dt)[:, 1:]
        early, begun = (delayed(x, lags, problem.dt) for x in (early, begun))
    return lag, early, begun


def refuse_nonlinear(problem: Problem, model: Model[Any]) -> None:
    """A sentence about what makes a step nonlinear: named where it is known, else found by superposing two states."""
    why = "the equation has a reaction" if problem.pde.reaction is not None else "materials change with the solution"
    if problem.pde.reaction is not None or problem.pde.curved:
        raise InputError(f"{why}, so readings are not linear in sources: sensor kernels need a linear equation")
    g = torch.Generator().manual_seed(0)
    mean, spread, power = (x.detach().cpu().double() for x in model.typical())
    noise = torch.randn(2, 2, len(model.points(problem)), problem.n_fields, generator=g, dtype=torch.float64)
    with torch.no_grad():
        state = model.prepare(problem, 3, 1)
        for size in (0.03, 1.0, 30.0):  # a network may be nearly constant for large states, and nearly linear for small ones
            pair = mean + size * spread * noise[0], size * power * noise[1]
            u, f = (torch.stack([*x, x.mean(0)]).to(problem.geometry.device, problem.dtype) for x in pair)
            out = state.step(state.lift(u), f, 0.0, model.first_steps).double()
            if float((out[2] - out[:2].mean(0)).abs().max()) > 1e-4 * float((out[0] - out[1]).abs().max()):
                raise InputError(f"a step of {model.name} is not linear in state and source: sensor kernels need one that is, such "
                                 "as the classical solver, universal weights or a DGNet without a residual network")


def is_linear(problem: Problem, model: Model[Any]) -> bool:
    """Whether a step is linear in state and source."""
    try:
        refuse_nonlinear(problem, model)
    except InputError:
        return False
    return True

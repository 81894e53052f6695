"""A simulation that is steered while it runs: one or two models, spots that move, settings that change between steps.

Stepping is the library's own (`Model.step`). A change of the settings prepares the models again and keeps the nodal values.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from dgnet.errors import InputError, SolveError
from dgnet.mesh import Mesh
from dgnet.models import Model
from dgnet.problems import Bounds, Doubt, Source, SpotTable, doubts, panels_for, spot_doubts, step_average
from dgnet.studio.scene import TRAINED, Scene, number

Tensor = torch.Tensor

_PANELS = 16  # at most, of a spot that moves fast
_STEPS = 100_000  # hint for the choice of a backend: a session is long
_LAST = 2**31  # steps


@dataclass(frozen=True)
class Controls:
    """What the page can change. `dt` in the unit of time, `diffusion` a factor, `conditions` rows of `Scene.rows`."""

    model: str
    versus: str | None
    dt: float
    diffusion: float
    conditions: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, scene: Scene, given: dict[str, Any]) -> Controls:
        """Checked settings; what is not given is as the scene has it."""
        models = scene.models
        first, second = given.get("model"), given.get("versus") or None
        first = scene.usual if first is None else first
        for name in (first, second):
            if name is not None and (not isinstance(name, str) or name not in models):
                raise InputError(f"this scene has no model '{str(name)[:40]}' (it has: {', '.join(models)})")
        dt = number(given.get("dt", scene.case.dt), "the time step", 1e-6 * scene.case.dt, 1e6 * scene.case.dt)
        diffusion = number(given.get("diffusion", 1.0), "the factor on the diffusion", 1e-4, 1e4)
        return cls(first, second if second != first else None, dt, diffusion, scene.read_rows(given.get("conditions")))


@dataclass(frozen=True)
class Spot:
    """A Gaussian P exp(-|x - p|^2 / (2 r^2)) whose centre goes from `begin` to `end` during a frame; a source of one field."""

    begin: tuple[float, ...]
    end: tuple[float, ...]
    radius: float
    power: float
    field: int = 0

    @classmethod
    def read(cls, given: Any, dim: int, fields: int) -> Spot:
        try:
            begin, end = (tuple(number(v, "a place", -1e30, 1e30) for v in given[key]) for key in ("from", "to"))
            radius, power = number(given["radius"], "a radius", 1e-30, 1e30), number(given["power"], "a power", -1e30, 1e30)
            index = int(number(given.get("field", 0), "the field of a spot", 0, fields - 1))
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError("a spot is a table of from, to, radius and power") from error
        if len(begin) != dim or len(end) != dim:
            raise InputError(f"a spot has {dim} coordinates")
        return cls(begin, end, radius, power, index)

    def averages(self, x: Tensor, steps: int, mesh: Mesh, brings: np.ndarray | None = None) -> list[Tensor]:
        """The averages [N] over each of the steps of a frame, at points of a mesh (`SpotTable.on`)."""
        rows = np.array([[*place, self.radius, self.power] for place in (self.begin, self.end)])
        spot = SpotTable(("",), (np.array([0.0, 1.0]),), (rows,)).on(mesh, brings)
        if self.begin == self.end:
            return [spot(x, torch.zeros(1))[0, 0, :, 0]] * steps
        panels = min(_PANELS, panels_for(math.dist(self.begin, self.end) / steps, self.radius, 1.0))
        share = torch.arange(steps, dtype=torch.float64) / steps
        found = step_average(spot, x, share, 1.0 / steps, panels, order=2)
        return list(found[0, :, :, 0])


@dataclass(eq=False)
class Track:
    """One model on its way: what it made of the problem, where it has values, and its state."""

    name: str
    model: Model[Any]
    prepared: Any
    points: Tensor
    u: Tensor


class Simulation:
    """The state of a session. All methods run in a worker thread, one at a time."""

    def __init__(self, scene: Scene, controls: Controls) -> None:
        self.scene, self.controls = scene, controls
        self.step, self.time, self.start = 0, 0.0, scene.start  # the field at the nodes that it began with
        self.tracks = self._prepared(controls, self.start)
        self._watch()

    def _watch(self) -> None:
        """From here on the settings are the same: what they cannot resolve, and bounds of the first model where it solves the
        equation."""
        self.spots: tuple[Spot, ...] = ()  # of the last frame
        self.bounds = None if self.controls.model == TRAINED else Bounds(self.problem, self.time)
        self.from_step, start = self.step, self._states()[0][0]
        self.before: list[Doubt] = []
        if self.bounds is not None:
            self.bounds.state(0, start.numpy())
            self.before = doubts(self.problem, start, t0=self.time, units=self.scene.case.units)
        self._begin()

    def doubts(self) -> list[str]:
        """What mesh and step cannot see of the present settings, and what the run since then has shown."""
        units, size, narrow = self.scene.case.units, len(self.spots), []
        if size:
            table = SpotTable(tuple(str(k + 1) if size > 1 else "" for k in range(size)), (np.array([0.0, 1.0]),) * size,
                              tuple(np.array([[*place, s.radius, s.power] for place in (s.begin, s.end)]) for s in self.spots))
            narrow = spot_doubts(self.problem.mesh, table, units)
        after = [] if self.bounds is None else self.bounds.doubts(units)
        return [d.text for d in (*self.before, *narrow, *after)]

    def _begin(self) -> None:
        """From here on the settings are the same and something acts: the time, the field [N, F], and what has driven each frame."""
        self.began = self.time, self._states()[0][0].double()
        self.log: list[tuple[float, int, tuple[Spot, ...], bool]] = []  # time, steps, spots, whether the scenario's source was on

    @torch.no_grad()
    def _prepared(self, controls: Controls, first: Tensor, present: Mapping[str, Tensor] | None = None) -> list[Track]:
        """Tracks of the wanted models from what their steps work on at `present`; those that are new from nodal values, `first`."""
        self.problem = self.scene.problem(controls.dt, controls.diffusion, self.scene.conditions(controls.conditions))
        found = []
        for name in filter(None, (controls.model, controls.versus)):
            model = self.scene.model(name)
            prepared = model.prepare(self.problem, 1, _STEPS)
            start = first.to(self.problem.dtype)
            u = prepared.begin(start) if self.step == 0 else prepared.lift(start)
            if self.step and present is not None and name in present:  # with all that lies beside the nodes, if it still does
                now = present[name].to(u)
                u = now if now.shape == u.shape else prepared.lift(now[:, :start.shape[1]])
            points = torch.tensor(model.points(self.problem), dtype=self.problem.dtype)
            found.append(Track(name, model, prepared, points, u))
        return found

    def configure(self, controls: Controls) -> None:
        """Go on with other settings, from the present values; where they are refused, everything stays as it was."""
        before, present = self.problem, {track.name: track.u for track in self.tracks}
        try:
            self.tracks = self._prepared(controls, self._states()[0] if self.step else self.start, present)
        except (InputError, SolveError):
            self.problem = before
            raise
        if (controls.conditions, controls.diffusion) != (self.controls.conditions, self.controls.diffusion):
            for track in self.tracks:  # a boundary value that jumps is no news of the problem's
                track.prepared.restart(self.step)
        self.controls = controls
        self._watch()

    def restart(self) -> None:
        """Back to the start."""
        self.step, self.time, self.start = 0, 0.0, self.scene.start
        self.tracks = self._prepared(self.controls, self.start)
        self._watch()

    def resume(self, values: np.ndarray, step: int, at: float) -> None:
        """Go on from values [rows, N] that `values` gave before."""
        fields, nodes = len(self.scene.case.pde.fields), self.scene.case.mesh.n_nodes
        if values.shape not in ((fields, nodes), (2 * fields, nodes)) or not np.isfinite(values).all():
            raise InputError(f"the values to go on from must be finite numbers [{fields}, {nodes}], got {list(values.shape)}")
        if not 0 <= step <= _LAST:
            raise InputError(f"the step to go on from must be a number from 0 to {_LAST:,}, got {step:,}")
        states = torch.tensor(values).reshape(-1, 1, fields, nodes).transpose(2, 3)
        before = self.step, self.time
        self.step, self.time = step, at
        names = filter(None, (self.controls.model, self.controls.versus))
        try:
            self.tracks = self._prepared(self.controls, states[0], dict(zip(names, states)))
        except (InputError, SolveError):
            self.step, self.time = before
            raise
        self.start = states[0]
        self._watch()

    @torch.no_grad()
    def advance(self, steps: int, spots: Sequence[Spot], driven: bool, seconds: float) -> int:
        """Take up to `steps` steps, fewer where they take longer than `seconds`; returns how many."""
        begin, dt, at = time.perf_counter(), self.problem.dt, self.time
        acting = bool(spots) or (driven and self.scene.source is not None)
        if acting and not self.log:
            self._begin()
        self.spots = tuple(spots) or self.spots
        drawn = [self._drawn(track, spots, steps) for track in self.tracks]
        for k in range(steps):
            for track, mine in zip(self.tracks, drawn):
                source = None if mine is None else mine[k]
                if driven and self.scene.source is not None:
                    own = self._scenario(self.scene.source, track.points)
                    source = own if source is None else source + own
                track.u = track.prepared.step(track.u, source, self.time, self.step)
                if track is self.tracks[0] and self.bounds is not None:
                    if source is not None:
                        self.bounds.sources(self.step - self.from_step, source.numpy())
                    self.bounds.state(self.step + 1 - self.from_step, track.prepared.read(track.u)[0].numpy())
            self.step += 1
            self.time += dt
            if time.perf_counter() - begin > seconds:
                break
        for track in self.tracks:
            if not math.isfinite(float(track.u.abs().max())):
                raise SolveError(f"{track.model.name} grew without bound before t = {self.time:.4g}: restart with a smaller step")
        if acting or self.log:
            self.log.append((at, k + 1, tuple(spots), driven))
        return k + 1

    def _drawn(self, track: Track, spots: Sequence[Spot], steps: int) -> list[Tensor] | None:
        """What the page's spots give in each step, [1, P, F]."""
        if not spots:
            return None
        total = torch.zeros(steps, 1, len(track.points), self.problem.n_fields, dtype=self.problem.dtype)
        brings = track.prepared.brings()
        for spot in spots:
            for k, values in enumerate(spot.averages(track.points, steps, self.problem.mesh, brings)):
                total[k, 0, :, spot.field] += values
        return list(total)

    def _scenario(self, source: Source, points: Tensor) -> Tensor:
        """The scenario's own source in the next step [1, P, F]: the mean of the averages over its panels, all at once."""
        panels, dt = self.scene.panels, self.problem.dt
        begin = self.time + dt / panels * torch.arange(panels, dtype=torch.float64)
        return step_average(source, points, begin, dt / panels, order=2).mean(1).to(self.problem.dtype)

    def _states(self) -> list[Tensor]:
        return [track.prepared.read(track.u) for track in self.tracks]

    def values(self) -> np.ndarray:
        """Nodal values of all models and fields as float32 [models * fields, N]."""
        rows = [u[0].T for u in self._states()]
        return torch.cat(rows).to(torch.float32).contiguous().numpy()

    @torch.no_grad()
    def impulse(self, node: int, of: int) -> np.ndarray:
        """The discrete Green's function of a node under the first model: what one step makes of a unit impulse, [N]."""
        track = self.tracks[0]
        solver = track.prepared.green
        if solver is None:
            raise InputError(f"{track.model.name} has no Green's function here: its step is more than one linear solve")
        if not 0 <= of < self.problem.n_fields:
            raise InputError(f"there is no field {of}")
        return solver.impulse(node, of, self.time)[:, of].to(torch.float32).numpy()

"""Features that mesh and step cannot see, in words and numbers: before a rollout (`doubts`) and after it (`Bounds`).

Sources narrower than the spacing, starts that jump against a boundary or inside, boundary values that jump later, parts and
materials of one layer of cells, flat cells; and states beyond what the maximum principle allows. Nothing here changes a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import torch
from scipy.linalg import solve_banded
from scipy.special import erfc, erfcx

from dgnet.arguments import Count, Finite, checked, finite, returned
from dgnet.errors import InputError
from dgnet.mesh import Mesh
from dgnet.mesh.mesh import ALL
from dgnet.problems.conditions import Condition, Value
from dgnet.problems.curves import curves_of, laws, typical
from dgnet.problems.deposit import LEAST, Deposit
from dgnet.problems.problem import Problem
from dgnet.problems.sources import Source
from dgnet.problems.spot_table import SpotTable
from dgnet.problems.units import LENGTH, Units

Tensor = torch.Tensor

OVER = 0.005
"""Share of the range of a run from which states beyond the bounds are said."""
OFF = 0.05
"""Share of the range from which the error of a jump is said."""
FLAT = 0.02
"""Radius ratio below which a cell counts as flat."""
_STEPS = 40  # of a rod, at most
_LATER = 500  # steps in which boundary values are looked at, at most
_TIMES, _SHARES = 64, 12  # times at which a spot is looked at, and its share on the mesh
_UNSEEN = 0.1  # share by which the integrals of a source at nodes and middles may differ
_THIN = 0.02  # share of the volume from which one layer of cells is said
_BIOT = 0.2  # of a layer of cells, from which values change across it
_CONTRAST = 1.5  # of materials, from which a region is one of its own


@dataclass(frozen=True)
class Doubt:
    """Something that a result cannot be trusted in: its kind, a sentence that names the culprit, and its numbers.

    The kinds are missed (a spot beside the mesh), spots, source, start, later (a boundary value that jumps), thin, region, cells
    and, after a rollout, overshoot.
    """

    kind: str
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)


@checked
def doubts(problem: Problem, start: Tensor | None = None, *, spots: SpotTable | None = None, source: Source | None = None,
           states: Tensor | None = None, averages: Tensor | None = None, steps: Count | None = None, t0: Finite = 0.0,
           short: bool = False, units: Units | None = None) -> list[Doubt]:
    """Features that the mesh and the step of a problem cannot resolve, and places where states overshoot.

    - `problem`: as it is rolled out
    - `start`: the first state [N, F] or [1, N, F]; also from `states`
    - `spots`: a table of moving spots that drives it
    - `source`: a function f(x, t) that does, as `step_average` takes it
    - `states`: of a rollout [T+1, N, F] or [B, T+1, N, F], from `t0` on, to see whether they stay within the maximum principle
    - `averages`: the source of their steps [T, N or P, F] or [B or 1, T, N or P, F]; None for none
    - `steps`: how many steps are looked at; by default those of `states`, or 100
    - `t0`: the time of the start
    - `short`: the first steps are shortened (`Adaptive`), so that only the mesh counts
    - `units`: of the problem, for the sentences

        >>> import dgnet as dg, torch
        >>> plate = dg.Problem(dg.box((8, 8)), dg.PDE(diffusion=1.0), [dg.Dirichlet("left", 400.0)], dt=0.01)
        >>> [doubt.kind for doubt in dg.doubts(plate, torch.full((81, 1), 293.0))]
        ['start']
    """
    units = units or Units()
    if spots is not None and spots.values[0].shape[1] - 2 != problem.mesh.dim:
        raise InputError(f"spots have {spots.values[0].shape[1] - 2} coordinates, the mesh {problem.mesh.dim}")
    begin = None if start is None else _rows(problem, start, "start", 1)[0]
    batch = None if states is None else _rows(problem, states, "states", 2)
    drives = None if averages is None else _rows(problem, averages, "averages", 2)
    if begin is None and batch is not None:
        begin = batch[0, 0]
    count = steps or (100 if batch is None else batch.shape[1] - 1)
    end = t0 + count * problem.dt
    found = [*spot_doubts(problem.mesh, spots, units, t0, end, problem.conditions), *_source_doubts(problem, source, t0, end)]
    if begin is not None:
        nodal = begin[:problem.mesh.n_nodes].double().numpy()
        found += [*_start_doubts(problem, nodal, t0, short, units), *_later_doubts(problem, nodal, t0, count, short, units)]
    found += [*_thin_doubts(problem, units), *_region_doubts(problem), *cell_doubts(problem.mesh, units)]
    for b, run in enumerate(() if batch is None else batch):
        bounds = Bounds(problem, t0)
        if drives is not None:
            bounds.sources(0, drives[min(b, len(drives) - 1)].numpy())
        for k, u in enumerate(run.numpy()):
            bounds.state(k, u[:problem.mesh.n_nodes])
        found += bounds.doubts(units)
    return found


def _rows(problem: Problem, values: Tensor, what: str, axes: int) -> Tensor:
    """Values [.., N or N + E, F] with their first axes, of which the one of trajectories may be left out."""
    found = values.detach().cpu()
    found = found[None] if found.dim() == axes + 1 else found
    points, fields = (problem.mesh.n_nodes, problem.mesh.n_nodes + len(problem.mesh.edges)), problem.n_fields
    if found.dim() != axes + 2 or 0 in found.shape or found.shape[-2] not in points or found.shape[-1] != fields:
        names = "node, field" if axes == 1 else "time, node, field"
        raise InputError(f"{what} must be [{names}] with {points[0]} nodes and {fields} fields, got {list(values.shape)}")
    return finite(found, what)


# ---------------------------------------------------------------------- sources


def spot_doubts(mesh: Mesh, table: SpotTable | None, units: Units | None = None, begin: float = 0.0, end: float = np.inf,
                conditions: Sequence[Condition] = ()) -> list[Doubt]:
    """Doubts about spots that lie beside the mesh, are narrower than its spacing, or wider than the part."""
    units, found = units or Units(), list[Doubt]()
    if table is None:
        return found
    for name, knots, values in zip(table.names, table.times, table.values):
        times = np.unique(np.concatenate([knots, np.linspace(knots[0], knots[-1], _TIMES)]))
        times = np.clip(times, begin, end) if table.lasting else times[(times >= begin) & (times <= end)]
        if not len(times):
            continue
        rows = SpotTable((name,), (knots,), (values,), table.lasting).at(times)[0]
        rows = rows[rows[:, -1] != 0]
        if len(rows):
            found += _of_spot(mesh, f"spot '{name}'" if name else "the spot", rows[::max(1, len(rows) // (4 * _TIMES))], units,
                              conditions)
    return found


def _of_spot(mesh: Mesh, name: str, rows: np.ndarray, units: Units, conditions: Sequence[Condition]) -> list[Doubt]:
    """Doubts about one spot at times when it is on [T, d + 2]."""
    deposit, d, unit = Deposit.of(mesh), mesh.dim, units.name(LENGTH)
    place, radius = rows[:, :-2], rows[:, -2]
    few = rows[np.linspace(0, len(rows) - 1, min(len(rows), _SHARES)).round().astype(int)]
    share = deposit.integrals(few[:, :-2], few[:, -2])[0] / ((2 * np.pi) ** (d / 2) * few[:, -2] ** d)
    low, high = mesh.points.min(0), mesh.points.max(0)
    extent = float(np.linalg.norm(high - low))
    way, part = (", ".join(f"{axis} {a:.4g} to {b:.4g}" for axis, a, b in zip("xyz", *ends))
                 for ends in ((place.min(0), place.max(0)), (low, high)))
    covers = (f"its path covers {way} with radii of {radius.min():.4g} to {radius.max():.4g}, the mesh {part} with a spacing of "
              f"{mesh.spacing:.4g}; is the table in other units of length?")
    beside = (np.linalg.norm(place - place.clip(low, high), axis=1) > 3 * radius).all()
    wide = radius.min() > 2 * extent and not beside
    if share.max() < 0.01 or wide:
        what = "is wider than the part" if wide else "misses the mesh"
        return [Doubt("missed", f"{name} {what}: {covers}",
                      {"share": float(share.max()), "radius": float(radius.min()), "spacing": mesh.spacing})]
    found, inside = list[Doubt](), deposit.inside(place)
    inside = inside if inside.any() else ~inside
    spacing = deposit.spacing(place)
    worst = int(np.argmin(np.where(inside, radius / spacing, np.inf)))
    ratio, numbers = radius[worst] / spacing[worst], {"radius": float(radius[worst]), "spacing": float(spacing[worst])}
    if ratio < LEAST:
        small, coarse = _with(radius[worst], unit), spacing[worst]
        text = (f"{name} has a radius of {small}, the mesh a spacing of {_with(coarse, unit)} there: what it brings is right in "
                f"all, but spread over a radius of {_with(LEAST * coarse, unit)}, so values within {_with(2 * coarse, unit)} of it "
                f"are too flat; a spacing of {small} shows them")
        text += f"; {covers}" if ratio < 0.05 else ""
        found.append(Doubt("spots", text, numbers | {"ratio": float(ratio)}))
    for c in conditions:
        if c.role == "periodic":
            rim = np.concatenate([mesh.nodes_on(name) for name in c.boundaries])
            gap = np.linalg.norm(place[inside][:, None] - mesh.points[rim][None], axis=2).min(1)
            if (gap < 2 * radius[inside]).any():
                found.append(Doubt("spots", f"{name} reaches the periodic boundary '{c.boundary}': what lies beyond it does not "
                                   "come in on the other side", {"boundary": c.boundary}))
    return found


def _source_doubts(problem: Problem, source: Source | None, begin: float, end: float) -> list[Doubt]:
    """Doubts about a function whose integral by the nodes differs from that by the middles of the edges."""
    if source is None or isinstance(source, SpotTable):
        return []
    mesh, deposit = problem.mesh, Deposit.of(problem.mesh)
    times = torch.linspace(begin, end, 18, dtype=torch.float64)[1:-1]
    sums: list[np.ndarray] = []
    for x, weight in ((mesh.points, deposit.nodal[:, 0]), (mesh.middles, deposit.central[:, 0])):
        try:
            f = returned(source(torch.tensor(x), times), (1, len(times), len(x), problem.n_fields), "a source f(x, t)")
        except (RuntimeError, IndexError, ValueError):
            if len(sums):  # a function that knows the nodes alone
                return []
            raise
        sums.append(np.einsum("tnf,n->tf", f[0].detach().abs().cpu().double().numpy(), weight))
    size = max(float(s.max()) for s in sums)
    if size <= 0:
        return []
    k = np.unravel_index(int(np.abs(sums[0] - sums[1]).argmax()), sums[0].shape)
    nodes, middles = float(sums[0][k]), float(sums[1][k])
    if abs(nodes - middles) <= _UNSEEN * size:
        return []
    t = float(times[k[0]])
    return [Doubt("source", f"the source changes between the nodes by more than the mesh sees: at t = {t:.4g} its integral is "
                  f"{nodes:.4g} by the nodes and {middles:.4g} by the middles of the edges; give it as a table of spots, or refine "
                  "the mesh where it is", {"nodes": nodes, "middles": middles, "time": t})]


# ---------------------------------------------------------------------- jumps of the start


@lru_cache(256)
def rod(fourier: float, consistent: float = 1.0, biot: float = np.inf, inside: bool = False, steps: int = _STEPS,
        parts: int = 1) -> tuple[float, ...]:
    """Largest error at the nodes of a rod after each step, in units of a jump that it starts with.

    The jump is that of the end's held value, of its surroundings where the `biot` number h dx / k is finite, or in the middle of a
    cell (`inside`). Spacing dx, `fourier` = D dt / dx^2, `parts` of each step, the first two
    L-stable, then Crank-Nicolson; the truth is an infinite rod's.
    """
    half = int(np.ceil(7 * np.sqrt(fourier * steps))) + 12
    n = 2 * half if inside else half
    mass, stiff, fo = np.full(n, 1 - consistent / 3), np.full(n, 2.0), fourier / parts
    mass[[0, -1]], stiff[[0, -1]] = 0.5 - consistent / 6, 1.0
    u, load, held = np.zeros(n), np.zeros(n), not inside and np.isinf(biot)
    x = np.arange(n) - (half - 0.5 if inside else 0.0)
    if inside:
        u[:half] = 1.0
    elif not held:
        stiff[0], load[0] = 1.0 + biot, biot
    both = []
    for shift, share in ((2 + np.sqrt(2) * 1j, 1.0), (1.0, 0.5)):  # dG(1) and Crank-Nicolson
        bands = np.full((3, n), shift * consistent / 6 - share * fo)
        bands[1] = shift * mass + share * fo * stiff
        if held:
            bands[1, 0], bands[0, 1] = 1.0, 0.0
        both.append(bands)
    u[0] = 1.0 if held else u[0]
    found = []
    for k in range(steps * parts):
        right = fo * (load - stiff * u + np.append(u[1:], 0.0) + np.append(0.0, u[:-1]))
        if held:
            right[0] = 0.0
        if k < 2:
            u = u + 2 * solve_banded((1, 1), both[0], (0.5 + np.sqrt(2) * 1j) * right).real
        else:
            u = u + solve_banded((1, 1), both[1], right)
        if (k + 1) % parts == 0:
            root = np.sqrt(fourier * (k + 1) / parts)
            z = x / (2 * root)
            exact = 0.5 * erfc(z) if inside else erfc(z)
            if not inside and not held:
                exact = exact - np.exp(-z * z) * erfcx(z + biot * root)
            found.append(float(np.abs(u - exact).max()))
    return tuple(found)


def _start_doubts(p: Problem, u: np.ndarray, t0: float, short: bool, units: Units) -> list[Doubt]:
    """Places where the start [N, F] jumps against a boundary or inside, by the error that the same jump makes in a rod."""
    found = list[Doubt]()
    mesh, names = p.mesh, p.pde.fields
    consistent = 0.0 if p.pde.curved else p.consistent
    for f, name in enumerate(names):
        a, k = _diffusivity(p, f)
        unit = units.fields.get(name, "")
        rules = [c for c in p.conditions if c.role in ("held", "exchange") and c.covers(name)]
        values = [(c, _target(c, mesh, t0 + p.dt)) for c in rules]
        known = np.concatenate([u[:, f], *(v.ravel() for _, v in values)])
        span = float(np.ptp(known))
        if not np.isfinite(span) or span <= 1e-6 * float(np.abs(known).max(initial=0.0)):
            continue
        for c, value in values:
            facets = mesh.facet_index(c.boundary)
            jump = value - u[mesh.boundary_facets[facets], f]  # [facets, d]
            size = np.abs(jump).max(1)
            rows = size > 0.5 * size.max()
            if size.max() <= 1e-6 * span or not rows.any():
                continue
            fourier, biot = _layer(p, c, facets[rows], a, k, t0 + p.dt)
            largest = float(size.max())
            what = f"the start of {name} differs by {_with(largest, unit)} from what '{c.boundary}' holds"
            if c.role == "exchange":
                what = (f"the start of {name} differs by {_with(largest, unit)} from the surroundings of '{c.boundary}' (Biot "
                        f"number of a cell {biot:.2g})")
            found += _jump(what, c.boundary, largest, span, fourier, consistent, biot, False, p.dt, short, name, units)
        if p.pde.reaction is None:
            found += _inner_jump(p, u[:, f], a, span, consistent, short, name, units)
    return found


def _later_doubts(p: Problem, u: np.ndarray, t0: float, steps: int, short: bool, units: Units) -> list[Doubt]:
    """Where what a boundary holds, or its surroundings, jumps within a step after the first one: as a start that jumps.

    A jump is what a value changes by in one step beyond what it does in the steps before and after: ramps and waves are none.
    """
    found = list[Doubt]()
    consistent = 0.0 if p.pde.curved else p.consistent
    times = t0 + p.dt * np.arange(1, min(steps, _LATER) + 1)
    for f, name in enumerate(p.pde.fields):
        rules = [c for c in p.conditions if c.role in ("held", "exchange") and c.covers(name) and callable(c.drive)]
        if not rules or len(times) < 2:
            continue
        (a, k), unit = _diffusivity(p, f), units.fields.get(name, "")
        held = [np.stack([_target(c, p.mesh, float(t)).ravel() for t in times]) for c in rules]
        span = float(np.ptp(np.concatenate([u[:, f], *(v.ravel() for v in held)])))
        for c, value in zip(rules, held):
            change = np.diff(value, axis=0, prepend=value[:1], append=value[-1:])  # [steps + 1, corners]
            size = np.minimum(*(np.abs(change[1:-1] - other) for other in (change[:-2], change[2:]))).max(1)
            worst = int(size.argmax())
            if not size[worst] > 1e-6 * span:
                continue
            fourier, biot = _layer(p, c, p.mesh.facet_index(c.boundary), a, k, float(times[worst + 1]))
            whose = f"what '{c.boundary}' holds" if c.role == "held" else f"the surroundings of '{c.boundary}'"
            what = (f"{whose} of {name} jumps by "
                    f"{_with(float(size[worst]), unit)} within a step at t = {units.in_time(float(times[worst]))}")
            found += _jump(what, c.boundary, float(size[worst]), span, fourier, consistent, biot, False, p.dt, short, name, units,
                           "later")
    return found


def _layer(p: Problem, c: Condition, facets: np.ndarray, a: np.ndarray, k: np.ndarray, t: float) -> tuple[float, float]:
    """Fourier and Biot number of the cells behind some facets."""
    cells, height = _walls(p.mesh, facets)
    fourier = float(np.median(a[cells] * p.dt / height**2))
    h = _on(c.coefficient, p.mesh, facets, t).mean(1)
    return fourier, float(np.median(h * height / np.maximum(k[cells], 1e-300)))


def _inner_jump(p: Problem, u: np.ndarray, a: np.ndarray, span: float, consistent: float, short: bool, name: str,
                units: Units) -> list[Doubt]:
    """A start that changes by more than half of its range from one node to the next."""
    mesh = p.mesh
    gap = np.abs(u[mesh.edges[:, 0]] - u[mesh.edges[:, 1]])
    worst = int(gap.argmax())
    if gap[worst] <= 0.5 * span:
        return []
    node = int(mesh.edges[worst, 0])
    cells = (mesh.cells == node).any(1)
    fourier = float(np.median(a[cells]) * p.dt / mesh.edge_lengths[worst] ** 2)
    size = float(gap[worst])
    what = (f"the start of {name} jumps by {_with(size, units.fields.get(name, ''))} from one node to the next at "
            f"{_at(mesh.points[node])}")
    return _jump(what, f"node {node}", size, span, fourier, consistent, np.inf, True, p.dt, short, name, units)


def _jump(what: str, where: str, size: float, span: float, fourier: float, consistent: float, biot: float, inside: bool, dt: float,
          short: bool, name: str, units: Units, kind: str = "start") -> list[Doubt]:
    """The sentence about a jump, where the error that it makes counts."""
    if not 1e-12 < fourier < np.inf:
        return []
    fourier = float(f"{min(fourier, 1e4):.2g}")  # so that rods are solved once
    biot = biot if np.isinf(biot) else float(f"{biot:.2g}")
    fine = rod(fourier, consistent, biot, inside, 1, 16)[0]
    errors = (fine,) if short else rod(fourier, consistent, biot, inside)
    worst = max(errors)
    error, after = size * worst, errors.index(worst) + 1
    if error <= OFF * span:
        return []
    unit = units.fields.get(name, "")
    late = next((k + 1 for k, e in enumerate(errors) if e * size <= 0.01 * span), None)
    text = f"{what}: {units.in_time(after * dt)} later, values beside it are off by up to about {_with(error, unit)}"
    if not short:
        text += f", below {_with(0.01 * span, unit)} after {'more than ' * (late is None)}{late or _STEPS} steps"
    first = "first " if kind == "start" else ""
    helps = (f"shorter {first}steps (--adaptive 1e-3) help" if fine < 0.5 * worst and fourier > 0.1 and not short else
             "a finer mesh beside it helps" if fourier < 0.3 else "a finer mesh and shorter steps help")
    return [Doubt(kind, f"{text}; {helps}", {"field": name, "where": where, "jump": size, "error": error, "fourier": fourier,
                                             "steps": late})]


# ---------------------------------------------------------------------- the mesh


def cell_doubts(mesh: Mesh, units: Units | None = None) -> list[Doubt]:
    """Doubts about cells that are nearly flat."""
    worst, flat = int(mesh.quality.argmin()), int((mesh.quality < FLAT).sum())
    if not flat:
        return []
    return [Doubt("cells", f"{flat} of {mesh.n_cells:,} cells are nearly flat (cell {worst} at {_at(mesh.centroids[worst])} has a "
                  f"radius ratio of {mesh.quality[worst]:.2g}) and spoil accuracy and conditioning",
                  {"flat": flat, "cell": worst, "radius_ratio": float(mesh.quality[worst])})]


def _thin_doubts(p: Problem, units: Units) -> list[Doubt]:
    """One layer of cells between two sides of the part, where values change across it."""
    mesh = p.mesh
    corners = list(combinations(range(mesh.dim), 2))
    rim = np.unique(np.sort(mesh.boundary_facets[:, corners].reshape(-1, 2), axis=1) @ np.array([mesh.n_nodes, 1]))
    edges = mesh.edges[mesh.on_boundary[mesh.edges].all(1)]
    edges = edges[~np.isin(edges @ np.array([mesh.n_nodes, 1]), rim)]
    if not len(edges):
        return []
    around = _outwards(mesh, ALL)
    way = mesh.points[edges[:, 1]] - mesh.points[edges[:, 0]]
    length = np.linalg.norm(way, axis=1)
    way /= length[:, None]
    i, j = around[edges[:, 0]], around[edges[:, 1]]
    through = ((i * j).sum(1) < -0.5) & (-(i * way).sum(1) > 0.5) & ((j * way).sum(1) > 0.5)
    edges, length, way = edges[through], length[through], way[through]
    active = _active(p, edges, length, around)
    edges, length = edges[active], length[active]
    if not len(edges):
        return []
    key = edges @ np.array([mesh.n_nodes, 1])
    sides = np.sort(mesh.cells[:, list(combinations(range(mesh.dim + 1), 2))], axis=2) @ np.array([mesh.n_nodes, 1])
    volume = float(mesh.volumes[np.isin(sides, key).any(1)].sum() / mesh.volumes.sum())
    if volume < _THIN:
        return []
    middle = 0.5 * (mesh.points[edges[0, 0]] + mesh.points[edges[0, 1]])
    return [Doubt("thin", f"{volume:.0%} of the part is one cell thick ({_with(float(np.median(length)), units.name(LENGTH))} at "
                  f"{_at(middle)}) where its sides are held or cooled: across it values lie on a straight line; two or three cells "
                  "across show how they bend", {"share": volume, "thickness": float(np.median(length))})]


def _active(p: Problem, edges: np.ndarray, length: np.ndarray, around: np.ndarray) -> np.ndarray:
    """Which ways through the part end on a side where a condition makes values change across it; at a corner, it may be another
    side's."""
    most = np.zeros(len(edges))
    for f, name in enumerate(p.pde.fields):
        k = max(float(np.median(_diffusivity(p, f)[1])), 1e-300)
        for c in p.conditions:
            if c.draws and c.covers(name):
                h = float(_on(c.coefficient, p.mesh, p.mesh.facet_index(c.boundary), 0.0).max(initial=0.0))
                side = (_outwards(p.mesh, c.boundary)[edges] * around[edges]).sum(2).max(1) > 0.75
                most = np.maximum(most, np.where(side, h / k, 0.0))
    found: np.ndarray = most * length > _BIOT
    return found


def _outwards(mesh: Mesh, boundary: str) -> np.ndarray:
    """The mean direction out of the facets of a boundary around each of its nodes [N, d]; zero elsewhere."""
    sizes, normals = mesh.facet_geometry(boundary)
    found = np.zeros_like(mesh.points)
    np.add.at(found, mesh.facets(boundary), (sizes[:, None] * normals)[:, None, :])
    size: np.ndarray = np.linalg.norm(found, axis=1, keepdims=True)
    return found / np.maximum(size, 1e-300)


def _region_doubts(p: Problem) -> list[Doubt]:
    """Regions of a material of their own without a node inside."""
    mesh, found = p.mesh, list[Doubt]()
    for name, cells in mesh.regions.items():
        if len(cells) < 6:
            continue
        member = np.zeros(mesh.n_cells, dtype=bool)
        member[cells] = True
        mine, other = np.zeros(mesh.n_nodes, dtype=bool), np.zeros(mesh.n_nodes, dtype=bool)
        mine[mesh.cells[member].ravel()], other[mesh.cells[~member].ravel()] = True, True
        if (mine & ~other & ~mesh.on_boundary).any() or not (mine & other).any():
            continue
        beside = ~member & (mine & other)[mesh.cells].any(1)
        ratio = 1.0
        for f in range(p.n_fields):
            a, k = _diffusivity(p, f)
            for v in (k, k / np.maximum(a, 1e-300)):
                one, two = float(np.median(v[member])), float(np.median(v[beside]))
                if min(one, two) > 0:
                    ratio = max(ratio, one / two, two / one)
        if ratio > _CONTRAST:
            found.append(Doubt("region", f"region '{name}' has no node inside, one layer of cells beside material that differs by "
                               f"the factor {ratio:.3g}: across it values lie on a straight line; two or three layers show how "
                               "they bend", {"region": name, "ratio": ratio}))
    return found


# ---------------------------------------------------------------------- the maximum principle


class Bounds:
    """Follows a rollout and sees where it leaves what the maximum principle allows.

    Without a reaction, a field stays between the extremes of its start, of held values and of the surroundings, but for what
    sources and fluxes bring: a source f raises the highest value by at most the integral of max f / c. A side that a flux pushes
    has no bound, and a field with a reaction or growth has none.

    - `problem`: as it is rolled out, from time `t0` on
    """

    def __init__(self, problem: Problem, t0: float = 0.0) -> None:
        p = self.problem = problem
        self.t0, fields = t0, p.n_fields
        self.low, self.high = np.full(fields, np.inf), np.full(fields, -np.inf)
        self.span = np.stack([self.low, self.high])  # of the states
        self.worst = np.zeros((2, fields, 4))  # below and above: size, node, step, bound
        self.free = p.pde.reaction is not None or p.least_decay < 0
        self.decays = p.decay_sums is not None
        self.changing = p.data_changes or p.exchange_changes
        self.begun = False
        self._held: np.ndarray | None = None
        self._rows: dict[int, np.ndarray] = {}
        self._most = self._largest()

    def _largest(self) -> np.ndarray:
        """1 / c at the nodes, the largest around each [N, F]."""
        p, found = self.problem, []
        for value in p.pde.per_field("capacity"):
            if curves_of(value):
                found.append(np.full(p.mesh.n_nodes, 1 / min(law.ends[0] for law in laws(value, p.mesh, "capacity"))))
                continue
            c = np.broadcast_to(np.asarray(torch.as_tensor(value).detach().cpu().double()), p.mesh.n_cells)
            most = np.zeros(p.mesh.n_nodes)
            np.maximum.at(most, p.mesh.cells.ravel(), np.repeat(1 / c, p.mesh.dim + 1))
            found.append(most)
        return np.stack(found, 1)

    def sources(self, first: int, rows: np.ndarray) -> None:
        """Step averages [n, N or P, F] of the sources of the steps from `first` on, before their states."""
        n, most = self.problem.mesh.n_nodes, self._most
        nodes = rows[:, :n] * most
        up, down = nodes.max(1), nodes.min(1)
        if rows.shape[1] > n:
            i, j = self.problem.mesh.edges.T
            between = rows[:, n:n + len(i)] * np.maximum(most[i], most[j])
            up, down = np.maximum(up, between.max(1)), np.minimum(down, between.min(1))
        for k, (a, b) in enumerate(zip(up, down)):
            self._rows[first + k] = self.problem.dt * np.stack([np.minimum(b, 0.0), np.maximum(a, 0.0)])

    def state(self, k: int, u: np.ndarray) -> None:
        """The state after k steps [N, F]."""
        if self.free:
            return
        low, high = u.min(0), u.max(0)
        self.span = np.stack([np.minimum(self.span[0], low), np.maximum(self.span[1], high)])
        if not self.begun:
            self.begun = True
            self.low, self.high = np.minimum(self.low, low.astype(float)), np.maximum(self.high, high.astype(float))
        least, most = self._conditions(k)
        self.low, self.high = np.minimum(self.low, least), np.maximum(self.high, most)
        moved = self._rows.pop(k - 1, None)
        if moved is not None:
            self.low, self.high = self.low + moved[0], self.high + moved[1]
        for side, beyond in enumerate((self.low - low, high - self.high)):
            for f in np.flatnonzero(beyond > self.worst[side, :, 0]):
                node = int(u[:, f].argmin() if side == 0 else u[:, f].argmax())
                self.worst[side, f] = beyond[f], node, k, (self.low, self.high)[side][f]

    def _conditions(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest value that conditions allow in step k, [F] each: infinite where a flux pushes."""
        if self._held is not None and not self.changing:
            return self._held[0], self._held[1]
        p, names = self.problem, self.problem.pde.fields
        found = np.stack([np.full(len(names), np.inf), np.full(len(names), -np.inf)])
        t = self.t0 + k * p.dt
        if self.decays:
            found = np.zeros_like(found)
        for c in p.conditions:
            rows = [f for f, name in enumerate(names) if c.covers(name)]
            facets = p.mesh.facet_index(c.boundary)
            for s in {t, t - 0.5 * p.dt, t - p.dt} if self.changing and k else {t}:
                if c.role == "flux":
                    flux = _on(c.drive, p.mesh, facets, s)
                    found[0, rows] = np.where((flux < 0).any(), -np.inf, found[0, rows])
                    found[1, rows] = np.where((flux > 0).any(), np.inf, found[1, rows])
                elif c.draws:
                    value = _target(c, p.mesh, s)
                    found[0, rows] = np.minimum(found[0, rows], value.min(initial=np.inf))
                    found[1, rows] = np.maximum(found[1, rows], value.max(initial=-np.inf))
        self._held = found
        return found[0], found[1]

    @property
    def memory(self) -> np.ndarray:
        """State of the watch that a resumed rollout needs [8 + 4, F]."""
        return np.concatenate([self.worst.transpose(0, 2, 1).reshape(8, -1), self.low[None], self.high[None], self.span])

    @memory.setter
    def memory(self, value: np.ndarray) -> None:
        self.worst = value[:8].reshape(2, 4, -1).transpose(0, 2, 1).copy()
        self.low, self.high, self.span, self.begun = value[8].copy(), value[9].copy(), value[10:].copy(), True

    def doubts(self, units: Units | None = None) -> list[Doubt]:
        """Places where states went beyond by more than `OVER` of the range of the run, once for each field and side."""
        units, found, p = units or Units(), list[Doubt](), self.problem
        for f, name in enumerate(p.pde.fields):
            unit = units.fields.get(name, "")
            for side, word in enumerate(("falls below", "exceeds")):
                size, node, step, bound = self.worst[side, f]
                span, top = self.span[1, f] - self.span[0, f], np.abs(self.span[:, f]).max()
                if not (np.isfinite(size) and size > OVER * span and size > 1e-5 * top):
                    continue
                t, at = float(self.t0 + step * p.dt), int(node)
                value, end = bound + (size if side else -size), "highest" if side else "lowest"
                text = (f"{name} {word} {_with(bound, unit, 6)}, the {end} that start, conditions and sources allow, by "
                        f"{_with(size, unit)} ({size / span:.1%} of the range): {_with(value, unit, 6)} at node {at}, "
                        f"{_at(p.mesh.points[at])}, t = {units.in_time(float(f'{t:.6g}'))}")
                found.append(Doubt("overshoot", text, {"field": name, "bound": float(bound), "size": float(size), "node": at,
                                                       "time": t}))
        return found


# ---------------------------------------------------------------------- pieces


def _with(value: float, unit: str, digits: int = 3) -> str:
    return f"{value:.{digits}g} {unit}".rstrip()


def _at(point: np.ndarray) -> str:
    return "(" + ", ".join(f"{x:.4g}" if abs(x) > 1e-9 * np.abs(point).max() else "0" for x in point) + ")"


def _on(value: Value, mesh: Mesh, facets: np.ndarray, t: float) -> np.ndarray:
    """A value of a condition at the corners of some boundary facets [n, d]."""
    nodes = mesh.boundary_facets[facets]
    if not callable(value):
        return np.full(nodes.shape, float(value))
    found: Callable[..., Tensor] = value
    return torch.as_tensor(found(torch.tensor(mesh.points[nodes.ravel()]), t)).detach().cpu().double().numpy().reshape(nodes.shape)


def _target(c: Condition, mesh: Mesh, t: float) -> np.ndarray:
    """The value that a condition draws a field to, at the corners of its facets [n, d]."""
    return _on(c.drive, mesh, mesh.facet_index(c.boundary), t)


def _walls(mesh: Mesh, facets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The cells behind some boundary facets and their heights over them."""
    cells = mesh.facet_cells[facets]
    apex = ~(mesh.cells[cells][:, :, None] == mesh.boundary_facets[facets][:, None, :]).any(2)
    height = 1 / np.linalg.norm(mesh.gradients[cells][apex], axis=1)
    return cells, height


def _diffusivity(p: Problem, f: int) -> tuple[np.ndarray, np.ndarray]:
    """Diffusivity and diffusion of a field in each cell [K]: of a tensor, its mean eigenvalue."""
    D = np.asarray(torch.as_tensor(typical(p.pde.per_field("diffusion")[f], p.mesh, "diffusion")).detach().cpu().double())
    D = np.trace(D, axis1=-2, axis2=-1) / p.mesh.dim if D.ndim >= 2 else D
    k = np.broadcast_to(D, p.mesh.n_cells)
    c = None if p.capacity is None else p.capacity[min(f, len(p.capacity) - 1)].detach().cpu().numpy()
    return (k if c is None else k / c), k

"""`dgnet check`: mesh, equation, data and the error of the classical solver, before any training.

Every item has a verdict: `ok`, `note` (worth knowing) or `warn` (probably not what you want), a sentence, and its numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from dgnet.data import Corpus, Dataset
from dgnet.data.fits import check_fits
from dgnet.discovery.least_squares import Differences, least_squares
from dgnet.errors import SolveError
from dgnet.mesh import Mesh
from dgnet.models import Classical, few_threads, rollout
from dgnet.models.registry import title_of
from dgnet.problems import DOUBLE, PDE, WORKING, Problem
from dgnet.problems.case import base_problem
from dgnet.problems.curves import ELSEWHERE, curves_of, laws, typical
from dgnet.problems.pde import Array
from dgnet.problems.sight import cell_doubts, doubts
from dgnet.problems.units import SPEED, TERMS, VOLUMETRIC_HEAT
from dgnet.progress import Report
from dgnet.projects.curves import times
from dgnet.projects.project import Project
from dgnet.scoring.balance import balance_of, content_units, sentences
from dgnet.scoring.judge import FITTED, finer, judge, rivals, without_data
from dgnet.stepping import GreenSolver

Tensor = torch.Tensor

MOST = 8  # trajectories of each split that the classical solver is tried on
_FITTED = 20_000  # nodes up to which factors are fitted to the data
_NOISE = 0.2  # correlation of neighbouring one-step errors below which they count as noise


@dataclass(frozen=True)
class Item:
    name: str
    verdict: str  # ok | note | warn
    text: str
    numbers: dict[str, Any] = field(default_factory=dict)


def check(project: Project, device: str = "cpu", report: Report | None = None) -> list[Item]:
    """All items, in the order in which a problem is read: mesh, equation, data, solver."""
    s = project.case
    with Dataset(project.data) as data, few_threads(s.mesh.n_nodes, device):
        check_fits(data, s)
        data.check_numbers()
        velocity = _velocity(project, data)
        problem = s.problem(velocity[None] if s.given_flow else None, dtype=WORKING)
        found = [*mesh_items(s.mesh, s.units.length), equation_item(project), boundary_item(project), *data_items(project, data),
                 *number_items(problem, velocity), *source_items(project, data)]
        found += fixed_items(problem.double, data)
        found += doubt_items(project, problem, data)
        found += solver_items(project, data, device, report)
    return found


def as_dict(project: Project, items: list[Item]) -> dict[str, Any]:
    return {"problem": project.case.name, "verdict": verdict(items), "items": [asdict(i) for i in items]}


def verdict(items: list[Item]) -> str:
    return "warn" if any(i.verdict == "warn" for i in items) else "ok"


# ---------------------------------------------------------------------- mesh


def smallest_angles(mesh: Mesh) -> np.ndarray:
    """Smallest angle of every cell [K] in degrees: between edges in 2D, between faces in 3D."""
    g = mesh.gradients / np.linalg.norm(mesh.gradients, axis=2, keepdims=True)  # inward normals of the facets
    i, j = np.triu_indices(mesh.dim + 1, 1)
    return np.degrees(np.arccos(np.clip(-(g[:, i] * g[:, j]).sum(-1), -1, 1)).min(axis=1))


def mesh_items(mesh: Mesh, unit: str = "") -> list[Item]:
    kind = "triangles" if mesh.dim == 2 else "tetrahedra"
    lengths = mesh.edge_lengths
    size = Item("mesh", "ok", f"{mesh.n_nodes:,} nodes, {mesh.n_cells:,} {kind}, spacing {f'{mesh.spacing:.3g} {unit}'.strip()} "
                f"({lengths.min():.3g} to {lengths.max():.3g})" + (f", regions {', '.join(mesh.regions)}" if mesh.regions else ""),
                {"nodes": mesh.n_nodes, "cells": mesh.n_cells, "dim": mesh.dim, "spacing": mesh.spacing,
                 "boundaries": {k: len(v) for k, v in mesh.boundaries.items()},
                 "regions": {k: len(v) for k, v in mesh.regions.items()}})
    angle, ratio = float(smallest_angles(mesh).min()), float(mesh.quality.min())
    poor = int((mesh.quality < 0.2).sum())
    text = (f"smallest angle {angle:.0f} degrees, radius ratio at worst {ratio:.2f}, in the middle {np.median(mesh.quality):.2f} "
            f"(1 is regular)")
    grade = "note" if poor else "ok"
    text += f"; {poor} slim cells" if poor else ""
    for doubt in cell_doubts(mesh):
        text, grade = f"{text}; {doubt.text}", "warn"
    return [size, Item("cells", grade, text, {"smallest_angle": angle, "radius_ratio": ratio, "slim": poor})]


# ---------------------------------------------------------------------- equation and conditions


def equation_item(project: Project) -> Item:
    s, known = project.case, []
    units = s.units
    dimensions = {"diffusion": TERMS["diffusion"][s.pde.weighted], "decay": TERMS["decay"][s.pde.weighted]}
    for name, dimension in (dimensions | ({"capacity": VOLUMETRIC_HEAT} if s.pde.weighted else {})).items():
        for value in _each(project, name):
            known.append((f"{name}{value[0]} {value[1]} {units.name(dimension, s.pde.fields[0])}").strip())
    if s.given_flow:
        known.append("velocity with the data")
    elif s.pde.velocity is not None:
        steady = not callable(s.pde.velocity)
        known.append(f"velocity {'steady' if steady else 'changing in time'} {units.name(SPEED)}".strip())
    if s.pde.reaction is not None:
        known.append("reaction known")
    unknowns = project.unknowns
    learned = [f"{c} calibrated{' in each region' if unknowns.per_region and c != 'convection' else ''}" for c in unknowns.factors]
    if project.unknowns.reaction:
        learned.append("reaction unknown, learned")
    learned += [f"{name} unknown, learned as a curve" for name in project.unknowns.curves]
    text = f"{s.equation} for {', '.join(s.pde.fields)}; " + "; ".join(known + learned)
    idle = [c for c in project.unknowns.factors if not _present(project, c)]
    if idle:
        return Item("equation", "warn", text + f"; {idle[0]} is zero everywhere, so there is nothing to calibrate",
                    {"equation": s.equation, "calibrate": list(project.unknowns.factors), "idle": idle})
    return Item("equation", "ok", text, {"equation": s.equation, "calibrate": list(project.unknowns.factors),
                                         "per_region": project.unknowns.per_region,
                                         "unknown_reaction": project.unknowns.reaction})


def _each(project: Project, name: str) -> list[tuple[str, str]]:
    """(of which field, value in words) of a coefficient that is not zero."""
    pde, found = project.case.pde, []
    for f, value in zip(pde.fields, pde.per_field(name)):
        v, curved = np.asarray(typical(value, project.case.mesh, name)), curves_of(value)
        if curved:
            ends = [x for law in laws(value, project.case.mesh, name) for x in law.ends]
            text = f"{min(ends):.4g} to {max(ends):.4g}, a curve of {f}" + ", with latent heat" * any(c.latent for c in curved)
            found.append(("" if pde.shared(name) else f" of {f}", text))
        elif v.any():
            text = f"{float(v):.4g}" if v.ndim == 0 else f"{v.min():.4g} to {v.max():.4g}" if v.ndim == 1 else "tensor"
            found.append(("" if pde.shared(name) else f" of {f}", text))
    return found[:1] if pde.shared(name) else found


def _present(project: Project, name: str) -> bool:
    if name == "convection":
        return any(c.exchanges for c in project.case.conditions)
    return bool(_each(project, name))


def boundary_item(project: Project) -> Item:
    s = project.case
    named = [(c.kind, c.boundary) for c in s.conditions]
    touched = np.zeros(len(s.mesh.boundary_facets), dtype=bool)
    for c in s.conditions:
        for name in c.boundaries:
            touched[s.mesh.facet_index(name)] = True
    closed = [n for n, f in s.mesh.boundaries.items() if len(f) and not touched[s.mesh.facet_index(n)].any()]
    text = ", ".join(f"{kind} on {name}" for kind, name in named) or "no conditions"
    if closed:
        text += (f"; no condition on {', '.join(closed)}: zero diffusive flux, the flow carries the local value in and out"
                 if s.moving else f"; {', '.join(closed)} insulated (no condition, zero flux)")
    share = 1 - float(touched.mean())
    text += f" ({share:.0%} of the boundary facets are closed)" if 0 < share < 1 else ""
    return Item("boundary", "ok" if named else "note", text, {"conditions": [list(n) for n in named], "closed_share": share})


# ---------------------------------------------------------------------- data


def data_items(project: Project, data: Dataset) -> list[Item]:
    s, train, test = project.case, len(data.of("train")), len(data.of("test"))
    text = (f"{train} trajectories for training, {test} for test, {data.steps} steps of {s.units.in_time(s.dt)}"
            + (", with a source" if data.has_source else "") + (", with a velocity" if data.has_velocity else ""))
    grade = "ok"
    if not test:
        text, grade = text + "; without a test trajectory no error can be measured: give one split = \"test\"", "warn"
    elif train < 3:
        text, grade = text + "; with fewer than three, the same trajectories serve for training and validation", "note"
    found = [Item("data", grade, text, {"train": train, "test": test, "steps": data.steps, "dt": s.dt,
                                        "source": data.has_source, "velocity": data.has_velocity})]
    moved = [n for n in project.notes if n.interpolation or n.outside or n.resampling]
    if moved:
        worst, late = max(n.interpolation for n in moved), max(n.resampling for n in moved)
        outside = max(n.outside for n in moved)
        text = f"{len(moved)} of {len(project.notes)} trajectories {moved[0].how}: error about {worst:.2g} of the data"
        text += f", in time {late:.2g}" if late else ""
        text += f"; {outside} nodes lie outside the given data" if outside else ""
        found.append(Item("interpolation", "warn" if max(worst, late) > 0.05 else "note", text, {
            "error": worst, "error_in_time": late, "outside": outside, "trajectories": {n.label: n.interpolation for n in moved}}))
    means, spreads = data.moments()
    for f, name in enumerate(s.pde.fields):
        mean, std, offset = float(means[f]), float(spreads[f]), s.offsets[f]
        far = abs(mean - offset) / std
        text = f"{name} has mean {mean:.4g}, spread {std:.3g}, offset {offset:.4g} {s.units.fields.get(name, '')}".rstrip()
        if far > 5:
            text += f"; relative errors are measured from the offset and will look small: is it meant to be about {mean:.4g}?"
        grade = "warn" if far > 10 else "note" if far > 5 else "ok"
        found.append(Item(f"field {name}", grade, text, {"mean": mean, "std": std, "offset": offset}))
    return found


def fixed_items(problem: Problem, data: Dataset) -> list[Item]:
    """Do the data have the values that Dirichlet conditions fix?"""
    if problem.fixed is None:
        return []
    first = data.read(0, only=())
    state = torch.from_numpy(first.state).to(torch.float64)
    mask = problem.fixed.expand(problem.n_fields, -1).T
    worst = 0.0
    for k in sorted({0, 1, data.steps // 2, data.steps} - ({0} if data.steps > 1 else set())):
        wanted = problem.fixed_values(float(first.time[k]))
        assert wanted is not None
        worst = max(worst, float((problem.restrict(state[k]) - wanted)[mask].abs().max()))
    spread = float(state.std())
    share = worst / spread if spread > 0 else 0.0
    text = f"data differ from the fixed boundary values by at most {worst:.3g}, {share:.2g} of their spread"
    return [Item("fixed values", "warn" if share > 0.05 else "ok", text, {"difference": worst, "relative": share})]


def doubt_items(project: Project, problem: Problem, data: Dataset) -> list[Item]:
    """What mesh and step cannot see of the first trajectory, from its start to the end of a classical rollout."""
    first, missing = data.batch([0], dtype=torch.float64), project.unknowns.reaction or project.unknowns.curves
    p = first.problem(problem).double
    try:
        states = None if missing else rollout(Classical(), p, first.state[:, 0], first.source_average, first.steps,
                                              t0=float(first.begin[0]))
    except SolveError:
        states = None  # the item of the classical solver says so
    found = doubts(p, first.state[0, 0], states=states, averages=first.source_average, t0=float(first.begin[0]),
                   units=project.case.units)
    return [Item(d.kind, "warn", d.text, d.numbers) for d in found if d.kind != "cells"]  # those are with the mesh


# ---------------------------------------------------------------------- numbers to know


def _velocity(project: Project, data: Dataset) -> Tensor:
    """Velocities [T, N, d] of the problem at a few times; zeros without one."""
    s = project.case
    if s.given_flow:
        found = data.read(0, only=("velocity",)).velocity
        assert found is not None
        return torch.from_numpy(found).to(torch.float64)
    v = s.pde.velocity
    if v is None:
        return torch.zeros(1, s.mesh.n_nodes, s.mesh.dim, dtype=torch.float64)
    rows = [v(float(t)) for t in torch.linspace(0, s.horizon, 9)] if callable(v) else [v]
    full = [torch.as_tensor(r, dtype=torch.float64) for r in rows]
    return torch.stack([r.expand(s.mesh.n_nodes, s.mesh.dim) for r in full])


def _diffusivities(problem: Problem) -> np.ndarray:
    """Scalar diffusivity [F, K], diffusion over capacity: of a tensor, its mean eigenvalue."""
    rows = []
    for value in problem.pde.per_field("diffusion"):
        v = np.asarray(typical(value, problem.mesh, "diffusion"), dtype=float)
        v = np.trace(v, axis1=-2, axis2=-1) / problem.mesh.dim if v.ndim >= 2 else v
        rows.append(np.broadcast_to(v, problem.mesh.n_cells))
    return np.stack(rows) if problem.capacity is None else np.stack(rows) / problem.capacity.cpu().numpy()


def number_items(problem: Problem, velocity: Tensor) -> list[Item]:
    """Fourier number D dt / h^2, cell Peclet number |v| h / (2 D), Courant number |v| dt / h, with h the mean edge of a cell."""
    mesh, dt = problem.mesh, problem.dt
    x = mesh.points[mesh.cells]
    i, j = np.triu_indices(mesh.dim + 1, 1)
    h = np.linalg.norm(x[:, i] - x[:, j], axis=2).mean(axis=1)
    D = _diffusivities(problem)
    fourier = D * dt / h**2
    stiff = problem.stiffness_number
    middle, most = float(np.median(fourier)), float(fourier.max())
    text = f"Fourier number D dt/h² {middle:.3g} (at most {most:.3g}), stiffness {stiff:.3g}"
    grade = "ok"
    if middle > 10:
        text, grade = text + "; a step smooths over many cells and loses details between steps: a smaller dt resolves more", "note"
    elif 0 < most < 1e-4:
        text, grade = text + "; diffusion hardly acts within a step: check the units of diffusion, dt and mesh", "warn"
    found = [Item("diffusion", grade, text, {"fourier": middle, "fourier_max": most, "stiffness": stiff})]
    speed = velocity.norm(dim=-1).amax(0).numpy()[mesh.cells].mean(axis=1)
    if speed.any():
        with np.errstate(divide="ignore"):  # without diffusion it is infinite, but where nothing flows
            peclet = np.divide(speed * h, 2 * D.max(axis=0), out=np.zeros_like(speed), where=speed > 0)
        courant = float((speed * dt / h).max())
        top = float(peclet.max())
        text = f"cell Péclet number |v| h/2D {np.median(peclet):.3g} (at most {top:.3g}), Courant number {courant:.3g}"
        grade = "ok"
        if courant > 3:
            text, grade = text + "; the flow crosses several cells in a step: a smaller dt is more accurate", "warn"
        elif top > 2:
            text, grade = text + "; the classical solver rings at fronts (streamline diffusion will be learned)", "note"
        found.append(Item("advection", grade, text, {"peclet": float(np.median(peclet)), "peclet_max": top, "courant": courant}))
    if problem.pde.curved:
        return [*found, Item("solver", "ok", "materials change with the solution: steps in the enthalpy by Newton's method, in "
                             "double precision", {"backend": "newton", "precision": "float64"})]
    held = problem.held()
    backend = GreenSolver(held, solves=1000).operator().backend
    found.append(Item("solver", "warn" if stiff > DOUBLE else "ok" if held is problem else "note",
                      f"auto takes the backend '{backend}'" + (
                          "; operators change in time" if problem.time_dependent else ", one matrix for all steps")
                      + f"; {problem.precision}",
                      {"backend": backend, "time_dependent": problem.time_dependent, "precision": str(held.dtype)[6:]}))
    return found


# ---------------------------------------------------------------------- source


def source_items(project: Project, data: Dataset) -> list[Item]:
    """Does dt resolve the source? The trapezoid of its samples against its true average over each step."""
    if not data.has_source:
        return []
    gap = size = jump = 0.0
    for number in data.of("train")[:MOST]:
        t = data.read(number, only=("source", "source_average"))
        assert t.source is not None and t.source_average is not None
        f, mean = t.source.astype(np.float64), t.source_average.astype(np.float64)
        gap += float(np.square(0.5 * (f[1:] + f[:-1]) - mean).sum())
        jump += float(np.square(f[1:] - f[:-1]).sum())
        size += float(np.square(mean).sum())
    missed = next((n.missed for n in project.notes if n.missed), "")
    if size == 0:
        asked = {n.source for n in project.notes} & {"spots", "function"}
        text = "the source is zero at every node and time" + (f": {missed}" if missed else "")
        return [Item("source", "warn" if asked else "note", text, {"trapezoid": 0.0, "missed": missed})]
    miss, change = float(np.sqrt(gap / size)), float(np.sqrt(jump / size))
    kinds = {n.source for n in project.notes} - {"none"}
    travel = max((n.travel for n in project.notes), default=0.0)
    narrow = min((n.narrow for n in project.notes if n.narrow), default=0.0)
    numbers = {"trapezoid": miss, "change_per_step": change, "kinds": sorted(kinds), "radii_per_step": travel,
               "radius_over_spacing": narrow}
    if kinds == {"samples"}:  # the average is the trapezoid: all that can be told is how much changes between samples
        text = f"known at step times only; it changes by {100 * change:.2g}% from step to step"
        grade = "warn" if change > 0.7 else "note" if change > 0.3 else "ok"
        text += "; the values in between are lost: use a smaller dt, a function or a table of spots" if grade == "warn" else ""
        return [Item("source", grade, text, numbers)]
    text = f"sampling at step times would miss {100 * miss:.2g}% of it; its average over each step is used"
    text += f"; the fastest spot moves {travel:.2g} radii in a step" if travel else ""
    rough = max((n.rough for n in project.notes), default=0.0)
    text += f"; the function jumps, and its averages are known to about {rough:.1g} only" if rough > 0.01 else ""
    items = [Item("source", "note" if miss > 0.05 or rough > 0.01 else "ok", text, numbers | {"missed": missed, "rough": rough})]
    if narrow:
        text = f"the smallest spot has a radius of {narrow:.2g} spacings" + f"; {missed}" * bool(missed)
        items.append(Item("spots", "warn" if missed else "ok", text, {"radius_over_spacing": narrow}))
    return items


# ---------------------------------------------------------------------- the classical solver


def solver_items(project: Project, data: Dataset, device: str, report: Report | None) -> list[Item]:
    """Free rollouts of the classical solver against the data, and the share of a step that it explains."""
    s = project.case
    rows: dict[str, dict[str, float]] = {}
    splits = [(split, data.of(split)[:MOST]) for split in ("train", "test") if data.of(split)]
    base = base_problem(s, device)
    failures: list[str] = []
    fitted = False
    explained = alike = whole = float("nan")
    found: list[Item] = []
    for split, numbers in splits:
        begin = {n: float(data.times(n)[0]) for n in numbers}  # one time serves a batch
        numbers = [n for n in numbers if abs(begin[n] - begin[numbers[0]]) < 1e-6 * data.dt]
        wide = replace(data.batch(numbers, device=device, dtype=torch.float64), middles=data.middles(numbers, device))
        given = wide.to(WORKING)  # in the precision of `train` and `evaluate`
        more = finer(s.mesh.n_nodes + len(s.mesh.edges), device, s.pde.curved)
        models = {**rivals(), **{name: more[name] for name in more if name == "classical_p2"}, **without_data(base)}
        judged = judge(models, base, given, keep=True)
        rows[split] = {name.removeprefix("classical_"): judged.error(name) for name in models}
        fitted = fitted or judged.between == FITTED
        failures += [f"; {split}, {title_of(name)}: {words}" for name, words in judged.failures.items()]
        if split == "train" and "classical_consistent" not in judged.failures:
            states, problem = judged.states["classical_consistent"].to(device), given.problem(base)
            with torch.no_grad():
                explained, alike = _explained(problem.double, wide)
                whole = 1 - min(1e9, _relative((states - given.state)[:, -1], given.state[:, -1] - given.state[:, 0]))
                unknown = project.unknowns.reaction or project.unknowns.curves
                found += [] if unknown else coefficient_items(project, problem, given, states)
                found += balance_items(project, problem.double, wide)
        if report is not None:
            report("classical solver", len(rows), len(splits))
    p2 = "P2" + (", start and source fitted between the nodes" if fitted else "")
    words = {"consistent": "consistent mass", "lumped": "lumped", "p2": p2, "universal": "universal weights",
             "universal_p2": "universal weights, P2"}
    shown = "; ".join(f"{split} " + ", ".join(f"{error:.3g} ({words[name]})" for name, error in e.items())
                      for split, e in rows.items())
    worst = max(e["consistent"] for e in rows.values())
    text, grade = f"RNE from offset of rollouts: {shown}", "ok"
    missing = bool(project.unknowns)
    if not np.isfinite(worst):
        text += "".join(failures[:1]) + "; it blows up: check the signs and units of the equation, or a smaller dt"
        grade = "warn"
    elif worst > 0.5:
        grade = "note" if missing else "warn"
        text += "; the unknown terms matter" if missing else "; the equation, its units or the source do not fit the data"
    elif worst > 0.1 and not missing:
        text, grade = text + "; large for an equation without unknowns: check the mesh, dt and the coefficients", "note"
    found.insert(0, Item("classical", grade, text, {"errors": rows}))
    if np.isfinite(explained):
        low, noisy = explained < 0.5, alike < _NOISE and whole > 0.5
        text = f"the equation explains {f'{explained:.1%}' if explained > 0 else 'nothing'} of the change in a step"
        if low and noisy:
            text += (f" and {whole:.1%} of the change from start to end; the rest changes sign from step to step, as "
                     "noise in the data does")
        elif low:
            text += "; the unknown terms matter" if missing else "; coefficients, dt or source are probably wrong"
        grade = "ok" if not low else "note" if missing or noisy else "warn"
        found.append(Item("step", grade, text, {"explained": explained, "explained_whole": whole, "correlation": alike}))
    return found


def _relative(gap: Tensor, size: Tensor) -> float:
    whole = float(size.double().norm())
    return float(gap.double().norm()) / whole if whole > 0 else float("inf")


def _explained(problem: Problem, data: Corpus, most: int = 20) -> tuple[float, float]:
    """1 - |e| / |u(k+1) - u(k)| with e = u(k+1) - step(u(k)) over pairs of steps spread over the data, and how alike the two e are.

    Of a wrong coefficient the e of neighbouring steps are nearly equal (1); of white noise n they are n(k+1) - S n(k) with the
    step's matrix S, so they do not correlate or point against each other (0 to -1/2).
    """
    gap = change = both = 0.0
    state = Classical().prepare(problem, len(data), 1)
    for k in np.unique(np.linspace(0, max(0, data.steps - 2), most).astype(int)):
        pair = []
        for j in range(k, min(k + 2, data.steps)):
            source = None if data.source_average is None else data.source_average[:, j]
            try:
                pair.append(data.state[:, j + 1] - state.step(data.state[:, j], source, float(data.begin[0]) + j * data.dt, j))
            except SolveError:
                return float("nan"), float("nan")
        gap += float(pair[0].square().sum())
        both += float((pair[0] * pair[-1]).sum())
        change += float((data.state[:, k + 1] - data.state[:, k]).square().sum())
    return (1 - float(np.sqrt(gap / change)) if change > 0 else 1.0), (both / gap if gap > 0 else 1.0)


def balance_items(project: Project, problem: Problem, data: Corpus, most: int = 100) -> list[Item]:
    """What enters, leaves and is stored in a rollout of the first trajectory: it shows terms and units at a glance."""
    balance, steps = balance_of(Classical(), problem), min(most, data.steps)
    if balance is None:
        return []
    balance.t0 = float(data.begin[0])
    f = None if data.source_average is None else data.source_average[:1, :steps]
    try:
        states = rollout(Classical(), problem, data.state[:1, 0], f, steps, t0=balance.t0)[0]
    except SolveError:
        return []  # the item of the classical solver says so
    for u in states:
        balance.state(u)
    for k in range(0 if f is None else steps):
        balance.source(f[0, k])  # type: ignore[index]
    rows = {name: one.as_dict() for name, one in zip(problem.pde.fields, balance.totals())}
    return [Item("balance", "ok" if one["closes"] < 1e-6 else "warn", f"{steps} steps of the first trajectory: {text}", {name: one})
            for (name, one), text in zip(rows.items(), sentences(rows, content_units(project.case)))]


# ---------------------------------------------------------------------- a factor that is wrong


def coefficient_items(project: Project, problem: Problem, data: Corpus, states: Tensor) -> list[Item]:
    """Would the data fit better with another diffusion, capacity or source? By least squares on rollouts: one factor at a time, and
    of the capacity one for each region."""
    steps, few, mesh = min(data.steps, 60), slice(0, 3), problem.mesh
    truth = data.state[few, :steps + 1]
    source = None if data.source_average is None else data.source_average[few, :steps]
    size = truth - truth[:, :1]
    before = _relative(states[few, :steps + 1] - truth, size)
    if mesh.n_nodes > _FITTED or not 0.01 < before < float("inf") or project.case.given_flow:
        return []  # too large, nothing to explain, or a flow of its own in every trajectory

    def misfit(factors: dict[str, float]) -> Tensor:
        p = replace(problem, pde=scaled(problem, factors))
        f = None if source is None else source * factors.get("source", 1.0)
        return rollout(Classical(), p, truth[:, 0], f, steps, t0=float(data.begin[0])) - truth

    trials: list[tuple[str, ...]] = [(t,) for t in ("diffusion", "capacity")
                                     if t not in project.unknowns.factors and (t == "capacity" or _present(project, t))]
    trials += [("source",)] * (source is not None)
    regions = [*mesh.regions, *([ELSEWHERE] if sum(map(len, mesh.regions.values())) < mesh.n_cells else [])]
    trials += [tuple(f"capacity in {r}" for r in regions)] if 1 < len(regions) < 7 else []
    fits = [fitted(misfit, names) for names in trials]
    scores = [_relative(gap, size) for _, gap in fits]
    best = min(range(len(fits)), key=lambda k: (round(scores[k] / before, 2), k))
    factors, after = {name: f for name, f in fits[best][0].items() if abs(np.log(f)) > 0.05}, scores[best]
    numbers = {"error": before, "fits": [{"factors": f, "error": e} for (f, _), e in zip(fits, scores)]}
    if after > 0.7 * before or not factors:
        tried = ", ".join("capacity by region" if len(names) > 1 else names[0] for names in trials)
        return [Item("coefficients", "ok", f"no factor on one of {tried} makes the data fit much better", numbers)]
    words = ", ".join(f"{name} × {f:.3g}" for name, f in factors.items()).replace(f" in {ELSEWHERE}", f" {ELSEWHERE}")
    text = f"the data fit better with {words}: error {after:.2g} instead of {before:.2g} of the change"
    far = max(abs(np.log(f)) for f in factors.values()) > 0.25
    return [Item("coefficients", "warn" if after < 0.5 * before and far else "note", text, numbers)]


def fitted(misfit: Callable[[dict[str, float]], Tensor], names: tuple[str, ...]) -> tuple[dict[str, float], Tensor]:
    """The factors with the smallest misfit and that misfit: Gauss-Newton for their logarithms, from 1. Where rollouts break down
    beside 1, the factors are 1."""
    def factors(logs: Tensor) -> dict[str, float]:
        return dict(zip(names, logs.exp().tolist()))

    def at(logs: Tensor) -> Differences:
        return Differences(lambda x: misfit(factors(x)).double().flatten(), logs, 0.02, sides=(1.0,))

    start = torch.zeros(len(names), dtype=torch.float64)
    try:
        start = least_squares(at, start, rounds=5, longest=1.5, settled=0.02).theta
    except SolveError:
        pass
    return factors(start), misfit(factors(start))


def scaled(p: Problem, factors: dict[str, float]) -> PDE:
    """The equation with its diffusion and capacity times factors, everywhere or (`capacity in REGION`) in some cells."""
    pde = p.pde
    for name, factor in factors.items():
        term, _, region = name.partition(" in ")
        if term == "source":
            continue
        weight: Array = factor
        if region:
            cells = p.mesh.regions[region] if region != ELSEWHERE else np.setdiff1d(
                np.arange(p.mesh.n_cells), np.concatenate(list(p.mesh.regions.values())))
            weight = np.ones(p.mesh.n_cells)
            weight[cells] = factor
        rows = {f: times(v, weight) for f, v in zip(pde.fields, pde.per_field(term))}
        value = rows[pde.fields[0]] if pde.shared(term) else rows
        pde = replace(pde, diffusion=value) if term == "diffusion" else replace(pde, capacity=value)
    return pde

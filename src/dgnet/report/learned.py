"""What a DGNet learned, in numbers and a picture: calibrated coefficients, sizes of its corrections, its reaction."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dgnet.data import Corpus
from dgnet.discovery import MaterialCurve, Summand, reaction_axes, reaction_curve
from dgnet.models.dgnet import DGNet
from dgnet.operators import EdgeMatrix
from dgnet.problems import TERMS, Case, base_problem, curves_of, typical
from dgnet.report.figures import COLOURS, chart
from dgnet.stepping import EnthalpySolver, Materials
from dgnet.training import Run, error_bars


@dataclass(frozen=True)
class Coefficient:
    """A calibrated coefficient: how many times the given one, and what that makes."""

    name: str
    factor: float
    value: str  # with its unit; empty where the given one is no single number
    meaning: str
    bar: str  # how sure it is


def coefficients(run: Run) -> list[Coefficient]:
    """Calibrated coefficients with their values: the given one times the factor that was learned."""
    model, case = run.model, run.case
    if not isinstance(model, DGNet) or not model.config.calibrate:
        return []
    heat = case.pde.weighted
    words = {"diffusion": ("conductivity" if heat else "diffusivity", "how fast it spreads"),
             "decay": ("decay", "how fast it fades"),
             "convection": ("convective exchange", "how strongly the boundary follows its surroundings")}
    found, bars = [], error_bars(run)
    for label, factor in model.coefficients().items():
        name = label.split(" ")[0]
        given = given_value(case, name, label)
        unit = case.units.name(TERMS[name][heat], case.pde.fields[0])
        value = "" if given is None else f"{factor * given:.4g} {unit}".strip() + f" (given: {given:.4g})"
        found.append(Coefficient(label.replace(name, words[name][0], 1), factor, value, words[name][1],
                                 str(bars.get(label, "not measured"))))
    return found


def given_value(case: Case, name: str, label: str) -> float | None:
    """The number that a factor multiplies; None where it is not one number."""
    if name == "convection":
        values = {c.coefficient for c in case.conditions if c.role == "exchange" and not callable(c.coefficient)}
        return float(values.pop()) if len(values) == 1 else None
    fields = case.pde.fields
    at = next((i for i, f in enumerate(fields) if label.startswith(f"{name} of {f}")), 0)
    value = np.asarray(typical(case.pde.per_field(name)[at], case.mesh, name), dtype=float)
    if value.ndim == 1 and " in " in label and len(value) == case.mesh.n_cells:
        cells = case.mesh.regions.get(label.rsplit(" in ", 1)[1])
        value = value if cells is None else value[cells]
    return float(value.flat[0]) if value.ndim <= 1 and value.size and np.ptp(value) <= 1e-12 * np.abs(value).max() else None


def corrections(run: Run, data: Corpus) -> list[tuple[str, str, str]]:
    """(part, size, meaning) of what stands beside the classical operators, measured on true states where it depends on them."""
    model = run.model
    if not isinstance(model, DGNet):
        return []
    c = model.config
    one = data.part([0]).under(model.rule)
    base = base_problem(run.case, str(data.state.device))
    problem, begin = one.problem(base), one.clock(base)
    if model.curved(problem):
        return []  # matrices act on several curves: no single operator to compare with
    with torch.no_grad():
        state = model.prepare(problem)
        if isinstance(state.main, EnthalpySolver):
            return _around_curves(state.main)
        p, ops = state.solver.problem, state.solver.operators
        prior = model.L_physics(p, state.graph).operators()
        rows = []
        if c.green and c.structured and c.learn_mass:
            rows.append(("mass", _share(ops.mass, p.mass), "how values at nodes represent the field between them; constants and "
                         "the total are preserved"))
        if c.green and c.structured and c.learn_source:
            rows.append(("source stencil", _share(ops.source, p.source_mass), "how a node gathers a narrow source"))
        if c.green and ((c.structured and (c.learn_diffusion or c.learn_streamline)) or c.decoder == "edge" or c.calibrate):
            what = "calibration included" if c.calibrate else "diffusion, advection and boundaries"
            rows.append(("stiffness", _share(ops.stiffness(begin), prior.stiffness(begin)), f"exchange between neighbours; {what}"))
        steps = sorted({round(k) for k in np.linspace(1, one.steps - 1, 6)} & set(range(one.steps)))
        change = torch.stack([one.state[:, k + 1] - one.state[:, k] for k in steps]).square().mean().sqrt().clamp(min=1e-30)
        if c.residual and c.green:
            gaps = []
            for k in steps:
                f = None if one.source_average is None else one.source_average[:, k]
                u, t = one.state[:, k], begin + k * p.dt
                gaps.append(state.step(u, f, t, model.first_steps) - state.solver.step(u, f, t))
            size = torch.stack(gaps).square().mean().sqrt() / change
            rows.append(("residual network", f"{float(size):.2g} of a step's change", "the rest that no operator explains"))
        if c.reaction == "learned" and ops.reaction is not None:
            r = torch.stack([p.dt / model.capacity * ops.reaction(one.state[:, k]) for k in steps]).square().mean().sqrt() / change
            rows.append(("reaction", f"{float(r):.2g} of a step's change", "production as a function of the local state"))
        if state.start is not None:
            u = data.state[:, 0]
            gap = state.start(u).square().mean().sqrt() / (u - u.mean((0, 1))).square().mean().sqrt().clamp(min=1e-30)
            rows.append(("filter of the start", f"{float(gap):.2g} of its spread", "a rough start, as the learned mass reads it"))
    return rows


def _around_curves(solver: EnthalpySolver) -> list[tuple[str, str, str]]:
    """The same where materials change with the solution: what is learned stands beside the curves."""
    ours, known = solver.materials, Materials.classical(solver.problem)
    stiff = [EdgeMatrix(m.spread[0].matrix.pattern, torch.stack([term.matrix.values for term in m.spread])) for m in (ours, known)]
    return [("source stencil", _share(ours.source, known.source), "how a node gathers a narrow source"),
            ("stiffness", _share(*stiff), "exchange between neighbours, beside the curves")]


def _share(new: EdgeMatrix, old: EdgeMatrix) -> str:
    value = float((new.values - old.values).norm() / old.values.expand_as(new.values).norm().clamp(min=1e-30))
    return f"{100 * value:.2g}% of the classical one"


def draw_reaction(path: Path, run: Run, data: Corpus) -> None:
    """r(u) over the range of the states, its band, where the training states were, and the equation's own where it has one."""
    model, low, high = run.model, float(data.state.min()), float(data.state.max())
    u = torch.linspace(low, high, 200, device=data.state.device)[:, None]
    curve, (across, up) = reaction_curve(model), reaction_axes(run.case)
    with torch.no_grad():
        learned = model.prepare(base_problem(run.case, str(u.device))).solver.operators.reaction(u)
    with chart(path, 6.4, 3.0, 150) as figure:
        axis = figure.add_subplot()
        if run.case.pde.reaction is not None:
            with torch.no_grad():
                axis.plot(u.cpu(), run.case.pde.reaction(u).cpu(), color=COLOURS["classical_consistent"], lw=3, alpha=0.5,
                          label="the scenario's own, not shown to the model")
        axis.plot(u.cpu(), learned.cpu(), color=COLOURS["dgnet"], lw=1.8, label="learned")
        if curve is not None and not np.isnan(curve.deviation).all():
            seen = (curve.u >= low) & (curve.u <= high) & (curve.share > 0)
            size = np.abs(curve.r[seen]).max(initial=0.0) if seen.any() else 1.0
            ends = axis.get_ylim()[0] - size, axis.get_ylim()[1] + size  # a band without data must not flatten the curve
            wide = 2 * curve.deviation
            axis.fill_between(curve.u, curve.r - wide, curve.r + wide, color=COLOURS["dgnet"], alpha=0.2, lw=0,
                              label="± 2 standard deviations")
            axis.set_ylim(max(axis.get_ylim()[0], ends[0]), min(axis.get_ylim()[1], ends[1]))
            states = axis.twinx()
            states.bar(curve.u, curve.share, width=curve.u[1] - curve.u[0], color="0.6", alpha=0.4, lw=0)
            states.set(ylim=(0, 4 * curve.share.max()), yticks=[])
            axis.bar([low], [0], color="0.6", alpha=0.4, label="training states")
        axis.axhline(0, color="k", lw=0.5)
        axis.set(xlabel=across, ylabel=up, xlim=(low, high))
        figure.legend(loc="outside upper center", ncols=2, frameon=False)


def draw_terms(path: Path, found: list[Summand]) -> None:
    """The summands of a reaction of several fields: how large each gets in the training data, with two standard deviations."""
    fields = list(dict.fromkeys(s.field for s in found))
    with chart(path, 6.4, 0.9 + 0.28 * len(found), 150) as figure:
        axis = figure.add_subplot()
        for k, s in enumerate(found):
            unit = s.size / max(abs(s.coefficient), 1e-300)
            axis.barh(k, s.coefficient * unit, xerr=None if np.isnan(s.deviation) else 2 * s.deviation * unit, height=0.6,
                      color=COLOURS["dgnet"], alpha=0.4 + 0.5 * (fields.index(s.field) % 2 == 0), error_kw={"lw": 1, "capsize": 3})
        axis.set(yticks=range(len(found)), yticklabels=[f"r_{s.field}: {s.term}" for s in found],
                 xlabel="coefficient times the largest size of the term in the training data, ± 2 standard deviations")
        axis.invert_yaxis()
        axis.axvline(0, color="k", lw=0.5)


def draw_material(path: Path, found: list[MaterialCurve], run: Run) -> None:
    """The learned curves of the material with two standard deviations, where the training states were, and the case's own."""
    true = {name: curves_of(run.case.pde.per_field(name)[0]) for name in ("capacity", "diffusion")}
    with chart(path, 3.6 * len(found) + 0.4, 3.0, 150) as figure:
        for axis, one in zip(figure.subplots(1, len(found), squeeze=False)[0], found):
            for curve in true[one.name]:
                with torch.no_grad():
                    axis.plot(one.u, curve.value(torch.tensor(one.u)), color=COLOURS["classical_consistent"], lw=3, alpha=0.5,
                              label="the scenario's own, not shown to the model")
            axis.plot(one.u, one.value, color=COLOURS["dgnet"], lw=1.6, label="learned")
            ends = one.value.min() / 3, 3 * one.value.max()  # a band without data must not flatten the curve
            axis.fill_between(one.u, one.value * np.exp(-2 * one.deviation), one.value * np.exp(2 * one.deviation),
                              color=COLOURS["dgnet"], alpha=0.2, lw=0, label="± 2 standard deviations")
            axis.set(xlabel=run.case.pde.fields[0], ylabel=one.name, yscale="log", ylim=ends, xlim=(one.u[0], one.u[-1]))
            states = axis.twinx()
            states.bar(one.u, one.share, width=one.u[1] - one.u[0], color="0.6", alpha=0.4, lw=0)
            states.set(ylim=(0, 4 * max(float(np.nanmax(one.share)), 1e-9)), yticks=[])
        figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=3, frameon=False)

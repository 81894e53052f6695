"""A simulator with another time step or on another mesh than its training: possible where no learned number belongs to them."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from dgnet.errors import InputError
from dgnet.mesh import load as load_mesh
from dgnet.models import Adaptive, Classical
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.models.universal import Tuned, Universal
from dgnet.problems.case import base_problem
from dgnet.problems.curves import in_places
from dgnet.projects.project import on_mesh
from dgnet.training.simulator import Simulator

S = TypeVar("S", bound=Simulator)


def with_step(run: S, dt: float) -> S:
    """The run with another time step, over the same time. DGNet solves an equation, so a step may have any length; what it learned
    beside the coefficients was learned at its own, which the notes say."""
    if not (isfinite(dt) and dt > 0 and isfinite(run.case.horizon / dt)):
        raise InputError(f"--dt must be positive, got {dt:g}")
    s, clock = run.case, run.case.units.in_time
    if isinstance(run.model, Tuned):
        note = f"Steps of {clock(dt)} instead of the {clock(s.dt)} of the training: universal weights were tuned to those."
        return replace(run, case=replace(s, dt=dt, steps=max(1, round(s.steps * s.dt / dt))), notes=(*run.notes, note))
    c = _of_any_step(run, f"--dt {dt:g}")
    steps = max(1, round(s.steps * s.dt / dt))
    note = f"Steps of {clock(dt)} instead of the {clock(s.dt)} of the training"
    if c.decoder != "none":
        note += (": what was learned about the mesh is used as it is, what it made up for of the step does not follow; the further "
                 "from the training, the nearer to the classical solver's error. A stored --trajectory measures it")
    return replace(run, case=replace(s, dt=dt, steps=steps), notes=(*run.notes, f"{note}."))


def _of_any_step(run: Simulator, option: str) -> DGNetConfig:
    """The configuration of a model that may take other steps than it was trained with; refuses those that may not."""
    model, step = run.model, run.case.units.in_time(run.case.dt)
    if not isinstance(model, DGNet):
        raise InputError(f"{run.name} learned steps of {step}, not an equation: it has no meaning for {option}")
    c = model.config
    bound = {"its residual network": c.residual, "early_steps": c.early_steps > 0, "a step without the solver": not c.green,
             "an operator without physics": not c.physics}
    for what, there in bound.items():
        if there:
            raise InputError(f"{option}: {what} belongs to the steps of {step} that the model was trained with")
    return c


def adaptively(run: S, tolerance: float) -> tuple[S, Adaptive]:
    """The model with steps as short as the tolerance asks for, between the same stored times; and what it is of, with a note."""
    option, model = f"--adaptive {tolerance:g}", run.model
    if isinstance(model, Universal):
        raise InputError(f"{option}: universal weights correct steps of one length, so they need even ones; use --model classical "
                         "or quadratic")
    if not isinstance(model, Classical) and _of_any_step(run, option).decoder != "none":
        note = "What was learned about the mesh is used as it is; what it made up for of the step does not follow."
        run = replace(run, notes=(*run.notes, note))
    return run, Adaptive(model, tolerance)


def on_other_mesh(run: S, path: Path) -> S:
    """The run on the mesh of a file, with the equation and conditions of its problem. No learned number may belong to an edge."""
    s, model = run.case, run.model
    if not isinstance(model, DGNet | Tuned):
        raise InputError(f"--mesh: only dgnet and universal weights are used on another mesh than they were trained on, not "
                         f"{run.name}")
    if isinstance(model, DGNet) and model.config.free:
        raise InputError(f"--mesh: this model has learned numbers for every edge and cell of its mesh ({s.mesh.n_nodes} nodes); "
                         "train it with free = false in [model] for others")
    if run.project is not None and run.project.file is not None:
        other = on_mesh(run.project, path)
    else:
        uneven = [name for name in ("diffusion", "decay", "capacity") if any(in_places(v) for v in s.pde.per_field(name))]
        flow: Any = s.pde.velocity
        uneven += ["velocity"] * (not callable(flow) and np.ndim(flow) == 2)
        if uneven:
            raise InputError(f"--mesh: {uneven[0]} is given for every part of the run's own mesh")
        mesh = load_mesh(path)
        other = replace(s, build_mesh=lambda: mesh)
    if other.mesh.dim != s.mesh.dim:
        raise InputError(f"--mesh: {path} is {other.mesh.dim}D, the run is about {s.mesh.dim}D")
    try:
        other.problem()
    except InputError as error:
        raise InputError(f"--mesh {path}: {error}") from error
    note = (f"On {path.name} ({other.mesh.n_nodes} nodes, spacing {other.mesh.spacing:.3g}) instead of the mesh of the training "
            f"({s.mesh.n_nodes} nodes, spacing {s.mesh.spacing:.3g}): cells of other sizes and shapes than those are beyond what "
            "was learned.")
    if isinstance(model, Tuned):
        share = model.coverage(base_problem(replace(other, dt=s.dt), "cpu"))
        note += f" Universal weights act in full around {share:.1%} of its nodes; elsewhere they fade to the classical solver."
    return replace(run, case=replace(other, steps=s.steps, dt=s.dt), notes=(*run.notes, note))

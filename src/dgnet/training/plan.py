"""What is learned and how it is trained: from the problem, its data and what the user asks for; never from a name.

A case may bring a plan of its own (`Case.training`); for the others one is read off their features.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from dgnet.data import Dataset
from dgnet.discovery.calibrate import LEARNED, calibrated_first
from dgnet.discovery.unknowns import Unknowns
from dgnet.errors import InputError
from dgnet.models.dgnet import DGNetConfig
from dgnet.models.registry import DGNETS, TUNED, changed, configure, entry
from dgnet.problems.case import OWN, Case
from dgnet.projects import Project, Training
from dgnet.recipe import GENERAL, IN_A_FLOW, PaperSettings, Recipe, Stage, paper_recipe
from dgnet.training.fit import validated

RETREAT = 1.3
"""Of a DGNet: its untrained weights are the classical solver, so that steps which are too long for what there is to learn show at
once. Without it, training against truth of the model's own mesh spends all of its time on the way back."""


OPERATOR = DGNetConfig(free=True, hidden=32, layers=2)
"""The structured DGNet with free numbers per edge: where most plans begin."""


@dataclass(frozen=True)
class Plan:
    """What is learned and how.

    - `config`: settings of the model
    - `recipe`: stages and validations
    - `paper`: the row of the paper's table, or that of the nearest relative: for the paper's model, and the epochs of baselines
    - `odd_reaction`: r(-u) = -r(u) is known of an otherwise unknown reaction
    - `hold_reaction`: an unknown reaction stays as it is fitted at first
    - `model`: which one
    """

    config: Any
    recipe: Recipe
    paper: PaperSettings = field(default_factory=lambda: PaperSettings(8, 5e-4, 400, 200, 0.1, 8))
    odd_reaction: bool = False
    hold_reaction: bool = False
    model: str = "dgnet"


def staged(stages: tuple[Stage, ...], validate_steps: int | None = None) -> Recipe:
    """Our recipe with these stages."""
    return Recipe("staged", stages, validate_steps=validate_steps, retreat=RETREAT)


def general(small: bool = True) -> Plan:
    """For what is driven by sources and does not flow."""
    long = Stage(100, 8, 16, 3e-3), Stage(500, 40, 8, 3e-3, from_start=0.25), Stage(200, 120, 8, 1.5e-3, from_start=1.0)
    return Plan(OPERATOR, staged(GENERAL if small else long))


def plan_for_data(problem: Case | Project, data: Dataset, trajectories: int | None = None, **choices: Any) -> Plan:
    """`make_plan` for a data set, or for its first training trajectories."""
    return make_plan(problem, len(data.of("train")[:trajectories]), data.steps, data.has_source, **choices)


def make_plan(problem: Case | Project, trajectories: int, steps: int, sources: bool = False, *, model: str = "dgnet",
              recipe: str = "", unknowns: Unknowns | None = None) -> Plan:
    """What a model learns and how it is trained.

    - `problem`: a project brings what is unknown and what its user asks for; of a case both can be told here
    - `trajectories`, `steps`, `sources`: of the data: how many to train on, steps of each, and whether a source drives them
    - `recipe`: of a DGNet: staged (ours) or paper; by default that of the model
    """
    project = problem if isinstance(problem, Project) else None
    case = problem.case if isinstance(problem, Project) else problem
    wish, settings, where = Training(), {}, "the model's settings"
    if project is not None:
        wish, settings, unknowns = project.training, dict(project.model), unknowns or project.unknowns
        where = where if project.file is None else f"{project.file.path}: model"
    unknowns, own = unknowns or Unknowns(), replace(_of_case(case, sources), model=model)
    if model == TUNED:
        stage = Stage(600, steps, min(12, trajectories), 2e-3, from_start=1.0)  # whole rollouts, all trajectories at once
        tuned = Recipe("tuned", (stage,), hold_out=validated(trajectories), weight_decay=1e-4)
        return replace(own, config=changed(model, settings, configure(model), where),
                       recipe=_wished(tuned, wish, trajectories, steps))
    if model not in DGNETS:
        return replace(own, config=changed(model, settings, configure(model), where),
                       recipe=_of_baseline(own, case.mesh.n_nodes, trajectories, steps))
    paper = (recipe or ("paper" if model == "dgnet-paper" else "staged")) == "paper"
    config = configure("dgnet-paper") if paper else own.config
    config = unknowns.put(replace(config, odd_reaction=own.odd_reaction) if unknowns.reaction else config, len(case.pde.fields),
                          settings)
    config = changed(config.model, settings, config, where)
    found = paper_recipe(own.paper, trajectories, steps) if paper else _fitting(own.recipe, trajectories, steps)
    found = _wished(found, wish, trajectories, steps)
    if case.training is None:
        found = replace(found, name=OWN)
    return replace(own, config=config, recipe=_unknowns_first(found, config, unknowns, steps, own.hold_reaction))


def _of_case(case: Case, sources: bool) -> Plan:
    """The case's own, else one by its features: what flows, and what drives it."""
    if case.training is not None:
        own: Plan = case.training
        return own
    config = replace(OPERATOR, learn_source=sources, learn_streamline=case.moving)
    return Plan(config, staged(IN_A_FLOW if case.moving else GENERAL), hold_reaction=case.moving)


def _unknowns_first(plan: Recipe, config: DGNetConfig, unknowns: Unknowns, steps: int, hold: bool) -> Recipe:
    """The recipe with what can be fitted by itself before it: calibrated coefficients, then a reaction or the material."""
    if unknowns.curves:
        plan = material_first(plan, config)
    elif unknowns.reaction:
        plan = reaction_first(plan, steps, config, hold)
    if not unknowns.factors:
        return plan
    plan = calibrated_first(plan, steps)
    return plan if _corrected(config) or config.reaction == "learned" else replace(plan, stages=plan.stages[:1])


def _corrected(c: DGNetConfig) -> bool:
    """Something is learned besides coefficients of the equation and its reaction."""
    return (c.decoder != "none" and (c.network or c.free)) or c.residual or not c.green


def material_first(plan: Recipe, config: DGNetConfig) -> Recipe:
    """The plan after the curves of the material have been identified; then they are held, and identified once more in the end."""
    fitted = (Stage(1, 1, method="material", only=("material",)),)
    others = tuple(replace(s, only=s.only or LEARNED) for s in plan.stages)
    return replace(plan, stages=(*fitted, *others, *fitted) if _corrected(config) else fitted)


def reaction_first(plan: Recipe, steps: int, config: DGNetConfig, hold: bool = False) -> Recipe:
    """The plan after the reaction has been fitted by itself: a network on short windows, a table or terms as `identify` does.

    Then all is trained together: on a coarse mesh the fit takes what the operator misses for a part of the reaction. With
    `hold` the reaction stays as it was fitted: windows that are short against the rollout do not see how a small bias of it grows.
    The few numbers of a sum of terms are held and fitted once more in the end, as calibrated coefficients are.
    """
    only = ("reaction_net",)
    fitted = (Stage(1, 1, method="identify", only=only),)
    if hold or config.reaction_degree:
        others = tuple(name for name in LEARNED if name not in only)
        plan = replace(plan, stages=tuple(replace(s, only=s.only or others) for s in plan.stages))
    if config.reaction_degree:
        return replace(plan, stages=(*fitted, *plan.stages, *fitted) if _corrected(config) else fitted)
    first = (Stage(600, 2, 32, 5e-3, only=only), Stage(300, min(10, steps), 16, 2e-3, only=only))
    return replace(plan, stages=(fitted if config.reaction_table else first) + plan.stages)


def _of_baseline(own: Plan, nodes: int, trajectories: int, steps: int) -> Recipe:
    """A baseline as its own paper trains it (registry), for as many epochs as the paper's table gives the scenario, on all of
    the training trajectories."""
    model, hints = own.model, entry(own.model).recipe
    if hints.get("method") == "fitted":
        return Recipe(model, (Stage(1, 1, method="fitted"),), hold_out=validated(trajectories))
    length = min(int(hints["window"]), steps)
    batch = max(2, min(16, int(16 * 12_000 / max(nodes * length, 1))))  # one step of a training iteration fits any GPU
    epochs = paper_recipe(own.paper, trajectories, steps).stages[0].iterations
    lr = float(hints["lr"])
    stage = Stage(epochs, length, batch, lr, loss=str(hints["loss"]), relative=bool(hints.get("relative", False)),
                  noise=float(hints["noise"]), pushforward=int(hints["pushforward"]), end=float(hints["lr_end"]) / lr)
    return Recipe(model, (stage,), hold_out=0, clip=float(hints["clip"]), weight_decay=float(hints["weight_decay"]))


def _fitting(plan: Recipe, trajectories: int, steps: int) -> Recipe:
    """Windows that do not exceed the data's steps."""
    fitted = tuple(replace(s, length=min(s.length, steps), first=min(s.first, max(0, steps - s.length)),
                           skip=min(s.skip, max(0, min(s.length, steps) - 1))) for s in plan.stages)
    return replace(plan, stages=fitted, hold_out=validated(trajectories),
                   validate_steps=None if plan.validate_steps is None else min(plan.validate_steps, steps))


def _wished(plan: Recipe, wish: Training, trajectories: int, steps: int) -> Recipe:
    """The plan with the changes of a [training] table."""
    if wish.windows or wish.iterations:
        count = max(len(wish.windows), len(wish.iterations))
        if {len(wish.windows), len(wish.iterations)} - {0, count}:
            raise InputError("training.windows and training.iterations must have the same length, one entry per stage")
        windows, iterations = wish.windows or (8, *(40,) * (count - 1)), wish.iterations or (400,) * count
        plan = replace(plan, stages=tuple(
            Stage(n, min(w, steps), 16 if k == 0 else 8, 3e-3 if k == 0 else 2e-3, from_start=0.25 if k else 0.0)
            for k, (w, n) in enumerate(zip(windows, iterations))))
    if wish.learning_rate:
        top = max(s.lr for s in plan.stages)
        plan = replace(plan, stages=tuple(replace(s, lr=s.lr / top * wish.learning_rate) for s in plan.stages))
    plan = replace(plan, stages=tuple(replace(s, batch=wish.batch or s.batch, noise=wish.noise or s.noise) for s in plan.stages))
    if wish.hold_out >= trajectories > 1:
        raise InputError(f"training.hold_out = {wish.hold_out} leaves none of the {trajectories} training trajectories")
    return replace(plan, hold_out=wish.hold_out or plan.hold_out)

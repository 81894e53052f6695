"""What is learned and how it is trained: from the case, its data and what the user wishes; never from a name.

A case may bring its own preset (`Case.training`); for the others `preset` reads one off their features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.models.dgnet import CURVES, DGNetConfig
from dgnet.models.dgnet import PAPER as PAPER_MODEL
from dgnet.models.registry import changed, changes, entry
from dgnet.problems.case import OWN, Case
from dgnet.projects import Project, Training
from dgnet.recipe import GENERAL, IN_A_FLOW, PaperSettings, Recipe, Stage, paper_recipe, settled
from dgnet.training.calibrate import LEARNED, calibrated_first
from dgnet.training.fit import validated

RETREAT = 1.3
"""Of a DGNet: its untrained weights are the classical solver, so that steps which are too long for what there is to learn show at
once. Without it, training against truth of the model's own mesh spends all of its time on the way back."""


OPERATOR = DGNetConfig(free=True, hidden=32, layers=2)
"""The structured DGNet with free numbers per edge: where most presets begin."""


@dataclass(frozen=True)
class Preset:
    """What DGNet learns and how it is trained; `paper` is the row of the paper's table, or that of the nearest relative."""

    config: DGNetConfig
    stages: tuple[Stage, ...]
    paper: PaperSettings
    validate_steps: int | None = None
    odd_reaction: bool = False  # r(-u) = -r(u) is known of an otherwise unknown reaction
    hold_reaction: bool = False  # an unknown reaction stays as it is fitted at first


def general(small: bool = True) -> Preset:
    """For what is driven by sources and does not flow."""
    stages = GENERAL if small else (
        Stage(100, 8, 16, 3e-3), Stage(500, 40, 8, 3e-3, from_start=0.25), Stage(200, 120, 8, 1.5e-3, from_start=1.0))
    return Preset(OPERATOR, stages, PaperSettings(8, 5e-4, 400, 200, 0.1, 8, start=0.0, norm=True))


@dataclass(frozen=True)
class Facts:
    """Of the data: training trajectories, steps of each, and whether a source drives them."""

    trajectories: int
    steps: int
    sources: bool = False

    @classmethod
    def of(cls, data: Dataset, trajectories: int | None = None) -> Facts:
        """Of a data set, or of its first training trajectories."""
        return cls(len(data.of("train")[:trajectories]), data.steps, data.has_source)


@dataclass(frozen=True)
class Wishes:
    """What the user asks for. `model` changes the settings of the model; `where` names the place that says so."""

    recipe: str = "staged"  # staged | paper
    unknown_reaction: bool = False
    unknown_curves: tuple[str, ...] = ()  # of capacity and diffusion
    calibrate: tuple[str, ...] = ()
    per_region: bool = False
    model: Mapping[str, object] = field(default_factory=dict)
    training: Training = field(default_factory=Training)
    where: str = "the model's settings"

    @classmethod
    def of(cls, project: Project) -> Wishes:
        where = "the model's settings" if project.file is None else f"{project.file.path}: model"
        return cls(unknown_reaction=project.unknown_reaction, unknown_curves=project.unknown_curves, calibrate=project.calibrate,
                   per_region=project.per_region, model=project.model, training=project.training, where=where)


def plan(case: Case, facts: Facts, wishes: Wishes) -> tuple[DGNetConfig, Recipe]:
    """What DGNet learns and how it is trained."""
    config = configuration(case, facts, wishes)
    return config, recipe_for(case, facts, wishes, config)


def preset(case: Case, facts: Facts) -> Preset:
    """The case's own, else one by its features: what flows, and what drives it."""
    if case.training is not None:
        own: Preset = case.training
        return own
    config = replace(OPERATOR, learn_source=facts.sources, learn_streamline=case.moving)
    return replace(general(), config=config, hold_reaction=case.moving, stages=IN_A_FLOW if case.moving else GENERAL)


def configuration(case: Case, facts: Facts, wishes: Wishes) -> DGNetConfig:
    """The parts that are learned. An unknown reaction is learned node by node: of one field a table unless the user asks for
    terms, of more fields a sum of terms."""
    own = preset(case, facts)
    config = replace(PAPER_MODEL, norm=own.paper.norm) if wishes.recipe == "paper" else own.config
    curves = _curves(case, wishes)
    if curves:
        corrected = own.config.learn_diffusion and "diffusion" not in curves
        config = replace(config, unknown_curves=curves, learn_diffusion=corrected)
    elif wishes.unknown_reaction:
        table = case.pde.reaction is not None or case.training is None
        config = replace(config, odd_reaction=own.odd_reaction)
        config = config.reacting(len(case.pde.fields), changes("dgnet", wishes.model), table)
    if wishes.calibrate:  # a diffusivity is either calibrated or corrected
        config = replace(config, calibrate=wishes.calibrate, learn_diffusion="diffusion" not in wishes.calibrate)
    name = "dgnet-paper" if config.plain else "dgnet"
    found: DGNetConfig = changed(name, wishes.model, replace(config, regions=wishes.per_region), wishes.where)
    return found


def _curves(case: Case, wishes: Wishes) -> tuple[str, ...]:
    """The unknown curves of the material. "Unknown" of a scenario without a reaction means them; the paper's model has none."""
    if wishes.recipe == "paper":
        return ()
    of_scenario = wishes.unknown_reaction and case.training is not None and case.pde.reaction is None and case.pde.curved
    return wishes.unknown_curves or (CURVES if of_scenario else ())


def recipe_for(case: Case, facts: Facts, wishes: Wishes, config: DGNetConfig) -> Recipe:
    """Stages for one case; windows never exceed its steps. What can be fitted by itself comes first: calibrated coefficients, then
    an unknown reaction."""
    own, steps = preset(case, facts), facts.steps
    paper = wishes.recipe == "paper"
    found = settled(paper_recipe(own.paper, facts.trajectories, steps), own.paper) if paper else _staged(own, facts)
    found = _wished(found, wishes.training, facts)
    if case.training is None:
        found = replace(found, name=OWN)
    if config.unknown_curves:
        found = material_first(found, config)
    elif wishes.unknown_reaction:
        found = reaction_first(found, steps, config, own.hold_reaction)
    if not wishes.calibrate:
        return found
    found = calibrated_first(found, steps)
    return found if _corrected(config) or config.reaction == "learned" else replace(found, stages=found.stages[:1])


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


def tuning(facts: Facts, wishes: Wishes) -> Recipe:
    """Universal weights: whole rollouts from the start, all trajectories at once, up to twelve."""
    stage = Stage(600, facts.steps, min(12, facts.trajectories), 2e-3, from_start=1.0)
    plan = Recipe("tuned", (stage,), hold_out=validated(facts.trajectories), weight_decay=1e-4)
    return _wished(plan, wishes.training, facts)


def baseline_recipe(model: str, case: Case, facts: Facts) -> Recipe:
    """A baseline as its own paper trains it (registry), for as many epochs as the paper's table gives the scenario, on all of
    the training trajectories."""
    hints, steps, nodes = entry(model).recipe, facts.steps, case.mesh.n_nodes
    if hints.get("method") == "fitted":
        return Recipe(model, (Stage(1, 1, method="fitted"),), hold_out=validated(facts.trajectories))
    length = min(int(hints["window"]), steps)
    batch = max(2, min(16, int(16 * 12_000 / max(nodes * length, 1))))  # one step of a training iteration fits any GPU
    epochs = paper_recipe(preset(case, facts).paper, facts.trajectories, steps).stages[0].iterations
    lr = float(hints["lr"])
    stage = Stage(epochs, length, batch, lr, loss=str(hints["loss"]), relative=bool(hints.get("relative", False)),
                  noise=float(hints["noise"]), pushforward=int(hints["pushforward"]), end=float(hints["lr_end"]) / lr)
    return Recipe(model, (stage,), hold_out=0, clip=float(hints["clip"]), weight_decay=float(hints["weight_decay"]))


def _staged(own: Preset, facts: Facts) -> Recipe:
    steps = facts.steps
    fitted = tuple(replace(s, length=min(s.length, steps), first=min(s.first, max(0, steps - s.length)),
                           skip=min(s.skip, max(0, min(s.length, steps) - 1))) for s in own.stages)
    return Recipe("staged", fitted, validate_steps=None if own.validate_steps is None else min(own.validate_steps, steps),
                  hold_out=validated(facts.trajectories), retreat=RETREAT)


def _wished(plan: Recipe, wish: Training, facts: Facts) -> Recipe:
    """The plan with the changes of a [training] table."""
    if wish.windows or wish.iterations:
        count = max(len(wish.windows), len(wish.iterations))
        if {len(wish.windows), len(wish.iterations)} - {0, count}:
            raise InputError("training.windows and training.iterations must have the same length, one entry per stage")
        windows, iterations = wish.windows or (8, *(40,) * (count - 1)), wish.iterations or (400,) * count
        plan = replace(plan, stages=tuple(
            Stage(n, min(w, facts.steps), 16 if k == 0 else 8, 3e-3 if k == 0 else 2e-3, from_start=0.25 if k else 0.0)
            for k, (w, n) in enumerate(zip(windows, iterations))))
    if wish.learning_rate:
        top = max(s.lr for s in plan.stages)
        plan = replace(plan, stages=tuple(replace(s, lr=s.lr / top * wish.learning_rate) for s in plan.stages))
    plan = replace(plan, stages=tuple(replace(s, batch=wish.batch or s.batch, noise=wish.noise or s.noise) for s in plan.stages))
    if wish.hold_out >= facts.trajectories > 1:
        raise InputError(f"training.hold_out = {wish.hold_out} leaves none of the {facts.trajectories} training trajectories")
    return replace(plan, hold_out=wish.hold_out or plan.hold_out)

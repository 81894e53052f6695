"""What is learned in each scenario, and how: the `staged` recipe's settings, as plain data."""

from __future__ import annotations

from dataclasses import replace

from dgnet.models.dgnet import INTERVALS, DGNetConfig
from dgnet.models.dgnet import PAPER as PAPER_MODEL
from dgnet.models.registry import entry
from dgnet.training.calibrate import LEARNED
from dgnet.training.recipe import Recipe, Stage, paper_recipe

CHANNELS = ("cylinder", "sediments", "obstacles", "wavy-channel")
TABLED = ("allen-cahn", "fisher-kpp", *CHANNELS)  # an unknown reaction of theirs is a table
SOURCES = ("laser-heat", "laser-heat-3d", "light-reaction", "phase-transition")

_OPERATOR = DGNetConfig(free=True, hidden=32, layers=2)


def model_config(name: str, recipe: str = "staged", unknown_reaction: bool = False, size: str = "small") -> DGNetConfig:
    """The parts that are learned. `paper` is the paper's model; `staged` the structured one with free numbers per edge.

    An unknown reaction is learned node by node: of one field as a table, of more as a network. Allen-Cahn's is known to be odd.
    """
    if unknown_reaction:
        return replace(model_config(name, recipe, size=size), reaction="learned", odd_reaction=name == "allen-cahn",
                       reaction_table=INTERVALS if name in TABLED else 0)
    if recipe == "paper":
        return PAPER_MODEL
    if name == "allen-cahn":
        # free numbers overfit its few interfaces; its noise needs another mass than the interfaces that grow out of it
        return replace(_OPERATOR, learn_source=False, learn_start=True, early_steps=30 if size == "paper" else 4, free=False)
    if name == "fisher-kpp" and size == "paper":
        return replace(_OPERATOR, learn_source=False, learn_start=True, learn_streamline=True, free=False)
    if name in ("fisher-kpp", "fitzhugh-nagumo"):
        return replace(_OPERATOR, learn_source=False, learn_streamline=name == "fisher-kpp")
    if name in CHANNELS:
        return replace(_OPERATOR, learn_streamline=True, learn_swirl=size == "paper")  # the few small trajectories do not carry it
    return _OPERATOR


# errors of the first instants of Allen-Cahn grow with the instability: only whole rollouts see what matters
_SMALL = {
    "allen-cahn": (Stage(160, 600, 8, 3e-3, from_start=1.0),),
    "fitzhugh-nagumo": (Stage(300, 10, 8, 3e-3), Stage(200, 60, 4, 2e-3), Stage(60, 200, 4, 1e-3, from_start=0.5)),
    "fisher-kpp": (Stage(300, 10, 16, 3e-3), Stage(200, 60, 8, 2e-3), Stage(60, 300, 4, 1e-3, from_start=0.5)),
    "channel": (Stage(200, 8, 8, 3e-3), Stage(150, 30, 8, 2e-3)),
    "heat": (Stage(400, 8, 16, 3e-3), Stage(400, 40, 8, 2e-3, from_start=0.25)),
}
_PAPER = _SMALL | {
    "allen-cahn": (Stage(250, 1000, 8, 2e-3, from_start=1.0),),
    "fitzhugh-nagumo": (Stage(200, 10, 8, 3e-3), Stage(200, 60, 4, 2e-3), Stage(150, 200, 4, 1e-3, from_start=0.5)),
    "fisher-kpp": (Stage(60, 200, 8, 3e-3, from_start=0.5), Stage(200, 1000, 8, 2e-3, from_start=1.0)),
    "channel": (Stage(150, 40, 12, 3e-3), Stage(250, 120, 12, 2e-3), Stage(150, 400, 12, 1.5e-3)),
    "heat": (Stage(100, 8, 16, 3e-3), Stage(500, 40, 8, 3e-3, from_start=0.25), Stage(200, 120, 8, 1.5e-3, from_start=1.0)),
}
_VALIDATE_EVERY = {"allen-cahn": 10}
_VALIDATE_STEPS = {"fitzhugh-nagumo": 600}


def recipe_for(name: str, recipe: str, trajectories: int, steps: int, unknown_reaction: bool = False,
               size: str = "small") -> Recipe:
    """Stages for one scenario; windows never exceed its steps. An unknown reaction is fitted first, by itself."""
    if unknown_reaction:
        plan = recipe_for(name, recipe, trajectories, steps, size=size)
        return reaction_first(plan, steps, name in TABLED, hold=name in CHANNELS)
    if recipe == "paper":
        return paper_recipe(name, trajectories, steps)
    table = _PAPER if size == "paper" else _SMALL
    kind = "channel" if name in CHANNELS else name if name in table else "heat"
    fitted = tuple(replace(s, length=min(s.length, steps), first=min(s.first, max(0, steps - s.length)),
                           skip=min(s.skip, max(0, min(s.length, steps) - 1))) for s in table[kind])
    part = _VALIDATE_STEPS.get(kind)
    return Recipe("staged", fitted, validate_every=_VALIDATE_EVERY.get(kind, 50),
                  validate_steps=None if part is None else min(part, steps), hold_out=max(1, min(3, trajectories // 5)))


def reaction_first(plan: Recipe, steps: int, table: bool, hold: bool = False) -> Recipe:
    """The plan after the reaction has been fitted by itself: a network on short windows, a table as `identify` does.

    Then all is trained together: on a coarse mesh the fit takes what the operator misses for a part of the reaction. With
    `hold` the reaction stays as it was fitted: windows that are short against the rollout do not see how a small bias of it grows.
    """
    only = ("reaction_net",)
    if hold:
        others = tuple(name for name in LEARNED if name not in only)
        plan = replace(plan, stages=tuple(replace(s, only=s.only or others) for s in plan.stages))
    first = (Stage(600, 2, 32, 5e-3, only=only), Stage(300, min(10, steps), 16, 2e-3, only=only))
    return replace(plan, stages=((Stage(1, 1, method="identify", only=only),) if table else first) + plan.stages)


def baseline_recipe(model: str, name: str, trajectories: int, steps: int, nodes: int) -> Recipe:
    """A baseline as its own paper trains it (registry), for as many epochs as the paper's table gives the scenario."""
    hints = entry(model).recipe
    length = min(int(hints["window"]), steps)
    batch = max(2, min(16, int(16 * 12_000 / max(nodes * length, 1))))  # one step of a training iteration fits any GPU
    epochs = paper_recipe(name, trajectories, steps).stages[0].iterations
    lr = float(hints["lr"])
    stage = Stage(epochs, length, batch, lr, loss=str(hints["loss"]), relative=bool(hints.get("relative", False)),
                  noise=float(hints["noise"]), pushforward=int(hints["pushforward"]), end=float(hints["lr_end"]) / lr)
    return Recipe(model, (stage,), validate_every=max(50, epochs // 20), hold_out=max(1, min(3, trajectories // 5)),
                  clip=float(hints["clip"]), weight_decay=float(hints["weight_decay"]))

"""How far a training is, and the learning rate there: by updates or by the clock, whichever is further on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from dgnet.errors import InputError
from dgnet.recipe import Recipe, Stage

_ASIDE = 20  # steps that an update costs besides those of its windows


@dataclass(frozen=True)
class Place:
    """A place in a recipe.

    - `number`, `stage`: the stage that is under way
    - `begin`, `end`: iterations at which it begins and ends
    - `done`: share of it that is over, 0 to 1
    - `over`: the clock has ended it early
    """

    number: int
    stage: Stage
    begin: int
    end: int
    done: float
    over: bool


def place(recipe: Recipe, iteration: int, clock: float | None) -> Place:
    """Where `iteration` is; `clock` is the share of the time for updates that has passed, None without a budget."""
    number, end = 0, recipe.stages[0].iterations
    while iteration >= end and number + 1 < len(recipe.stages):
        number += 1
        end += recipe.stages[number].iterations
    stage = recipe.stages[number]
    begin = end - stage.iterations
    done = (iteration - begin) / stage.iterations
    if clock is None or stage.method != "adam":  # few, decisive steps of Gauss-Newton are not cut short
        return Place(number, stage, begin, end, done, False)
    before, share = recipe.share(number)
    passed = min(1.0, (clock - before) / share)
    return Place(number, stage, begin, end, max(done, passed), passed >= 1.0 and iteration + 1 < recipe.iterations)


def unaffordable(recipe: Recipe, number: int, one: float, seconds: float, fewest: int) -> list[int]:
    """Stages behind stage `number` whose share of `seconds` is too short for `fewest` updates, where one update of that stage takes
    `one` second. The longest windows go first, and their time goes to the others. A stage that alone trains some weights stays."""
    stages, out = recipe.stages, list[int]()

    def cost(stage: Stage) -> float:
        return one * stage.batch * (stage.length + _ASIDE) / (stages[number].batch * (stages[number].length + _ASIDE))

    while True:
        left = [k for k in range(len(stages)) if k not in out]
        kept = recipe.without(out)
        late = [k for i, k in enumerate(left) if k > number and stages[k].method == "adam"
                and kept.share(i)[1] * seconds < min(fewest, stages[k].iterations) * cost(stages[k])
                and any(stages[j].method == "adam" and stages[j].only == stages[k].only for j in left[:i])]
        if not late:
            return out
        out.append(max(late, key=lambda k: stages[k].length))


def learning_rate(stage: Stage, done: float) -> float:
    """Of a stage of which this share is over. A step decay that would happen after k of n iterations happens at done = k/n."""
    if stage.decay == "cosine":
        return stage.lr * (0.5 * (1 + math.cos(math.pi * min(1.0, done))) * (1 - stage.end) + stage.end)
    return stage.lr * stage.decay_rate ** int(done * stage.iterations / max(1, stage.decay_every) + 1e-9)


def set_rates(optimiser: torch.optim.Optimizer, stage: Stage, done: float, factor: float = 1.0) -> None:
    """The learning rate of every group of weights, and which of them this stage trains."""
    names = [name for group in optimiser.param_groups for name in group["names"]]
    if stage.only and not any(name.startswith(stage.only) for name in names):
        raise InputError(f"a stage has nothing to train: no weight has a name that begins with {' or '.join(stage.only)}")
    rate = factor * learning_rate(stage, done)
    for group in optimiser.param_groups:
        group["lr"] = rate * group["factor"]
        for name, p in zip(group["names"], group["params"]):
            p.requires_grad_(not stage.only or name.startswith(stage.only))

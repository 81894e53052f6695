"""Rules under which trainings can be compared: a loss with a sane scale, schedules and validations by the share of the budget, all
of the training data used. Time is a counter here: an update and a validation take as many seconds as the test says."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dgnet.models import Classical
from dgnet.recipe import paper_recipe
from dgnet.scoring.judge import predict
from dgnet.training import Progress, Recipe, Stage, fit, split
from dgnet.training.fit import evaluate_rne
from dgnet.training.plan import make_plan
from dgnet.training.schedule import unaffordable
from dgnet.training.update import misfit
from dgnet_paper.scenarios import get
from tests.training.test_fit import base, corpus, new_model

# ---------------------------------------------------------------------- the loss


def test_a_relative_loss_is_sane_where_the_truth_is_zero() -> None:
    """A channel is empty at first: an error of one hundredth of the data's spread is no error of 1e10."""
    scale = torch.tensor([2.0])
    true, off = torch.zeros(3, 1, 50, 1), torch.full((3, 1, 50, 1), 0.02)  # a hundredth of the spread at every node
    assert float(misfit(off, true, scale, (0.0,))) == pytest.approx(0.1)  # a state counts as a tenth of the usual size at least
    assert float(misfit(true, true, scale, (0.0,))) == 0.0


def test_a_relative_loss_of_usual_states_is_their_relative_error() -> None:
    true = 5.0 + torch.rand(4, 2, 50, 1, dtype=torch.float64)
    u, scale = true + 0.1 * torch.rand_like(true), torch.tensor([0.7], dtype=torch.float64)
    relative = ((u - true).flatten(-2).norm(dim=-1) / (true - 4.0).flatten(-2).norm(dim=-1)).mean()
    assert float(misfit(u, true, scale, (4.0,))) == pytest.approx(float(relative))


# ---------------------------------------------------------------------- the clock


class Clock:
    """Replaces the clock of the training loop, its updates and its validations."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, update: float, validation: float = 0.0) -> None:
        self.now, self.rates, self.steps = 0.0, [], []  # type: ignore[var-annotated]
        self.update, self.validation = update, validation
        self.errors: Iterator[float] = repeat(1.0)  # of the validations to come
        loop = sys.modules["dgnet.training.fit"]
        monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: self.now))
        monkeypatch.setattr(loop, "iterate", self.iterate)
        monkeypatch.setattr(loop, "evaluate_rne", self.evaluate)

    def iterate(self, model: Any, base: Any, train: Any, stage: Stage, optimiser: torch.optim.Optimizer, *rest: Any) -> float:
        self.now += self.update
        self.rates.append(optimiser.param_groups[0]["lr"])
        return 1.0

    def evaluate(self, model: Any, base: Any, data: Any, steps: int | None = None, pieces: int = 1) -> float:
        self.now += self.validation * (1.0 if steps is None else pieces * steps / data.steps)
        self.steps.append(steps)
        return next(self.errors)

    def fit(self, recipe: Recipe, budget: float | None) -> Progress:
        return fit(new_model(), base(), corpus(2), corpus(1, 1, steps=50), recipe, budget=budget)


def test_step_decay_follows_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's schedule of 400 epochs with a tenth of the rate after 200 of them, cut by the clock to 100 updates."""
    clock, row = Clock(monkeypatch, update=1.0), get("laser-heat", "paper").training.paper
    clock.fit(paper_recipe(row, 20, 200), budget=100.0)
    shares = [rate / row.lr for rate in clock.rates]
    assert len(shares) == 100 and shares[0] == 1.0
    assert shares[row.decay_step * 100 // row.epochs + 1] == pytest.approx(0.1)
    assert sum(s == pytest.approx(1.0) for s in shares) == pytest.approx(100 * row.decay_step / row.epochs, abs=1)


def test_step_decay_follows_the_updates_without_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe with fewer iterations keeps the shape of its schedule."""
    clock = Clock(monkeypatch, update=1.0)
    whole = Recipe("steps", (Stage(400, 2, lr=1.0, decay="step", decay_every=100, decay_rate=0.5),))
    clock.fit(whole.scaled(0.05), budget=None)
    assert clock.rates == pytest.approx([1.0] * 5 + [0.5] * 5 + [0.25] * 5 + [0.125] * 5)


@pytest.mark.parametrize("validation", [0.0, 0.5, 5.0, 15.0])
@pytest.mark.parametrize("model", ["mgn", "dgnet", "dgnet-paper"])
def test_at_least_ten_validations_within_a_budget(model: str, validation: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many updates the recipe would take, and however long a whole validation would: less than half of the time."""
    s = get("cylinder", "paper")
    recipe = make_plan(replace(s, build_mesh=lambda: base().mesh), s.train, s.steps, model=model).recipe
    clock = Clock(monkeypatch, update=0.05, validation=validation)
    progress = clock.fit(recipe, budget=120.0)
    assert len(progress.history) - 1 >= 10 and progress.seconds < 130 + 3 * validation
    between = [b["seconds"] - a["seconds"] for a, b in zip(progress.history, progress.history[1:])]
    assert max(between) <= 12.5
    spent = progress.seconds - progress.history[0]["seconds"] - 0.05 * progress.updates
    assert spent < 0.5 * 120
    assert len(set(clock.steps[-5:])) == 1  # all but the first ones are over the same steps


def test_a_shortened_validation_looks_at_all_of_a_trajectory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes wrong late counts, though no rollout is as long as the trajectory."""
    clock, valid = Clock(monkeypatch, update=0.05, validation=6.0), corpus(1, 1)
    clock.fit(Recipe("one", (Stage(100_000, 2),)), budget=120.0)
    assert clock.steps[-1] == 4  # of 50; four such rollouts take 1.9 s, a fiftieth of the budget is 2.4 s
    monkeypatch.undo()
    made = predict(Classical(), base(), valid)
    late = replace(valid, state=torch.cat([made[:, :7], made[:, 7:] + 1.0], 1))
    assert evaluate_rne(Classical(), base(), late, 2) < 1e-12 < 0.1 < evaluate_rne(Classical(), base(), late, 2, 5)
    for model in (Classical(), Classical(start=1)):  # pieces in the middle of a rollout have no start
        own = replace(valid, state=predict(model, base(), valid))
        assert evaluate_rne(model, base(), own, 2, 5) < 1e-12


def test_stages_that_would_have_few_updates_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Channels: windows of 40, 120 and 400 steps. Their time goes to the stages that stay."""
    stages = get("cylinder", "paper").training.recipe.stages
    recipe = Recipe("staged", stages)
    assert [s.length for s in stages] == [40, 120, 400]
    assert unaffordable(recipe, 0, 0.1, 300.0, 20) == []
    assert unaffordable(recipe, 0, 0.5, 100.0, 20) == [2]
    assert unaffordable(recipe, 0, 2.0, 100.0, 20) == [2, 1]
    assert recipe.without([2, 1]).stages == stages[:1]
    alone = replace(recipe, stages=(*stages[:2], replace(stages[2], only=("reaction_net",))))
    assert unaffordable(alone, 0, 2.0, 100.0, 20) == [1]  # what no other stage trains stays
    two = Recipe("two", (Stage(100, 2), Stage(100, 8)))
    assert Clock(monkeypatch, update=1.0).fit(two, budget=20.0).left_out == [1]
    assert Clock(monkeypatch, update=1.0).fit(two, budget=90.0).left_out == []
    assert Clock(monkeypatch, update=1.0).fit(two, budget=None).left_out == []


def test_far_worse_weights_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, update=1.0)
    clock.errors = chain([1.0, 1.0, 0.5, 1.2, 0.6], repeat(0.4))  # untrained, classical, then the validations
    plan = Recipe("one", (Stage(4, 2, lr=1.0, end=1.0),), retreat=2.0)
    progress = clock.fit(plan, budget=None)
    assert clock.rates == [1.0, 1.0, 0.25, 0.25] and progress.retreats == 1 and progress.best == 0.4
    clock = Clock(monkeypatch, update=1.0)
    clock.errors = chain([1.0, 1.0, 0.5, 1.2, 0.6], repeat(0.4))
    assert clock.fit(replace(plan, retreat=0.0), budget=None).retreats == 0 and clock.rates == [1.0] * 4


def test_steps_that_are_too_long_are_found_early(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, update=1.0)
    clock.errors = chain([1.0, 1.0, 3.0, 8.0], repeat(0.5))
    plan = Recipe("one", (Stage(400, 2, lr=1.0, end=1.0),), retreat=1.3)
    history = clock.fit(plan, budget=None).history
    assert [row["updates"] for row in history[:6]] == [0, 2, 4, 8, 28, 48]  # then every twentieth of them
    assert clock.rates[:8] == [1.0, 1.0, 1 / 4, 1 / 4, *[1 / 32] * 4]  # by as much as it was worse, by a quarter at least


def test_at_least_ten_validations_without_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    for iterations in (11, 30, 317, 3000):
        progress = Clock(monkeypatch, update=1.0).fit(Recipe("one", (Stage(iterations, 2),)), budget=None)
        assert 10 <= len(progress.history) - 1 <= 30
    few = Clock(monkeypatch, update=1.0).fit(Recipe("few", (Stage(3, 2),)), budget=None)
    assert [row["updates"] for row in few.history] == [0, 1, 2, 3]


def test_the_learning_curve_counts_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock moves the place in the recipe on; updates are those that were made."""
    recipe = Recipe("two", (Stage(1000, 2), Stage(1000, 2)))
    progress = Clock(monkeypatch, update=1.0).fit(recipe, budget=50.0)
    last = progress.history[-1]
    assert last["updates"] == progress.updates == 50 and last["iteration"] > 1000 and math.isfinite(last["seconds"])


# ---------------------------------------------------------------------- the data


@pytest.mark.parametrize("name, count", [("allen-cahn", 10), ("cylinder", 15), ("laser-heat", 20)])
def test_the_papers_preset_and_baselines_train_on_all_trajectories(name: str, count: int) -> None:
    s = get(name, "paper")
    stored: Any = SimpleNamespace(of=lambda which: list(range(s.train)))
    for recipe in (make_plan(s, s.train, s.steps, model=model).recipe for model in ("dgnet-paper", "mgn")):
        training, validation = split(stored, recipe)
        assert len(training) == s.train == count and set(validation) < set(training) and len(validation) == 3 - (count == 10)
    training, validation = split(stored, make_plan(s, s.train, s.steps).recipe)
    assert len(training) + len(validation) == count and not set(training) & set(validation)

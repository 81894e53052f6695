"""The judge: same figures from memory and from a file, in pieces or at once; a model that diverges is a result, not an end."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dgnet.data import Dataset
from dgnet.errors import InputError, SolveError
from dgnet.files import write_json
from dgnet.models import Classical
from dgnet.models.base import Stepper, WrappedStepper, Wrapper
from dgnet.models.dgnet import PreparedDGNet
from dgnet.problems.case import base_problem
from dgnet.recipe import Recipe, Stage
from dgnet.report import figures, page
from dgnet.scoring import judge as module
from dgnet.scoring.judge import FITTED, finer, judge, judge_file, rivals
from dgnet.scoring.metrics import rne
from dgnet.training.evaluate import evaluate, scores, table
from dgnet.training.fit import evaluate_rne
from dgnet.training.plan import OPERATOR, Plan
from dgnet.training.run import Run, train
from dgnet_paper.scenarios import Scale, get
from dgnet_paper.scenarios.generate import generate
from dgnet_paper.scenarios.redrawn import Redrawn

Tensor = torch.Tensor


class Diverges(WrappedStepper):
    fails: bool

    def step(self, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        if k >= 3 and self.fails:
            raise SolveError("no solution")
        return u * math.nan if k >= 3 else self.inner.step(u, source, t, k)


class Diverging(Wrapper[Diverges]):
    """Classical until step 3: then it fails, or gives what is not a number."""

    name, model = "diverging", Classical()
    solves = False  # as of a network: nobody watches how large its states become

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def prepare(self, problem: Any, batch: int = 1, steps: int = 1000, careful: bool = False) -> Diverges:
        found = Diverges(self.model.prepare(problem, batch, steps, careful))
        found.fails = self.fails
        return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(get("laser-heat", "small"), tmp_path_factory.mktemp("data"), truth="same-mesh", trajectories=3)


def test_memory_file_and_pieces_agree(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = get("laser-heat", "small")
    whole = judge_file(rivals(), scenario, data, keep=True)
    assert whole.data is not None and whole.trajectories == 3 and not whole.failures
    for name, states in whole.states.items():
        assert whole.error(name) == pytest.approx(rne(states, whole.data.state, scenario.offsets), rel=1e-12)
    base = base_problem(scenario, "cpu")
    assert evaluate_rne(Classical(), base, whole.data) == pytest.approx(whole.error("classical_consistent"), rel=1e-9)
    few = judge({"one": Classical()}, base, whole.data, steps=5)
    assert few.steps == 5 and few.sums["one"].error.shape == (3, 6, 1)
    monkeypatch.setattr(module, "BYTES", {"cpu": 1.0})  # one trajectory at a time
    single = judge_file(rivals(), scenario, data)
    assert not single.states and single.trajectories == 3
    for name in rivals():
        assert single.score(name).trajectories == pytest.approx(whole.score(name).trajectories, rel=1e-2)
    assert judge_file(rivals(), scenario, data, numbers=[4]).error("classical_lumped") == pytest.approx(
        whole.score("classical_lumped").trajectories[1], rel=1e-2)


@pytest.mark.parametrize("fails", [True, False])
def test_a_model_that_diverges_is_scored_as_infinitely_wrong(data: Path, fails: bool) -> None:
    found = judge_file({"bad": Diverging(fails), "good": Classical()}, get("laser-heat", "small"), data, limit=1)
    row = found.scores()["bad"]
    assert row["rne"] == row["mse"] == row["rne_from_offset"] == found.error("bad") == math.inf
    assert "step 4 of" in row["error"] and ("no solution" in row["error"]) == fails
    assert math.isfinite(found.error("good")) and set(found.failures) == {"bad"}
    with Dataset(data) as dataset:
        corpus = dataset.batch([0])
    assert evaluate_rne(Diverging(fails), base_problem(get("laser-heat", "small"), "cpu"), corpus) == math.inf


def test_data_that_do_not_fit_are_refused(data: Path) -> None:
    with pytest.raises(InputError, match="holds data of 'laser-heat', not of 'allen-cahn'"):
        judge_file(rivals(), get("allen-cahn", "small"), data)
    with pytest.raises(InputError, match="holds same-mesh truth"):
        judge_file(rivals(), get("laser-heat", "small"), data, truth="converged")
    with Dataset(data) as dataset:
        corpus = dataset.batch([0])
    with pytest.raises(InputError, match=f"the data have {corpus.steps} steps to be judged by, not {corpus.steps + 1}"):
        judge(rivals(), base_problem(get("laser-heat", "small"), "cpu"), corpus, steps=corpus.steps + 1)


def test_evaluation_and_page_of_a_run_that_diverges(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`evaluate RUN` ended with an error where `evaluate --pretrained` gave a result."""
    train(get("laser-heat", "small"), "same-mesh", data, tmp_path / "run", Plan(OPERATOR, Recipe("short", (Stage(1, 8),))))
    run = Run.open(tmp_path / "run")

    def step(self: PreparedDGNet, u: Tensor, source: Tensor | None, t: float, k: int) -> Tensor:
        if k >= 3:
            raise SolveError("no solution")
        return u

    monkeypatch.setattr(PreparedDGNet, "step", step)
    monkeypatch.setattr(PreparedDGNet, "linear", Stepper.linear)
    result, states, truth = evaluate(run, data)
    assert result["error_ratio"] == math.inf and "diverged" in table(result) and "DGNet diverged: step 4 of" in table(result)
    write_json(tmp_path / "x.json", result)
    stored = json.loads((tmp_path / "x.json").read_text())
    assert stored["scores"]["dgnet"]["rne"] is None and stored["error_ratio"] is None
    written = figures.draw(run, result, states, truth, tmp_path / "figures")
    assert "Unstable" in page.write(run, result, states, truth, written, tmp_path / "x.html").read_text()
    assert scores(run, data)[0]["scores"].keys() == result["scores"].keys()


def test_rows_with_more_points_take_the_functions_behind_the_data(tmp_path) -> None:
    """Quadratic elements are far below linear ones where the source is evaluated between the nodes, and say so; data without their
    draws are fitted there, which costs accuracy and is said, too."""
    scenario = get("laser-heat", "small")
    path = generate(scenario, tmp_path, trajectories=1, split="test")
    edges = len(scenario.mesh.edges)
    models = {**rivals(), **finer(scenario.mesh.n_nodes + edges)}
    found = judge_file(models, scenario, path)
    assert "drawn with" in found.between
    assert found.error("classical_p2") < 0.5 * found.error("classical_consistent")
    assert found.error("classical_refined") < 0.6 * found.error("classical_consistent")
    with Dataset(path) as dataset:
        plain = dataset.batch(dataset.of("test"))
        middles = Redrawn.of(scenario, dataset, dataset.of("test"), "cpu")
        assert Redrawn.of(replace(scenario, scale=Scale(power=2.0)), dataset, dataset.of("test"), "cpu") is None
        assert Redrawn.of(replace(scenario, size="paper"), dataset, dataset.of("test"), "cpu") is None
    assert middles is not None and middles.source_average is not None and middles.start is not None
    assert middles.start.shape == (1, edges, 1) and middles.source_average.shape == (1, scenario.steps, edges, 1)
    fitted = judge(models, base_problem(scenario, "cpu"), plain)
    assert fitted.between == FITTED and fitted.error("classical_p2") > found.error("classical_p2")
    assert finer(1e9) == {}

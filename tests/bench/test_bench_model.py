"""The benchmarks of models run at small size and say what they measured; speeds are not asserted."""

import json
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from dgnet.bench import model as bench
from dgnet.bench import tradeoff
from dgnet.bench.timing import peak
from dgnet.cli import app
from dgnet.errors import InputError
from dgnet.models import Classical, rollout
from dgnet.recipe import Recipe, Stage
from dgnet.scenarios import Truth, get
from dgnet.scenarios.generate import generate
from dgnet.training.run import train

FIGURES = ("prepare_s", "ms_per_step", "steps_per_s", "running_steps_per_s", "seconds")


def positive(row):
    return all(row[name] > 0 for name in FIGURES)


def test_rollouts_and_training():
    r = bench.run("laser-heat", "small", steps=8, together=(1, 2), batch=2, window=3)
    assert [(x["model"], x["trajectories"]) for x in r["rows"]] == [
        (name, count) for count in (1, 2) for name in ("dgnet", "dgnet-paper", "classical_consistent", "classical_lumped")]
    assert all(positive(x) for x in r["rows"])
    assert all(x["trajectory_steps_per_s"] == pytest.approx(x["trajectories"] * x["steps_per_s"]) for x in r["rows"])
    assert [x["model"] for x in r["training"]] == ["dgnet", "dgnet-paper"] and all(x["ms"] > 0 for x in r["training"])
    assert all(x["parameters"] > 10_000 for x in r["rows"] if x["model"].startswith("dgnet"))
    json.dumps(r, allow_nan=False)
    text = bench.markdown(r)
    assert text.count("| dgnet |") == 3 and "482" in text


def test_every_model():
    r = bench.throughput(scenario="laser-heat", size="small", steps=4)
    names = [x["model"] for x in r["rows"]]
    assert set(names) == {"deeponet", "mgn", "mp-pde", "beno", "phympgn", "transolver", "amg", "singer", "dgnet", "dgnet-paper",
                          "classical_consistent", "classical_lumped", "classical_p2"}
    assert all(positive(x) for x in r["rows"])
    with pytest.raises(InputError, match="no model 'mgm'"):
        bench.throughput(["mgm"], size="small")


def test_scaling():
    r = bench.scaling(sizes=(100, 400), steps=4)
    assert sorted({x["nodes"] for x in r["rows"]}) == [100, 400]
    assert all(positive(x) for x in r["rows"])


def test_synthetic_trajectories_are_finite_and_have_the_scenarios_shape():
    for name in ("cylinder", "fitzhugh-nagumo", "laser-heat-3d"):
        scenario = get(name, "small")
        case = bench.Case.of(scenario, 5, 6, "cpu")
        assert case.u0.shape == (5, scenario.mesh.n_nodes, len(scenario.pde.fields))
        assert (case.velocity is None) == (scenario.flow is None)
        states = rollout(Classical(), case.problem(), case.u0, case.source(6), 6)
        assert torch.isfinite(states).all()


def test_peak_memory_sees_what_a_block_holds():
    with peak("cpu") as memory:
        block = torch.zeros(40_000_000)
        block += 1
    assert memory.bytes is None or memory.bytes > 1.5e8


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """A run whose model is the untrained one, on a short laser-heat data set."""
    folder = tmp_path_factory.mktemp("tradeoff")
    scenario = get("laser-heat", "small")
    data = generate(scenario, folder / "data", trajectories=1)
    plan = Recipe("none", (Stage(1, 1, 1, 1e-9),), validate_steps=1)
    run, _ = train(scenario, "converged", data, folder / "run", plan=plan)
    return run, data


def test_cost_against_accuracy(small_run):
    run, data = small_run
    rungs = [Truth(0, 1), Truth(0, 2), Truth(0, 4), Truth(1, 1), Truth(0, 1, degree=2)]
    r = tradeoff.tradeoff(run, data, rungs=rungs, budget=1e6, climbs=[(0, 1), (1, 1)])
    own, rows = r["rows"][0], r["rows"]
    plain = next(x for x in rows if x.get("mass") == "consistent" and (x["refine"], x["substeps"]) == (0, 1))
    assert own["error"] == pytest.approx(plain["error"], rel=0.02)  # untrained: the classical solver
    finer = next(x for x in rows if x["solver"] == "reference" and x["refine"] == 1)
    assert finer["error"] < 0.6 * own["error"] and r["cheapest"]["reference"]["error"] <= own["error"]
    assert r["ratio"]["reference"] == pytest.approx(r["cheapest"]["reference"]["cost_s"] / own["cost_s"])
    skipped = next(x for x in rows if x["solver"] == "reference" and x["substeps"] == 4)
    assert "not_run" in skipped and "error" not in skipped
    assert all(x["cost_s"] == pytest.approx(x["rollout_s"] + x["source_s"]) for x in rows if "not_run" not in x)
    json.dumps(r, allow_nan=False)
    assert "times as much as the model" in tradeoff.markdown(r)


def test_states_of_refined_rungs_start_where_the_data_do(small_run):
    run, data = small_run
    trial = tradeoff.Trial.read(run, data, "cpu", None)
    mesh = run.scenario.mesh.refined(2)
    coarse = trial.start(run.scenario.mesh, 0)
    linear = replace(trial, sample=replace(trial.sample, initial=torch.tensor(run.scenario.mesh.points[None, :, :1])))
    assert torch.allclose(trial.start(mesh, 2)[:, : coarse.shape[1]], coarse)
    assert torch.allclose(linear.start(mesh, 2)[0, :, 0], torch.tensor(mesh.points[:, 0]))  # linear functions stay linear


def test_data_of_another_scenario_is_refused(small_run):
    run, data = small_run
    other = replace(run, case=get("fitzhugh-nagumo", "small"))
    with pytest.raises(InputError, match="is of scenario 'laser-heat'"):
        tradeoff.tradeoff(other, data)
    with pytest.raises(InputError, match="without flow"):
        tradeoff.tradeoff(replace(run, case=get("cylinder", "small")), data)


def test_command(tmp_path):
    out = tmp_path / "bench.json"
    done = CliRunner().invoke(app, ["bench", "scaling", "--nodes", "100", "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert {x["model"] for x in json.loads(out.read_text())["rows"]} == {"dgnet", "classical_consistent", "classical_lumped"}

"""The benchmarks of models run at small size and say what they measured; speeds are not asserted."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from dgnet.errors import InputError
from dgnet.models import Classical, rollout
from dgnet.models.registry import entry
from dgnet.problems.case import Case
from dgnet.recipe import Recipe, Stage
from dgnet.training.plan import OPERATOR, Plan
from dgnet.training.run import train
from dgnet_paper.reference.record import FlowRecord
from dgnet_paper.scenarios import Draw, get
from dgnet_paper.scenarios.generate import generate
from dgnet_paper.study import throughput as bench
from dgnet_paper.study import tradeoff
from dgnet_paper.study.timing import peak
from dgnet_paper.study.tradeoff import Setting

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
    assert {"deeponet", "mgn", "pod", "dgnet", "dgnet-paper", "universal", "universal-quadratic", "universal-tuned",
            "classical_consistent", "classical_lumped", "classical_p2"} <= set(names)
    assert all(positive(x) for x in r["rows"])
    with pytest.raises(InputError, match="no model 'mgm'"):
        bench.throughput(["mgm"], size="small")


def test_universal_weights_are_left_out_where_they_do_not_apply(monkeypatch: pytest.MonkeyPatch) -> None:
    some = {name: entry(name) for name in ("universal", "universal-quadratic", "universal-tuned", "classical")}
    monkeypatch.setattr(bench, "all_models", lambda: some)
    r = bench.throughput(scenario="allen-cahn", size="small", steps=2)
    assert [x["model"] for x in r["rows"]] == ["classical_consistent", "classical_lumped"]
    with pytest.raises(InputError, match="there is a reaction"):
        bench.throughput(["universal-tuned"], scenario="allen-cahn", size="small", steps=2)


def test_scaling():
    r = bench.scaling(sizes=(100, 400), steps=4)
    assert sorted({x["nodes"] for x in r["rows"]}) == [100, 400]
    assert all(positive(x) for x in r["rows"])


def test_synthetic_trajectories_are_finite_and_have_the_scenarios_shape():
    for name in ("cylinder", "fitzhugh-nagumo", "laser-heat-3d"):
        scenario = get(name, "small")
        case = bench.Workload.of(scenario, 5, 6, "cpu")
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
    run, _ = train(scenario, "converged", data, folder / "run", Plan(OPERATOR, plan))
    return run, data


def test_cost_against_accuracy(small_run):
    run, data = small_run
    r = tradeoff.tradeoff(run, data, settings=[Setting(), Setting(2), Setting(2, fitted=True)])
    own, plain, quadratic, fitted = r["rows"]
    assert fitted["error"] < 0.7 * own["error"]
    assert own["error"] == pytest.approx(plain["error"], rel=0.02)  # untrained: the classical solver
    assert quadratic["error"] < 0.6 * own["error"] and r["cheapest"]["error"] <= own["error"]
    assert r["ratio"] == pytest.approx(r["cheapest"]["cost_s"] / own["cost_s"])
    assert all(x["cost_s"] == pytest.approx(tradeoff.whole(x)) and x["source_s"] > 0 for x in r["rows"])
    json.dumps(r, allow_nan=False)
    assert "set-up and sources included" in tradeoff.markdown(r)
    finer = tradeoff.measure(tradeoff.Trial.read(run, data, "cpu", 1), Setting(1, 1).model, Setting(1, 1), seconds=0.0)
    assert finer["error"] < 0.6 * own["error"] and finer["unknowns"] == quadratic["unknowns"]  # the middles of edges
    long = tradeoff.measure(tradeoff.Trial.read(run, data, "cpu", 1), Setting(2, skip=2).model, Setting(2, skip=2), seconds=0.0)
    assert long["error"] < 3 * own["error"] and "2 Δt" in tradeoff.named({"solver": "classical", "kind": "P2", "refine": 0,
                                                                               "substeps": 1, "skip": 2})


def test_states_between_long_steps():
    weights, t = tradeoff.in_time(13, 4), torch.arange(13, dtype=torch.float64)
    assert torch.allclose(weights @ (t[::4] ** 3 - t[::4]), t**3 - t)
    assert torch.allclose(tradeoff.in_time(5, 1), torch.eye(5, dtype=torch.float64))


def test_search_goes_from_cheap_to_dear(small_run, monkeypatch):
    """Made-up costs and errors: shorter steps only where they help, longer ones where the error is reached, dear ones never."""
    run, data = small_run
    trial = tradeoff.Trial.read(run, data, "cpu", 1)
    asked = []

    def made_up(trial, model, setting):
        asked.append(setting)
        error = {0: 0.4, 1: 0.15, 2: 0.05}[setting.refine] * (0.25 if setting.degree == 2 else 1.0) + 0.01 * setting.skip**2
        return {"unknowns": 1, "setup_s": 0.0, "source_s": 0.0, "rollout_s": setting.work(2), "error": error}

    monkeypatch.setattr(tradeoff, "measure", made_up)
    search = tradeoff.Search(trial, {"solver": "dgnet", "error": 0.2, "setup_s": 0.0, "source_s": 0.1, "rollout_s": 1.0}, 100.0)
    search.explore()
    assert Setting(substeps=2) in asked and Setting(substeps=4) not in asked  # shorter steps changed nothing
    assert Setting(2, skip=4) in asked and Setting(2, skip=8) not in asked  # 40 steps would be 5
    best = search.best
    assert best["rollout_s"] == 2.0 and best["skip"] == 2 and any("dearer" in r.get("not_run", "") for r in search.rows)
    rows = [{"kind": s.kind, "refine": s.refine, "substeps": s.substeps, "skip": s.skip} for s in asked]
    assert [tradeoff.setting_of(row) for row in rows] == list(asked)
    assert {s.kind for s in tradeoff.meshes(2, True, True)} == {"P1", "P1, lumped", "P2", "P2, sources at nodes"}
    assert {s.kind for s in tradeoff.meshes(2, False, False)} == {"P1", "P1, lumped", "P2", "P2, dG(1)"}


def test_channels_take_the_flow_at_the_points_of_a_setting(tmp_path):
    """A flow's record gives its own elements' values on refined meshes; the classical setting is the classical solver."""
    scenario = get("cylinder", "small")
    mesh, rows = scenario.mesh, round((scenario.horizon + scenario.flow.phases) / scenario.dt) + 2
    x = mesh.refined(1).points
    still = np.stack([1 + 0 * x[:, 0], x[:, 1] * 0.1], 1).astype(np.float32)
    flow = FlowRecord(mesh, 0, scenario.dt, np.broadcast_to(still, (rows, *still.shape)))
    sample = scenario.sample([Draw("test", 0)])
    trial = tradeoff.Trial(scenario, sample, torch.zeros(1, scenario.steps + 1, mesh.n_nodes, 1).double(), "cpu", flow)
    for refine in (0, 1, 2):
        v = trial.velocity(refine)
        assert v.shape == (1, scenario.steps + 1, trial.mesh(refine).n_nodes, 2)
        assert torch.allclose(v[0, 3, :, 1], torch.tensor(0.1 * trial.mesh(refine).points[:, 1]).float(), atol=1e-5)
    problem = trial.problem(Setting(substeps=2), trial.velocity(0))
    assert problem.dt == scenario.dt / 2 and problem.time_dependent
    quadratic, points = Setting(2).model, len(Setting(2).model.points(problem))
    assert trial.start(Setting(2)).shape[1] == trial.sources(quadratic, problem, Setting(2)).shape[2] == points


def test_states_of_refined_settings_start_where_the_data_do(small_run):
    run, data = small_run
    trial = tradeoff.Trial.read(run, data, "cpu", None)
    coarse = trial.start(Setting())
    linear = replace(trial, sample=replace(trial.sample, initial=torch.tensor(run.case.mesh.points[None, :, :1])))
    assert torch.allclose(trial.start(Setting(1, 2))[:, : coarse.shape[1]], coarse)
    for setting in (Setting(1, 2), Setting(2, 1)):  # linear functions stay linear
        assert torch.allclose(linear.start(setting)[0, :, 0], torch.tensor(run.case.mesh.refined(2).points[:, 0]).float())


def test_data_of_another_scenario_is_refused(small_run):
    run, data = small_run
    other = replace(run, case=get("fitzhugh-nagumo", "small"))
    with pytest.raises(InputError, match="is of scenario 'laser-heat'"):
        tradeoff.tradeoff(other, data)
    own = Case(name="own", title="", equation="", build_mesh=lambda: run.case.mesh, pde=run.case.pde, conditions=(), dt=0.5,
               steps=40)
    with pytest.raises(InputError, match="the paper's scenarios"):
        tradeoff.tradeoff(replace(run, case=own), data)

"""The benchmarks of models run at small size and say what they measured; speeds are not asserted."""

import json

import pytest
import torch
from typer.testing import CliRunner

from dgnet.cli import app
from dgnet.errors import InputError
from dgnet.evaluation.bench import model as bench
from dgnet.evaluation.bench.timing import peak
from dgnet.models import Classical, rollout
from dgnet.scenarios import get

FIGURES = ("prepare_s", "ms_per_step", "steps_per_s", "running_steps_per_s", "seconds")


def positive(row):
    return all(row[name] > 0 for name in FIGURES)


def test_rollouts_and_training():
    r = bench.run("laser-heat", "small", steps=8, together=(1, 2), batch=2, window=3)
    assert [(x["model"], x["trajectories"]) for x in r["rows"]] == [
        (name, count) for count in (1, 2) for name in ("dgnet", "dgnet_paper", "classical_consistent", "classical_lumped")]
    assert all(positive(x) for x in r["rows"])
    assert all(x["trajectory_steps_per_s"] == pytest.approx(x["trajectories"] * x["steps_per_s"]) for x in r["rows"])
    assert [x["model"] for x in r["training"]] == ["dgnet", "dgnet_paper"] and all(x["ms"] > 0 for x in r["training"])
    assert all(x["parameters"] > 10_000 for x in r["rows"] if x["model"].startswith("dgnet"))
    json.dumps(r, allow_nan=False)
    text = bench.markdown(r)
    assert text.count("| dgnet |") == 3 and "482" in text


def test_every_model():
    r = bench.throughput(scenario="laser-heat", size="small", steps=4)
    names = [x["model"] for x in r["rows"]]
    assert set(names) == {"deeponet", "mgn", "mp-pde", "beno", "phympgn", "transolver", "amg", "singer", "dgnet", "dgnet_paper",
                          "classical_consistent", "classical_lumped"}
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


def test_command(tmp_path):
    out = tmp_path / "bench.json"
    done = CliRunner().invoke(app, ["bench", "scaling", "--nodes", "100", "--json", str(out)])
    assert done.exit_code == 0, done.output
    assert {x["model"] for x in json.loads(out.read_text())["rows"]} == {"dgnet", "classical_consistent", "classical_lumped"}

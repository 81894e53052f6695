"""Every target end to end, with tiny data sets and a few iterations; killing, sharing, merging; the report."""

import json
import math
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.attacks.harness import begin
from typer.testing import CliRunner

from dgnet.cli import app
from dgnet.errors import InputError, SolveError
from dgnet.files import Lock, holder, write_json
from dgnet.recipe import Recipe, Stage
from dgnet.training.checkpoints import Progress
from dgnet_paper.scenarios import get, paper_names
from dgnet_paper.study import engine, evidence, planning, search, stored, summary, targets, tradeoff
from dgnet_paper.study import results as packing
from dgnet_paper.study.blocks import Head, Lines, Picture, Slot, Table, Text, to_html, to_markdown
from dgnet_paper.study.experiment import HEAVY, METHODS, Experiment
from dgnet_paper.study.origin import code_version
from dgnet_paper.study.planning import Options
from dgnet_paper.study.results import Setting, Shelf, Value, number
from dgnet_paper.study.targets import REDUCED, TARGETS, Choice, cells


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Folders of data and cells that the tests of this module share."""
    return tmp_path_factory.mktemp("study")


def reproduce(place: Path, target: str, *more: str, few: int = 1, truth: str = "same-mesh") -> dict:
    """The command with tiny data sets. Truth of the models' own mesh is cheap; cells do not care which it is."""
    record = place / "result.json"
    arguments = ["reproduce", target, "--out", str(place / "out"), "--data", str(place / "data"), "--few", str(few),
                 "--factor", "1e-4", "--truth", truth, "--json", str(record), *more]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(record.read_text())


def record(place: Path, tag: str) -> dict:
    return json.loads((place / "out" / "cells" / tag / "cell.json").read_text())


# ---------------------------------------------------------------------- what cells and targets are


def test_a_tag_says_everything() -> None:
    for cell in (Experiment("train", "laser-heat", "paper", "same-mesh", "mgn", 3), Experiment("classical", "allen-cahn"),
                 Experiment("robust", "laser-heat-3d", method="dgnet", scale=(0.5, 1.0, 3.0), few=2, factor=0.002),
                 Experiment("train", "fisher-kpp", method="dgnet-paper-A", trajectories=5, unknown_reaction=True)):
        assert Experiment.parse(cell.tag) == cell
    for bad in ("train_nowhere_small_converged_mgn_s0", "train_laser-heat_small_converged_mgn", "x_y", "a_b_c_d_e_f",
                "train_laser-heat_small_converged_mgn_s0_q3", "train_laser-heat_small_converged_mgn_s-1"):
        with pytest.raises(InputError):
            Experiment.parse(bad)


def test_targets_hold_what_the_paper_has() -> None:
    main = [c for c in cells("table-main", Choice(size="paper")) if c.kind == "train"]
    assert len({c.scenario for c in main}) == 7 and {c.method for c in main} == {"deeponet", "mgn", "mp-pde", "beno", "phympgn",
                                                                                "pod", "opinf", "dgnet-paper", "dgnet"}
    assert sum(c.kind == "classical" for c in cells("table-main", Choice(size="paper"))) == 7
    robust = {c.scale for c in cells("table-robustness", Choice()) if c.kind == "robust"}
    assert len(robust) == 9 and (0.5, 1.0, 1.0) in robust and (1.0, 3.0, 1.0) in robust and (1.0, 1.0, 2.0) in robust
    variants = {c.method for c in cells("ablation", Choice()) if c.kind == "train"}
    assert variants == {"dgnet-paper", *(f"dgnet-paper-{v}" for v in "ABCD")}
    few = cells("data-efficiency", Choice(size="paper", scenarios=("laser-heat",)))
    counts = {c.trajectories for c in few if c.kind == "train"}
    assert counts == {1, 2, 5, 10, 0}  # 20 are all
    everything = cells("all", Choice(size="paper"))
    assert len(set(everything)) == len(everything) and {c.scenario for c in everything} >= set(paper_names())
    assert {c.seed for c in cells("table-3d", Choice(seeds=3)) if c.kind == "train"} == {0, 1, 2}
    with pytest.raises(InputError, match="did you mean 'ablation'"):
        cells("ablaton", Choice())
    with pytest.raises(InputError, match="no model 'mgm'; did you mean 'mgn'"):
        cells("table-main", Choice(methods=("mgm",)))


def test_published_figures_are_there_for_every_method_of_a_table() -> None:
    for target in ("table-main", "table-recent", "table-3d", "table-wavy", "table-light"):
        for scenario in TARGETS[target].scenarios:
            for name in TARGETS[target].methods:
                assert name in REDUCED or METHODS[name].published in get(scenario, "paper").paper


def test_what_a_cell_needs_comes_first() -> None:
    order = planning.expand(cells("table-robustness", Choice()))
    for cell in order:
        assert all(order.index(need) < order.index(cell) for need in cell.needs)
    assert len(order) == len(set(order))


# ---------------------------------------------------------------------- one test per target


def test_table_main(place: Path) -> None:
    found = reproduce(place, "table-main", "--scenarios", "allen-cahn", "--models", "deeponet,dgnet", "--sharing", "3",
                      "--budget", "1")
    assert len(found["ran"]) == 4 and not found["failed"]  # DGNet also with the reaction unknown, as it is to baselines
    unknown = record(place, "train_allen-cahn_small_same-mesh_dgnet_s0_unknown_d1_f0.0001")
    assert unknown["config"]["reaction"] == "learned"
    cell = record(place, "train_allen-cahn_small_same-mesh_dgnet_s0_d1_f0.0001")
    assert set(cell["scores"]) == {"classical_consistent", "classical_lumped", "dgnet"}
    row = cell["scores"]["dgnet"]
    assert {"mse", "log10_mse", "rne", "rne_final", "rne_from_offset", "until", "until_share", "seconds"} <= set(row)
    assert row["log10_mse"] == pytest.approx(np.log10(row["mse"]))
    assert cell["sharing"] == 3 and cell["budget"] == 60 and cell["parameters"] > 0 and cell["updates"] >= 1
    assert {"generate", "train", "evaluate", "total"} <= set(cell["seconds"]) and cell["hardware"] and cell["version"]
    assert cell["code"] == code_version() and cell["improving"] is None  # too few updates to tell
    assert [row["updates"] for row in cell["history"]] == list(range(cell["updates"] + 1)) and cell["validation_steps"] == 60
    assert cell["recipe"]["stages"] and cell["config"]["decoder"] == "structured"
    rival = record(place, "classical_allen-cahn_small_same-mesh_classical_s0_d1")
    assert rival["scores"]["classical_lumped"] == cell["scores"]["classical_lumped"]
    folder = place / "out" / "cells" / cell["tag"]
    assert (folder / "run" / "weights.pt").exists() and not (folder / "run" / "last.pt").exists()
    with np.load(folder / "sample.npz") as kept:
        assert kept["dgnet"].shape == (4, 361, 1)


def test_what_is_fitted_at_once_is_not_cut_short(tmp_path: Path) -> None:
    reproduce(tmp_path, "table-main", "--scenarios", "allen-cahn", "--models", "pod", "--budget", "1e-6")
    cell = record(tmp_path, "train_allen-cahn_small_same-mesh_pod_s0_d1_f0.0001")
    assert cell["budget"] is None and cell["updates"] == 1


def test_finished_cells_are_skipped(place: Path) -> None:
    reproduce(place, "table-main", "--scenarios", "allen-cahn", "--models", "deeponet,dgnet")
    before = {p: p.stat().st_mtime_ns for p in (place / "out").glob("cells/*/cell.json")}
    found = reproduce(place, "table-main", "--scenarios", "allen-cahn", "--models", "deeponet,dgnet")
    assert found["ran"] == [] and len(found["finished_before"]) == 4
    assert before == {p: p.stat().st_mtime_ns for p in (place / "out").glob("cells/*/cell.json")}


def test_table_recent(place: Path) -> None:
    found = reproduce(place, "table-recent", "--scenarios", "laser-heat", "--models", "transolver")
    assert len(found["ran"]) == 2


def test_table_3d(place: Path) -> None:
    found = reproduce(place, "table-3d", "--models", "mp-pde")
    assert any("laser-heat-3d" in tag and "mp-pde" in tag for tag in found["ran"])


@pytest.mark.slow
def test_table_wavy(place: Path) -> None:
    found = reproduce(place, "table-wavy", "--models", "dgnet")
    assert "train_wavy-channel_small_same-mesh_dgnet_s0_d1_f0.0001" in found["ran"]


def test_table_light(place: Path) -> None:
    reproduce(place, "table-light", "--models", "deeponet")
    assert record(place, "train_light-reaction_small_same-mesh_deeponet_s0_d1_f0.0001")["training_trajectories"] == 1


def test_table_robustness(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "FACTORS", (1.0, 2.0))  # each factor needs a data set; the test above counts them all
    found = reproduce(place, "table-robustness", "--models", "dgnet")
    assert sum(tag.startswith("robust") for tag in found["ran"]) == 3
    twice = record(place, "robust_laser-heat-3d_small_same-mesh_dgnet_s0_x1-2-1_d1_f0.0001")
    once = record(place, "train_laser-heat-3d_small_same-mesh_dgnet_s0_d1_f0.0001")
    # the problem is linear: twice the power is twice the field above ambient and twice its error
    assert twice["scores"]["dgnet"]["rne_from_offset"] == pytest.approx(once["scores"]["dgnet"]["rne_from_offset"], rel=1e-2)
    assert twice["best_iteration"] == once["best_iteration"]
    assert twice["scores"]["dgnet"]["mse"] == pytest.approx(4 * once["scores"]["dgnet"]["mse"], rel=2e-2)


def test_ablation(place: Path) -> None:
    found = reproduce(place, "ablation", "--scenarios", "laser-heat")
    scores = {}
    for v in ("", "-A", "-B", "-C", "-D"):
        cell = record(place, f"train_laser-heat_small_same-mesh_dgnet-paper{v}_s0_d1_f0.0001")
        scores[v] = cell["scores"][f"dgnet-paper{v}"]["rne_from_offset"]
    lumped = record(place, "classical_laser-heat_small_same-mesh_classical_s0_d1")["scores"]["classical_lumped"]["rne_from_offset"]
    # the source at both ends of a step costs the paper's model much; without Green there is no solver to fall back on
    assert lumped < scores[""] < scores["-D"]
    assert [Path(p).name for p in found["figures"]] == ["ablation-small-same-mesh-trial-1-0.0001.png"]


def test_operator_and_spectrum(place: Path) -> None:
    found = reproduce(place, "operator", "--scenarios", "laser-heat", "--models", "dgnet")
    assert {Path(p).name for p in found["figures"]} == {"action.png", "matrices.png"}
    cell = record(place, "operator_laser-heat_small_same-mesh_dgnet_s0_d1_f0.0001")
    assert cell["numbers"]["stable"] and cell["numbers"]["action"]["learned_to_reference"] < 1
    again = reproduce(place, "spectrum", "--scenarios", "laser-heat", "--models", "dgnet")
    assert again["ran"] == [] and Path(again["figures"][0]).name == "spectrum.png"
    values = np.array(cell["spectra"]["T"]["learned"])
    assert values[:, 0].max() <= 1e-9


def test_fields(place: Path) -> None:
    found = reproduce(place, "fields", "--scenarios", "laser-heat", "--models", "dgnet")
    assert any("fields-laser-heat" in p for p in found["figures"]) and all(Path(p).exists() for p in found["figures"])


def test_failure(place: Path) -> None:
    reproduce(place, "failure", "--models", "dgnet")
    row = record(place, "train_phase-transition_small_same-mesh_dgnet_s0_d1_f0.0001")["scores"]["dgnet"]
    melting = row["melting"]
    assert melting["highest"] > melting["highest_true"] and melting["share_of_error"] > melting["share_of_states"]


def test_data_efficiency(place: Path) -> None:
    found = reproduce(place, "data-efficiency", "--scenarios", "allen-cahn", "--models", "dgnet", few=2)
    tags = [t for t in found["ran"] if t.startswith("train")]
    assert len(tags) == 2 and any("_n1_" in t for t in tags) and any("efficiency-allen-cahn" in p for p in found["figures"])


def test_dgnet_and_long(place: Path) -> None:
    found = reproduce(place, "dgnet", "--scenarios", "laser-heat")
    assert found["ran"] or found["finished_before"]
    reproduce(place, "long", "--scenarios", "laser-heat")
    cell = record(place, "long_laser-heat_small_same-mesh_dgnet_s0_d1_f0.0001")
    assert cell["finite"] and cell["steps"] == 10 * get("laser-heat", "small").steps
    assert 0 <= cell["last"] < cell["largest_beyond"] < 1.01 * cell["largest_within"]  # without sources a plate cools


def test_the_page_of_dgnet(place: Path, tmp_path: Path) -> None:
    """From cells: the error ratio, the paper's figure, several seeds, and what was not run."""
    reproduce(place, "table-main", "--scenarios", "allen-cahn", "--models", "dgnet")
    made = record(place, "train_allen-cahn_small_same-mesh_dgnet_s0_d1_f0.0001")
    for seed, rne in ((0, 0.012), (1, 0.014)):
        cell = Experiment("train", "allen-cahn", "paper", "same-mesh", "dgnet", seed)
        scores = {"dgnet": {"rne_from_offset": rne, "rne": 0.003}, "classical_consistent": {"rne_from_offset": 0.026, "rne": 0.026},
                  "classical_lumped": {"rne_from_offset": None, "rne": None}}
        folder = tmp_path / "cells" / cell.tag
        folder.mkdir(parents=True)
        (folder / "cell.json").write_text(json.dumps(
            {**made, "tag": cell.tag, "cell": {**made["cell"], "seed": seed}, "scores": scores, "sharing": 4 + seed,
             "best_iteration": 1}))
    page = summary.markdown([tmp_path])
    row = next(line for line in page.splitlines() if line.startswith("| allen-cahn |"))
    assert "| whole equation | 0.013 ± 0.001 | 0.026 | diverged | – | – | – | 0.50 | 0.003 ± 0 | 0.0188 | 0.00376 reached |" in row
    assert "shared by 4" in row and "; " in row and "shared by 5" in row
    assert "laser-heat | not run: `dgnet-paper reproduce train_laser-heat_paper_same-mesh_dgnet_s0" in page


def test_the_stored_pages_are_those_of_the_stored_cells() -> None:
    results = Path(__file__).parents[3] / "docs" / "results"
    page = summary.markdown([results / "study"])
    assert (results / "dgnet.md").read_text() == page, "write it again: dgnet-paper report docs/results/study --dgnet PAGE"
    found = stored.load([results / "study"])["tradeoff_laser-heat_paper_converged_dgnet_s0"]["result"]
    row = next(line for line in page.split("## Cost against accuracy")[1].splitlines() if line.startswith("| laser-heat "))
    best = tradeoff.cheapest(found)
    assert best is not None and f"| {tradeoff.whole(best) / tradeoff.whole(found['rows'][0]):.3g}× |" in row


def test_a_packed_study_keeps_numbers_and_frames(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = 300 + rng.random((4, 50, 2)).cumsum(0)
    rows = {"classical": ("classical_consistent", 1e-3), "train": ("dgnet", 1e-5)}
    cells = {kind: Experiment(kind, "allen-cahn", method="classical" if kind == "classical" else "dgnet", few=1) for kind in rows}
    for kind, (row, size) in rows.items():
        folder = cells[kind].folder(tmp_path / "study")
        folder.mkdir(parents=True)
        values = truth + size * rng.standard_normal(truth.shape)
        values[-1, 0] = np.nan  # a diverged node
        np.savez(folder / "sample.npz", frames=np.arange(4), truth=truth, **{row: values})
        scores = {row: {"rne": 1 / 3, "x": None}}
        (folder / "cell.json").write_text(json.dumps({"tag": cells[kind].tag, "date": "1", "scores": scores}))
    cells["scaling"] = clock = Experiment("scaling", "squares", method="every")  # of no scenario, without frames
    clock.folder(tmp_path / "study").mkdir()
    (clock.folder(tmp_path / "study") / "cell.json").write_text(json.dumps({"tag": clock.tag, "date": "1", "result": {"rows": []}}))
    assert packing.pack([tmp_path / "study"], tmp_path / "packed") == 3
    for kind, (row, size) in rows.items():
        loose, packed = (stored.load([tmp_path / name])[cells[kind].tag] for name in ("study", "packed"))
        assert abs(packed["scores"][row]["rne"] - 1 / 3) < 1e-8 and packed["scores"][row]["x"] is None
        before, after = packing.sample(loose), packing.sample(packed)
        assert list(after["frames"]) == [1, 3]
        difference = (after[row] - after["truth"]) - (before[row] - before["truth"])[[1, 3], :, :1]
        assert np.isnan(after[row][1, 0]).all() and np.nanmax(np.abs(difference)) < 0.02 * size  # 8 bits of the error itself
        assert np.abs(after["truth"] - truth[[1, 3], :, :1]).max() < 1e-4
    options = Options(tmp_path, tmp_path / "packed", "cpu")
    assert {item.state for item in planning.plan([cells["train"]], options)} == {"finished"}
    with pytest.raises(InputError, match="packed study"):
        engine.run([cells["train"]], options)
    newer = cells["classical"].folder(tmp_path / "newer")  # run again after the study was packed: it has all four frames
    shutil.copytree(cells["classical"].folder(tmp_path / "study"), newer)
    packing.pack([tmp_path / "newer", tmp_path / "packed"], tmp_path / "twice")
    kept, again = (packing.sample(stored.load([tmp_path / name])[cells["train"].tag]) for name in ("packed", "twice"))
    assert all(np.allclose(kept[name], again[name], atol=1e-4, equal_nan=True) for name in ("frames", "truth", "dgnet"))
    assert sorted(stored.merge([tmp_path / "packed"], tmp_path / "again")) == sorted(c.tag for c in cells.values())
    assert all(c.finished(tmp_path / "again") for c in cells.values())


@pytest.mark.slow
def test_throughput_and_scaling(place: Path) -> None:
    shared = reproduce(place, "throughput", "--scenarios", "allen-cahn", "--sharing", "8")
    assert shared["ran"] == [] and len(shared["postponed"]) == 1  # a clock needs the device for itself
    reproduce(place, "throughput", "--scenarios", "allen-cahn")
    rows = record(place, "throughput_allen-cahn_small_converged_every_s0_d1")["result"]["rows"]
    assert {"mgn", "singer", "dgnet", "classical_consistent"} <= {r["model"] for r in rows}
    found = reproduce(place, "scaling")
    assert any("scaling" in p for p in found["figures"])


def test_tradeoff(place: Path) -> None:
    found = reproduce(place, "tradeoff", "--scenarios", "laser-heat", "--models", "dgnet")
    cell = record(place, "tradeoff_laser-heat_small_same-mesh_dgnet_s0_d1_f0.0001")
    rows = cell["result"]["rows"]
    assert [r.get("kind", r["solver"]) for r in rows] == ["dgnet", "P1", "P2", "P1"] and "run" not in cell["result"]
    error = record(place, "train_laser-heat_small_same-mesh_dgnet_s0_d1_f0.0001")["scores"]["dgnet"]["rne_from_offset"]
    assert rows[0]["error"] == pytest.approx(error, rel=1e-3)  # two ways to judge the same model
    assert any("tradeoff-laser-heat" in p for p in found["figures"])


# ---------------------------------------------------------------------- plans, claims, kills, merges


def test_the_plan_names_what_is_missing(place: Path, tmp_path: Path) -> None:
    reproduce(place, "table-main", "--scenarios", "allen-cahn", "--models", "deeponet,dgnet")
    items = reproduce(place, "table-main", "--scenarios", "allen-cahn", "--plan")
    states = {i["tag"]: i["state"] for i in items}
    assert states["train_allen-cahn_small_same-mesh_dgnet_s0_d1_f0.0001"] == "finished"
    missing = [i for i in items if i["state"] == "missing"]
    assert missing and all(i["seconds"] > 0 and i["command"].startswith(f"dgnet-paper reproduce {i['tag']} ") for i in missing)
    plan = planning.plan(cells("all", Choice(size="paper")), Options(tmp_path / "data", tmp_path / "out", "cuda", budget=120.0))
    assert all(i.state == "missing" and "--device cuda" in i.command for i in plan)
    trained = [i for i in plan if i.cell.kind == "train"]
    assert sum(i.seconds for i in plan) >= 120 * len(trained) and all("--budget 2" in i.command for i in trained)
    assert not (tmp_path / "out").exists()


def test_a_claim_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "cell" / ".claim"
    code = ("import time; from pathlib import Path; from dgnet.files import Lock; "
            f"c = Lock.take(Path({str(path)!r})); print('held', flush=True); time.sleep(60)")
    other = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        assert Lock.take(path) is None and f"process {other.pid} on " in holder(path)
        other.send_signal(signal.SIGKILL)
        other.wait()
        claim = Lock.take(path)
        assert claim is not None and Lock.take(path) is None  # also within one process
        claim.release()
        assert holder(path) == ""
    finally:
        other.kill()
        other.wait()


def test_two_processes_share_the_cells(place: Path, tmp_path: Path) -> None:
    """Both also need the same data set, which one of them makes."""
    command = ("reproduce table-main --scenarios laser-heat --models deeponet,dgnet --out out --data data --few 1 --factor 1e-4 "
               "--truth same-mesh --sharing 2")
    both = [begin(tmp_path, f"{command} --json {k}.json", k) for k in "ab"]
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    ran = [set(json.loads((tmp_path / f"{k}.json").read_text())["ran"]) for k in "ab"]
    assert not ran[0] & ran[1] and len(ran[0] | ran[1]) == 3 == len(list(tmp_path.glob("out/cells/*/cell.json")))


@pytest.mark.slow
def test_a_crew_of_workers(place: Path, tmp_path: Path) -> None:
    """One command, two processes: every cell once, and their words in files."""
    record = tmp_path / "done.json"
    done = CliRunner().invoke(app, ["reproduce", "table-main", "--scenarios", "allen-cahn", "--models", "deeponet", "--out",
                                    str(tmp_path / "out"), "--data", str(place / "data"), "--few", "1", "--factor", "1e-4",
                                    "--truth", "same-mesh", "--workers", "2", "--json", str(record)])
    assert done.exit_code == 0, (done.output, done.exception)
    found = json.loads(record.read_text())
    assert found == {"cells": 2, "finished": 2, "failed": {}}
    cell = json.loads(next((tmp_path / "out").glob("cells/train_*/cell.json")).read_text())
    assert cell["sharing"] == 2 and len(list((tmp_path / "out" / "logs").glob("worker-*.log"))) == 2


def test_a_killed_cell_goes_on_to_the_same_result(place: Path, tmp_path: Path) -> None:
    cell = Experiment("train", "fisher-kpp", method="dgnet", truth="same-mesh", few=1, factor=0.06)

    def options(out: str, tell=None) -> Options:
        return Options(place / "data", tmp_path / out, tell=tell, say=lambda text: None)

    def interrupt(progress, total: int) -> None:
        if progress.iteration == 18:  # the end of a stage, where a checkpoint is written
            raise KeyboardInterrupt

    whole = engine.run([cell], options("whole"))
    assert whole.ran == [cell.needs[0].tag, cell.tag]
    with pytest.raises(KeyboardInterrupt):
        engine.run([cell], options("killed", interrupt))
    assert not cell.finished(tmp_path / "killed") and (cell.folder(tmp_path / "killed") / "run" / "last.pt").exists()
    first: list[int] = []
    engine.run([cell], options("killed", lambda progress, total: first.append(progress.iteration)))
    assert first[0] == 19  # not from the start
    a, b = (stored.read(cell, tmp_path / out) for out in ("whole", "killed"))
    assert a["updates"] == b["updates"] > 19
    assert a["scores"]["dgnet"]["rne_from_offset"] == pytest.approx(b["scores"]["dgnet"]["rne_from_offset"], rel=1e-6)


def test_a_bad_cell_does_not_stop_the_others(place: Path, tmp_path: Path) -> None:
    bad, good = (Experiment("train", "fisher-kpp", method=m, truth="same-mesh", few=1, factor=1e-4) for m in ("deeponet", "dgnet"))
    folder = bad.folder(tmp_path / "out") / "run"
    folder.mkdir(parents=True)
    (folder / "last.pt").write_bytes(b"not a checkpoint")
    options = Options(place / "data", tmp_path / "out", say=lambda text: None)
    summary = engine.run([bad, good], options)
    assert list(summary.failed) == [bad.tag] and good.tag in summary.ran
    assert "does not hold weights" in json.loads((bad.folder(tmp_path / "out") / "failed.json").read_text())["error"]
    assert [i.state for i in planning.plan([bad], options)][-1] == "failed"
    (folder / "last.pt").unlink()
    assert engine.run([bad], options).ran == [bad.tag] and not (bad.folder(tmp_path / "out") / "failed.json").exists()


def test_cells_of_two_machines_are_merged(place: Path, tmp_path: Path) -> None:
    reproduce(place, "table-main", "--scenarios", "allen-cahn", "--models", "deeponet,dgnet")
    data = str(place / "data")
    for machine, model in (("one", "deeponet_s0"), ("two", "dgnet_s0"), ("two", "dgnet_s0_unknown")):
        tag = f"train_allen-cahn_small_same-mesh_{model}_d1_f0.0001"
        done = CliRunner().invoke(app, ["reproduce", tag, "--out", str(tmp_path / machine), "--data", data])
        assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["reproduce", "merge", str(tmp_path / "two"), "--out", str(tmp_path / "one")])
    assert done.exit_code == 0 and "2 cells copied" in done.output
    options = Options(place / "data", tmp_path / "one", say=lambda text: None)
    choice = Choice(("allen-cahn",), ("deeponet", "dgnet"), truth="same-mesh", few=1, factor=1e-4)
    assert engine.run([c for c in cells("table-main", choice) if not c.unknown_reaction], options).ran == []
    both = Shelf.open([tmp_path / "two", place / "out"])
    assert "train_allen-cahn_small_same-mesh_dgnet_s0_d1_f0.0001" in both.records


def test_other_data_under_the_same_name_is_refused(place: Path, tmp_path: Path) -> None:
    cell = Experiment("classical", "allen-cahn", truth="same-mesh", few=2)
    options = Options(tmp_path / "data", tmp_path / "out", say=lambda text: None)
    path, seconds = engine.data_set(cell, options)
    assert seconds > 0 and engine.data_set(cell, options) == (path, 0.0)
    other = tmp_path / "data" / "few-1"
    other.mkdir()
    path.rename(other / path.name)
    with pytest.raises(InputError, match="train = 2 instead of 1"):
        engine.data_set(Experiment("classical", "allen-cahn", truth="same-mesh", few=1), options)


# ---------------------------------------------------------------------- the report


def test_the_report_is_whole_and_honest(place: Path, tmp_path: Path) -> None:
    reproduce(place, "table-main", "--scenarios", "allen-cahn", "--models", "deeponet,dgnet", "--seeds", "2")
    reproduce(place, "ablation", "--scenarios", "laser-heat", "--models", "dgnet-paper,dgnet-paper-D")
    for folder in (place / "out" / "cells").iterdir():  # these alone: every other cell is a row and pictures more
        if "allen-cahn" in folder.name or "dgnet-paper" in folder.name or folder.name.startswith("classical_laser-heat_"):
            shutil.copytree(folder, tmp_path / "out" / "cells" / folder.name)
    done = CliRunner().invoke(app, ["report", str(tmp_path / "out"), "--out", str(tmp_path / "r.html"),
                                    "--markdown", str(tmp_path / "docs")])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "r.html").read_text()
    assert "<script" not in page and "http" not in page and "data:image/png;base64," in page and "prefers-color-scheme" in page
    text = (tmp_path / "docs" / "paper.md").read_text()
    lines = text.splitlines()
    begin = next(k for k, line in enumerate(lines) if line.startswith("| RNE | is told | allen-cahn |"))
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:3] for line in lines[begin + 2:begin + 14]}
    assert sum(found == "*not run*" for _, found in rows.values()) == 7  # six baselines and the paper's model
    assert "±" in rows["DGNet, ours"][1] and any("**" in found for _, found in rows.values())
    assert rows["DeepONet"][0] == "coefficients, flow" and rows["DGNet, ours, reaction unknown"][0] == "all but the reaction"
    assert "dgnet-paper reproduce train_allen-cahn_small_same-mesh_mgn_s0_d1_f0.0001 --out DIR" in text
    assert "classical, consistent" in text and "CPU" in text and "not judged" in text
    for link in re.findall(r"\]\((\S+\.png)\)", text):
        assert (tmp_path / "docs" / link).exists()
    number_ = record(place, "classical_allen-cahn_small_same-mesh_classical_s0_d1")["scores"]["classical_consistent"]["rne"]
    assert number(number_) in rows["classical, consistent"][1]


def test_the_papers_value_stands_beside_ours_at_paper_size(tmp_path: Path) -> None:
    cell = Experiment("classical", "laser-heat", "paper")
    row = {"rne": 1e-4, "mse": 1e-3, "rne_from_offset": 4e-4, "rne_final": 1e-4, "log10_mse": -3.0, "until": None,
           "until_share": None, "steps_per_second": 1.0}
    score = {"classical_consistent": row, "classical_lumped": {**row, "rne": 2e-4}}
    trained = Experiment("train", "laser-heat", "paper", method="mgn")
    common = {"version": "0", "hardware": "a GPU", "sharing": 1, "device": "cuda", "date": "2026-01-01 00:00:00",
              "about": {"nodes": 6072, "steps": 120}, "seconds": {"total": 60.0, "train": 40.0},
              "curves": {"time": [0.0], "classical_consistent": [0.0], "classical_lumped": [0.0], "mgn": [None]}}
    for c, scores in ((cell, score), (trained, {**score, "mgn": {**row, "rne": None}})):
        write_json(c.folder(tmp_path) / "cell.json", {
            "tag": c.tag, "cell": {"kind": c.kind, "size": c.size, "scenario": c.scenario, "method": c.method, "factor": 1.0},
            **common, "scores": scores, "parameters": 5, "iterations": 3, "memory": {"train": 2e9}, "budget": 120.0})
    blocks = evidence.build(Shelf.open([tmp_path]), tmp_path / "scratch", Path("out"))
    tables = [b for b in blocks if isinstance(b, Table) and b.head[0] == "RNE"]
    at = list(tables[0].head).index("laser-heat")
    column = {row[0]: row[at] for row in tables[0].rows}
    assert column["MGN"] == Slot("diverged", beside="paper 0.171")
    assert column["classical, consistent"] == Slot("1.00e-4", strong=True) and column["classical, lumped"] == Slot("2.00e-4")
    assert column["DGNet, ours"] == Slot("not run", beside="paper 0.0102", faint=True)
    command = "dgnet-paper reproduce train_laser-heat_paper_converged_dgnet_s0 --out out"
    assert any(isinstance(b, Lines) and command in b.lines for b in blocks)
    assert any(isinstance(b, Table) and b.head[0] == "hardware" and b.rows[0][0] == "a GPU" for b in blocks)


def test_pages_are_escaped(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (4, 4)).save(tmp_path / "p.png")
    blocks = [Head("a < b"), Text("`x<y` and **strong**, *a name*"), Table(["h|1"], [[Slot("1", strong=True, beside="paper 2")]]),
              Picture(tmp_path / "p.png", "a & b"), Lines("`cmd`", ["x > y"])]
    page = to_html("t", blocks)
    assert "a &lt; b" in page and "<code>x&lt;y</code>" in page and "<em>a name</em>" in page
    assert "<b>1</b><small>paper 2</small>" in page and "x &gt; y" in page
    text = to_markdown("t", blocks, tmp_path / "pics", "pics")
    assert "| **1** (paper 2) |" in text and "h\\|1" in text and (tmp_path / "pics" / "p.png").exists()


def test_values_over_seeds() -> None:
    value = Value.of([1.0, 3.0])
    assert value is not None and value.mean == 2.0 and value.spread == pytest.approx(2**0.5) and value.text() == "2 ± 1"
    assert Value.of([]) is None
    diverged = Value.of([1.0, None])
    assert diverged is not None and diverged.text() == "diverged"
    assert [number(x) for x in (0.01234, 1.234e-5, 12345.6, 1234.5)] == ["0.0123", "1.23e-5", "1.23e4", "1234"]


def test_settings_keep_trials_apart(place: Path) -> None:
    assert Setting("paper", "converged").title == "paper size, converged truth"
    assert "trial" in Setting("small", "converged", 1, 1e-4).title


def test_waiting_for_nothing_ends(tmp_path: Path) -> None:
    """A cell that another process holds is left alone, at once."""
    cell = Experiment("classical", "allen-cahn", few=1)
    claim = Lock.take(cell.folder(tmp_path) / ".claim")
    begin = time.perf_counter()
    summary = engine.run([cell], Options(tmp_path / "data", tmp_path, say=lambda text: None))
    assert list(summary.left) == [cell.tag] and time.perf_counter() - begin < 30 and claim is not None
    claim.release()


def test_the_way_of_training_is_looked_for_once(tmp_path: Path) -> None:
    """The rate with the best validation; seeds, fewer trajectories and an unknown reaction share it; test data play no part."""
    tried: list[tuple[str, search.Way]] = []

    def trial(cell: Experiment, place: Path, way: search.Way, aside: float) -> Progress:
        tried.append((cell.tag, way))
        if way.factor == 1.0:
            raise SolveError("it diverged")
        return Progress(best=way.factor, best_iteration=3, updates=5)

    cell = Experiment("train", "allen-cahn", method="dgnet")
    for one in (replace(cell, seed=2, trajectories=3), cell, replace(cell, unknown_reaction=True)):
        found = search.found_way(one, tmp_path, trial)
        assert found is not None and search.Way.read(found) == search.Way(0.5) and found["trials"]["1"]["validation"] is None
    assert tried == [(cell.tag, search.Way(factor)) for factor in (1.0, 0.5, 2.0)]


def test_windows_are_tried_first_and_the_rates_of_the_better(tmp_path: Path) -> None:
    """Validations count over that of the untrained weights, since trials may see pieces of different length."""
    values = {search.Way(): (0.4, 0.5), search.Way(windows=True): (0.7, 1.0), search.Way(0.5, True): (0.6, 1.0),
              search.Way(2.0, True): (0.2, 0.2)}

    def trial(cell: Experiment, place: Path, way: search.Way, aside: float) -> Progress:
        best, untrained = values[way]
        return Progress(best=best, best_iteration=3, updates=5, history=[{"validation": untrained, "seconds": 0.1}], seconds=1.0)

    found = search.found_way(Experiment("train", "allen-cahn", method="beno"), tmp_path, trial, windows=True)
    assert found is not None and search.Way.read(found) == search.Way(0.5, True)
    assert list(found["trials"]) == ["1", "windows 1", "windows 0.5", "windows 2"] and len(found["trials"]) == search.TRIALS


def test_trials_that_end_before_they_begin_are_longer(tmp_path: Path) -> None:
    """Where set-up takes most of a trial, all trials of the search get that time besides; the first is made again."""
    given: list[tuple[str, float]] = []

    def trial(cell: Experiment, place: Path, way: search.Way, aside: float) -> Progress:
        given.append((way.name, aside))
        if aside == 0.0:
            return Progress(best=1.0, seconds=22.0, history=[{"validation": 1.0, "seconds": 21.0}])
        return Progress(best=0.5 * way.factor, best_iteration=3, updates=5, seconds=33.0,
                        history=[{"validation": 1.0, "seconds": 20.0}])

    found = search.found_way(Experiment("train", "allen-cahn", method="beno"), tmp_path, trial)
    assert found is not None and found["factor"] == 0.5 and found["trials"]["1"]["updates"] == 5
    assert given == [("1", 0.0), ("1", 21.0), ("0.5", 21.0), ("2", 21.0)]


def test_untrained_weights_that_diverge_do_not_hide_which_way_is_better(tmp_path: Path) -> None:
    def trial(cell: Experiment, place: Path, way: search.Way, aside: float) -> Progress:
        return Progress(best=1.0 / way.factor, best_iteration=3, updates=5, seconds=1.0,
                        history=[{"validation": math.inf, "seconds": 0.1}])

    found = search.found_way(Experiment("train", "allen-cahn", method="beno"), tmp_path, trial)
    assert found is not None and found["factor"] == 2.0


def test_untrained_weights_say_nothing_about_a_way(tmp_path: Path) -> None:
    cell = Experiment("train", "allen-cahn", method="mgn")
    found = search.found_way(cell, tmp_path, lambda *_: Progress(best=0.1), windows=True)
    assert found is not None and search.Way.read(found) == search.Way()


def test_a_way_changes_only_what_it_names() -> None:
    plan = Recipe("two", (Stage(1, 1, method="identify"), Stage(5, 2, lr=1e-3)))
    row = get("allen-cahn", "paper").training.paper  # sub-sequences of 20 states
    assert [s.lr for s in search.Way(2.0).applied(plan, row, 100).stages] == [plan.stages[0].lr, 2e-3]
    assert search.searched(plan) and not search.searched(replace(plan, stages=plan.stages[:1]))
    single = Recipe("one", (Stage(5, 1, 16, 1e-3, noise=0.02),))
    assert search.single_steps(single) and not search.single_steps(plan)
    (stage,) = search.Way(0.5, True).applied(single, row, 100).stages
    assert stage == replace(single.stages[0], length=19, batch=2, lr=5e-4, noise=0.01, pushforward=1, loss="ends")
    assert search.Way(windows=True).applied(single, row, 8).stages[0].length == 8  # no longer than a trajectory
    assert search.Way.read({"factor": 2.0, "trials": {}}) == search.Way(2.0)  # a search of before


def test_the_stored_cells_can_be_merged_and_read_again(tmp_path: Path) -> None:
    """Also those that were stored under an older name."""
    study = Path(__file__).parents[3] / "docs" / "results" / "study"
    copied = stored.merge([study], tmp_path)
    assert sorted(stored.load([tmp_path])) == sorted(copied) == sorted(stored.load([study]))
    with np.load(study / "frames.npz") as frames:  # nothing that a page draws is lost on the way
        assert len(list(tmp_path.glob("cells/*/sample.npz"))) == sum(key.endswith("/frames") for key in frames.files) > 0
    assert len(list(tmp_path.glob("cells/*/*.png"))) == len(list(study.glob("pictures/*"))) > 0


def test_a_store_is_packed_again_with_its_pictures(tmp_path: Path) -> None:
    study = Path(__file__).parents[3] / "docs" / "results" / "study"
    packing.pack([study], tmp_path)
    assert sorted(p.name for p in tmp_path.glob("pictures/*")) == sorted(p.name for p in study.glob("pictures/*")) != []


def test_models_share_a_device_with_their_like() -> None:
    """What fills a device comes last; what a cell needs still comes before it."""
    found = planning.alike(planning.expand(cells("table-main", Choice())))
    heavy = [cell.method in HEAVY for cell in found]
    assert heavy == sorted(heavy) and any(heavy) and not all(heavy)
    assert all(found.index(need) < k for k, cell in enumerate(found) for need in cell.needs)

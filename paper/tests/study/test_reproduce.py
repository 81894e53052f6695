"""Targets and cells end to end, with tiny data sets and a few iterations; killing, sharing, merging, packing; the report."""

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dgnet.errors import InputError, SolveError
from dgnet.files import Lock
from dgnet.recipe import Recipe, Stage
from dgnet.training.checkpoints import Progress
from dgnet_paper.scenarios import get, paper_names
from dgnet_paper.study import engine, search, stored, summary, targets, tradeoff
from dgnet_paper.study.engine import Options
from dgnet_paper.study.experiment import METHODS, Experiment
from dgnet_paper.study.origin import code_version
from dgnet_paper.study.results import Setting, Shelf, Value, number
from dgnet_paper.study.targets import REDUCED, TARGETS, Choice, cells
from paper.tests.command import dgnet_paper
from tests.attacks.harness import begin

STUDY = Path(__file__).parents[3] / "docs" / "results" / "study"


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Folders of data and cells that the tests of this module share."""
    return tmp_path_factory.mktemp("study")


def reproduce(place: Path, target: str, *more: str, few: int = 1) -> dict:
    """The command with tiny data sets. Truth of the models' own mesh is cheap; cells do not care which it is."""
    record = place / "result.json"
    dgnet_paper("reproduce", target, "--out", place / "out", "--data", place / "data", "--few", few, "--factor", "1e-4", "--truth",
                "same-mesh", "--json", record, *more)
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
    robust = {c.scale for c in cells("table-robustness", Choice()) if c.kind == "robust"}
    assert len(robust) == 9 and (0.5, 1.0, 1.0) in robust and (1.0, 3.0, 1.0) in robust and (1.0, 1.0, 2.0) in robust
    variants = {c.method for c in cells("ablation", Choice()) if c.kind == "train"}
    assert variants == {"dgnet-paper", *(f"dgnet-paper-{v}" for v in "ABCD")}
    few = cells("data-efficiency", Choice(size="paper", scenarios=("laser-heat",)))
    assert {c.trajectories for c in few if c.kind == "train"} == {1, 2, 5, 10, 0}  # 20 are all
    everything = cells("all", Choice(size="paper"))
    assert len(set(everything)) == len(everything) and {c.scenario for c in everything} >= set(paper_names())
    assert {c.seed for c in cells("table-3d", Choice(seeds=3)) if c.kind == "train"} == {0, 1, 2}
    for name, choice, words in (("ablaton", Choice(), "did you mean 'ablation'"),
                                ("table-main", Choice(methods=("mgm",)), "no model 'mgm'; did you mean 'mgn'")):
        with pytest.raises(InputError, match=words):
            cells(name, choice)
    order = engine.expand(cells("table-robustness", Choice()))
    assert len(order) == len(set(order)) and all(order.index(need) < order.index(cell) for cell in order for need in cell.needs)


def test_published_figures_are_there_for_every_method_of_a_table() -> None:
    for target in ("table-main", "table-recent", "table-3d", "table-wavy", "table-light"):
        for scenario in TARGETS[target].scenarios:
            for name in TARGETS[target].methods:
                assert name in REDUCED or METHODS[name].published in get(scenario, "paper").paper


# ---------------------------------------------------------------------- cells of every kind


def test_table_main_and_what_is_finished_is_skipped(place: Path) -> None:
    arguments = ("table-main", "--scenarios", "allen-cahn", "--models", "deeponet,pod,dgnet", "--sharing", "3", "--budget", "1")
    found = reproduce(place, *arguments)
    assert len(found["ran"]) == 5 and not found["failed"]  # DGNet also with the reaction unknown, as it is to baselines
    unknown = record(place, "train_allen-cahn_small_same-mesh_dgnet_s0_unknown_d1_f0.0001")
    assert unknown["config"]["reaction"] == "learned"
    cell = record(place, "train_allen-cahn_small_same-mesh_dgnet_s0_d1_f0.0001")
    assert set(cell["scores"]) == {"classical_consistent", "classical_lumped", "dgnet"}
    row = cell["scores"]["dgnet"]
    assert {"mse", "log10_mse", "rne", "rne_final", "rne_from_offset", "until", "until_share", "seconds"} <= set(row)
    assert cell["sharing"] == 3 and cell["budget"] == 60 and cell["parameters"] > 0 and cell["updates"] >= 1
    assert {"generate", "train", "evaluate", "total"} <= set(cell["seconds"]) and cell["hardware"] and cell["version"]
    assert cell["code"] == code_version() and cell["improving"] is None  # too few updates to tell
    assert [row["updates"] for row in cell["history"]] == list(range(cell["updates"] + 1)) and cell["validation_steps"] == 60
    rival = record(place, "classical_allen-cahn_small_same-mesh_classical_s0_d1")
    assert rival["scores"]["classical_lumped"] == cell["scores"]["classical_lumped"]
    folder = place / "out" / "cells" / cell["tag"]
    assert (folder / "run" / "weights.pt").exists() and not (folder / "run" / "last.pt").exists()
    with np.load(folder / "sample.npz") as frames:
        assert frames["dgnet"].shape == (4, 361, 1)
    fitted = record(place, "train_allen-cahn_small_same-mesh_pod_s0_d1_f0.0001")
    assert fitted["budget"] is None and fitted["updates"] == 1  # what is fitted at once is not cut short

    before = {p: p.stat().st_mtime_ns for p in (place / "out").glob("cells/*/cell.json")}
    again = reproduce(place, *arguments)
    assert again["ran"] == [] and len(again["finished_before"]) == 5
    assert before == {p: p.stat().st_mtime_ns for p in (place / "out").glob("cells/*/cell.json")}
    items = reproduce(place, "table-main", "--scenarios", "allen-cahn", "--plan")
    states = {i["tag"]: i["state"] for i in items}
    assert states[cell["tag"]] == "finished" and "missing" in states.values()
    assert all(i["command"].startswith(f"dgnet-paper reproduce {i['tag']} ") for i in items)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "scenario", "model"), [
    ("table-recent", "laser-heat", "transolver"), ("table-3d", "laser-heat-3d", "mp-pde"), ("table-wavy", "wavy-channel", "dgnet"),
    ("table-light", "light-reaction", "deeponet"), ("fields", "laser-heat", "dgnet"), ("dgnet", "laser-heat", "dgnet")])
def test_other_tables(place: Path, target: str, scenario: str, model: str) -> None:
    reproduce(place, target, "--scenarios", scenario, "--models", model)
    assert record(place, f"train_{scenario}_small_same-mesh_{model}_s0_d1_f0.0001")["training_trajectories"] == 1


def test_table_robustness(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "FACTORS", (1.0, 2.0))  # each factor needs a data set
    monkeypatch.setattr(targets, "ATTRIBUTES", {"power": 1})
    found = reproduce(place, "table-robustness", "--models", "dgnet")
    assert sum(tag.startswith("robust") for tag in found["ran"]) == 1
    twice = record(place, "robust_laser-heat-3d_small_same-mesh_dgnet_s0_x1-2-1_d1_f0.0001")
    once = record(place, "train_laser-heat-3d_small_same-mesh_dgnet_s0_d1_f0.0001")
    # the problem is linear: twice the power is twice the field above ambient and twice its error
    assert twice["scores"]["dgnet"]["rne_from_offset"] == pytest.approx(once["scores"]["dgnet"]["rne_from_offset"], rel=1e-2)
    assert twice["scores"]["dgnet"]["mse"] == pytest.approx(4 * once["scores"]["dgnet"]["mse"], rel=2e-2)


def test_ablation(place: Path) -> None:
    reproduce(place, "ablation", "--scenarios", "laser-heat", "--models", "dgnet-paper,dgnet-paper-D")
    scores = [record(place, f"train_laser-heat_small_same-mesh_{m}_s0_d1_f0.0001")["scores"][m]["rne_from_offset"]
              for m in ("dgnet-paper", "dgnet-paper-D")]
    lumped = record(place, "classical_laser-heat_small_same-mesh_classical_s0_d1")["scores"]["classical_lumped"]["rne_from_offset"]
    # the source at both ends of a step costs the paper's model much; without Green there is no solver to fall back on
    assert lumped < scores[0] < scores[1]


def test_what_is_asked_of_a_trained_model(place: Path) -> None:
    """Operator, ten horizons, cost against accuracy; the picture of the fields."""
    chosen = ("--scenarios", "laser-heat", "--models", "dgnet")
    reproduce(place, "operator", *chosen)
    cell = record(place, "operator_laser-heat_small_same-mesh_dgnet_s0_d1_f0.0001")
    assert cell["numbers"]["stable"] and cell["numbers"]["action"]["learned_to_reference"] < 1
    assert np.array(cell["spectra"]["T"]["learned"])[:, 0].max() <= 1e-9
    assert all((place / "out" / "cells" / cell["tag"] / name).exists() for name in cell["figures"])
    assert reproduce(place, "spectrum", *chosen)["ran"] == []
    reproduce(place, "long", *chosen)
    cell = record(place, "long_laser-heat_small_same-mesh_dgnet_s0_d1_f0.0001")
    assert cell["finite"] and cell["steps"] == 10 * get("laser-heat", "small").steps
    assert 0 <= cell["last"] < cell["largest_beyond"] < 1.01 * cell["largest_within"]  # without sources a plate cools
    reproduce(place, "tradeoff", *chosen)
    rows = record(place, "tradeoff_laser-heat_small_same-mesh_dgnet_s0_d1_f0.0001")["result"]["rows"]
    assert [r.get("kind", r["solver"]) for r in rows] == ["dgnet", "P1", "P2", "P1"]
    error = record(place, "train_laser-heat_small_same-mesh_dgnet_s0_d1_f0.0001")["scores"]["dgnet"]["rne_from_offset"]
    assert rows[0]["error"] == pytest.approx(error, rel=1e-3)  # two ways to judge the same model


def test_failure(place: Path) -> None:
    reproduce(place, "failure", "--models", "dgnet")
    melting = record(place, "train_phase-transition_small_same-mesh_dgnet_s0_d1_f0.0001")["scores"]["dgnet"]["melting"]
    assert melting["highest"] > melting["highest_true"] and melting["share_of_error"] > melting["share_of_states"]


@pytest.mark.slow
def test_throughput_and_scaling(place: Path) -> None:
    shared = reproduce(place, "throughput", "--scenarios", "allen-cahn", "--sharing", "8")
    assert shared["ran"] == [] and len(shared["postponed"]) == 1  # a clock needs the device for itself
    reproduce(place, "throughput", "--scenarios", "allen-cahn")
    rows = record(place, "throughput_allen-cahn_small_converged_every_s0_d1")["result"]["rows"]
    assert {"mgn", "singer", "dgnet", "classical_consistent"} <= {r["model"] for r in rows}
    assert reproduce(place, "scaling")["ran"]


# ---------------------------------------------------------------------- several processes, kills, failures


def test_two_processes_share_the_cells(tmp_path: Path) -> None:
    """Both also need the same data set, which one of them makes."""
    command = ("reproduce table-main --scenarios laser-heat --models deeponet,pod --out out --data data --few 1 --factor 1e-4 "
               "--truth same-mesh --sharing 2")
    both = [begin(tmp_path, f"{command} --json {k}.json", k) for k in "ab"]
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    ran = [set(json.loads((tmp_path / f"{k}.json").read_text())["ran"]) for k in "ab"]
    assert not ran[0] & ran[1] and len(ran[0] | ran[1]) == 3 == len(list(tmp_path.glob("out/cells/*/cell.json")))


def test_a_cell_of_another_process_is_left_alone(tmp_path: Path) -> None:
    cell = Experiment("classical", "allen-cahn", few=1)
    lock = Lock.take(cell.lock(tmp_path))
    assert lock is not None
    with lock:
        assert engine.run([cell], Options(tmp_path / "data", tmp_path, say=lambda text: None)).left == [cell.tag]


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
    bad, good = (Experiment("train", "fisher-kpp", method=m, truth="same-mesh", few=1, factor=1e-4) for m in ("deeponet", "pod"))
    folder = bad.folder(tmp_path / "out") / "run"
    folder.mkdir(parents=True)
    (folder / "last.pt").write_bytes(b"not a checkpoint")
    options = Options(place / "data", tmp_path / "out", say=lambda text: None)
    found = engine.run([bad, good], options)
    assert list(found.failed) == [bad.tag] and good.tag in found.ran
    assert "does not hold weights" in json.loads((bad.folder(tmp_path / "out") / "failed.json").read_text())["error"]
    assert [i["state"] for i in engine.plan([bad], options)][-1] == "failed"
    (folder / "last.pt").unlink()
    assert engine.run([bad], options).ran == [bad.tag] and not (bad.folder(tmp_path / "out") / "failed.json").exists()


def test_other_data_under_the_same_name_is_refused(tmp_path: Path) -> None:
    cell = Experiment("classical", "allen-cahn", truth="same-mesh", few=2)
    options = Options(tmp_path / "data", tmp_path / "out", say=lambda text: None)
    path, seconds = engine.data_set(cell, options)
    assert seconds > 0 and engine.data_set(cell, options) == (path, 0.0)
    other = tmp_path / "data" / "few-1"
    other.mkdir()
    path.rename(other / path.name)
    with pytest.raises(InputError, match="train = 2 instead of 1"):
        engine.data_set(replace(cell, few=1), options)


# ---------------------------------------------------------------------- stores and copies


def test_a_packed_study_keeps_numbers_and_frames(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    truth = 300 + rng.random((4, 50, 2)).cumsum(0)
    rows = {"classical": ("classical_consistent", 1e-3), "train": ("dgnet", 1e-5)}
    made = {kind: Experiment(kind, "allen-cahn", method="classical" if kind == "classical" else "dgnet", few=1) for kind in rows}
    for kind, (row, size) in rows.items():
        folder = made[kind].folder(tmp_path / "study")
        folder.mkdir(parents=True)
        values = truth + size * rng.standard_normal(truth.shape)
        values[-1, 0] = np.nan  # a diverged node
        np.savez(folder / "sample.npz", frames=np.arange(4), truth=truth, **{row: values})
        scores = {row: {"rne": 1 / 3, "x": None}}
        (folder / "cell.json").write_text(json.dumps({"tag": made[kind].tag, "date": "1", "scores": scores}))
    made["scaling"] = clock = Experiment("scaling", "squares", method="every")  # of no scenario, without frames
    clock.folder(tmp_path / "study").mkdir()
    (clock.folder(tmp_path / "study") / "cell.json").write_text(json.dumps({"tag": clock.tag, "date": "1", "result": {"rows": []}}))
    assert len(stored.pack([tmp_path / "study"], tmp_path / "packed")) == 3
    for kind, (row, size) in rows.items():
        loose, packed = (stored.load([tmp_path / name])[made[kind].tag] for name in ("study", "packed"))
        assert abs(packed["scores"][row]["rne"] - 1 / 3) < 1e-8 and packed["scores"][row]["x"] is None
        before, after = stored.sample(loose), stored.sample(packed)
        assert list(after["frames"]) == [1, 3]
        with np.load(tmp_path / "packed" / "frames.npz") as frames:
            difference = frames[f"{made[kind].tag}/{row}"] - (before[row] - before["truth"])[[1, 3], :, :1]
        assert np.isnan(after[row][1, 0]).all() and np.nanmax(np.abs(difference)) < 0.02 * size
        assert np.abs(after["truth"] - truth[[1, 3], :, :1]).max() < 1e-4
    options = Options(tmp_path, tmp_path / "packed")
    assert {item["state"] for item in engine.plan([made["train"]], options)} == {"finished"}
    with pytest.raises(InputError, match="packed study"):
        engine.run([made["train"]], options)
    shutil.copytree(made["classical"].folder(tmp_path / "study"),
                    made["classical"].folder(tmp_path / "newer"))  # it has all four frames
    stored.pack([tmp_path / "newer", tmp_path / "packed"], tmp_path / "twice")
    first, again = (stored.sample(stored.load([tmp_path / name])[made["train"].tag]) for name in ("packed", "twice"))
    assert all(np.allclose(first[name], again[name], atol=1e-4, equal_nan=True) for name in ("frames", "truth", "dgnet"))
    assert sorted(stored.merge([tmp_path / "packed"], tmp_path / "again")) == sorted(c.tag for c in made.values())
    assert all(c.finished(tmp_path / "again") for c in made.values())


def test_the_stored_study_is_merged_and_packed_without_loss(tmp_path: Path) -> None:
    copied = stored.merge([STUDY], tmp_path / "loose")
    assert sorted(stored.load([tmp_path / "loose"])) == sorted(copied) == sorted(stored.load([STUDY]))
    with np.load(STUDY / "frames.npz") as frames:  # nothing that a page draws is lost on the way
        loose = list((tmp_path / "loose").glob("cells/*/sample.npz"))
        assert len(loose) == sum(key.endswith("/frames") for key in frames.files) > 0
    assert len(list((tmp_path / "loose").glob("cells/*/*.png"))) == len(list(STUDY.glob("pictures/*"))) > 0
    found = Shelf.open([STUDY])
    bounded = {c.method: r for c, r in found.cells.items() if c.scenario == "laser-heat" and c.method.startswith("dgnet-")}
    assert {"dgnet-bounded", *(f"dgnet-bounded-{v}" for v in "ABCD")} <= set(bounded)
    frames = stored.sample(bounded["dgnet-bounded"])
    assert "dgnet-bounded" in frames and np.isfinite(frames["dgnet-bounded"]).all()


def test_cells_of_two_machines_are_merged(tmp_path: Path) -> None:
    for machine, method in (("one", "mgn"), ("two", "pod")):
        cell = Experiment("train", "allen-cahn", method=method, few=1)
        (cell.folder(tmp_path / machine)).mkdir(parents=True)
        (cell.folder(tmp_path / machine) / "cell.json").write_text(json.dumps({"tag": cell.tag, "date": "1"}))
    assert "1 cells copied" in dgnet_paper("reproduce", "merge", tmp_path / "two", "--out", tmp_path / "one")
    assert sorted(stored.load([tmp_path / "one"])) == sorted(stored.load([tmp_path / "one", tmp_path / "two"]))
    assert len(stored.load([tmp_path / "one"])) == 2


# ---------------------------------------------------------------------- the report


def test_the_report_is_whole(place: Path, tmp_path: Path) -> None:
    reproduce(place, "table-main", "--scenarios", "allen-cahn", "--models", "deeponet,dgnet", "--seeds", "2")
    for folder in (place / "out" / "cells").glob("*allen-cahn*"):  # these alone: every other cell is a row and pictures more
        shutil.copytree(folder, tmp_path / "out" / "cells" / folder.name)
    dgnet_paper("report", tmp_path / "out", "--out", tmp_path / "r.html", "--markdown", tmp_path / "docs")
    page = (tmp_path / "r.html").read_text()
    assert "<script" not in page and "http" not in page and "data:image/png;base64," in page and "prefers-color-scheme" in page
    text = (tmp_path / "docs" / "paper.md").read_text()
    lines = text.splitlines()
    first = next(k for k, line in enumerate(lines) if line.startswith("| RNE | is told | allen-cahn |"))
    rows = {line.split(" | ")[0].strip("| "): line.split(" | ")[1:3] for line in lines[first + 2:first + 14]}
    assert "±" in rows["DGNet, ours"][1] and any("**" in found for _, found in rows.values()) and "not run" in rows["MGN"][1]
    assert rows["DeepONet"][0] == "coefficients, flow" and rows["DGNet, ours, reaction unknown"][0] == "all but the reaction"
    assert "dgnet-paper reproduce train_allen-cahn_small_same-mesh_mgn_s0_d1_f0.0001 --out DIR" in text
    assert all((tmp_path / "docs" / link).exists() for link in re.findall(r"\]\((\S+\.png)\)", text))
    error = record(place, "classical_allen-cahn_small_same-mesh_classical_s0_d1")["scores"]["classical_consistent"]["rne"]
    assert number(error) in rows["classical, consistent"][1]


def test_the_stored_pages_are_those_of_the_stored_cells() -> None:
    """Number by number: words may change."""
    page, written = summary.markdown([STUDY]), (STUDY.parent / "dgnet.md").read_text()
    figures = [[re.findall(r"\d[\d.e-]*", line) for line in text.splitlines() if line.startswith("|")] for text in (page, written)]
    assert figures[0] == figures[1] and len(figures[0]) > 100, "write it again: dgnet-paper report docs/results/study --dgnet PAGE"
    found = stored.load([STUDY])["tradeoff_laser-heat_paper_converged_dgnet_s0"]["result"]
    row = next(line for line in page.split("## Cost against accuracy")[1].splitlines() if line.startswith("| laser-heat "))
    best = tradeoff.cheapest(found)
    assert best is not None and f"| {tradeoff.whole(best) / tradeoff.whole(found['rows'][0]):.3g}× |" in row


def test_values_over_seeds() -> None:
    value = Value.of([1.0, 3.0])
    assert value is not None and value.mean == 2.0 and value.spread == pytest.approx(2**0.5) and value.text() == "2 ± 1"
    assert Value.of([]) is None
    diverged = Value.of([1.0, None])
    assert diverged is not None and diverged.text() == "diverged"
    assert [number(x) for x in (0.01234, 1.234e-5, 12345.6, 1234.5)] == ["0.0123", "1.23e-5", "1.23e4", "1234"]
    assert Setting("paper", "converged").title == "paper size, converged truth" and "trial" in Setting("small", "converged",
                                                                                                       1).title


# ---------------------------------------------------------------------- the search of a way of training


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
        assert search.Way.read(found) == search.Way(0.5) and found["trials"]["1"]["validation"] is None
    assert tried == [(cell.tag, search.Way(factor)) for factor in (1.0, 0.5, 2.0)]


def test_windows_are_tried_first_and_the_rates_of_the_better(tmp_path: Path) -> None:
    """Validations count over that of the untrained weights, since trials may see pieces of different length."""
    values = {search.Way(): (0.4, 0.5), search.Way(windows=True): (0.7, 1.0), search.Way(0.5, True): (0.6, 1.0),
              search.Way(2.0, True): (0.2, 0.2)}

    def trial(cell: Experiment, place: Path, way: search.Way, aside: float) -> Progress:
        best, untrained = values[way]
        return Progress(best=best, best_iteration=3, updates=5, history=[{"validation": untrained, "seconds": 0.1}], seconds=1.0)

    found = search.found_way(Experiment("train", "allen-cahn", method="beno"), tmp_path, trial, windows=True)
    assert search.Way.read(found) == search.Way(0.5, True) and list(found["trials"]) == ["1", "windows 1", "windows 0.5",
                                                                                         "windows 2"]


def test_trials_that_end_before_they_begin_are_longer(tmp_path: Path) -> None:
    """Where set-up takes most of a trial, all trials of the search get that time besides; the first is made again."""
    seconds: list[tuple[str, float]] = []

    def trial(cell: Experiment, place: Path, way: search.Way, aside: float) -> Progress:
        seconds.append((way.name, aside))
        if aside == 0.0:
            return Progress(best=1.0, seconds=22.0, history=[{"validation": 1.0, "seconds": 21.0}])
        return Progress(best=0.5 * way.factor, best_iteration=3, updates=5, seconds=33.0,
                        history=[{"validation": 1.0, "seconds": 20.0}])

    found = search.found_way(Experiment("train", "allen-cahn", method="beno"), tmp_path, trial)
    assert found["factor"] == 0.5 and found["trials"]["1"]["updates"] == 5
    assert seconds == [("1", 0.0), ("1", 21.0), ("0.5", 21.0), ("2", 21.0)]


@pytest.mark.parametrize(("trained", "untrained", "best"), [(True, math.inf, search.Way(2.0)), (False, 1.0, search.Way())],
                         ids=["untrained weights diverge", "no trial learned"])
def test_untrained_weights_neither_hide_nor_choose_a_way(trained: bool, untrained: float, best: search.Way, tmp_path: Path) -> None:
    def trial(cell: Experiment, place: Path, way: search.Way, aside: float) -> Progress:
        return Progress(best=1.0 / way.factor, best_iteration=3 * trained, updates=5, seconds=1.0,
                        history=[{"validation": untrained, "seconds": 0.1}])

    assert search.Way.read(search.found_way(Experiment("train", "allen-cahn", method="beno"), tmp_path, trial)) == best


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

"""Tables say where a figure comes from, what a model is told, and that a model did not learn; early cells are marked as unknown."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dgnet.files import write_json
from dgnet.models.registry import all_models
from dgnet.models.universal import Universal
from dgnet.problems.case import base_problem
from dgnet_paper.scenarios import get
from dgnet_paper.study import drawing, evidence
from dgnet_paper.study.blocks import Block, Picture, Slot, Table, Text
from dgnet_paper.study.experiment import METHODS, Experiment
from dgnet_paper.study.origin import Marks, improving, trained_on
from dgnet_paper.study.results import Setting, Shelf, Value
from dgnet_paper.study.rows import Row, ordered
from dgnet_paper.study.tables import Section, slot, verdict
from dgnet_paper.study.targets import ACCURACY, TARGETS, Choice, cells

ROW = {"rne": 0.02, "mse": 1e-3, "rne_from_offset": 0.02, "rne_final": 0.02, "log10_mse": -3.0, "until": None, "until_share": None,
       "steps_per_second": 1.0}


def put(out: Path, method: str = "classical", unknown: bool = False, rne: float = 0.02, seed: int = 0, trajectories: int = 0,
        **facts: Any) -> None:
    """A finished cell of the small Allen-Cahn scenario as an early version stored it; `facts` are added or changed."""
    kind = "classical" if method == "classical" else "train"
    cell = Experiment(kind, "allen-cahn", method=method, seed=seed, trajectories=trajectories, unknown_reaction=unknown)
    classical = {"classical_consistent": ROW, "classical_lumped": ROW}
    own = {} if method == "classical" else {method: {**ROW, "rne": rne, "rne_from_offset": rne}}
    trained = {} if method == "classical" else {
        "updates": 7, "best_iteration": 5, "parameters": 9, "memory": {"train": None}, "budget": 60.0,
        "training_trajectories": 4, "recipe": {"hold_out": 1}, "history": []}
    record = {"tag": cell.tag, "cell": {"kind": cell.kind, "scenario": cell.scenario, "size": cell.size, "method": method,
                                        "factor": 1.0},
              "version": "0.1.0", "hardware": "a GPU", "sharing": 2, "device": "cuda", "date": "2026-01-01 00:00:00",
              "about": {"nodes": 361, "steps": 10}, "seconds": {"total": 60.0, "train": 40.0}, "scores": {**classical, **own},
              "curves": {"time": [0.0], **{key: [0.1] for key in (*classical, *own)}}}
    write_json(cell.folder(out) / "cell.json", {**record, **trained, **facts})


def page(out: Path) -> list[Block]:
    return evidence.build(Shelf.open([out]), out / "scratch", Path("out"))


def column(blocks: list[Block], title: str, name: str) -> dict[str, Any]:
    """A column of the first table with this title."""
    table = next(b for b in blocks if isinstance(b, Table) and b.head[0] == title)
    at = list(table.head).index(name)
    return {str(row[0]): row[at] for row in table.rows}


@pytest.fixture()
def out(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    put(tmp_path)
    return tmp_path


def test_untrained_weights_print_as_did_not_learn(out: Path) -> None:
    put(out, "mgn", rne=0.01, best_iteration=0)
    put(out, "dgnet", rne=0.015)
    found = column(page(out), "RNE", "allen-cahn")
    assert found["MGN"] == Slot("did not learn", faint=True, beside="untrained 0.01")
    assert found["DGNet, ours"].strong  # the best of those that learned
    put(out, "mgn", rne=0.01, seed=1)
    assert column(page(out), "RNE", "allen-cahn")["MGN"].beside == "1 of 2 seeds did not learn"


def test_a_mean_over_seeds_is_that_of_one_code(out: Path) -> None:
    for seed, rne in enumerate((0.03, 0.05)):
        put(out, "mgn", rne=rne, seed=seed, code="old")
    assert column(page(out), "RNE", "allen-cahn")["MGN"].text == "0.04 ± 0.01"
    put(out, "mgn", rne=0.01, code="new", date="2026-01-02 00:00:00")
    assert column(page(out), "RNE", "allen-cahn")["MGN"].text == "0.01"


def test_other_hardware_and_other_code_are_marked(out: Path) -> None:
    put(out, "dgnet", rne=0.01, code="abc")
    put(out, "mgn", hardware="a CPU")
    put(out, "deeponet")
    blocks = page(out)
    found = column(blocks, "RNE", "allen-cahn")
    assert found["DeepONet"].beside == "" and {found["MGN"].beside, found["DGNet, ours"].beside} == {"[a]", "[b]"}
    legend = next(b.text for b in blocks if isinstance(b, Text) and b.text.startswith("Computed on"))
    assert legend.startswith("Computed on a GPU, dgnet 0.1.0, code not recorded;")
    assert "on a CPU, dgnet 0.1.0, code not recorded" in legend and "on a GPU, dgnet 0.1.0, code abc" in legend


def test_every_table_of_errors_says_what_a_row_is_told(out: Path) -> None:
    put(out, "mgn")
    put(out, "dgnet", rne=0.01)
    put(out, "dgnet", unknown=True, rne=0.012)
    blocks = page(out)
    told = column(blocks, "RNE", "is told")
    assert told["classical, consistent"] == told["DGNet, ours"] == "whole equation" and told["MGN"] == "coefficients, flow"
    assert told["DGNet, ours, reaction unknown"] == "all but the reaction"
    for table in (b for b in blocks if isinstance(b, Table) and b.head[0] in ("RNE", "MSE", "allen-cahn")):
        assert table.head[1] == "is told"
    assert all(all_models()[METHODS[m].model].told for m in METHODS if METHODS[m].model)


def test_details_tell_how_a_training_went_and_what_is_unknown(out: Path) -> None:
    rows = [{"iteration": k, "validation": 1.0 / (k + 1), "seconds": float(k)} for k in range(11)]
    put(out, "mgn")
    stages = [{"length": 1, "method": "identify"}, *({"length": n, "method": "adam"} for n in (8, 40, 400))]
    put(out, "dgnet", updates=70, history=rows, recipe={"hold_out": 0, "stages": stages}, left_out=[3], sharing=1,
        rate={"factor": 0.5, "trials": {}})
    blocks = page(out)
    for title, early, late in (("trained on", "3 of 4", "4 of 4"), ("updates", "7", "70"), ("validations", "unknown", "10"),
                               ("still improving", "unknown", "yes"), ("shared by", "2", "1"), ("rate", "1", "0.5"),
                               ("window", "–", "8, 40")):
        found = column(blocks, "allen-cahn", title)
        assert (found["MGN"], found["DGNet, ours"]) == (early, late), title
    table = next(b for b in blocks if isinstance(b, Table) and b.head[0] == "hardware")
    assert all(row[3:5] == ["not recorded", "unknown"] for row in table.rows)


def test_the_page_shows_how_models_learned_and_names_those_that_were_not_finished(out: Path) -> None:
    falling = [{"iteration": k, "validation": 1.0 / (k + 1), "seconds": float(k)} for k in range(11)]
    flat = [{**row, "validation": 1.0} for row in falling]
    put(out, "mgn", history=falling, validation_classical=0.5)
    put(out, "beno", history=flat, validation_classical=0.5)
    put(out, "pod", history=falling[:2], validation_classical=0.5)  # fitted at once: no curve
    blocks = page(out)
    sentence = next(b.text for b in blocks if isinstance(b, Text) and b.text.startswith("Still improving"))
    assert "MGN" in sentence and "BENO" not in sentence
    assert [b for b in blocks if isinstance(b, Picture) and b.path.name == "learning-allen-cahn-small-converged.png"]
    for name in ("mgn", "beno"):
        put(out, name, history=flat[:2], validation_classical=0.5)
    assert not drawing.learning(out / "none.png", Shelf.open([out]), Setting("small", "converged"), "allen-cahn")
    assert not [b for b in page(out) if isinstance(b, Text) and b.text.startswith("Still improving")]


def test_error_against_trajectories_says_how_often_each_model_was_updated(out: Path) -> None:
    put(out, "mgn", updates=70)
    put(out, "mgn", trajectories=1, updates=1200)
    sentence = next(b.text for b in page(out) if isinstance(b, Text) and b.text.startswith("Updates within"))
    assert "MGN 1,200, –, 70" in sentence and "PhyMPGN" not in sentence and "classical" not in sentence


def test_a_training_is_still_improving_by_its_last_fifth() -> None:
    def curve(*errors: float) -> list[dict[str, float | None]]:
        return [{"seconds": float(k), "validation": e} for k, e in enumerate(errors)]

    assert improving(curve(1, 0.9, 0.8, 0.7, 0.6, 0.5)) is True
    assert improving(curve(1, 0.5, 0.5, 0.5, 0.5, 0.495)) is False
    assert improving(curve(1, 0.5)) is None and improving([]) is None
    assert trained_on({"training_trajectories": 1, "recipe": {"hold_out": 2}}) == "1 of 1" and trained_on({}) == "unknown"


def test_no_verdict_of_an_ablation_from_models_that_did_not_learn() -> None:
    values = {f"dgnet-paper{v}": Value(0.1 * k, 0.0, 1) for k, v in enumerate(("", "-B", "-A", "-C", "-D"), 1)}
    assert "confirmed" in verdict("laser-heat", values)
    said = verdict("laser-heat", {**values, "dgnet-paper": Value(0.1, 0.0, 1, unlearned=1)})
    assert said == "laser-heat: the order of the variants is not judged, since full did not learn."


def test_baselines_stand_beside_a_dgnet_that_is_not_told_the_reaction() -> None:
    for target in ACCURACY:
        found = cells(target, Choice(size="paper"))
        for scenario in {c.scenario for c in found}:
            unknown = [c.method for c in found if c.scenario == scenario and c.unknown_reaction]
            assert unknown == (["dgnet"] if get(scenario, "paper").pde.reaction is not None else [])


def test_rows_and_marks_have_an_order() -> None:
    rows = ordered([Row("dgnet"), Row("mgn"), Row("classical_lumped"), Row("mgn")])
    assert [row.key for row in rows] == ["classical_lumped", "mgn", "dgnet"]
    assert Marks([]).legend() == [] and slot(None).text == "not run"
    spreads = {0.00099: "1 ± 0.001", 0.42: "1 ± 0.4", 4e-7: "1 ± 4e-7", 21.0: "1 ± 20", 0.0: "1 ± 0"}
    assert {spread: Value(1.0, spread, 3).text() for spread in spreads} == spreads


@pytest.mark.parametrize("name", sorted({name for target in ACCURACY for name in TARGETS[target].scenarios}))
def test_universal_weights_have_a_dash_where_they_do_not_act(name: str) -> None:
    section: Any = SimpleNamespace(s=SimpleNamespace(size="small"))
    acts = Universal().acts(base_problem(get(name, "small"), "cpu"))
    assert (Section.applies(section, name, Row("universal")) is None) == acts


def test_seeds_that_were_trained_unequally_are_named(out: Path) -> None:
    for seed, (mgn, beno) in enumerate(((100, 60), (50, 100), (90, 49))):
        put(out, "mgn", seed=seed, updates=mgn)
        put(out, "beno", seed=seed, updates=beno)
    sentence = next(b.text for b in page(out) if isinstance(b, Text) and b.text.startswith("Seeds that were updated"))
    assert "BENO 49 to 100 updates" in sentence and "MGN" not in sentence  # half is enough


def test_a_picture_of_many_models_holds_its_legend_and_leaves_variants_out(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for method in ("deeponet", "mgn", "mp-pde", "beno", "phympgn", "transolver", "amg", "singer", "pod", "opinf", "dgnet-paper",
                   "dgnet-paper-A", "dgnet-paper-B", "dgnet-bounded", "dgnet"):
        put(out, method, config={"scheme": ""})
    drawn = []

    def keep(figure: Any, path: Path, dpi: int) -> None:
        figure.savefig(io.BytesIO(), format="png", dpi=figure.dpi)  # lays it out, with the fonts of the picture
        drawn.append(figure)

    monkeypatch.setattr(drawing, "save", keep)
    assert drawing.curves(out / "curves.png", Shelf.open([out]), Setting("small", "converged"), "allen-cahn")
    (figure,) = drawn
    (axis,) = figure.axes
    legend = axis.get_legend()
    assert len(legend.get_texts()) == 2 + 13  # the classical solvers, and the methods without their variants
    place = legend.get_window_extent()
    assert place.y0 >= 0 and place.y1 <= figure.bbox.height and place.x1 <= figure.bbox.width + 1
    assert axis.get_window_extent().width > 0.4 * figure.bbox.width and axis.get_window_extent().height > 0.5 * figure.bbox.height

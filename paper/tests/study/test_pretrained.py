"""Weights that ship: packed from a cell, listed, rolled out again, refused when damaged; every shipped folder makes steps."""

import hashlib
import json
import pickle
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.models import rollout
from dgnet.problems.case import base_problem
from dgnet.training.run import Run
from dgnet_paper.scenarios import get, paper_names
from dgnet_paper.scenarios.generate import generate
from dgnet_paper.study import compared, engine, pretrained
from dgnet_paper.study.experiment import Experiment
from paper.tests.command import dgnet_paper, refused

SHIPPED = sorted(p.parent.name for p in pretrained.SHELF.glob("*/card.json"))


@pytest.fixture(scope="module")
def cell(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished cell: three trajectories of each split, a second or two of training."""
    place = tmp_path_factory.mktemp("cells")
    wanted = Experiment("train", "laser-heat", "small", "same-mesh", "dgnet", few=3)
    summary = engine.run([wanted], engine.Options(place / "data", place, budget=2.0, sharing=3, say=lambda text: None))
    assert not summary.failed
    return wanted.folder(place)


@pytest.fixture(scope="module")
def shelf(cell: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    shelf = tmp_path_factory.mktemp("shelf")
    dgnet_paper("pretrained", "pack", cell, "--out", shelf, "--note", "a trial")
    return shelf


@pytest.fixture
def copy(shelf: Path, tmp_path: Path) -> Path:
    """A packed folder that a test may damage."""
    return Path(shutil.copytree(shelf / "laser-heat-small-same-mesh", tmp_path / "copy"))


# ---------------------------------------------------------------------- packing, listing


def test_a_packed_folder_says_what_its_cell_says(cell: Path, shelf: Path) -> None:
    folder = shelf / "laser-heat-small-same-mesh"
    assert sorted(p.name for p in folder.iterdir()) == ["card.json", "run.toml", "weights.pt"]
    card, record = pretrained.read_card(folder), json.loads((cell / "cell.json").read_text())
    assert card.command == "dgnet-paper reproduce train_laser-heat_small_same-mesh_dgnet_s0_d3 --budget 0.0333 --sharing 3"
    assert (card.sharing, card.hardware, card.notes) == (3, record["hardware"], ("a trial",))
    assert card.minutes == record["seconds"]["train"] / 60 and card.test_trajectories == 3
    for name in ("dgnet", "classical_consistent", "classical_lumped"):
        assert card.figures[name]["rne_from_offset"] == record["scores"][name]["rne_from_offset"]
        assert len(card.figures[name]["trajectories"]) == 3
    assert "iterations" not in (folder / "card.json").read_text()  # places in a recipe, not updates
    assert str(cell.parent) not in (folder / "run.toml").read_text() and Run.open(folder).settings.data == ""
    before = (cell / "run" / "weights.pt").stat().st_size
    assert card.bytes == (folder / "weights.pt").stat().st_size < 0.7 * before
    assert {"free_pair", "free_source", "free_cell"} <= set(card.half) and "mean" not in card.half


def test_the_list_holds_figures_sizes_and_what_is_missing(shelf: Path, tmp_path: Path) -> None:
    printed = dgnet_paper("pretrained", "--folder", shelf, "--json", tmp_path / "x.json", "--markdown", tmp_path / "x.md")
    card, text = pretrained.shipped(shelf)[0], (tmp_path / "x.md").read_text()
    assert json.loads((tmp_path / "x.json").read_text())[0]["sha256"] == card.sha256
    for part in (f"{card.figures['dgnet']['rne_from_offset']:.3g}"[:4], "shared by 3", "a trial", f"{card.bytes / 1024:.0f}"):
        assert part in text
    assert "laser-heat (small)" in text and "Not trained yet" in printed
    assert text.count("--device cuda") == 2 * len(paper_names())  # nothing here is of the paper's size
    assert "iterations" not in text


def test_half_precision_keeps_what_it_may_not_round() -> None:
    for value in (torch.full((100,), 1e5), torch.full((100,), torch.inf), torch.arange(100), torch.full((3,), 298.15)):
        kept = pretrained.halved(value)
        assert kept.dtype == value.dtype and torch.equal(kept, value)
    tiny = pretrained.halved(1e-6 * torch.rand(100))
    assert tiny.dtype == torch.float16 and pretrained.halved(torch.randn(8, 8)).dtype == torch.float16


def test_unfinished_and_varied_cells_are_not_packed(cell: Path, tmp_path: Path) -> None:
    assert "no finished cell" in refused("pretrained", "pack", tmp_path, "--out", tmp_path / "s")
    record = json.loads((cell / "cell.json").read_text())
    for tag, reason in ((record["tag"].replace("_d3", "_n1_d3"), "variation"), (record["tag"] + "_f0.5", "variation"),
                        (record["tag"].replace("train", "robust"), "not about a trained dgnet"),
                        (record["tag"].replace("laser-heat", "allen-cahn"), "not the run of its cell"), ("x", "not the name")):
        copy = Path(shutil.copytree(cell, tmp_path / tag))
        (copy / "cell.json").write_text(json.dumps({**record, "tag": tag}))
        assert reason in refused("pretrained", "pack", copy, "--out", tmp_path / "s")
    assert not (tmp_path / "s").exists() or not list((tmp_path / "s").glob("*/card.json"))


# ---------------------------------------------------------------------- rolling out again


def test_the_test_split_alone_is_that_of_the_whole_data_set(tmp_path: Path) -> None:
    scenario = get("laser-heat", "small")
    whole = generate(scenario, tmp_path / "a", truth="same-mesh", trajectories=2)
    only = generate(scenario, tmp_path / "a", truth="same-mesh", trajectories=1, split="test")
    assert (whole.name, only.name) == ("laser-heat-small-same-mesh.h5", "laser-heat-small-same-mesh-test-1.h5")
    with Dataset(whole) as a, Dataset(only) as b:
        assert (len(b), b.provenance["train"], b.provenance["test"]) == (1, 0, 1)
        one, other = a.read(a.of("test")[0]), b.read(0)
        assert np.allclose(one.state, other.state, rtol=1e-6) and np.array_equal(one.source, other.source)
        assert (one.seed, one.index) == (other.seed, other.index)
    with pytest.raises(InputError, match="unknown split 'tests'"):
        generate(scenario, tmp_path / "b", split="tests")


def test_round_trip_agrees_with_the_card_and_with_full_precision(cell: Path, shelf: Path, tmp_path: Path) -> None:
    folder, place = shelf / "laser-heat-small-same-mesh", tmp_path / "data"
    printed = dgnet_paper("evaluate", folder, "--data", place, "--json", tmp_path / "x.json")
    result = json.loads((tmp_path / "x.json").read_text())
    assert result["agrees"] and not result["subset"] and result["trajectories"] == 3
    assert [p.name for p in place.iterdir()] == ["laser-heat-small-same-mesh-test-3.h5"]
    assert "agree with the card's figures" in printed and "whole test set" in printed and "is expected between devices" in printed
    full = json.loads((cell / "cell.json").read_text())["scores"]["dgnet"]["rne_from_offset"]  # weights in single precision
    assert result["scores"]["dgnet"]["rne_from_offset"] == pytest.approx(full, rel=0.01)
    assert len(list(folder.iterdir())) == 3  # nothing is written beside shipped weights


def test_a_subset_is_compared_trajectory_by_trajectory(cell: Path, shelf: Path, tmp_path: Path) -> None:
    mine = Path(shutil.copytree(shelf, tmp_path / "shelf"))
    folder, data = mine / "laser-heat-small-same-mesh", cell.parents[1] / "data" / "few-3"
    before = sorted(data.iterdir())
    printed = dgnet_paper("evaluate", folder, "--data", data, "--trajectories", 1, "--json", tmp_path / "x.json")
    assert "a subset, 1 of the card's 3" in printed and "one by one" in printed
    assert sorted(data.iterdir()) == before  # the whole data set was there
    result = json.loads((tmp_path / "x.json").read_text())
    there = pretrained.read_card(folder).figures
    for name, row in result["scores"].items():
        assert row["trajectories"] == pytest.approx(there[name]["trajectories"][:1], rel=0.02)
    card = pretrained.read_card(folder)
    elsewhere = pretrained.Measured(1, "a GPU", "cuda", "0", "0", {name: there[name] for name in there})
    (folder / "card.json").write_text(json.dumps(asdict(replace(card, measured=(elsewhere,)))))
    assert "Rolled out again" in pretrained.markdown([pretrained.read_card(folder)])
    dgnet_paper("pretrained", "pack", cell, "--out", mine)
    assert pretrained.read_card(folder).measured == (elsewhere,)  # of the same weights


def test_other_figures_are_said_to_differ(cell: Path, copy: Path, tmp_path: Path) -> None:
    card = json.loads((copy / "card.json").read_text())
    card["figures"]["dgnet"] |= {"rne": 1.07 * card["figures"]["dgnet"]["rne"]}
    card["figures"]["classical_lumped"] |= {"rne": None, "rne_from_offset": None}
    (copy / "card.json").write_text(json.dumps(card))
    result = compared.check(copy, data=cell.parents[1] / "data" / "few-3")
    assert not result["agrees"] and 0.05 < result["deviation"]["dgnet"] < 0.07
    assert result["deviation"]["classical_lumped"] == np.inf and result["deviation"]["classical_consistent"] < 1e-3
    assert "DIFFER" in compared.table(result) and "classical, lumped mass diverged in one of them only" in compared.verdict(result)
    assert "rounding in single precision" in compared.verdict(result)  # the error of DGNet here is below 1e-4
    assert result["expected"]["dgnet"]["limit"] > result["expected"]["classical_lumped"]["limit"]


def test_requests_that_make_no_sense(shelf: Path, tmp_path: Path) -> None:
    folder = shelf / "laser-heat-small-same-mesh"
    assert "did you mean 'laser-heat'" in refused("evaluate", "laser-hat", "--data", tmp_path)
    with pytest.raises(InputError, match="train them with `dgnet-paper reproduce"):
        pretrained.find("obstacles", shelf=shelf)  # where nothing of it is
    assert "unknown kind of truth" in refused("evaluate", "obstacles", "--truth", "true")
    for count in (0, 10_000):
        assert "trajectories" in refused("evaluate", folder, "--trajectories", count, "--data", tmp_path)
    assert "there is no folder" in refused("pretrained", "--folder", tmp_path / "none")


# ---------------------------------------------------------------------- what must be refused


class Malicious:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


def seal(folder: Path) -> Path:
    """Make the card vouch for whatever weights.pt is now."""
    card = json.loads((folder / "card.json").read_text())
    card["sha256"] = hashlib.sha256((folder / "weights.pt").read_bytes()).hexdigest()
    (folder / "card.json").write_text(json.dumps(card))
    return folder


def test_damaged_weights_are_refused(copy: Path) -> None:
    content = bytearray((copy / "weights.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (copy / "weights.pt").write_bytes(content)
    assert "not the file that its card describes" in refused("evaluate", copy)
    (copy / "weights.pt").write_bytes(content[:1000])
    assert "damaged, or holds something that could run code" in refused("evaluate", seal(copy))
    (copy / "weights.pt").unlink()
    assert "no weights.pt" in refused("evaluate", copy)


def test_weights_that_would_run_code_are_refused(copy: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    for write in (lambda: torch.save({"free_pair": Malicious(mark)}, copy / "weights.pt"),
                  lambda: (copy / "weights.pt").write_bytes(pickle.dumps(Malicious(mark), 2))):
        write()
        assert "could run code" in refused("evaluate", seal(copy))
        assert not mark.exists()


def test_weights_of_another_kind_are_refused(copy: Path) -> None:
    state = torch.load(copy / "weights.pt", weights_only=True)
    for strange, reason in ((torch.zeros(3), "something else than tensors"), ({"a": 1.0}, "something else than tensors"),
                            ({}, "does not fit"), ({**state, "free_pair": torch.zeros(2, 2)}, "does not fit"),
                            ({**state, "free_pair": state["free_pair"] * torch.nan}, "'free_pair' holds numbers that are not")):
        torch.save(strange, copy / "weights.pt")
        assert reason in refused("evaluate", seal(copy))


def test_damaged_cards_and_settings_are_refused(copy: Path) -> None:
    card, text = json.loads((copy / "card.json").read_text()), (copy / "run.toml").read_text()
    bad = ["{", "[]", "{}", json.dumps({**card, "figures": {}}), json.dumps({**card, "scenario": "x"}),
           json.dumps({**card, "measured": [1]}), json.dumps({**card, "test_trajectories": "many"}),
           json.dumps({**card, "more": 1})]
    for content in bad:
        (copy / "card.json").write_text(content)
        assert "card.json" in refused("evaluate", copy)
    (copy / "card.json").write_text(json.dumps(card))
    for old, new in (('scenario = "laser-heat"', 'scenario = "allen-cahn"'), ('project = ""', 'project = "/tmp"')):
        (copy / "run.toml").write_text(text.replace(old, new))
        assert "not the run that its card describes" in refused("evaluate", copy)
    (copy / "run.toml").write_text("[run")
    assert "damaged" in refused("evaluate", copy)


# ---------------------------------------------------------------------- what ships


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_weights_open_and_make_steps(name: str) -> None:
    run, card = pretrained.opened(pretrained.SHELF / name)
    assert name == card.label and (run.settings.data, card.size) == ("", "paper")
    assert all(p.dtype == torch.float32 for p in run.model.parameters())
    assert card.nodes == run.case.mesh.n_nodes and card.parameters == sum(p.numel() for p in run.model.parameters())
    assert all(len(row["trajectories"]) == card.test_trajectories for row in card.figures.values())
    x = torch.tensor(run.case.mesh.points, dtype=torch.float32)
    bump = torch.exp(-8 * ((x - x.mean(0)) / x.std(0)).square().sum(-1))[None, :, None]
    start = torch.tensor(run.case.offsets) + 0.5 * bump.expand(1, -1, len(run.case.pde.fields))
    with torch.no_grad():
        states = rollout(run.model, base_problem(run.case, "cpu"), start.contiguous(), None, 3)
    assert states.shape == (1, 4, card.nodes, len(run.case.pde.fields)) and bool(states.isfinite().all())
    assert float((states[:, -1] - states[:, 0]).abs().max()) > 0


def test_something_ships_and_the_page_is_that_of_the_cards() -> None:
    cards = pretrained.shipped()
    assert {"laser-heat-converged", "allen-cahn-converged", "fisher-kpp-converged"} <= set(SHIPPED)
    for c in cards:
        errors = [c.figures[name]["rne_from_offset"] or np.inf for name in ("classical_consistent", "classical_lumped")]
        assert c.error_ratio == pytest.approx(c.figures["dgnet"]["rne_from_offset"] / min(errors), rel=1e-6)
    page = Path(__file__).parents[3] / "docs" / "results" / "pretrained.md"
    assert page.read_text() == pretrained.markdown(cards), "write it again: dgnet-paper pretrained --markdown PAGE"
    assert {(c.scenario, c.truth) for c in cards}.isdisjoint(pretrained.missing(cards))
    assert pretrained.load("laser-heat").settings.truth == "converged"


def test_the_deviation_between_devices_comes_from_measurement() -> None:
    """Cards hold rollouts on other hardware; the limit follows the largest of them, and errors of rounding have their own."""
    cards = pretrained.shipped()
    usual, tiny = (compared.Expected.measured(cards, rounding) for rounding in (False, True))
    assert 0.02 < usual.largest < usual.limit < 0.05 < tiny.largest < tiny.limit and usual.rows >= 10
    laser = next(c for c in cards if c.label == "laser-heat-converged")
    (elsewhere,) = laser.measured
    far = {name: pretrained.deviation(row, laser.figures[name], False) for name, row in elsewhere.figures.items()}
    expected = {name: {"largest": usual.largest, "rows": usual.rows, "limit": usual.limit} for name in far}
    result = {"trajectories": 2, "subset": True, "card": {"test_trajectories": 20, "figures": laser.figures}, "deviation": far,
              "expected": expected}
    said = compared.verdict(result)  # 2.5% off on a CPU: what is to be expected
    assert said.startswith("These agree with the card's figures (at most 2.5% off). Up to 3.8% is expected between devices")
    assert compared.verdict({**result, "deviation": {**far, "dgnet": 0.05}}).startswith("These DIFFER")
    assert compared.Expected.measured([], False).limit == 0.02

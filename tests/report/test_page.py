"""RUN/report.html: whole in itself, true to the scores, and honest about what does not apply."""

from __future__ import annotations

import base64
import io
import json
import re
import zlib
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from dgnet import cli
from dgnet.data import Dataset
from dgnet.mesh import Mesh, box, save
from dgnet.models import Classical, rollout
from dgnet.models.registry import entry
from dgnet.problems import PDE, Problem, Robin
from dgnet.projects import load
from dgnet.recipe import Recipe, Stage
from dgnet.report import field, page
from dgnet.report import figures as figures_of
from dgnet.report.learned import coefficients, given_value
from dgnet.report.templates import percent
from dgnet.training import evaluate as scoring
from dgnet.training.own import train_project
from dgnet.training.plan import Plan
from dgnet.training.run import Run, train
from dgnet_paper.model import PaperConfig
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.generate import generate

SHORT = Recipe("short", (Stage(3, 3, batch=2, lr=1e-2),), hold_out=1)
PROBLEM = """
[problem]
name = "slab"
title = "A slab <of> steel & tin"
fields = ["T"]
dt = 0.05
offset = { T = 1.0 }
[units]
length = "m"
time = "s"
T = "K"
[mesh]
file = "slab.npz"
[pde]
diffusion = 0.02
decay = 0.1
reaction = "unknown"
calibrate = ["diffusion", "convection"]
[[boundary]]
name = "left"
kind = "robin"
coefficient = 0.4
ambient = 1.0
[[data]]
file = "train.npz"
split = "train"
source = "none"
[[data]]
file = "test.npz"
split = "test"
source = "none"
[training]
windows = [3]
iterations = [4]
[model]
hidden = 8
layers = 1
reaction_hidden = 8
"""


class Reader(HTMLParser):
    """Tags that were opened and closed, images, and the words between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[bytes] = []
        self.words = ""
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links += [v for k, v in values.items() if k in ("src", "href") and v]
        if tag == "img":
            source = str(values["src"])
            assert source.startswith("data:image/png;base64,")
            self.images.append(base64.b64decode(source.split(",")[1]))
        elif tag not in ("meta", "link", "br", "hr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words += data


def read(path: Path) -> Reader:
    reader = Reader(path.read_text())
    assert not reader.open and all(link.startswith("data:") for link in reader.links)  # nothing from elsewhere
    assert "://" not in path.read_text() and "url(" not in path.read_text()
    for image in reader.images:
        with Image.open(io.BytesIO(image)) as found:
            assert found.size[0] > 300
    return reader


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["dgnet", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    return int(stop.value.code or 0)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return generate(get("laser-heat", "small"), tmp_path_factory.mktemp("data"), truth="same-mesh", trajectories=2)


def test_page_of_a_scenario(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                            capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    train(get("laser-heat", "small"), "same-mesh", data, folder,
          Plan(PaperConfig(hidden=8, layers=1, residual=True), SHORT, model="dgnet-paper"))
    assert command(monkeypatch, "evaluate", folder, "--json", tmp_path / "x.json") == 0
    assert "report.html" in capsys.readouterr().out
    found, result = read(folder / "report.html"), json.loads((tmp_path / "x.json").read_text())
    assert len(found.images) == 6  # error in time, best, worst, map, bands, history
    own = result["scores"]["dgnet-paper"]["rne_from_offset"]
    rival = min(result["scores"][n]["rne_from_offset"] for n in ("classical_consistent", "classical_lumped"))
    assert percent(own) in found.words and percent(rival) in found.words
    ratio = rival / own
    word = "smaller error" if ratio >= 1.05 else "Same error" if ratio > 0.95 else "larger error"
    assert word in found.words
    for needed in ("Laser heat treatment of a plate", "adds a bounded amount in each step", "source stencil", "residual network",
                   "482 nodes", "2 training trajectories", "--leave-one-out", "measured from 298.15"):
        assert needed in found.words, needed
    assert (result["warning"] is None) == ("stay within" in found.words)
    for needed in ("evaluated", "threads", "training"):
        assert needed in found.words, needed
    compare_field(folder, data, result)


def compare_field(folder: Path, data: Path, result: dict[str, Any]) -> None:
    """The numbers inside the page are those of the trajectory that it names, to the bits that they have."""
    text = (folder / "report.html").read_text()
    own = next(result["scores"][name] for name in ("dgnet", "dgnet-paper") if name in result["scores"])
    assert len(text) < 5e6

    def inner(name: str) -> str:
        return re.findall(rf'id="{name}">(.*?)</script>', text, re.S)[0]

    about, block = json.loads(inner("field-about")), zlib.decompress(base64.b64decode(inner("field-data")))
    assert json.loads(inner("field-scores"))["scores"] == result["scores"]
    number = int(np.argmax(own["trajectories"]))
    run = Run.open(folder)
    with Dataset(data) as dataset:
        true = dataset.batch(dataset.of("test")).state[number, :, :, 0].numpy()
    n, frames, skip = about["nodes"], len(about["times"]), 4 * (2 * about["nodes"] + sum(about["counts"]))
    assert frames == len(true) and about["times"][-1] == run.case.horizon and about["units"]["fields"] == ["K"]
    stored = np.frombuffer(block, np.uint16, frames * n, skip).reshape(frames, n) / 65535
    low, high = about["low"][0], about["high"][0]
    assert np.abs(low + stored * (high - low) - true).max() < 2e-5 * (high - low)
    error = np.frombuffer(block, np.int8, frames * n, skip + 2 * frames * n).reshape(frames, n) / 127 * about["scales"][0][0]
    rne = np.linalg.norm(error) / np.linalg.norm(true - 298.15)
    assert rne == pytest.approx(own["trajectories"][number], rel=0.05)
    assert len(block) == skip + frames * n * 5 and len(about["peaks"]) == frames and about["peaks"][3]


def test_page_of_a_baseline(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(entry("mgn").settings["comparable"], hidden=16)
    run, _ = train(get("laser-heat", "small"), "same-mesh", data, tmp_path / "run", Plan(config, SHORT, model="mgn"))
    result, states, truth = scoring.evaluate(run, data)
    figures = figures_of.draw(run, result, states, truth, tmp_path / "figures")
    found = read(page.write(run, result, states, truth, figures, tmp_path / "report.html"))
    assert "MGN has no operator" in found.words and "no meaning one by one" in found.words and "larger error" in found.words
    assert "spectrum" not in (tmp_path / "report.html").read_text().split("src=")[-1]
    monkeypatch.setattr(field, "BLOCK", 60_000)  # a page has a limit: fewer frames
    short = field.content(run, result, states, truth)
    assert 0 < len(short["block"]) <= 60_000
    monkeypatch.setattr(field, "_BYTES", 1000)
    assert "too large to be shown" in field.content(run, result, states, truth)["why"]


def slab(folder: Path) -> Path:
    """A problem of one's own: the truth has 1.5 times the diffusivity and exchange that the file says, and a reaction."""
    folder.mkdir()
    mesh = box((6, 5), perturb=0.2)
    save(mesh, folder / "slab.npz")
    pde = PDE(("T",), diffusion=0.03, decay=0.1, reaction=lambda u: 0.2 * u * (1.5 - u))
    problem = Problem(mesh, pde, (Robin("left", 0.6, 1.0),), 0.05)
    g = torch.Generator().manual_seed(0)
    start = 1 + 0.5 * torch.rand(4, mesh.n_nodes, 1, generator=g, dtype=torch.float64)
    states = rollout(Classical(), problem, start, None, 12).numpy()
    for name, part in (("train", states[:3]), ("test", states[3:])):
        np.savez(folder / f"{name}.npz", state=part, time=0.05 * np.arange(13))
    (folder / "problem.toml").write_text(PROBLEM)
    return folder


def test_page_of_a_project_names_coefficients_with_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"
    train_project(load(slab(tmp_path / "slab")), folder, minutes=0.02)
    weights = torch.load(folder / "weights.pt", weights_only=True)
    weights["calibration.diffusion"] = torch.tensor(1.5).log()  # as if it had had the time
    weights["calibration.convection"] = torch.tensor(0.8).log()
    torch.save(weights, folder / "weights.pt")
    monkeypatch.setenv("DGNET_VERIFY", "0")
    assert command(monkeypatch, "evaluate", folder) == 0
    run, found = Run.open(folder), read(folder / "report.html")
    assert "A slab <of> steel & tin" in found.words and "own problem" in found.words
    factors = run.model.coefficients()
    rows = {c.name: c for c in coefficients(run)}
    assert set(rows) == {"diffusivity", "convective exchange"}
    assert factors == {"diffusion": pytest.approx(1.5), "convection": pytest.approx(0.8)}
    assert rows["diffusivity"].value == "0.03 m2/s (given: 0.02)"
    assert rows["convective exchange"].value == "0.32 m/s (given: 0.4)"
    for row in rows.values():
        assert f"{row.factor:.4g} ×" in found.words and row.value in found.words
    assert "reaction.csv" in found.words and "does not include the reaction" in found.words
    assert "does not know the reaction and the calibrated diffusion and the calibrated convection" in found.words
    result = scoring.evaluate(run, run.data)[0]
    assert f"With the values found, its error is {percent(result['told']['rne_from_offset'])}" in found.words
    assert scoring.FOUND_VALUES in found.words and "do not know the reaction" in scoring.table(result)
    head = (folder / "page" / "reaction.csv").read_text().splitlines()[0]
    assert head == "T [K],r [K/s],standard deviation of r [K/s],share of training states"
    assert (folder / "page" / "reaction.png").exists() and len(found.images) == 6  # one test trajectory: no worst, but the reaction


def test_given_coefficients_per_field_and_region(tmp_path: Path) -> None:
    base = box((4, 4))
    mesh = Mesh(base.points, base.cells, dict(base.boundaries), {"steel": np.arange(10), "tin": np.arange(10, base.n_cells)})
    values = np.where(np.arange(mesh.n_cells) < 10, 0.3, 0.7)
    pde = PDE(("u", "v"), diffusion={"u": values, "v": 0.2}, decay=0.5)
    scenario = replace(get("laser-heat", "small"), build_mesh=lambda: mesh, pde=pde, conditions=())
    assert given_value(scenario, "diffusion", "diffusion of u in steel") == 0.3
    assert given_value(scenario, "diffusion", "diffusion of u in tin") == 0.7
    assert given_value(scenario, "diffusion", "diffusion of v in tin") == 0.2
    assert given_value(scenario, "diffusion", "diffusion of u") is None  # no single number
    assert given_value(scenario, "decay", "decay") == 0.5
    assert given_value(scenario, "convection", "convection") is None


def test_ratios() -> None:
    assert page._times(250.4) == "250×" and page._times(2.46) == "2.5×"

"""`dgnet-paper universal`: weights for a family of meshes, from the meshes alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.mesh import Mesh, box, save
from dgnet.mesh import load as load_mesh
from dgnet.models import rollout
from dgnet.models.universal import Tuned, Universal, UniversalNet
from dgnet.problems import Problem
from dgnet.problems.spot_table import SpotTable
from dgnet.projects import load
from dgnet.training.own import first_choice
from dgnet.training.run import Run
from dgnet_paper.universal import problems as scenario
from dgnet_paper.universal import training as universal
from paper.tests.command import dgnet_paper, refused
from tests.projects.conftest import STEPS, TOML, command, write_tiny

Tensor = torch.Tensor


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few steps, and a truth on the same mesh: what is tested here is the training."""
    whole = scenario.PartProblem.truth
    monkeypatch.setattr(scenario.PartProblem, "truth", lambda self: whole(self, refine=0, substeps=2))


def test_a_fresh_network_learns_from_meshes_alone(quick: None) -> None:
    family = [(f"box{k}", box((4 + k, 5), perturb=0.2)) for k in range(3)]
    parts = universal.parts_on(family, 1, 0)
    train = universal.batches(parts)
    torch.manual_seed(0)
    net = UniversalNet(2, 12, 1)
    found = universal.fit(net, train, train, seconds=6.0)
    assert found.updates > 5 and found.best < 0.95 * found.history[0]["validation"] and len(found.history) >= 3
    assert universal.ratio(net, train) == pytest.approx(found.best, rel=1e-6)
    net.trained_on(universal.ranges(train))
    assert float(net.fading(train[0].surroundings)[2].min()) == 1.0


def test_the_command(quick: None, tmp_path: Path) -> None:
    paths = []
    for k in range(4):
        paths.append(tmp_path / f"part{k}.msh")
        save(box((4, 4 + k), perturb=0.2), paths[-1])

    printed = dgnet_paper("universal", *paths, "--out", tmp_path / "w.pt", "--draws", 1, "--budget", 0.03)
    assert "of the better classical solver" in printed and UniversalNet.load(tmp_path / "w.pt").dim == 2
    assert "at least four meshes" in refused("universal", *paths[:2], "--out", tmp_path / "w.pt")


def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    torch.save({"sizes": torch.tensor([2, 8, 1])}, tmp_path / "empty.pt")
    (tmp_path / "text.pt").write_text("no weights")
    for name, words in (("empty.pt", "does not hold"), ("text.pt", "does not hold"), ("none.pt", "there is no file")):
        with pytest.raises(InputError, match=words):
            UniversalNet.load(tmp_path / name)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A problem folder, and the run that `dgnet train` makes of it."""
    place = tmp_path_factory.mktemp("tuned")
    folder = write_tiny(place / "tiny", TOML + "\n[training]\nminutes = 0.05\n")
    with pytest.MonkeyPatch.context() as patch:
        assert command(patch, "train", folder, "--out", place / "run", "--json", place / "train.json") == 0
    return folder, place / "run"


def test_training_starts_from_universal_weights(tuned: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    folder, run = tuned
    opened = Run.open(run)
    shipped = Universal().net(2)
    assert opened.settings.model == "universal-tuned" and isinstance(opened.model, Tuned) and shipped is not None
    told = json.loads((run.parent / "train.json").read_text())
    before, after = told["history"][0]["validation"], told["validation"]
    assert after < 0.9 * before and told["learned"]
    moved = [float((a - b).detach().abs().max()) for a, b in zip(opened.model.network.parameters(), shipped.parameters())]
    assert 0 < max(moved) < 0.5  # near where it started
    assert command(monkeypatch, "train", folder, "--out", run) == 0  # resumes: nothing is left to do
    assert "It started from universal weights" in capsys.readouterr().out
    assert command(monkeypatch, "evaluate", run, "--no-figures", "--json", run / "e.json") == 0
    scores = json.loads((run / "e.json").read_text())["scores"]
    assert scores["universal-tuned"]["rne_from_offset"] < scores["universal"]["rne_from_offset"]
    assert command(monkeypatch, "export", run, "--out", run / "step.pt2") == 0 and (run / "step.pt2").exists()


def test_a_tuned_run_goes_to_another_part(tuned: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                          capsys: pytest.CaptureFixture[str]) -> None:
    folder, run = tuned
    other = tmp_path / "other.msh"
    save(box((9, 7), upper=(1.0, 0.8), perturb=0.1), other)
    assert command(monkeypatch, "rollout", run, "--source", folder / "run-1.csv", "--mesh", other, "--out", tmp_path / "o.h5") == 0
    assert "on 80 nodes" in (said := capsys.readouterr().out) and "Universal weights act in full around" in said
    with Dataset(tmp_path / "o.h5") as data:
        found = data.read(0).state[-1, :, 0]
    opened = Run.open(run)
    mesh = load_mesh(other)
    problem = Problem(mesh, opened.case.pde, opened.case.conditions, opened.case.dt)
    points = torch.tensor(opened.model.points(problem))
    source = SpotTable.read(folder / "run-1.csv", 2).average(points, 0, STEPS, opened.case.dt)
    start = torch.full((1, mesh.n_nodes, 1), 20.0, dtype=torch.float64)
    with torch.no_grad():
        expected = rollout(opened.model, problem, start, source)[0, -1, :, 0]
    assert torch.allclose(torch.from_numpy(found).double(), expected, atol=1e-3)
    bare = tmp_path / "bare.msh"
    save(Mesh(mesh.points, mesh.cells), bare)
    assert command(monkeypatch, "rollout", run, "--source", folder / "run-1.csv", "--mesh", bare) == 2
    assert "left" in capsys.readouterr().err


def test_what_asks_for_dgnet_gets_it(tmp_path: Path) -> None:
    def chosen(more: str) -> str:
        return first_choice(load(write_tiny(tmp_path / "p", TOML.replace("diffusion = 0.05", f"diffusion = 0.05\n{more}"))))

    assert chosen("") == "universal-tuned"
    for more in ('calibrate = ["diffusion"]', 'reaction = "unknown"', "velocity = [0.1, 0.0]", "[training]\nwindows = [2]",
                 "[model]\nhidden = 8"):
        assert chosen(more) == "dgnet", more

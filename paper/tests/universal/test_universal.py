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
from dgnet.models.universal import ElementNet, Tuned, Universal, UniversalNet, load_weights
from dgnet.problems import Problem
from dgnet.problems.spot_table import SpotTable
from dgnet.projects import load
from dgnet.training.own import first_choice
from dgnet.training.run import Run
from dgnet.training.schedule import set_rates
from dgnet_paper.universal import problems as scenario
from dgnet_paper.universal import training as universal
from paper.tests.command import dgnet_paper, refused
from tests.projects.conftest import STEPS, TOML, command, write_tiny

Tensor = torch.Tensor


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A truth on the same mesh: what is tested here is the training."""
    whole = scenario.PartProblem.truth
    monkeypatch.setattr(scenario.PartProblem, "truth", lambda self: whole(self, refine=1))


@pytest.mark.parametrize("flow", [False, True])
def test_a_fresh_network_learns_from_meshes_alone(quick: None, flow: bool) -> None:
    family = [(f"box{k}", box((4 + k, 5), perturb=0.2)) for k in range(3)]
    parts = universal.examples(family, 1, 0, flow)
    train = universal.batches(parts)
    assert sum(batch.count for batch in train) == len(parts) and 0 < len(parts) <= 3
    torch.manual_seed(0)
    net = ElementNet(2, 2, 12, 1, 8, flow)
    found = universal.fit(net, train, train, seconds=3.0, rate=1e-2)
    assert found.updates > 5 and found.best < 0.97 and found.history[0]["validation"] == pytest.approx(1.0, abs=1e-4)
    assert len(found.history) >= 3 and universal.ratio(net, train) == pytest.approx(found.best, rel=1e-6)
    assert float(net.fading(train[0].surroundings)[2].min()) == 1.0


def test_what_is_judged_is_the_average_of_the_weights(quick: None) -> None:
    train = universal.batches(universal.examples([("box", box((4, 4), perturb=0.2))], 1, 0))
    net = ElementNet(2, 2, 8, 1, 8).requires_grad_(True)
    fit = universal._Fit(net, train, train, 100.0, 1e-2)
    fit.start(False)
    stage, mean = fit.recipe.stages[0], [p.detach().clone() for p in net.parameters()]
    for count in range(1, 4):
        set_rates(fit.optimiser, stage, 0.0)
        fit.update(stage)
        for a, p in zip(mean, net.parameters()):
            a += (1 - (count + 1) / (count + 10)) * (p.detach() - a)
    moved, seen = [p.detach().clone() for p in net.parameters()], list[float]()
    fit.error = lambda: seen.append(max(float((p - a).detach().abs().max()) for p, a in zip(net.parameters(), mean))) or 0.5
    fit.validate()
    assert seen[0] < 1e-7 < max(float((p - a).abs().max()) for p, a in zip(moved, mean))
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), moved))  # and training goes on from where it was
    assert all(torch.allclose(fit.best[name], a, atol=1e-7) for (name, _), a in zip(net.named_parameters(), mean))


def test_parts_of_about_the_same_size_are_solved_together(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(universal._ENTRIES, "cpu", 3 * 100**2)
    parts = universal.examples([(f"box{k}", box((4 + k % 2 * 4, 4), perturb=0.1)) for k in range(6)], 1, 1)
    made = universal.batches(parts)
    assert sorted(n for b in made for n in b.free.sum(1).int().tolist()) == sorted(int((~e.held).sum()) for e in parts)
    assert all(b.count * b.n**2 <= 3 * 100**2 or b.count == 1 for b in made)


def test_weights_from_nothing_on_drawn_parts(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gmsh", exc_type=ImportError)
    monkeypatch.setitem(universal.SIZES, 2, (12, 20))
    net, found = universal.train(2, 1.5, parts=5, device="cpu")
    assert (net.dim, net.degree, net.hidden, net.flow) == (2, 2, 64, False) and float(net.low_node.min()) > -1e6
    assert found.updates > 0 and found.history[0]["validation"] > 0.99 and found.best <= found.history[0]["validation"]
    with pytest.raises(InputError, match="flat meshes"):
        universal.train(3, flow=True)


@pytest.mark.parametrize("flow", [False, True])
def test_the_command(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
                     flow: bool) -> None:
    """From the shipped weights on; the file is one for `dgnet simulate`."""
    paths = []
    for k in range(4):
        paths.append(tmp_path / f"part{k}.msh")
        save(box((4, 4 + k), perturb=0.2), paths[-1])
    printed = dgnet_paper("universal", *paths, "--out", tmp_path / "w.pt", "--draws", 1, "--budget", 0.03, "--json",
                          tmp_path / "w.json", *["--flow"] * flow)
    net, told = load_weights(tmp_path / "w.pt"), json.loads((tmp_path / "w.json").read_text())
    assert "of the best classical solver" in printed and isinstance(net, ElementNet)
    assert (net.dim, net.degree, net.flow) == (2, 2, flow) and told["after"] <= told["before"]
    assert "at least four meshes" in refused("universal", *paths[:2], "--out", tmp_path / "w.pt")
    save(box((30, 30)), tmp_path / "large.msh")
    assert "at most 2500 of both" in refused("universal", *paths[:3], tmp_path / "large.msh", "--out", tmp_path / "w.pt")
    if not flow:
        folder = write_tiny(tmp_path / "tiny")
        assert command(monkeypatch, "simulate", folder, "--source", folder / "run-1.csv", "--weights", tmp_path / "w.pt",
                       "--out", tmp_path / "s.h5") == 0
        assert "Universal weights act" in capsys.readouterr().out
        save(box((3, 3, 3)), tmp_path / "solid.msh")
        assert "flat meshes" in refused("universal", *[tmp_path / "solid.msh"] * 4, "--flow", "--out", tmp_path / "w.pt")


def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    torch.save({"sizes": torch.tensor([2, 8, 1])}, tmp_path / "empty.pt")
    (tmp_path / "text.pt").write_text("no weights")
    for name, words in (("empty.pt", "does not hold"), ("text.pt", "does not hold"), ("none.pt", "there is no file")):
        with pytest.raises(InputError, match=words):
            UniversalNet.load(tmp_path / name)


@pytest.fixture(scope="module", params=[1, 2])
def tuned(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A problem folder, and the run that `dgnet train` makes of it: with linear elements, or quadratic ones where it asks."""
    place = tmp_path_factory.mktemp("tuned")
    asked = "" if request.param == 1 else "\n[model.universal-tuned]\ndegree = 2\n"
    folder = write_tiny(place / "tiny", TOML + "\n[training]\nminutes = 0.08\n" + asked)
    with pytest.MonkeyPatch.context() as patch:
        assert command(patch, "train", folder, "--out", place / "run", "--json", place / "train.json") == 0
    return folder, place / "run"


def test_training_starts_from_universal_weights(tuned: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch,
                                                capsys: pytest.CaptureFixture[str]) -> None:
    folder, run = tuned
    if "degree = 1" in (said := (run / "run.toml").read_text()):  # runs of before there was a choice
        (run / "run.toml").write_text(said.replace("degree = 1\n", ""))
    opened = Run.open(run)
    assert opened.settings.model == "universal-tuned" and isinstance(opened.model, Tuned)
    shipped = Universal(degree=opened.model.degree).net(2)
    assert shipped is not None and opened.model.name == Universal(degree=opened.model.degree).name
    told = json.loads((run.parent / "train.json").read_text())
    before, after = told["history"][0]["validation"], told["validation"]
    assert after < 0.97 * before and told["learned"]
    moved = [float((a - b).detach().abs().max()) for a, b in zip(opened.model.network.parameters(), shipped.parameters())]
    assert 0 < max(moved) < 0.5  # near where it started
    assert command(monkeypatch, "train", folder, "--out", run) == 0  # resumes: nothing is left to do
    assert "It started from universal weights" in capsys.readouterr().out
    assert command(monkeypatch, "evaluate", run, "--no-figures", "--json", run / "e.json") == 0
    scores = json.loads((run / "e.json").read_text())["scores"]
    of = "universal" if opened.model.degree == 1 else "universal_p2"
    assert scores["universal-tuned"]["rne_from_offset"] < scores[of]["rne_from_offset"]
    exported = command(monkeypatch, "export", run, "--out", run / "step.pt2") == 0
    assert exported == (run / "step.pt2").exists() == (opened.model.degree == 1)
    assert exported or "has values at the middles of the edges, which a program does not hold" in capsys.readouterr().err


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

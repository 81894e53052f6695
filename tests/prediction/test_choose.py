"""`dgnet simulate --error` and `dg.simulate`: what is chosen, how honest its estimate is, and what refuses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import dgnet as dg
from dgnet import cli
from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.prediction.choose import CLASSICAL, CURVED, WITH_UNIVERSAL, Candidate, Simulated, chosen
from dgnet.prediction.to_files import predict_to_files
from dgnet.training.simulator import simulator
from tests.prediction.test_simulate import PROBLEM, SPOTS

MESH = dg.box((8, 8), perturb=0.2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    dg.save_mesh(MESH, tmp_path / "plate.msh")
    (tmp_path / "problem.toml").write_text(PROBLEM)
    (tmp_path / "spots.csv").write_text(SPOTS)
    return tmp_path


def insulated(wave: float) -> tuple[dg.Problem, torch.Tensor, float]:
    """cos(k x) decays on an insulated plate at the rate D k^2: problem, start [1, N, 1] and rate."""
    k = wave * math.pi
    problem = dg.Problem(dg.box((8, 8)), dg.PDE(diffusion=1 / k**2), [], dt=0.25)
    return problem, torch.tensor(np.cos(k * problem.mesh.points[None, :, :1])), 1.0


def true_error(found: Simulated, problem: dg.Problem, start: torch.Tensor, rate: float) -> float:
    """Root mean square over part and time, as a share of the range."""
    t = problem.dt * torch.arange(found.states.shape[1], dtype=torch.float64)[:, None, None]
    truth = start * torch.exp(-rate * t)
    mesh = problem.mesh
    weights = np.bincount(mesh.cells.ravel(), np.repeat(mesh.volumes, 3)) / 3 / mesh.volumes.sum()
    square = (found.states[0] - truth).square()[1:, :, 0].mean(0).numpy()
    return float(np.sqrt(weights @ square)) / float(start.max() - start.min())


@pytest.mark.parametrize("wave", [1, 2])
@pytest.mark.parametrize("error", [0.03, 0.003, 0.001])
def test_estimates_agree_with_the_exact_solution(wave: float, error: float) -> None:
    problem, start, rate = insulated(wave)
    found = dg.simulate(problem, error=f"{100 * error}%", initial=lambda x: torch.cos(wave * math.pi * x[None, :, :1]), steps=8)
    true = true_error(found, problem, start, rate)
    assert found.choice is not None and 1 / 3 < found.choice.estimate / true < 3, (found.choice.sentences, true)
    assert not found.choice.reached or true <= error


def test_an_easy_problem_gets_linear_elements_a_hard_one_better_ones_and_the_same_every_time() -> None:
    problem, start, _ = insulated(1)
    easy, hard, again = (dg.simulate(problem, error=e, initial=start, steps=8) for e in ("5%", "0.05%", "0.05%"))
    assert easy.choice is not None and hard.choice is not None
    assert easy.choice.candidate == Candidate("classical", False, 1) and easy.choice.reached
    assert hard.choice.candidate != easy.choice.candidate and hard.choice.reached
    assert hard.choice == again.choice and torch.equal(hard.states, again.states)
    works = [t.work for t in hard.choice.trials]
    assert works == sorted(works)
    cheaper = [t for t in hard.choice.trials if t.work < hard.choice.candidate.work(problem.mesh, 8)]
    assert all(t.upper is None or t.upper > 0.0005 for t in cheaper)  # nothing cheaper was judged good enough


def test_what_cannot_be_reached_is_said_and_the_best_is_taken() -> None:
    problem, start, _ = insulated(2)
    found = dg.simulate(problem, error=1e-9, initial=start, steps=4)
    assert found.choice is not None and not found.choice.reached
    assert found.choice.candidate == WITH_UNIVERSAL[-1].reference and "Nothing within reach" in found.choice.sentences[1]


@pytest.mark.parametrize("kind", ["reaction", "curve", "flow in time", "steady flow", "held in time", "periodic", "two fields"])
def test_other_problems_are_solved_by_what_handles_them(kind: str) -> None:
    mesh = dg.box((6, 6))
    pde, rules, width = dg.PDE(diffusion=0.05), [], 1
    wind = torch.tensor([[0.3, 0.1]]).double().expand(mesh.n_nodes, 2)
    if kind == "reaction":
        pde = dg.PDE(diffusion=0.05, reaction=lambda u: u * (1 - u))
    elif kind == "curve":
        pde = dg.PDE(diffusion=dg.Curve([0.0, 1.0], [0.03, 0.08]), capacity=1.0)
    elif kind == "flow in time":
        pde = dg.PDE(diffusion=0.05, velocity=lambda t: wind * (1 + math.sin(t)))
    elif kind == "steady flow":
        pde = dg.PDE(diffusion=0.05, velocity=wind)
    elif kind == "held in time":
        rules = [dg.Dirichlet("left", lambda x, t: 1 + 0 * x[:, 0] + math.sin(t)),
                 dg.Robin("right", 0.2, lambda x, t: t + 0 * x[:, 0])]
    elif kind == "periodic":
        rules = [dg.Periodic("left", "right")]
    else:
        pde, width = dg.PDE(("u", "v"), diffusion={"u": 0.05, "v": 0.01}), 2
    problem = dg.Problem(mesh, pde, rules, dt=0.1)
    start = torch.tensor(np.repeat(np.cos(2 * np.pi * mesh.points[None, :, :1]) * 0.3 + 0.5, width, 2))
    found = dg.simulate(problem, error="0.5%", initial=start, steps=6)
    assert found.choice is not None and found.states.shape == (1, 7, 49, width) and torch.isfinite(found.states).all()
    acts = kind in ("steady flow", "held in time")
    assert acts or not any(t.candidate.name.startswith("universal") for t in found.choice.trials)
    assert not any(t.failed for t in found.choice.trials)
    fine = dg.simulate(problem, error="0.0001%", initial=start, steps=6)  # the best there is, for a truth
    span = (fine.states.amax((0, 1, 2)) - fine.states.amin((0, 1, 2)))
    off = ((found.states - fine.states)[0, 1:].square().mean((0, 1)).sqrt() / span).max()
    assert not found.choice.reached or float(off) < 0.006  # the estimate weighs nodes by their volume
    assert found.choice.notes or kind in ("held in time", "periodic")


def test_probes_are_asked_for_too() -> None:
    problem, start, _ = insulated(1)
    found = dg.simulate(problem, error="1%", initial=start, steps=6, probes=[(0.1, 0.5), (0.5, 0.5)])
    assert found.choice is not None and len(found.choice.probes) == 2
    assert found.choice.probes[1] < found.choice.probes[0] <= found.choice.estimate  # the middle stays at zero
    assert "At probe 2" in " ".join(found.choice.sentences)


def test_a_folder_and_the_same_problem_in_python_agree(folder: Path) -> None:
    """Spots, half steps and a refined mesh by files, and by a function of its own."""
    case = simulator(folder).case
    spots = dg.SpotTable.read(folder / "spots.csv", 2)
    start = torch.full((1, case.mesh.n_nodes, 1), 20.0)
    for error in ("3%", "0.5%"):
        here = dg.simulate(folder, error=error, source=folder / "spots.csv", steps=12)
        there = dg.simulate(case.problem(), error=error, source=spots, initial=start, steps=12)
        assert here.choice is not None and there.choice is not None and here.choice.candidate == there.choice.candidate
        assert here.choice.estimate == pytest.approx(there.choice.estimate, rel=1e-2)
        assert torch.allclose(here.states.double(), there.states.double(), atol=1e-3)
    plain = dg.simulate(case.problem(), source=lambda x, t: spots(x, t), initial=start, steps=12, model="quadratic")
    assert plain.choice is None and float((plain.states - there.states).abs().max()) < 0.05 * float(there.states.max() - 20)


def test_averages_in_a_file_keep_their_time_in_shorter_steps(folder: Path) -> None:
    """Steps of the file are those of the problem, whatever steps are chosen: what is brought in is the same."""
    text = PROBLEM.replace('kind = "robin"\ncoefficient = 0.5\nambient = 20.0', 'kind = "neumann"\nflux = 0.0')
    (folder / "problem.toml").write_text(text)
    rows = np.zeros((6, MESH.n_nodes), dtype=np.float32)
    rows[1:3] = 5.0
    np.save(folder / "f.npy", rows)
    for parts in (1, 2, 4):
        run = simulator(folder, "classical")
        states: list[np.ndarray] = []
        result = predict_to_files(replace(run, parts=parts), source=folder / "f.npy",
                                  sink=lambda k, u, states=states: states.append(u.copy()))
        assert result["steps"] == 6 * parts and len(states) == 7
        assert states[-1].mean() == pytest.approx(20 + 2 * 5.0 * 0.02, abs=1e-4)


def test_the_command_says_what_it_chose_and_its_files_are_used_by_others(folder: Path, monkeypatch: pytest.MonkeyPatch,
                                                                        capsys: pytest.CaptureFixture[str]) -> None:
    def run(*arguments: object) -> int:
        monkeypatch.setattr("sys.argv", ["dgnet", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0)

    common = "simulate", folder, "--source", folder / "spots.csv", "--steps", 12
    assert run(*common, "--error", "0.4%", "--probe", "0.5,0.5", "--every", 2, "--out", folder / "o.h5", "--json",
               folder / "o.json", "--png", folder / "o.png") == 0
    said, result = capsys.readouterr().out, json.loads((folder / "o.json").read_text())
    found = result["chosen"]
    assert "Chosen: " in said and "At probe 1" in said and found["asked"] == "0.4%" and found["reached"]
    with Dataset(folder / "o.h5") as data:
        assert data.dt == pytest.approx(0.04) and data.steps == 6 and data.provenance["asked_error"] == "0.4%"
        assert data.provenance["model"] == found["model"] and data.provenance["parts"] == found["parts"]
        stored = data.read(0).state
    again = dg.simulate(folder, error="0.4%", source=folder / "spots.csv", steps=12, probes=[(0.5, 0.5)])
    assert np.array_equal(stored, again.states[0, ::2].numpy())
    assert run("show", folder / "o.h5", "--out", folder / "pictures") == 0
    for bad, words in ((("--error", "much"), "share"), (("--error", "-1%"), "positive"), (("--error", "nan"), "positive"),
                       (("--error", "1%", "--probe", "7,7"), "outside"), (("--error", "1%", "--probe", "a"), "coordinates"),
                       (("--error", "1%", "--model", "quadratic"), "chooses"), (("--probe", "0.5,0.5"), "belongs to --error"),
                       (("--error", "1%", "--adaptive", "1e-3"), "chooses")):
        capsys.readouterr()
        assert run(*common, *bad) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1 and words in lines[0], lines


def test_an_interrupted_simulation_makes_the_same_choice_and_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dgnet.report.series.PAUSE", -1.0)
    options = {"source": folder / "spots.csv", "steps": 12}
    run, choice = chosen(simulator(folder), "0.02%", **options)
    whole = dg.simulate(folder, error="0.02%", **options).states[0].numpy()
    assert choice.candidate.parts > 1 or choice.candidate.fine

    def stop(k: int, u: np.ndarray) -> None:
        if k == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_to_files(run, sink=stop, out=folder / "o.h5", **options)
    run, _ = chosen(simulator(folder), "0.02%", **options)
    result = predict_to_files(run, out=folder / "o.h5", **options)
    assert result["resumed_from"] >= 7
    with Dataset(folder / "o.h5") as data:
        assert np.array_equal(data.read(0).state, whole)


def test_a_spot_that_the_mesh_misses_is_said(folder: Path) -> None:
    (folder / "spots.csv").write_text(SPOTS.replace("0.15", "0.01"))
    choice = dg.simulate(folder, error="5%", source=folder / "spots.csv", steps=6).choice
    assert choice is not None and any("warnings" in note for note in choice.notes)


@pytest.mark.parametrize(("options", "words"), [
    ({"error": "100%"}, "below 100%"), ({"error": 0.0}, "positive"), ({"initial": None}, "start"),
    ({"source": Path("x.csv")}, "files"), ({"model": "quadratic"}, "chooses the model"),
    ({"initial": torch.ones(2, 81, 1)}, "one trajectory"), ({"initial": torch.ones(81, 1)}, "one trajectory"),
    ({"error": None, "probes": [(0.1, 0.1)]}, "belong"), ({"probes": [(3.0, 3.0)]}, "outside"), ({"probes": [(0.1,)]}, "points")])
def test_bad_values_are_refused(options: dict, words: str) -> None:
    problem, start, _ = insulated(1)
    with pytest.raises(InputError, match=words):
        dg.simulate(problem, **{"error": "1%", "initial": start, "steps": 3} | options)
    two = dg.Problem(dg.box((3, 3)), dg.PDE(("a", "b"), diffusion=0.1), [], dt=0.1)
    with pytest.raises(InputError, match="give a share"):
        dg.simulate(two, error=0.1, initial=torch.ones(1, 16, 2), steps=2)


@pytest.mark.parametrize("stages", [WITH_UNIVERSAL, CLASSICAL, CURVED])
def test_every_reference_is_dearer_than_its_partner_and_the_one_before(stages: tuple) -> None:
    works = [[c.work(dg.box((20, 20)), 100) for c in (stage.partner, stage.reference)] for stage in stages]
    assert all(partner < reference for partner, reference in works) and works == sorted(works)
    assert all(stage.usual < stage.most < 1 for stage in stages)

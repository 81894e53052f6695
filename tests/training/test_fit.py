"""The training loop: resumes bit for bit, several processes as one, nothing unpickled, never worse than untrained."""

from __future__ import annotations

import math
import pickle
import socket
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed

from dgnet.data import Corpus, Dataset, Header, Trajectory, write_dataset
from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.problems import PDE, Problem, Robin
from dgnet.recipe import paper_recipe
from dgnet.training import Progress, Recipe, Stage, evaluate_rne, fit, load_checkpoint, split
from dgnet_paper.model import BOUNDED
from dgnet_paper.scenarios import get
from tests.cli.forked import start

Tensor = torch.Tensor
STEPS = 10
CONFIG = DGNetConfig(free=True, learn_start=True, reaction="learned", calibrate=("diffusion",), hidden=12, layers=1,
                     reaction_hidden=12)
RECIPE = Recipe("test", (Stage(6, 2, batch=4, lr=3e-3, first=1, noise=0.02, pushforward=1, only=("reaction_net",)),
                         Stage(8, 4, batch=4, lr=3e-3, from_start=0.5)), validations=4)


def base(factor: float = 1.0, dtype: torch.dtype = torch.float64) -> Problem:
    pde = PDE(diffusion=0.05 * factor, reaction=lambda u: u - u**3)
    return Problem(box((5, 4), perturb=0.2), pde, (Robin("left", 1.0, 0.5),), 0.05, dtype=dtype)


def corpus(count: int, seed: int = 0, steps: int = STEPS) -> Corpus:
    """What a problem with another diffusivity does."""
    problem, g = base(0.6), torch.Generator().manual_seed(seed)
    u0 = 2.4 * torch.rand(count, problem.mesh.n_nodes, 1, dtype=torch.float64, generator=g) - 1.2
    f = torch.randn(count, steps, problem.mesh.n_nodes, 1, dtype=torch.float64, generator=g)
    with torch.no_grad():
        return Corpus(rollout(Classical(), problem, u0, f), f, None, problem.dt, (0.5,))


def new_model(config: DGNetConfig = CONFIG, seed: int = 0) -> DGNet:
    torch.manual_seed(seed)
    return DGNet(config, base()).double()


def timeless(progress: Progress) -> list[dict[str, float]]:
    return [{k: v for k, v in row.items() if k != "seconds"} for row in progress.history]


def same(a: DGNet, b: DGNet) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values(), strict=True))


class Killed(Exception):
    pass


@pytest.mark.parametrize("after", [2, 9])
def test_killed_and_resumed_is_unbroken_bit_for_bit(after: int, tmp_path: Path) -> None:
    train, valid = corpus(3), corpus(2, 1)
    whole = new_model()
    unbroken = fit(whole, base(), train, valid, RECIPE, seed=5, folder=_folder(tmp_path / "a"))

    def kill(progress: Progress, _: int) -> None:
        if progress.iteration == after:
            raise Killed

    folder = _folder(tmp_path / "b")
    with pytest.raises(Killed):
        fit(new_model(), base(), train, valid, RECIPE, seed=5, folder=folder, report=kill)
    again = new_model(seed=99 if (folder / "last.pt").exists() else 0)  # weights come from the file
    resumed = fit(again, base(), train, valid, RECIPE, seed=5, folder=folder)
    assert same(whole, again)
    assert resumed.best == unbroken.best and resumed.best_iteration == unbroken.best_iteration
    assert str(timeless(resumed)) == str(timeless(unbroken))  # as text: the first loss is not a number
    assert not list(folder.glob("*.part"))
    if after > 4:
        assert resumed.classical == unbroken.classical


@pytest.mark.parametrize("after", [3, 9])
def test_killed_between_steps_back_it_resumes_bit_for_bit(after: int, tmp_path: Path) -> None:
    """Rates that are far too high: the weights are taken back again and again."""
    train, valid = corpus(3), corpus(2, 1)
    hasty = Recipe("hasty", (Stage(12, 4, batch=2, lr=0.5),), retreat=1.01)
    whole, again = new_model(), new_model()
    unbroken = fit(whole, base(), train, valid, hasty, seed=5, folder=_folder(tmp_path / "a"))
    assert unbroken.retreats > 1 and unbroken.slower < 1 / 16

    def kill(progress: Progress, _: int) -> None:
        if progress.iteration == after:
            raise Killed

    with pytest.raises(Killed):
        fit(new_model(), base(), train, valid, hasty, seed=5, folder=_folder(tmp_path / "b"), report=kill)
    resumed = fit(again, base(), train, valid, hasty, seed=5, folder=tmp_path / "b")
    assert same(whole, again) and str(timeless(resumed)) == str(timeless(unbroken))
    assert (resumed.retreats, resumed.slower) == (unbroken.retreats, unbroken.slower)


def test_the_first_checkpoint_knows_the_untrained_error(tmp_path: Path) -> None:
    def kill(progress: Progress, _: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        fit(new_model(), base(), corpus(3), corpus(2, 1), RECIPE, folder=tmp_path, report=kill)
    stored = load_checkpoint(tmp_path / "last.pt")["progress"]
    assert stored["history"][0]["validation"] == evaluate_rne(new_model(), base(), corpus(2, 1))
    assert stored["classical"] == evaluate_rne(Classical(new_model().config.consistent), base(), corpus(2, 1))


def _folder(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    train, valid = corpus(3), corpus(2, 1)
    first = new_model()
    fit(first, base(), train, valid, RECIPE, folder=tmp_path)
    written = (tmp_path / "last.pt").read_bytes()
    second = new_model(seed=7)
    called: list[int] = []
    fit(second, base(), train, valid, RECIPE, folder=tmp_path, report=lambda p, n: called.append(p.iteration))
    assert same(first, second) and not called and (tmp_path / "last.pt").read_bytes() == written
    other = fit(new_model(), base(), train, valid, RECIPE, folder=tmp_path, resume=False, seed=1)
    assert len(other.history) == 5 and (tmp_path / "last.pt").read_bytes() != written


# ---------------------------------------------------------------------- several processes


def _process(rank: int, world: int, port: int, batch: int, out: str) -> None:
    if world > 1:
        distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    model = new_model()
    recipe = replace(RECIPE, stages=tuple(replace(s, batch=batch) for s in RECIPE.stages))
    fit(model, base(), corpus(3), corpus(2, 1), recipe, seed=5, folder=_folder(Path(out)))
    torch.save(model.state_dict(), Path(out) / f"weights-{rank}.pt")
    if world > 1:
        distributed.destroy_process_group()


def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    _process(0, 1, port, 4, str(tmp_path / "one"))
    both = [start(_process, rank, 2, port, 4, str(tmp_path / "two")) for rank in (0, 1)]
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    one, *two = (torch.load(tmp_path / p, weights_only=True)
                 for p in ("one/weights-0.pt", "two/weights-0.pt", "two/weights-1.pt"))
    fresh = new_model().state_dict()
    for name, value in one.items():
        assert torch.equal(two[0][name], two[1][name])  # all processes end with the same weights
        assert torch.allclose(two[0][name], value, rtol=1e-6, atol=1e-8), name
    assert any(not torch.equal(fresh[name], value) for name, value in one.items() if name.startswith("reaction_net"))


# ---------------------------------------------------------------------- checkpoints


class Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self):
        return Path.touch, (self.target,)


@pytest.mark.parametrize("how", ["torch", "pickle", "hidden", "noise", "cut"])
def test_a_checkpoint_that_could_run_code_is_refused(how: str, tmp_path: Path) -> None:
    target, path = tmp_path / "was-here", tmp_path / "last.pt"
    if how == "torch":
        torch.save(Evil(target), path)
    elif how == "pickle":
        path.write_bytes(pickle.dumps(Evil(target)))
    elif how == "hidden":
        torch.save({"model": new_model().state_dict(), "best": {}, "optimiser": {}, "progress": {"iteration": Evil(target)}}, path)
    elif how == "noise":
        path.write_bytes(b"not a checkpoint")
    else:
        torch.save(new_model().state_dict(), path)
        path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match=r"last\.pt"):
        load_checkpoint(path)
    with pytest.raises(InputError, match=r"last\.pt"):
        fit(new_model(), base(), corpus(2), corpus(1, 1), RECIPE, folder=tmp_path)
    assert not target.exists()


def test_a_missing_checkpoint_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no file"):
        load_checkpoint(tmp_path / "none.pt")


# ---------------------------------------------------------------------- what is promised


@pytest.mark.parametrize("rate", [3e-3, 3.0])
def test_the_result_is_never_worse_than_untrained(rate: float, tmp_path: Path) -> None:
    """Even for a rate of learning that ruins the model."""
    train, valid = corpus(3), corpus(2, 1)
    recipe = replace(RECIPE, stages=tuple(replace(s, lr=rate, only=()) for s in RECIPE.stages))
    model = new_model()
    untrained = evaluate_rne(model, base(), valid)
    progress = fit(model, base(), train, valid, recipe, folder=tmp_path)
    after = evaluate_rne(model, base(), valid)
    assert progress.history[0]["validation"] == untrained and after <= untrained and after == progress.best
    assert (after < 0.95 * untrained) == (rate < 1)
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in load_checkpoint(tmp_path / "last.pt")["best"].items())


def test_training_reduces_the_error() -> None:
    """A reaction that is not known and a diffusivity that is wrong, from three trajectories."""
    train, valid = corpus(3), corpus(2, 1)
    stage = Stage(120, 4, batch=8, lr=1e-2)
    model = new_model(replace(CONFIG, learn_start=False))
    progress = fit(model, base(), train, valid, Recipe("short", (stage,)))
    assert progress.best < 0.35 * progress.history[0]["validation"]
    assert progress.iteration == 120 and math.isnan(progress.history[0]["loss"]) and len(progress.history) == 21


def test_a_budget_ends_the_training_in_time() -> None:
    long = Recipe("long", (Stage(100_000, 2, batch=2), Stage(100_000, 4, batch=2, only=("free_",))))
    progress = fit(new_model(), base(), corpus(2), corpus(1, 1), long, budget=1.5)
    assert progress.seconds < 4 and math.isfinite(progress.best)
    assert progress.iteration > 100_000  # the second stage had its share


def test_the_paper_recipe_runs() -> None:
    recipe = paper_recipe(get("allen-cahn", "small").training.paper, 3, STEPS)
    assert recipe.stages[0].loss == "ends" and recipe.stages[0].length == STEPS  # shorter data, shorter windows
    model = new_model(replace(BOUNDED, hidden=8, layers=1, residual_hidden=8, residual_layers=1))
    short = replace(recipe, stages=(replace(recipe.stages[0], iterations=4, batch=3),))
    progress = fit(model, base(), corpus(3), corpus(1, 1), short)
    assert progress.iteration == 4


def test_test_trajectories_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are poisoned: reading one raises."""
    mesh, data = base().mesh, corpus(6)
    time = data.dt * np.arange(STEPS + 1)
    rows = []
    for k in range(6):
        state, f = (v[k].numpy().astype(np.float32) for v in (data.state, data.source_average))  # type: ignore[index]
        if k >= 4:
            state = np.full_like(state, np.nan)
        rows.append(Trajectory(state, time, np.concatenate([f, f[-1:]]), f, seed=k, split="train" if k < 4 else "test", index=k))
    path = tmp_path / "set.h5"
    write_dataset(path, Header(mesh, ("u",), data.dt, STEPS, (0.5,)), rows)
    read = Dataset.read
    seen: set[int] = set()

    def spy(self: Dataset, number: int, *args, **kwargs):
        seen.add(number)
        return read(self, number, *args, **kwargs)

    monkeypatch.setattr(Dataset, "read", spy)
    with Dataset(path) as dataset:
        training, validation = split(dataset, RECIPE)
        assert sorted(training + validation) == [0, 1, 2, 3] and len(validation) == 2
        parts = [dataset.batch(numbers) for numbers in (training, validation)]
        model = DGNet(CONFIG, base(dtype=torch.float32))
        progress = fit(model, base(dtype=torch.float32), *parts, RECIPE)
        assert split(dataset, RECIPE, limit=1) == ([0], [0])
        with pytest.raises(InputError, match="not a finite number"):
            dataset.read(4)
    assert math.isfinite(progress.best) and seen == {0, 1, 2, 3, 4}


def test_windows_are_pieces_of_their_trajectories() -> None:
    data = corpus(3)
    velocity = torch.randn(3, STEPS + 1, base().mesh.n_nodes, 2, dtype=torch.float64)
    data = replace(data, velocity=velocity)
    piece = data.windows(torch.tensor([2, 0]), torch.tensor([1, 6]), 4)
    assert torch.equal(piece.state[0], data.state[2, 1:6]) and torch.equal(piece.state[1], data.state[0, 6:11])
    assert piece.source_average is not None and data.source_average is not None
    assert torch.equal(piece.source_average[1], data.source_average[0, 6:10])
    assert piece.velocity is not None and torch.equal(piece.velocity[0], velocity[2, 1:6]) and piece.steps == 4
    flow = piece.problem(base()).pde.velocity
    assert callable(flow) and torch.allclose(flow(data.dt), velocity[[2, 0], [2, 7]])

"""Bands on predictions: coverage of fresh trajectories, distance from the training data, what is stored and refused."""

from __future__ import annotations

import json
from pathlib import Path

import meshio
import numpy as np
import pytest
import torch

from dgnet.data import Corpus, Dataset
from dgnet.errors import InputError
from dgnet.mesh import box
from dgnet.models import Classical, rollout
from dgnet.prediction.to_files import predict_to_files, summary
from dgnet.problems import PDE, Problem, Robin
from dgnet.projects.project import Project, project, trajectory
from dgnet.training.evaluate import evaluate
from dgnet.training.own import train_project
from dgnet.training.run import Run
from dgnet.trust.bands import FILE, LEVELS, Bands, Bends, bands_of, calibrate, scores_of, sentences, stored_bands
from dgnet.trust.distance import GROUPS, Known, Profile, profiles_of

PLATE = Problem(box((6, 6)), PDE(diffusion=0.05), [Robin("boundary", 0.5, 0.0)], 0.1)
STEPS = 8


def drawn(count: int, seed: int, power: float = 3.0, first: float = 0.0) -> tuple[Corpus, torch.Tensor]:
    """Trajectories under a spot on a random way, by the consistent mass; and rollouts of the lumped one, the model to be judged."""
    rng, x = np.random.default_rng(seed), torch.tensor(PLATE.mesh.points)
    ends, size = torch.from_numpy(rng.uniform(0.1, 0.9, (count, 2, 1, 1, 2))), rng.uniform(0.8, 1.2, count)
    s = torch.linspace(0, 1, STEPS, dtype=torch.float64)[:, None, None]
    near = torch.exp(-((x - ends[:, 0] * (1 - s) - ends[:, 1] * s) ** 2).sum(-1) / (2 * 0.15**2))
    f = (power * torch.from_numpy(size)[:, None, None] * near)[..., None]
    start = torch.full((count, len(x), 1), first, dtype=torch.float64)
    true, states = (rollout(Classical(mass), PLATE, start, f) for mass in (1.0, 0.0))
    return Corpus(true, f, None, 0.1, (0.0,)), states


@pytest.mark.parametrize("n", [9, 29])
def test_coverage_of_fresh_trajectories_is_between_the_stated_bounds(n: int) -> None:
    """Over 150 draws of the calibrating trajectories: at least what is promised, at most 2 / (n + 1) more."""
    train_data, train_states = drawn(6, 0)
    bands, scores = calibrate(PLATE.mesh, train_data, train_states, *drawn(300, 1))
    rng = np.random.default_rng(2)
    for level in LEVELS:
        inside, whole = [], []
        for _ in range(150):
            order = rng.permutation(300)
            q, fresh = scores.promise(level, order[:n].tolist()), order[n:]
            inside.append((scores.some[fresh] <= q.average).mean())
            whole.append((scores.largest[fresh] <= q.everywhere).mean())
        assert q.average_promised == min(level, n / (n + 1)) <= np.mean(inside) <= q.average_promised + 2 / (n + 1)
        assert q.everywhere_promised - 0.02 < np.mean(whole) < q.everywhere_promised + 0.02  # its own spread over 150 draws
    assert bands.trajectories == 300 and [p.level for p in bands.promises] == list(LEVELS)


def test_distance_widens_bands_and_says_why() -> None:
    train_data, train_states = drawn(8, 0)
    mesh = PLATE.mesh
    bands, _ = calibrate(mesh, train_data, train_states, *drawn(20, 1))
    assert all(bands.known.widening(p)[0] == 1.0 for p in profiles_of(train_data, mesh))
    like, (strong, _), (warm, _) = drawn(20, 3)[0], drawn(1, 4, power=30.0), drawn(1, 5, first=2.0)
    usual = np.median([bands.known.widening(p)[0] for p in profiles_of(like, mesh)])
    assert usual < 1.5
    for data, group in ((strong, "power"), (warm, "start")):
        wide, what = bands.known.widening(profiles_of(data, mesh)[0])
        assert wide > 2 * usual and what == group
    longer = profiles_of(like, mesh)[0]
    longer[GROUPS.index("duration")] = 10 * longer[GROUPS.index("duration")]
    assert bands.known.widening(longer)[1] == "duration"
    assert Known.of(profiles_of(drawn(1, 0)[0], mesh), 1.0).widening(profiles_of(strong, mesh)[0])[0] == 1.0  # one says nothing


def test_a_profile_is_gathered_block_by_block() -> None:
    data, _ = drawn(1, 7)
    assert data.source_average is not None
    f, whole = data.source_average[0].numpy(), profiles_of(data, PLATE.mesh)[0]
    first = Profile(PLATE.mesh, 1)
    first.state(0, data.state[0, 0].numpy())
    first.sources(0, f[:5])
    second = Profile(PLATE.mesh, 1)
    second.memory = first.memory
    second.sources(3, f[3:])  # a resumed rollout fetches the block it was in once more
    for a, b in zip(second.groups(data.steps * data.dt), whole):
        assert np.allclose(a, b)


def test_bends_are_distances_from_the_mean_of_neighbours() -> None:
    mesh, u = box((3, 3)), np.random.default_rng(0).standard_normal((2, 16, 1))
    found = Bends(mesh)(u)
    for node in range(16):
        around = [int(k) for edge in mesh.edges if node in edge for k in edge if k != node]
        assert np.allclose(found[:, node], np.abs(u[:, around].mean(1) - u[:, node]))


def stored(path: Path, seed: int, splits: tuple[str, ...]) -> Project:
    """Trajectories of `drawn` as a problem made in Python, with its data set; the truth has the mean of both ends of each step."""
    rng, mesh, runs = np.random.default_rng(seed), PLATE.mesh, []
    for split in splits:
        near = np.exp(-np.square(mesh.points - rng.uniform(0.2, 0.8, 2)).sum(1) / (2 * 0.15**2))
        f = rng.uniform(2, 4, (STEPS + 1, 1)) * near
        start = torch.zeros(1, mesh.n_nodes, 1, dtype=torch.float64)
        true = rollout(Classical(0.3), PLATE, start, torch.from_numpy(0.5 * (f[:-1] + f[1:]))[None, ..., None])
        runs.append(trajectory(true[0].numpy(), mesh, PLATE.dt, f, split))
    return project("plate", mesh, PLATE.pde, PLATE.conditions, PLATE.dt, runs, path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    root = tmp_path_factory.mktemp("bands")
    return train_project(stored(root / "data.h5", 0, ("train",) * 3 + ("test",) * 2), root / "run", model="dgnet", minutes=0.002)[0]


def test_rollouts_carry_the_bands_of_an_evaluation(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there are no bands"):
        predict_to_files(run, trajectory=3, steps=2, band=0.9)
    result, states, truth = evaluate(run, run.data)
    before = json.dumps(result["scores"])
    tested = bands_of(run, states["dgnet"], truth)
    assert tested is not None and json.dumps(result["scores"]) == before
    found = tested.summary()
    row = found["levels"][1]
    assert row["promised"] == pytest.approx(2 / 3) and row["tested_promised"] == 0.5 and 0 < row["covered"] <= 1
    assert "90% would need 9 trajectories" in sentences(found)[0]
    kept = stored_bands(run)
    assert kept is not None and kept.promises == tested.bands.promises and np.allclose(kept.known.rows, tested.bands.known.rows)
    told = predict_to_files(run, trajectory=3, out=tmp_path / "o.h5", vtk=tmp_path / "o.pvd", every=2)
    assert told["bands"]["promised"] == pytest.approx(2 / 3) and "Bands from 2 test trajectories" in summary(told)
    with np.load(tmp_path / "o-bands.npz") as archive, Dataset(run.data) as data, Dataset(tmp_path / "o.h5") as out:
        half, true, u = archive["half_width"], data.read(3).state[::2], out.read(0).state
    assert half.shape == u.shape and (half[0] == 0).all()
    assert (np.abs(u - true) <= 1.001 * half + 1e-4).all()  # with two trajectories, the band holds all of both
    last = meshio.read(tmp_path / "o-vtu" / "o-000008.vtu").point_data
    assert np.allclose(last["u half-width"], half[-1, :, 0], rtol=1e-3)
    wide = predict_to_files(run, trajectory=3, band=0.8, everywhere=True)["bands"]
    assert wide["everywhere"] and wide["widened"] == told["bands"]["widened"]
    with pytest.raises(InputError, match=r"0\.8, 0\.9, 0\.95, not of 0\.5"):
        predict_to_files(run, trajectory=3, steps=2, band=0.5)


def test_bands_of_other_weights_are_not_used_and_damage_is_named(run: Run) -> None:
    _, states, truth = evaluate(run, run.data)
    tested, path = bands_of(run, states["dgnet"], truth), run.folder / FILE
    assert tested is not None and Bands.from_dict(json.loads(json.dumps(tested.bands.as_dict()))).trajectories == 2
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"weights": "other"}))
    assert stored_bands(run) is None
    path.write_text(json.dumps(kept | {"promises": [{"level": "x"}]}))
    with pytest.raises(InputError, match="is damaged"):
        stored_bands(run)
    path.unlink()
    assert stored_bands(run) is None


def test_bands_from_a_data_set_of_their_own(run: Run, tmp_path: Path) -> None:
    other = stored(tmp_path / "other.h5", 7, ("train", "test", "test", "test"))
    _, states, truth = evaluate(run, run.data)
    tested = bands_of(run, states["dgnet"], truth, tmp_path / "other.h5")
    assert tested is not None and tested.apart and other.case.dt == PLATE.dt
    found = tested.summary()
    assert found["trajectories"] == 3 and found["tested"] == 2
    assert found["levels"][0]["tested_promised"] == found["levels"][0]["promised"] == 0.75
    kept = stored_bands(run)
    assert kept is not None
    scores = scores_of(kept.shape, kept.known, run.case.mesh, states["dgnet"], truth)
    assert found["levels"][1]["covered"] == pytest.approx(float((scores.some <= kept.promise(0.9).average).mean()), abs=1e-3)

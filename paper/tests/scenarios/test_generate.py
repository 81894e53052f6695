"""Generation end to end: resumable, the same bytes for the same seed, refused when something else is in the way."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.problems.sources import step_average
from dgnet_paper.scenarios import generate as g
from dgnet_paper.scenarios import get


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(g._MOST, "cpu", 2)


def allen_cahn():
    return replace(get("allen-cahn", "small"), steps=12)


def test_interrupted_and_resumed_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = g.generate(allen_cahn(), tmp_path / "a", truth="same-mesh", trajectories=3)
    written, write, solve = [], g.write_part, g.truth_states

    def failing(path: Path, trajectory: object) -> None:
        if len(written) == 3:  # in the middle of the second batch
            raise KeyboardInterrupt
        written.append(path.name)
        write(path, trajectory)

    monkeypatch.setattr(g, "write_part", failing)
    with pytest.raises(KeyboardInterrupt):
        g.generate(allen_cahn(), tmp_path / "b", truth="same-mesh", trajectories=3)
    assert not list((tmp_path / "b").glob("*.h5")) and len(list((tmp_path / "b").glob("*.parts/*.h5"))) == 3

    solved = []
    monkeypatch.setattr(g, "write_part", write)
    monkeypatch.setattr(g, "truth_states", lambda *a, **k: solved.append(1) or solve(*a, **k))
    again = g.generate(allen_cahn(), tmp_path / "b", truth="same-mesh", trajectories=3)
    assert len(solved) == 2  # of three batches, the first one was complete
    assert whole.read_bytes() == again.read_bytes()
    assert [p.name for p in (tmp_path / "b").iterdir()] == [again.name]


def test_what_is_written(tmp_path: Path) -> None:
    reports = []
    path = g.generate(allen_cahn(), tmp_path, truth="same-mesh", trajectories=2, seed=5,
                      report=lambda what, done, total: reports.append((what, done, total)))
    assert path.name == "allen-cahn-small-same-mesh.h5" and reports[-1] == ("allen-cahn", 48, 48)
    with Dataset(path) as data:
        assert len(data) == 4 and data.of("train") == [0, 1] and not data.has_source
        known = data.provenance
        assert (known["scenario"], known["truth"], known["refine"], known["substeps"], known["seed"]) == (
            "allen-cahn", "same-mesh", 0, 8, 5)
        draws = allen_cahn().draws(2, 5)
        assert [data.read(k).seed for k in range(4)] == [d.seed("allen-cahn") for d in draws]
        initial = allen_cahn().sample(draws).initial
        assert np.array_equal(data.batch(range(4)).state[:, 0].numpy(), initial.float().numpy())


def test_existing_data_are_kept_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = g.generate(allen_cahn(), tmp_path, truth="same-mesh", trajectories=1)
    stamp = path.stat().st_mtime_ns
    assert g.generate(allen_cahn(), tmp_path, truth="same-mesh", trajectories=1) == path
    assert path.stat().st_mtime_ns == stamp
    with pytest.raises(InputError, match=r"already holds a data set with seed = 0 instead of 1.*--overwrite"):
        g.generate(allen_cahn(), tmp_path, truth="same-mesh", trajectories=1, seed=1)
    g.generate(allen_cahn(), tmp_path, truth="same-mesh", trajectories=1, seed=1, overwrite=True)
    with Dataset(path) as data:
        assert data.provenance["seed"] == 1


def test_parts_of_another_request_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean = g.generate(allen_cahn(), tmp_path / "a", truth="same-mesh", trajectories=1).read_bytes()
    monkeypatch.setattr(g, "assemble", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        g.generate(allen_cahn(), tmp_path / "b", truth="same-mesh", trajectories=1, seed=7)
    monkeypatch.undo()
    monkeypatch.setitem(g._MOST, "cpu", 2)
    assert g.generate(allen_cahn(), tmp_path / "b", truth="same-mesh", trajectories=1).read_bytes() == clean


def test_sources_are_stored_as_samples_and_averages(tmp_path: Path) -> None:
    scenario = replace(get("laser-heat", "small"), steps=6)
    path = g.generate(scenario, tmp_path, truth="same-mesh", trajectories=1)
    source = scenario.sample(scenario.draws(1)).source
    x = torch.tensor(scenario.mesh.points)
    with Dataset(path) as data:
        batch, samples = data.batch([0, 1]), np.stack([data.read(k).source for k in (0, 1)])
        assert (data.offset == (298.15,) and "lissajous" in data.labels(1)) or "spline" in data.labels(1)
    assert np.allclose(samples, source(x, scenario.times).float(), rtol=1e-5, atol=1e-6)
    average = step_average(source, x, scenario.times[:-1], scenario.dt, scenario.panels).float()
    assert torch.allclose(batch.source_average, average, rtol=1e-5, atol=1e-6)
    heat = batch.state - 298.15  # energy: what the lasers bring in minus what the edges lose
    assert float(heat.min()) > -1.0 and float(heat.max()) > 10


def test_a_channel_stores_its_flow_once_and_reuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = get("cylinder", "small")
    scenario = replace(base, steps=4, flow=replace(base.flow, spin_up=1.0, phases=1.0))
    path = g.generate(scenario, tmp_path, truth="same-mesh", trajectories=1)
    records = list(tmp_path.glob("flow-cylinder-small-*.npz"))
    assert len(records) == 1
    with Dataset(path) as data:
        batch = data.batch([0, 1])
        assert batch.velocity.shape == (2, 5, base.mesh.n_nodes, 2) and float(batch.velocity.abs().max()) > 0.01
        flow = g.flow_record(scenario, tmp_path)
        phases = scenario.sample(scenario.draws(1)).phases
        assert torch.equal(batch.velocity, g.flow_rows(scenario, flow, phases))
    monkeypatch.setattr(g, "simulate", lambda *a, **k: pytest.fail("the flow was computed again"))
    other = g.generate(scenario, tmp_path, truth="same-mesh", trajectories=1, overwrite=True)
    assert other == path

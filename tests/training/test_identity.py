"""A run is tied to what it was trained on, moves with its folder, and runs no code that it brings along."""

import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from dgnet import __version__
from dgnet.data import Dataset
from dgnet.projects import load
from dgnet.training.identity import differences, fingerprint
from dgnet_paper.scenarios import get
from tests.projects.conftest import TOML, command, write_tiny

QUICK = "[training]\nwindows = [2]\niterations = [1]\n"
PHYSICS = '''\
from pathlib import Path

import torch

(Path(__file__).parent / "ran").touch()


def room(x, t):
    return 20.0 + 0.1 * t + 0 * x[:, 0]


def spread(x):
    return 0.05 + 0.01 * x[:, 0]


def source(u):
    return -0.01 * (u - 20.0)
'''
CODED = TOML.replace("ambient = 20.0", 'ambient = { function = "room" }').replace(
    "diffusion = 0.05", 'diffusion = { function = "spread" }\nreaction = { function = "source" }')


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DGNET_TRUSTED", str(tmp_path / "home" / "trusted"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """plain/ and run/: a problem without code and its run."""
    place = tmp_path_factory.mktemp("made")
    write_tiny(place / "plain", TOML + QUICK)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DGNET_TRUSTED", str(place / "trusted"))
        assert command(patch, "train", place / "plain", "--out", place / "run") == 0
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "made")
    return tmp_path / "made"


@pytest.fixture
def coded(tmp_path: Path) -> Path:
    folder = write_tiny(tmp_path / "coded", CODED + QUICK)
    (folder / "physics.py").write_text(PHYSICS)
    return folder


def scores(patch: pytest.MonkeyPatch, run: Path, *more: object) -> dict:
    assert command(patch, "evaluate", run, "--no-figures", "--json", run / "x.json", *more) == 0
    found = json.loads((run / "x.json").read_text())
    found.pop("seconds")
    return found


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().err.split())


def test_an_edited_problem_is_refused_and_the_run_keeps_its_own(place: Path, monkeypatch: pytest.MonkeyPatch,
                                                                capsys: pytest.CaptureFixture[str]) -> None:
    """Conductivity changed tenfold under an existing run."""
    run, plain = place / "run", place / "plain"
    before = scores(monkeypatch, run)
    assert scores(monkeypatch, run, "--problem", plain)["scores"] == before["scores"]
    (plain / "problem.toml").write_text((TOML + QUICK).replace("diffusion = 0.05", "diffusion = 0.5"))
    capsys.readouterr()
    assert command(monkeypatch, "train", plain, "--out", run) == 2
    text = said(capsys)
    assert "diffusion was 0.05 and is 0.5" in text and "--out" in text
    assert scores(monkeypatch, run)["scores"] == before["scores"]
    for arguments in (("evaluate", run, "--no-figures"), ("rollout", run, "--trajectory", 0),
                      ("export", run, "--out", place / "x.pt2")):
        assert command(monkeypatch, *arguments, "--problem", plain) == 2
        assert "diffusion was 0.05 and is 0.5" in said(capsys)
    other = scores(monkeypatch, run, "--problem", plain, "--allow-different")
    assert other["scores"] != before["scores"] and "diffusion was 0.05 and is 0.5" in other["notes"][0]


@pytest.mark.parametrize(("old", "new", "words"), [
    ("coefficient = 0.02", "coefficient = 0.03", "conditions was"), ("dt = 0.1", "dt = 0.05", "Δt was 0.1 and is 0.05"),
    ("T = 20.0", "T = 19.0", "offset was"), ('fields = ["T"]', 'fields = ["T"]\ntitle = "same"', "")])
def test_what_differs_is_named(old: str, new: str, words: str, made: Path, tmp_path: Path) -> None:
    a = load(made / "plain")
    folder = write_tiny(tmp_path / "b", TOML.replace(old, new))
    if "dt" in old:
        for path in folder.glob("*.npz"):
            with np.load(path) as archive:
                np.savez(path, state=archive["state"])
    b = load(folder)
    found = differences(fingerprint(a.case, a.code), fingerprint(b.case, b.code))
    assert (found == []) if not words else (len(found) == 1 and words in found[0])


def test_changed_data_are_refused_and_the_run_keeps_its_own(place: Path, monkeypatch: pytest.MonkeyPatch,
                                                            capsys: pytest.CaptureFixture[str]) -> None:
    run, plain = place / "run", place / "plain"
    before = scores(monkeypatch, run)
    for name in ("run-1.npz", "last.npz"):
        with np.load(plain / name) as archive:
            np.savez(plain / name, state=archive["state"] + 1.0)
    assert command(monkeypatch, "train", plain, "--out", run) == 2
    assert "the training data was" in said(capsys)
    assert scores(monkeypatch, run)["scores"] == before["scores"]


def test_a_moved_run_is_the_same_run(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = scores(monkeypatch, place / "run")
    text = (place / "run" / "run.toml").read_text()
    assert str(tmp_path) not in text and str(tmp_path.parent) not in text
    shutil.move(place / "run", tmp_path / "elsewhere")
    shutil.rmtree(place)
    assert scores(monkeypatch, tmp_path / "elsewhere") == before
    assert command(monkeypatch, "rollout", tmp_path / "elsewhere", "--trajectory", 0, "--out", tmp_path / "o.h5") == 0


def test_code_of_a_run_is_run_only_if_the_user_has_run_it(coded: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert command(monkeypatch, "train", coded, "--out", run) == 0
    (coded / "ran").unlink()
    before = scores(monkeypatch, run)["scores"]  # the user's own: the same text was run by `train`
    assert (run / "problem" / "ran").exists() and not (coded / "ran").exists()
    (run / "problem" / "ran").unlink()
    shutil.rmtree(home)  # another user
    capsys.readouterr()
    for arguments in (("evaluate", run), ("rollout", run, "--trajectory", 0), ("export", run, "--out", "x.pt2")):
        assert command(monkeypatch, *arguments) == 2
        assert "physics.py" in (text := said(capsys)) and "--problem" in text and not (run / "problem" / "ran").exists()
    assert scores(monkeypatch, run, "--problem", coded)["scores"] == before  # confirmed by name
    (coded / "physics.py").write_text(PHYSICS.replace("0.1 * t", "0.2 * t"))
    shutil.rmtree(home)
    assert command(monkeypatch, "evaluate", run, "--problem", coded) == 2
    assert "physics.py was" in said(capsys)


def test_a_tampered_run_runs_nothing(place: Path, coded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    """run.toml names a folder with a physics.py, beside the run or inside it."""
    run = place / "run"
    text = (run / "run.toml").read_text()
    shutil.copytree(coded, run / "evil")
    for project in (str(coded), "evil", "problem/../evil"):
        (run / "run.toml").write_text(text.replace('project = "problem"', f'project = "{project}"'))
        for arguments in (("evaluate", run), ("rollout", run, "--trajectory", 0), ("export", run, "--out", "x.pt2")):
            assert command(monkeypatch, *arguments) == 2
            assert "--problem" in said(capsys)
    (run / "run.toml").write_text(text)
    for name in ("physics.py", "problem.toml"):
        shutil.copy(coded / name, run / "problem" / name)
    assert command(monkeypatch, "evaluate", run) == 2
    assert not list(tmp_path.rglob("ran"))


def test_values_of_functions_of_space_need_no_code(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny(tmp_path / "p", TOML.replace("diffusion = 0.05", 'diffusion = { function = "spread" }') + QUICK)
    (folder / "physics.py").write_text(PHYSICS)
    assert command(monkeypatch, "train", folder, "--out", tmp_path / "run") == 0
    shutil.rmtree(home)
    shutil.rmtree(folder)
    assert scores(monkeypatch, tmp_path / "run")["error_ratio"] > 0 and not list((tmp_path / "run").rglob("*.py"))


def test_runs_of_older_versions(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run, plain = place / "run", place / "plain"
    text = (run / "run.toml").read_text()
    old = text[:text.index("[trained_on]")].replace('"trained-on.h5"', json.dumps(str(plain / "imported.h5"))).replace(
        'project = "problem"', f"project = {json.dumps(str(plain))}")
    (run / "run.toml").write_text(old)
    assert command(monkeypatch, "evaluate", run) == 2
    assert "older version" in (found := said(capsys)) and "--problem" in found
    assert "nothing was compared" in scores(monkeypatch, run, "--problem", plain)["notes"][0]
    assert command(monkeypatch, "train", plain, "--out", run) == 2
    assert "older version" in said(capsys)
    (run / "run.toml").write_text(text.replace(f'version = "{__version__}"', 'version = "0.0.1"'))
    assert "trained with dgnet 0.0.1" in scores(monkeypatch, run)["notes"][0]
    assert command(monkeypatch, "train", plain, "--out", run) == 2
    assert "version was 0.0.1" in said(capsys)


def test_flipped_bits_in_weights_are_noticed(place: Path, monkeypatch: pytest.MonkeyPatch,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    """Of weights.pt any; of last.pt those that a training would go on with."""
    from dgnet.errors import InputError
    from dgnet.training.checkpoints import load_checkpoint
    from dgnet.training.run import Run

    rng, run = np.random.default_rng(1), place / "run"
    for name in ("weights.pt", "last.pt"):
        path, before = run / name, repr(load_checkpoint(run / name))
        whole = path.read_bytes()
        for at in rng.integers(0, len(whole), 20):
            content = bytearray(whole)
            content[at] ^= 1 << int(rng.integers(8))
            path.write_bytes(content)
            if name == "weights.pt":
                with pytest.raises(InputError, match="checksum"):
                    Run.open(run)
            try:
                assert repr(load_checkpoint(path)) == before
            except InputError:
                pass
        path.write_bytes(whole)
    content = bytearray((run / "weights.pt").read_bytes())
    content[len(content) // 2] ^= 4
    (run / "weights.pt").write_bytes(content)
    assert command(monkeypatch, "evaluate", run) == 2
    assert "checksum" in said(capsys)


def test_data_that_do_not_fit_are_refused_by_every_command(place: Path, monkeypatch: pytest.MonkeyPatch,
                                                           capsys: pytest.CaptureFixture[str]) -> None:
    run, path = place / "run", place / "other.h5"
    monkeypatch.setenv("DGNET_VERIFY", "0")
    for change, words in ((lambda f: f["mesh/points"].__setitem__(slice(None), 2 * f["mesh/points"][()]), "another mesh"),
                          (lambda f: f.attrs.__setitem__("dt", np.nan), "dt"),
                          (lambda f: f.attrs.__setitem__("fields", ["c"]), "the fields c"),
                          (lambda f: f["trajectories/00000/time"].__setitem__(2, 7.0), "times are not steps")):
        shutil.copy(place / "plain" / "imported.h5", path)
        with h5py.File(path, "r+") as file:
            change(file)
        for arguments in (("evaluate", run, "--data", path), ("rollout", run, "--trajectory", 0, "--data", path)):
            assert command(monkeypatch, *arguments) == 2
            assert words in said(capsys), words


def test_a_trajectory_without_a_source_leaves_the_others_theirs(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, run = place / "other.h5", place / "run"
    shutil.copy(place / "plain" / "imported.h5", path)
    monkeypatch.setenv("DGNET_VERIFY", "0")
    with h5py.File(path, "r+") as file:
        last = len(file["trajectories"]) - 1
        file.copy(f"trajectories/{last:05d}", f"trajectories/{last + 1:05d}")
        for name in ("source", "source_average"):
            del file[f"trajectories/{last + 1:05d}/{name}"]
    with Dataset(path) as data:
        assert len(data.of("test")) == 2
    from dgnet.training.evaluate import evaluate
    from dgnet.training.run import Run

    both = evaluate(Run.open(run), path)[0]["scores"]["dgnet"]["trajectories"]
    assert both[0] == pytest.approx(scores(monkeypatch, run)["scores"]["dgnet"]["trajectories"][0], rel=1e-4)


def test_fingerprints_of_the_papers_scenarios_stay(tmp_path: Path) -> None:
    """The same twice, another for another size."""
    for name in ("laser-heat", "phase-transition", "fitzhugh-nagumo", "cylinder"):
        one = fingerprint(get(name, "small"))
        assert one == fingerprint(get(name, "small")) != fingerprint(get(name, "paper"))


def test_a_killed_rollout_goes_on_only_with_the_same_problem(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dgnet.prediction.to_files import predict_to_files
    from dgnet.report import series
    from dgnet.training.run import Run

    monkeypatch.setattr(series, "PAUSE", 0.0)
    run, plain, out = place / "run", place / "plain", place / "out.h5"

    def killed(k: int, state: np.ndarray) -> None:
        if k == 4:
            raise KeyboardInterrupt

    def states() -> np.ndarray:
        with Dataset(out) as data:
            assert data.provenance["run_identity"] == Run.open(run).identity
            return data.read(0).state

    predict_to_files(run, trajectory=0, out=out)
    whole = states()
    out.unlink()
    (plain / "problem.toml").write_text((TOML + QUICK).replace("diffusion = 0.05", "diffusion = 0.5"))
    other = Run.open(run, problem=plain, allow_different=True)
    for opened, resumed in ((None, 3), (other, 0)):
        with pytest.raises(KeyboardInterrupt):
            predict_to_files(run, trajectory=0, out=out, sink=killed)
        assert predict_to_files(opened or run, trajectory=0, out=out)["resumed_from"] == resumed
        if opened is None:
            assert np.array_equal(states(), whole)  # the edit of problem.toml does not reach it


def test_states_of_a_rollout_carry_checksums(place: Path) -> None:
    from dgnet.errors import InputError
    from dgnet.prediction.to_files import predict_to_files

    out = place / "out.h5"
    predict_to_files(place / "run", trajectory=0, out=out)
    with Dataset(out) as data:
        state = data.read(0).state
    content = bytearray(out.read_bytes())
    content[content.index(state.tobytes()) + 100] ^= 1
    out.write_bytes(content)
    with Dataset(out) as data, pytest.raises(InputError, match="checksum differs"):
        data.read(0)


def test_a_flipped_bit_in_the_data_is_one_sentence(place: Path, monkeypatch: pytest.MonkeyPatch,
                                                   capsys: pytest.CaptureFixture[str]) -> None:
    run = place / "run"
    path = run / "trained-on.h5"
    with Dataset(path) as data:
        state = data.read(data.of("test")[0]).state
    content = bytearray(path.read_bytes())
    content[content.index(state.tobytes()) + 400] ^= 1
    path.write_bytes(content)
    monkeypatch.setenv("DGNET_VERIFY", "1")  # and what the option sets is undone
    assert command(monkeypatch, "evaluate", run, "--no-figures") == 2
    assert "checksum differs" in said(capsys)
    assert command(monkeypatch, "--no-verify", "evaluate", run, "--no-figures") == 0

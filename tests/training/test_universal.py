"""`dgnet universal`: weights for a family of meshes, from the meshes alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dgnet import cli
from dgnet.errors import InputError
from dgnet.mesh import box, save
from dgnet.models.universal import UniversalNet
from dgnet.scenarios import get
from dgnet.scenarios import parts as scenario
from dgnet.training import universal
from tests.projects.conftest import TOML, write_tiny

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
    assert found.updates > 5 and found.best < 0.95 * found.before and len(found.history) >= 3
    assert universal.ratio(net, train) == pytest.approx(found.best, rel=1e-6)
    net.trained_on(universal.ranges(train))
    assert float(net.fading(train[0].surroundings)[2].min()) == 1.0


def test_the_command(quick: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for k in range(4):
        paths.append(tmp_path / f"part{k}.msh")
        save(box((4, 4 + k), perturb=0.2), paths[-1])

    def run(*arguments: object) -> int:
        monkeypatch.setattr("sys.argv", ["dgnet", "universal", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return int(stop.value.code or 0)

    assert run(*paths, "--out", tmp_path / "w.pt", "--draws", 1, "--budget", 0.03) == 0
    assert "of the better classical solver" in capsys.readouterr().out
    assert UniversalNet.load(tmp_path / "w.pt").dim == 2
    assert run(*paths[:2], "--out", tmp_path / "w.pt") == 2
    assert "at least four meshes" in capsys.readouterr().err


def test_files_that_are_no_weights_are_refused(tmp_path: Path) -> None:
    torch.save({"sizes": torch.tensor([2, 8, 1])}, tmp_path / "empty.pt")
    (tmp_path / "text.pt").write_text("no weights")
    for name, words in (("empty.pt", "does not hold"), ("text.pt", "does not hold"), ("none.pt", "there is no file")):
        with pytest.raises(InputError, match=words):
            UniversalNet.load(tmp_path / name)


def test_data_of_a_problem_tune_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                            capsys: pytest.CaptureFixture[str]) -> None:
    tiny = write_tiny(tmp_path / "tiny", TOML)
    monkeypatch.setattr("sys.argv", ["dgnet", "universal", str(tiny), "--out", str(tmp_path / "w.pt"), "--budget", "0.03"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    shown = capsys.readouterr()
    assert stop.value.code in (0, None), shown.err
    assert "on test trajectories" in shown.out and UniversalNet.load(tmp_path / "w.pt").dim == 2


def test_problems_that_cannot_tune_are_named() -> None:
    case = get("allen-cahn", "small")
    with pytest.raises(InputError, match="there is a reaction"):
        universal.parts_of_data(case, None, [0])  # type: ignore[arg-type]

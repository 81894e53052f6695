"""The commands around data sets: what they write, and one sentence with exit code 2 when asked for the impossible."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from dgnet import cli
from dgnet.data import Dataset
from dgnet_paper import cli as paper_cli
from dgnet_paper import scenarios
from dgnet_paper.study.cards import card
from dgnet_paper.study.certify import certify, update_record


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["dgnet", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        (cli if arguments[0] == "show" else paper_cli).main()
    return int(stop.value.code or 0)


@pytest.fixture()
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenarios of ten steps."""
    real = scenarios.get
    monkeypatch.setattr(scenarios, "get", lambda name, size="paper": replace(real(name, size), steps=10))


def test_generate_and_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short: None) -> None:
    options = ("--size", "small", "--truth", "same-mesh", "--trajectories", 1, "--out", tmp_path)
    assert run(monkeypatch, "generate", "fitzhugh-nagumo", *options, "--json", tmp_path / "r.json") == 0
    file = Path(json.loads((tmp_path / "r.json").read_text())["path"])
    with Dataset(file) as data:
        assert len(data) == 2 and data.steps == 10
    assert run(monkeypatch, "show", file, "--out", tmp_path / "pictures", "--frames", 3) == 0
    names = sorted(p.name for p in (tmp_path / "pictures").iterdir())
    assert names == [f"fitzhugh-nagumo-small-same-mesh-00-{f}.{e}" for f in "uv" for e in ("gif", "png")]
    with Image.open(tmp_path / "pictures" / names[0]) as gif:
        assert gif.n_frames == 3
    assert run(monkeypatch, "generate", "laser-heat-3d", *options, "--scale", 1, 2, 0.5) == 0
    assert (tmp_path / "laser-heat-3d-small-same-mesh-scaled-1-2-0.5.h5").exists()
    assert run(monkeypatch, "show", tmp_path / "laser-heat-3d-small-same-mesh-scaled-1-2-0.5.h5", "--out", tmp_path / "3d",
               "--no-gif") == 0


def test_scenarios_lists_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "scenarios", "--json", tmp_path / "s.json") == 0
    listed = json.loads((tmp_path / "s.json").read_text())
    assert [row["name"] for row in listed] == scenarios.names()
    assert listed[6]["paper"]["DGNet"] == {"mse": 17.6, "rne": 0.0102} and listed[6]["sizes"]["paper"]["nodes"] == 6072


@pytest.mark.parametrize("arguments, message", [
    (("generate", "laser", "--out", "x"), "there is no scenario 'laser'"),
    (("generate", "allen-cahn", "--size", "huge", "--out", "x"), "there is no size 'huge'"),
    (("generate", "allen-cahn", "--truth", "exact", "--out", "x"), "unknown kind of truth 'exact'"),
    (("generate", "allen-cahn", "--trajectories", "0", "--out", "x"), "'--trajectories'"),
    (("generate", "allen-cahn", "--seed", "-3", "--out", "x"), "'--seed'"),
    (("generate", "allen-cahn", "--device", "abacus", "--out", "x"), "unknown device 'abacus'"),
    (("generate", "allen-cahn", "--scale", "2", "1", "1", "--out", "x"), "cannot be scaled"),
    (("show", "missing.h5", "--out", "x"), "there is no file missing.h5"),
    (("certify", "nothing"), "there is no scenario 'nothing'"),
])
def test_errors_are_one_sentence(arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                 capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(monkeypatch, *arguments) == 2
    said = capsys.readouterr().err.strip()
    assert message in said and said.count("\n") == 0
    assert list(tmp_path.rglob("*.h5")) == []


def test_certificate_of_a_heat_problem(tmp_path: Path) -> None:
    found = certify(replace(scenarios.get("light-reaction", "small"), steps=10), trajectories=1)
    assert 0 < found.distance < 0.1 * min(found.classical.values()) and set(found.classical) == {"lumped", "consistent"}
    assert found.ratio is not None and found.ratio > 10
    record = tmp_path / "certificates.json"
    update_record(record, found)
    update_record(record, replace(found, scenario="other"))
    stored = json.loads(record.read_text())
    assert set(stored) == {"light-reaction/small/converged", "other/small/converged"}
    text = card(scenarios.get("light-reaction"), scenarios.get("light-reaction", "small"), stored, "small", ["x.png"])
    assert f"{found.distance:.2e}" in text and text.count("not yet run") == 5  # the paper's size


def test_cards_have_the_same_headings() -> None:
    pages = [card(scenarios.get(n), scenarios.get(n, "small"), {}, "small", ["x.png"]) for n in scenarios.names()]
    headings = [tuple(line for line in page.splitlines() if line.startswith("## ")) for page in pages]
    first = ("## Equation", "## Geometry and mesh", "## Parameters", "## Truth", "## Convergence certificate and classical error")
    assert all(h[:5] == first for h in headings)

"""`dgnet follow`: readings from a file, a growing file and standard input; events as lines; results; going on later."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dgnet.cli import app
from dgnet.errors import InputError
from dgnet.following.stream import in_kelvin, rows
from dgnet.mesh import box, load, save
from dgnet.models import Classical, rollout
from dgnet.problems import PDE, FunctionSource, Problem, Robin, step_average

PLACES = {"a": (0.2, 0.3), "b": (0.7, 0.2), "c": (0.45, 0.55), "d": (0.8, 0.8)}
GIVEN = ["--noise", "0.05", "--strength", "start=1", "--strength", "field=0.3", "--length", "field=0.5", "--time", "field=2",
         "--model", "classical"]


@pytest.fixture(scope="module")
def part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plate, a lamp from t = 4 on that nobody told of, and a sensor outside of the plate."""
    folder, mesh = tmp_path_factory.mktemp("part"), box((6, 6))
    problem = Problem(mesh, PDE(("T",), diffusion=0.02), [Robin("boundary", 0.1, 293.0)], 0.2)
    lamp = FunctionSource(lambda x, t: 8.0 * (t > 4.0) * torch.exp(-((x - torch.tensor((0.5, 0.5))) ** 2).sum(1) / 0.05))
    heating = step_average(lamp, torch.tensor(mesh.points), 0.2 * torch.arange(40, dtype=torch.float64), 0.2)
    states = rollout(Classical(), problem, torch.full((1, 49, 1), 293.0, dtype=torch.float64), heating)[0]
    seen = mesh.interpolate(states, list(PLACES.values()))[..., 0] + 0.05 * np.random.default_rng(0).standard_normal((41, 4))
    save(mesh, folder / "plate.npz")
    (folder / "problem.toml").write_text("""
problem = { name = "plate", fields = ["T"], dt = 0.2, offset = 293.0 }
mesh = { file = "plate.npz" }
pde = { diffusion = 0.02 }
boundary = [{ name = "boundary", kind = "robin", coefficient = 0.1, ambient = 293.0 }]
""")
    (folder / "sensors.csv").write_text("sensor,x,y\n" + "".join(f"{n},{x},{y}\n" for n, (x, y) in PLACES.items()) + "far,3,3\n")
    lines = [f"{0.2 * k:g}," + ",".join(f"{v:.4f}" for v in row) + ",1" for k, row in enumerate(seen)]
    (folder / "readings.csv").write_text("\n".join(["t,a,b,c,d,far", *lines]) + "\n")
    return folder


def run(part: Path, out: Path, *words: str, readings: str = "", given: str | None = None) -> list[str]:
    asked = ["follow", str(part), readings or str(part / "readings.csv"), "--sensors", str(part / "sensors.csv"), "--out", str(out)]
    done = CliRunner().invoke(app, [*asked, *words], input=given, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output.splitlines()


def test_a_lamp_nobody_told_of_raises_an_alarm(part: Path, tmp_path: Path) -> None:
    (tmp_path / "points.csv").write_text("sensor,x,y\nc,0.45,0.55\nmiddle,0.5,0.5\n")
    said = run(part, tmp_path / "live", *GIVEN, "--horizon", "5", "--smooth", "--points", str(tmp_path / "points.csv"))
    alarm = [line for line in said if "ALARM" in line]
    assert len(alarm) == 1 and "most of all at c" in alarm[0] and 4.0 < float(alarm[0].split()[2].rstrip(":")) < 5.5
    assert any("'far' at [3.0, 3.0] lies outside of the part: left out" in line for line in said)
    assert any(line.startswith("chi-square per reading") for line in said) and any("exact" in line for line in said)
    table = np.genfromtxt(tmp_path / "live" / "estimates.csv", delimiter=",", names=True)
    assert len(table) == 41 and (table["c_low"] < table["c"]).all() and (table["c"] < table["c_high"]).all()
    assert table["middle"][-1] > table["middle"][0] + 1
    assert len(np.genfromtxt(tmp_path / "live" / "forecast.csv", delimiter=",", names=True)) == 6
    assert len(np.genfromtxt(tmp_path / "live" / "smoothed.csv", delimiter=",", names=True)) == 41
    assert "ALARM" in (tmp_path / "live" / "followed.html").read_text()
    found = json.loads((tmp_path / "live" / "followed.json").read_text())
    assert found["exact"] and found["unknown"]["field"]["strength"] == 0.3
    for name in ("field.vtu", "field.png", "sensors.png", "state.npz"):
        assert (tmp_path / "live" / name).stat().st_size > 1000, name


def test_standard_input_events_as_json_and_going_on(part: Path, tmp_path: Path) -> None:
    head, *lines = (part / "readings.csv").read_text().splitlines()
    bad = [*lines[:5], "1.1,oops,293,293,293,1", "short,row", lines[2], *lines[5:20]]
    said = run(part, tmp_path / "live", *GIVEN, "--json", readings="-", given="\n".join([head, *bad]) + "\n")
    events = [json.loads(line) for line in said if line.startswith("{")]
    assert [e["kind"] for e in events[:3]] == ["time", "sensor", "time"] and "'oops' under 'a'" in events[0]["text"]
    assert any("comes after" in e["text"] for e in events) and any("2 cells under 6 columns" in e["text"] for e in events)
    assert events == [json.loads(line) for line in (tmp_path / "live" / "events.jsonl").read_text().splitlines()]
    run(part, tmp_path / "live", "--resume", "--model", "classical")
    (tmp_path / "points.csv").write_text("sensor,x,y\nmiddle,0.5,0.5\n")
    for extra, words in ((["--points", str(tmp_path / "points.csv")], "other columns"), (GIVEN[:2], "kept in")):
        with pytest.raises(InputError, match=words):
            run(part, tmp_path / "live", "--resume", "--model", "classical", *extra)
    table = np.genfromtxt(tmp_path / "live" / "estimates.csv", delimiter=",", names=True)
    assert (np.diff(table["t"]) > 0).all() and len(table) == 41 and table["t"][-1] == 8.0
    assert '"alarm"' in (tmp_path / "live" / "events.jsonl").read_text()
    for words in (["--strength", "field=1"], ["--strength", "start=x"], ["--strength", "feild=1"]):
        done = CliRunner().invoke(app, ["follow", str(part), str(part / "readings.csv"), "--sensors", str(part / "sensors.csv"),
                                        "--out", str(tmp_path / "no"), *words])
        assert isinstance(done.exception, InputError), done.output


def test_the_command_that_goes_on_goes_on_as_it_is_printed(part: Path, tmp_path: Path) -> None:
    """It named neither the model nor what is known of the part, and was refused or went on without."""
    (tmp_path / "points.csv").write_text("sensor,x,y\nmiddle,0.5,0.5\n")
    np.save(tmp_path / "start.npy", np.full(49, 293.0))
    told = run(part, tmp_path / "out", *GIVEN, "--points", str(tmp_path / "points.csv"), "--initial", str(tmp_path / "start.npy"))
    (line,) = [line for line in told if line.startswith("Next: dgnet follow")]
    done = CliRunner().invoke(app, shlex.split(line)[2:], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert [row for row in done.output.splitlines() if row.startswith("Next: ")] == [line]


def test_a_growing_file_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "readings.csv"
    path.write_text("t,a\n0,1\n1,")

    def grow() -> None:
        time.sleep(0.1)
        with path.open("a") as file:
            file.write("2\n2,3")

    writer = threading.Thread(target=grow)
    writer.start()
    found = [(row.time, float(row.values[0])) for row in rows(path, ["a"], wait=0.5)]
    writer.join()
    assert found == [(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)]
    shifted = list(in_kelvin(rows(path, ["a"]), 293.0))
    assert shifted[0].values[0] == pytest.approx(274.15) and "degrees Celsius" in shifted[0].said and not shifted[1].said
    for text, words in (("", "has no header"), ("a\n1\n", "needs one column t"), ("t,b\n1,1\n", "'b' is no sensor")):
        path.write_text(text)
        with pytest.raises(InputError, match=words):
            list(rows(path, ["a"]))


@pytest.mark.slow
def test_the_page_about_following_word_for_word(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the plate of the page about sensors; standard input and growing files are those of the tests above."""
    monkeypatch.chdir(tmp_path)
    pages = Path(__file__).parents[2] / "docs" / "how-to"
    exec(re.findall(r"^```python\n(.*?)^```", (pages / "sensors.md").read_text(), re.S | re.M)[0], {})
    text = (pages / "follow.md").read_text()
    (first, *_), script = (re.findall(rf"^```{kind}\n(.*?)^```", text, re.S | re.M) for kind in ("sh", "python"))
    done = CliRunner().invoke(app, first.split()[1:], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    shown = re.findall(r"`([\w.]+\.\w+)`", text[:text.index("## Readings as they come")])
    assert "followed.html" in shown and all((tmp_path / "live" / name).exists() for name in shown)
    exec(script[0], {})


# ---------------------------------------------------------------------- going on with something else

SPOTS = "t,x,y,radius,power\n0,0.2,0.2,0.1,5\n9,0.7,0.7,0.1,5\n"


def changed(name: str, old: str, new: str) -> Callable[[Path], None]:
    def does(part: Path) -> None:
        text = (part / name).read_text()
        assert old in text
        (part / name).write_text(text.replace(old, new, 1))
    return does


def moved_nodes(part: Path) -> None:
    mesh = load(part / "plate.npz")
    points = mesh.points.copy()
    points[np.abs(points - 0.5).sum(1).argmin()] += 0.01
    save(replace(mesh, points=points), part / "plate.npz")


@pytest.fixture(scope="module")
def followed(part: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the part, and with what was followed of it in `live`."""
    whole = tmp_path_factory.mktemp("followed") / "part"
    shutil.copytree(part, whole)
    (whole / "spots.csv").write_text(SPOTS)
    run(whole, whole / "live", *GIVEN)
    return whole


@pytest.mark.parametrize(("change", "words", "more"), [
    (changed("problem.toml", "diffusion = 0.02", "diffusion = 0.04"), "diffusion was 0.02 and is 0.04", ()),
    (changed("problem.toml", "coefficient = 0.1", "coefficient = 0.2"), "conditions", ()),
    (changed("problem.toml", "dt = 0.2", "dt = 0.1"), "Δt was 0.2 and is 0.1", ()),
    (changed("sensors.csv", "0.45,0.55", "0.45,0.56"), "sensor c", ()),
    (changed("sensors.csv", "d,0.8,0.8\n", ""), "sensor d", ()),
    (moved_nodes, "mesh", ()),
    (lambda part: None, "model", ("--model", "quadratic")),
    (lambda part: None, "source was none", ("--source", "spots.csv")),
])
def test_going_on_with_something_else_is_refused(change: Callable[[Path], None], words: str, more: tuple[str, ...], followed: Path,
                                                 tmp_path: Path) -> None:
    """The state of a part says whose it is: the problem, its mesh, the places of sensors, the model and known sources."""
    own, live = tmp_path / "part", tmp_path / "part" / "live"
    shutil.copytree(followed, own)
    before = {path.name: path.read_bytes() for path in live.iterdir()}
    change(own)
    given = [str(own / word) if word.endswith(".csv") else word for word in more]
    asked = ["follow", str(own), str(own / "readings.csv"), "--sensors", str(own / "sensors.csv"), "--out", str(live), "--resume"]
    done = CliRunner().invoke(app, [*asked, *(given if "--model" in given else ["--model", "classical", *given])])
    assert isinstance(done.exception, InputError) and words in str(done.exception), done.output
    assert before == {path.name: path.read_bytes() for path in live.iterdir()}

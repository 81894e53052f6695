# ruff: noqa: E501  (a table: one case a line)
"""Tables of sensors, readings, spots and goals: numbers that overflow, names that steer, columns that lack, times that go back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.attacks.harness import Case, Outcome, face, parameters

SENSORS = "sensor,x,y\na,0.3,0.3\nb,0.9,0.5\nc,0.6,0.7\n"
READINGS = "t,a,b,c\n" + "".join(f"{0.1 * k:g},{20 + k + k % 2},{20 + 0.5 * k},{20 + 0.7 * k}\n" for k in range(8))
SPOTS = "x,y,radius\n0.4,0.4,0.15\n"
GOAL = """
time = 0.6
[[source]]
name = "lamp"
radius = 0.15
power = [0, 40]
place = [0.4, 0.4]
[[target]]
name = "middle"
place = [0.6, 0.45]
value = 21.0
"""


def tables(at: Path) -> None:
    """All that the commands below name, each of them sound."""
    for name, text in {"sensors.csv": SENSORS, "readings.csv": READINGS, "spots.csv": SPOTS, "goal.toml": GOAL}.items():
        (at / name).write_text(text)
    np.save(at / "start.npy", np.full(63, 20.0))


def with_file(name: str, content: str | bytes) -> Callable[[Path], None]:
    def does(at: Path) -> None:
        tables(at)
        (at / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return does


def swapped(name: str, old: str, new: str) -> Callable[[Path], None]:
    def does(at: Path) -> None:
        tables(at)
        text = (at / name).read_text()
        assert old in text, f"{name} holds no {old!r}"
        (at / name).write_text(text.replace(old, new, 1))
    return does


def array(value: object) -> Callable[[Path], None]:
    def does(at: Path) -> None:
        tables(at)
        np.save(at / "start.npy", np.array(value))
    return does


START = "recover tiny readings.csv --sensors sensors.csv --unknown start --model classical --out o"
SOURCE = "recover tiny readings.csv --sensors sensors.csv --unknown source --spots spots.csv --model classical --out o"
PLACE = "recover tiny readings.csv --sensors sensors.csv --unknown place --radius 0.15 --model classical --out o"
FACTOR = "recover tiny readings.csv --sensors sensors.csv --unknown diffusion --out o"
FOLLOW = "follow tiny readings.csv --sensors sensors.csv --model classical --unknown start --noise 1 --strength start=1 --out o"
CHOOSE = "place tiny --count 2 --unknown start --steps 3 --noise 1 --strength 1 --model classical --out o"
DESIGN = "design tiny goal.toml --model classical --out o"
BEGUN = f"{START} --initial start.npy"

SENSOR_FILES = {  # name: (what takes the place of OLD, words)
    "a place beyond numbers": ("0.3,0.3", "1e308,0.3", "1e308"), "a place that overflows": ("0.3,0.3", "1e999,0.3", "1e999"),
    "a place that is a word": ("0.3,0.3", "here,0.3", "here"), "a place that is missing": ("0.3,0.3", ",0.3", "sensors.csv"),
    "a place that is not a number": ("0.3,0.3", "nan,0.3", "nan"), "a name that is missing": ("a,0.3", ",0.3", "sensors.csv"),
    "a name twice": ("b,0.9", "a,0.9", "'a'"), "no column for x": ("sensor,x,y", "sensor,q,y", "x"),
    "a column twice": ("sensor,x,y", "sensor,x,x", "x"), "a field that nobody knows": (SENSORS, "sensor,x,y,field\na,0.3,0.3,S\n", "S"),
    "a boundary that nobody knows": (SENSORS, "sensor,x,y,boundary\na,,,moon\nb,0.9,0.5,\nc,0.6,0.7,\n", "moon"),
    "a radius beyond numbers": (SENSORS, "sensor,x,y,radius\na,0.3,0.3,1e300\n", "1e300"),
    "a radius of nothing": (SENSORS, "sensor,x,y,radius\na,0.3,0.3,1e-300\n", "1e-300"),
    "a radius below zero": (SENSORS, "sensor,x,y,radius\na,0.3,0.3,-1\nb,0.9,0.5,\nc,0.6,0.7,\n", "radius"),
    "a null character": ("a,0.3", "a\0,0.3", "null"), "an escape in a name that no reading has": ("a,0.3", "\x1b[31ma,0.3", "\\x1b[31m"),
    "a quote that does not end": ("a,0.3", '"a,0.3', "sensors.csv"),
}
READING_FILES = {
    "a reading beyond numbers": ("20.5", "1e300", "1e300"), "a reading below numbers": ("20.5", "-1e300", "-1e300"), "a reading that overflows": ("20.5", "1e999", "1e999"),
    "a reading that is a word": ("20.5", "warm", "warm"), "a reading that is true": ("20.5", "true", "true"), "a reading with a comma": ("20.5", "20,5", "cells"),
    "a time that goes back": ("0.2,", "0.05,", "times must increase"), "a time twice": ("0.2,", "0.1,", "times must increase"),
    "a time that is not a number": ("0.2,", "nan,", "nan"), "a time that is missing": ("0.2,", ",", "readings.csv"), "a time before the start": ("0,20,20.0,20.0", "-1,20,20,20", "-1"),
    "a time in a million years": ("0.7,", "1e12,", "unit of time"), "a time beyond numbers": ("0.7,", "1e200,", "1e200"),
    "a sensor that nobody knows": ("t,a,b,c", "t,a,b,d", "'d'"), "a sensor twice": ("t,a,b,c", "t,a,b,b", "'b'"), "no time": ("t,a,b,c", "s,a,b,c", "t"),
    "time twice": ("t,a,b,c", "t,t,b,c", "t"), "a null character": ("20.5", "20\0", "null"), "an escape in a header": ("t,a,b,c", "t,a,b,\x1b[2J", "\\x1b[2J"),
}
SPOT_FILES = {
    "a place beyond numbers": ("0.4,0.4", "1e300,0.4", "1e300"), "a place far away": ("0.4,0.4", "1e20,0.4", "misses the mesh"), "a radius of zero": ("0.15", "0", "radius"),
    "a radius beyond numbers": ("0.15", "1e300", "1e300"), "a radius that hardly is": ("0.15", "1e-200", "1e-200"), "a radius below zero": ("0.15", "-0.15", "radius"),
    "a radius that is not a number": ("0.15", "nan", "nan"), "no radius": ("x,y,radius\n0.4,0.4,0.15", "x,y\n0.4,0.4", "radius"), "nothing": (SPOTS, "", "spots.csv"),
}
GOALS = {
    "a source outside": ("place = [0.4, 0.4]", "place = [40, 0.4]", "'lamp' misses the mesh"), "an area outside": ("place = [0.4, 0.4]", "area = [[40, 40], [41, 41]]", "'lamp' misses the mesh"),
    "a place in space": ("place = [0.4, 0.4]", "place = [0.4, 0.4, 0]", "source[1].place"), "a place of words": ("place = [0.4, 0.4]", 'place = ["a", "b"]', "place"),
    "a place beyond numbers": ("place = [0.4, 0.4]", "place = [1e400, 0.4]", "place"), "no place": ("place = [0.4, 0.4]\n[[t", "[[t", "lamp"),
    "a radius of zero": ("radius = 0.15", "radius = 0", "radius"), "a radius below zero": ("radius = 0.15", "radius = -1", "radius"), "a radius of a text": ("radius = 0.15", 'radius = "wide"', "radius"),
    "a power upside down": ("power = [0, 40]", "power = [40, 0]", "lamp"), "a power that is not a number": ("power = [0, 40]", "power = nan", "power"),
    "a target outside": ("place = [0.6, 0.45]", "place = [60, 0.45]", "middle"), "a target of nothing": ("value = 21.0", "", "target[1].value"), "a value of a text": ("value = 21.0", 'value = "warm"', "value"),
    "no time": ("time = 0.6", "time = 0", "time"), "a time between steps": ("time = 0.6", "time = 0.65", "time"), "a time below zero": ("time = 0.6", "time = -6", "time"),
    "a time in a million years": ("time = 0.6", "time = 1e12", "time"), "a time without end": ("time = 0.6", "time = inf", "time"), "a time in kelvin": ("time = 0.6", 'time = "1 K"', "time"),
    "an unknown key": ("radius = 0.15", "radius = 0.15\ncolour = 3", "colour"), "no target": ("[[target]]", "[[targets]]", "target"), "no source": ("[[source]]", "[[sources]]", "source"),
    "two sources of one name": ("[[target]]", '[[source]]\nname = "lamp"\nradius = 0.1\npower = [0, 1]\nplace = [0.5, 0.5]\n[[target]]', "name"),
    "a name with a null character": ('name = "lamp"', 'name = "a\\u0000"', "null"), "a table of nothing": ("[[source]]", "source = 3\n[[other]]", "source"),
}

CASES = [Case(START, words, swapped("sensors.csv", old, new), "project", name=f"sensors, {name}") for name, (old, new, words) in SENSOR_FILES.items()]
CASES += [Case(START, words, swapped("readings.csv", old, new), "project", name=f"readings, {name}") for name, (old, new, words) in READING_FILES.items()]
CASES += [Case(SOURCE, words, swapped("spots.csv", old, new), "project", name=f"spots, {name}") for name, (old, new, words) in SPOT_FILES.items()]
CASES += [Case(DESIGN, words, swapped("goal.toml", old, new), "project", name=f"goal, {name}") for name, (old, new, words) in GOALS.items()]
CASES += [Case(command, word, with_file(name, content), "project", name=f"{command.split()[0]}, {name} is {what}")
          for command, name in ((START, "sensors.csv"), (START, "readings.csv"), (FOLLOW, "readings.csv"), (DESIGN, "goal.toml"))
          for what, content, word in (("empty", "", name), ("bytes", bytes(range(256)), name), ("a page of the web", "<html><body>\n</body></html>\n", name))]
CASES += [Case(BEGUN, "start.npy", array(value), "project", name=f"start, {name}") for name, value in {
    "of words": ["x"] * 63, "of another mesh": [20.0] * 5, "not finite": [np.nan] * 63, "beyond numbers": [1e300] * 63, "of complex numbers": [1j] * 63, "of truths": [True] * 63,
    "a single number": 20.0, "of three fields": np.zeros((63, 3)).tolist()}.items()]
CASES += [Case(f"{command} {more}", words, tables, "project", name=f"{command.split()[0]} {more}") for command, more, words in (
    (START, "--noise 1e300", "--noise"), (START, "--noise 1e-300", "--noise"), (START, "--noise nan", "--noise"), (START, "--noise -1", "--noise"), (START, "--noise 0", "--noise"),
    (PLACE, "--noise 1e300", "--noise"), (PLACE, "--radius 1e300", "--radius"), (PLACE, "--radius 1e25", "radius"), (PLACE, "--radius 1e-25", "radius"), (PLACE, "--radius 0", "--radius"),
    (FACTOR, "--noise inf", "--noise"), (FACTOR, "--model classical", "--model"), (START, "--unknown moon", "moon"), (START, "--unknown flux:moon", "moon"), (START, "--unknown ''", "unknown"),
    (START, "--per-region", "--per-region"), (START, "--spots spots.csv", "--spots"), (SOURCE, "--radius 1", "--radius"), (START, "--initial nowhere.npy", "nowhere.npy"), (START, "--source nowhere.csv", "nowhere.csv"),
    (START, "--model moon", "moon"), (FOLLOW, "--horizon 10000000", "--horizon"), (FOLLOW, "--horizon -1", "--horizon"), (FOLLOW, "--rank 0", "--rank"), (FOLLOW, "--chance 2", "--chance"),
    (FOLLOW, "--wait nan", "--wait"), (FOLLOW, "--wait -1", "--wait"), (FOLLOW, "--strength start=1e300", "start=1e300"), (FOLLOW, "--strength moon=1", "moon"), (FOLLOW, "--strength start", "start"),
    (FOLLOW, "--length start=-1", "--length"), (FOLLOW, "--time start=nan", "--time"), (FOLLOW, "--learn 1", "--learn"), (FOLLOW, "--points nowhere.csv", "nowhere.csv"), (FOLLOW, "--resume", "--unknown"),
    (CHOOSE, "--count 0", "--count"), (CHOOSE, "--steps 0", "--steps"), (CHOOSE, "--steps 100000000", "GB"), (CHOOSE, "--noise 1e300", "--noise"), (CHOOSE, "--strength 0", "--strength"), (CHOOSE, "--criterion X", "--criterion"),
    (CHOOSE, "--count 100000", "100000"), (CHOOSE, "--candidates nowhere.csv", "nowhere.csv"), (CHOOSE, "--length 1e-300", "--length"), (DESIGN, "--starts 0", "--starts"), (DESIGN, "--seed -1", "--seed"), (DESIGN, "--initial nowhere.npy", "nowhere.npy"))]


def there(*names: str) -> Callable[[Outcome], None]:
    def right(outcome: Outcome) -> None:
        for name in names:
            assert (outcome.folder / "o" / name).stat().st_size > 0, name
        assert "\x1b" not in outcome.out + outcome.err
    return right


def renamed(old: str, new: str) -> Callable[[Path], None]:
    """A sensor of another name, in both tables."""
    def does(at: Path) -> None:
        tables(at)
        for name, column in (("sensors.csv", f"{old},0"), ("readings.csv", f"t,{old}")):
            text = (at / name).read_text()
            assert column in text
            (at / name).write_text(text.replace(column, column.replace(old, new, 1) if name == "sensors.csv" else f"t,{new}", 1))
    return does


WORKS = [Case(START, does=tables, ground="project", right=there("answers.json"), name="sound tables"),
         *(Case(command, does=renamed("a", new), ground="project", right=there(made), name=f"{command.split()[0]}, a sensor called {what}")
           for command, made in ((START, "answers.json"), (FOLLOW, "sensors.png"))
           for what, new in {"a formula that is none": "$x^{$", "an escape": "\x1b[31mred", "brackets": "[/b]", "a percent sign": "%s"}.items())]


@pytest.mark.parametrize("case", parameters([*CASES, *WORKS]))
def test_case(case: Case, grounds: Callable[[str], Path], tmp_path: Path) -> None:
    face(case, grounds, tmp_path)

# ruff: noqa: E501  (a table: one case a line)
"""Files of a project, a run, a study: meshes, tables, arrays, checkpoints, TOML and JSON of wrong types; links and pipes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dgnet.mesh import load as load_mesh
from dgnet.mesh import save
from tests.attacks.conftest import TAG
from tests.attacks.harness import Case, face, parameters

CELL = f"study/cells/{TAG}/cell.json"
CARD = "shelf/laser-heat-small-same-mesh/card.json"
Change = Callable[[Path], Any]


# ---------------------------------------------------------------------- what is done to a file


def holds(name: str, content: bytes | str) -> Change:
    return lambda at: (at / name).write_bytes(content.encode() if isinstance(content, str) else content)


def cut(name: str, share: float) -> Change:
    return lambda at: (at / name).write_bytes((at / name).read_bytes()[:int(share * (at / name).stat().st_size)])


def swap(name: str, old: str, new: str) -> Change:
    def does(at: Path) -> None:
        text = (at / name).read_text()
        assert old in text, f"{name} holds no {old!r}"
        (at / name).write_text(text.replace(old, new, 1))
    return does


def instead(name: str, make: Change) -> Change:
    """Something else under the name of a file."""
    def does(at: Path) -> None:
        (at / name).unlink()
        make(at / name)
    return does


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def arrays(name: str, **changes: Any) -> Change:
    """Arrays of an .npz replaced; None: taken out."""
    def does(at: Path) -> None:
        with np.load(at / name) as archive:
            found = dict(archive) | changes
        np.savez(at / name, **{key: value for key, value in found.items() if value is not None})
    return does


def json_value(name: str, keys: str, value: Any) -> Change:
    """A value in a JSON file; `keys` by dots."""
    def does(at: Path) -> None:
        whole = json.loads((at / name).read_text())
        inner = whole
        *path, last = keys.split(".")
        for key in path:
            inner = inner[key]
        if value is KeyError:
            del inner[last]
        else:
            inner[last] = value
        (at / name).write_text(json.dumps(whole))
    return does


def checkpoint(name: str, change: Callable[[Any], Any]) -> Change:
    def does(at: Path) -> None:
        torch.save(change(torch.load(at / name, weights_only=True)), at / name)
    return does


def first(change: Callable[[torch.Tensor], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """The first tensor of a state changed."""
    def changed(state: dict[str, Any]) -> dict[str, Any]:
        key = next(k for k, v in state.items() if isinstance(v, torch.Tensor) and v.numel() > 1)
        return state | {key: change(state[key])}
    return changed


# ---------------------------------------------------------------------- meshes, tables and arrays of a project


def mesh_as(name: str, change: Change) -> Change:
    """The plate under another format, then changed."""
    def does(at: Path) -> None:
        save(load_mesh(at / "tiny/plate.msh"), at / "tiny" / name)
        text = (at / "tiny/problem.toml").read_text()
        (at / "tiny/problem.toml").write_text(text.replace("plate.msh", name))
        change(at)
    return does


PROJECT: dict[str, tuple[str, Change]] = {
    "mesh is empty": ("plate.msh", holds("tiny/plate.msh", "")),
    "mesh is half": ("plate.msh", cut("tiny/plate.msh", 0.5)),
    "mesh is noise": ("plate.msh", holds("tiny/plate.msh", bytes(range(256)) * 8)),
    "mesh is a page of the web": ("plate.msh", holds("tiny/plate.msh", "<html><script>alert(1)</script></html>")),
    "mesh is a folder": ("plate.msh", instead("tiny/plate.msh", Path.mkdir)),
    "mesh is a loop of links": ("plate.msh", instead("tiny/plate.msh", loop)),
    "mesh is a pipe": ("plate.msh", instead("tiny/plate.msh", os.mkfifo)),
    "mesh is gone": ("plate.msh", lambda at: (at / "tiny/plate.msh").unlink()),
    "npz mesh without cells": ("plate.npz", mesh_as("plate.npz", arrays("tiny/plate.npz", cells=None))),
    "npz mesh, cells of texts": ("plate.npz", mesh_as("plate.npz", arrays("tiny/plate.npz", cells=np.array([["a", "b", "c"]])))),
    "npz mesh, points of complex numbers": ("plate.npz", mesh_as("plate.npz", arrays("tiny/plate.npz", points=np.ones((63, 2)) * 1j))),
    "npz mesh, points in four dimensions": ("plate.npz", mesh_as("plate.npz", arrays("tiny/plate.npz", points=np.ones((63, 4))))),
    "npz mesh, no cell": ("plate.npz", mesh_as("plate.npz", arrays("tiny/plate.npz", cells=np.zeros((0, 3), dtype=int)))),
    "npz mesh, a boundary of fractions": ("plate.npz", mesh_as("plate.npz", arrays("tiny/plate.npz", **{
        "boundary:left": np.array([[0.5, 1.5]])}))),
    "npz mesh, a region of texts": ("plate.npz", mesh_as("plate.npz", arrays("tiny/plate.npz", **{"region:a": np.array(["x"])}))),
    "npz mesh, a region beyond the cells": ("plate.npz", mesh_as("plate.npz", arrays("tiny/plate.npz", **{
        "region:a": np.array([10**6])}))),
    "vtu mesh that is half": ("plate.vtu", mesh_as("plate.vtu", cut("tiny/plate.vtu", 0.6))),
    "vtu mesh with entities": ("plate.vtu", mesh_as("plate.vtu", holds("tiny/plate.vtu", '<?xml version="1.0"?><!DOCTYPE l [<!ENTITY a '
                               '"b"><!ENTITY c "&a;&a;&a;">]><VTKFile>&c;</VTKFile>'))),
    "xdmf mesh whose HDF5 is gone": ("plate.xdmf", mesh_as("plate.xdmf", lambda at: _heavy(at))),
    "table is empty": ("run-1.csv", holds("tiny/run-1.csv", "")),
    "table is noise": ("run-1.csv", holds("tiny/run-1.csv", bytes(range(256)))),
    "table of semicolons": ("run-1.csv", swap("tiny/run-1.csv", "t,x,y,radius,power", "t;x;y;radius;power")),
    "table with a null character": ("run-1.csv", swap("tiny/run-1.csv", "0,0.2", "0\0,0.2")),
    "table whose time goes back": ("run-1.csv", swap("tiny/run-1.csv", "0.6,0.8", "-0.6,0.8")),
    "table with a column twice": ("run-1.csv", swap("tiny/run-1.csv", "t,x,y,radius,power", "t,x,x,radius,power")),
    "table with a huge number": ("run-1.csv", swap("tiny/run-1.csv", "0.15,30", "0.15,1e999")),
    "table in UTF-16": ("run-1.csv", lambda at: (at / "tiny/run-1.csv").write_bytes((at / "tiny/run-1.csv").read_text().encode("utf-16"))),
    "table is a pipe": ("run-1.csv", instead("tiny/run-1.csv", os.mkfifo)),
    "states are complex": ("run-1.npz", arrays("tiny/run-1.npz", state=np.ones((7, 63)) * 1j)),
    "states are true and false": ("run-1.npz", arrays("tiny/run-1.npz", state=np.ones((7, 63), dtype=bool))),
    "states are dates": ("run-1.npz", arrays("tiny/run-1.npz", state=np.full((7, 63), np.datetime64("2020-01-01")))),
    "states are one number": ("run-1.npz", arrays("tiny/run-1.npz", state=np.array(1.0))),
    "states have no step": ("run-1.npz", arrays("tiny/run-1.npz", state=np.ones((0, 63)))),
    "states have one time": ("run-1.npz", arrays("tiny/run-1.npz", state=np.ones((1, 63)), time=np.zeros(1))),
    "states beyond single precision": ("run-1.npz", arrays("tiny/run-1.npz", state=np.full((7, 63), 1e300))),
    "times are texts": ("run-1.npz", arrays("tiny/run-1.npz", time=np.array(list("abcdefg")))),
    "times are all the same": ("run-1.npz", arrays("tiny/run-1.npz", time=np.zeros(7))),
    "times are not finite": ("run-1.npz", arrays("tiny/run-1.npz", time=np.full(7, np.nan))),
    "states are a folder": ("run-2.npz", instead("tiny/run-2.npz", Path.mkdir)),
    "states are a link to nothing": ("run-2.npz", instead("tiny/run-2.npz", lambda path: path.symlink_to("nowhere.npz"))),
    "the archive is cut": ("run-1.npz", cut("tiny/run-1.npz", 0.7)),
    "the archive has a bit flipped": ("run-1.npz", lambda at: _flip(at / "tiny/run-1.npz", 400)),
    "problem.toml is a folder": ("problem.toml", instead("tiny/problem.toml", Path.mkdir)),
    "problem.toml is a pipe": ("problem.toml", instead("tiny/problem.toml", os.mkfifo)),
    "problem.toml is a loop of links": ("problem.toml", instead("tiny/problem.toml", loop)),
    "problem.toml is nested deeply": ("problem.toml", holds("tiny/problem.toml", "a = " + "[" * 5000 + "]" * 5000)),
}


def _heavy(at: Path) -> None:
    import meshio

    mesh = load_mesh(at / "tiny/plate.msh")
    (at / "tiny/plate.xdmf").unlink()
    meshio.write(at / "tiny/plate.xdmf", meshio.Mesh(np.pad(mesh.points, ((0, 0), (0, 1))), [("triangle", mesh.cells)]))
    (at / "tiny/plate.h5").unlink()


def _flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 16
    path.write_bytes(bytes(content))


# ---------------------------------------------------------------------- a run


RUN: list[tuple[str, str, str, Change]] = [
    ("evaluate run", "run.toml", "run.toml is empty", holds("run/run.toml", "")),
    ("evaluate run", "run.toml", "run.toml is noise", holds("run/run.toml", bytes(range(128, 256)))),
    ("evaluate run", "run.toml", "run.toml, [run] is a number", holds("run/run.toml", "run = 3")),
    ("evaluate run", "run.toml", "run.toml, an unknown key", swap("run/run.toml", "[run]\n", "[run]\nsped = 3\n")),
    ("evaluate run", "run.toml", "run.toml, the seed is a text", swap("run/run.toml", "seed = 0", 'seed = "x"')),
    ("evaluate run", "run.toml", "run.toml, the scenario is a list", swap("run/run.toml", 'scenario = "tiny"', "scenario = []")),
    ("evaluate run", "", "run.toml, a model that nobody knows", swap("run/run.toml", 'model = "dgnet"', 'model = "dgnot"')),
    ("evaluate run", "run.toml", "run.toml, hidden is negative", swap("run/run.toml", "hidden = 8", "hidden = -8")),
    ("evaluate run", "run.toml", "run.toml, hidden is a text", swap("run/run.toml", "hidden = 8", 'hidden = "x"')),
    ("evaluate run", "run.toml", "run.toml, hidden is huge", swap("run/run.toml", "hidden = 8", "hidden = 1000000000")),
    ("evaluate run", "run.toml", "run.toml, layers are a table", swap("run/run.toml", "layers = 1", "layers = { a = 1 }")),
    ("evaluate run", "run.toml", "run.toml is a folder", instead("run/run.toml", Path.mkdir)),
    ("evaluate run", "run.toml", "run.toml is a pipe", instead("run/run.toml", os.mkfifo)),
    ("evaluate run", "weights.pt", "weights are empty", holds("run/weights.pt", "")),
    ("evaluate run", "weights.pt", "weights are half", cut("run/weights.pt", 0.5)),
    ("rollout run --trajectory 0", "weights.pt", "weights are a folder", instead("run/weights.pt", Path.mkdir)),
    ("rollout run --trajectory 0", "weights.pt", "weights are a list", checkpoint("run/weights.pt", lambda s: [1, 2])),
    ("rollout run --trajectory 0", "weights.pt", "weights are a number", checkpoint("run/weights.pt", lambda s: 7)),
    ("rollout run --trajectory 0", "weights.pt", "weights with numbers for names", checkpoint("run/weights.pt", lambda s: {1: 2})),
    ("rollout run --trajectory 0", "weights.pt", "weights of another shape", checkpoint("run/weights.pt", first(lambda w: w[:1]))),
    ("paper analyse run", "weights.pt", "a weight is a text", checkpoint("run/weights.pt", first(lambda w: "x"))),
    ("paper analyse run", "weights.pt", "a weight is not finite", checkpoint("run/weights.pt", first(lambda w: w * float("nan")))),
    ("rollout run --trajectory 0", "weights.pt", "a weight is complex", checkpoint("run/weights.pt", first(lambda w: w * 1j))),
    ("export run --out x.pt2", "weights.pt", "a weight is missing", checkpoint("run/weights.pt", lambda s: dict(list(s.items())[1:]))),
    ("export run --out x.pt2", "weights.pt", "a weight too many", checkpoint("run/weights.pt", lambda s: {**s, "x": torch.ones(3)})),
    ("train tiny --out run --budget 9", "last.pt", "last.pt is a list", checkpoint("run/last.pt", lambda s: [s])),
    ("train tiny --out run --budget 9", "last.pt", "last.pt without progress", checkpoint("run/last.pt", lambda s: {"model": s["model"]})),
    ("train tiny --out run --budget 9", "last.pt", "last.pt, progress is a list",
     checkpoint("run/last.pt", lambda s: s | {"progress": [1]})),
    ("train tiny --out run --budget 9", "last.pt", "last.pt, an unknown key of progress",
     checkpoint("run/last.pt", lambda s: s | {"progress": s["progress"] | {"x": 1}})),
    ("train tiny --out run --budget 9", "last.pt", "last.pt, the iteration is a text",
     checkpoint("run/last.pt", lambda s: s | {"progress": s["progress"] | {"iteration": "x"}})),
    ("train tiny --out run --budget 9", "last.pt", "last.pt, the iteration is negative",
     checkpoint("run/last.pt", lambda s: s | {"progress": s["progress"] | {"iteration": -5}})),
    ("train tiny --out run --budget 9", "last.pt", "last.pt, the history is a number",
     checkpoint("run/last.pt", lambda s: s | {"progress": s["progress"] | {"history": 4}})),
    ("train tiny --out run --budget 9", "last.pt", "last.pt, the model is empty", checkpoint("run/last.pt", lambda s: s | {"model": {}})),
    ("train tiny --out run --budget 9", "last.pt", "last.pt, best is a number", checkpoint("run/last.pt", lambda s: s | {"best": 1})),
    ("train tiny --out run --budget 9", "last.pt", "last.pt, the optimiser is empty",
     checkpoint("run/last.pt", lambda s: s | {"optimiser": {}})),
    ("train tiny --out run --budget 9", "last.pt", "last.pt is half", cut("run/last.pt", 0.5)),
    ("rollout run --initial start.npy --steps 2", "start.npy", "a start of texts", lambda at: np.save(at / "start.npy", np.array(["x"] * 63))),
    ("rollout run --initial start.npy --steps 2", "start.npy", "a start of other nodes", lambda at: np.save(at / "start.npy", np.ones(5))),
    ("rollout run --initial start.npy --steps 2", "start.npy", "a start that is not finite",
     lambda at: np.save(at / "start.npy", np.full(63, np.nan))),
    ("rollout run --initial start.npy --steps 2", "start.npy", "a start of complex numbers",
     lambda at: np.save(at / "start.npy", np.ones(63) * 1j)),
    ("rollout run --initial start.npy --steps 2", "start.npy", "a start that is an archive",
     lambda at: np.savez(at / "start.npy.npz", a=np.ones(3)) or (at / "start.npy.npz").rename(at / "start.npy")),
    ("rollout run --initial start.npy --steps 2", "start.npy", "a start that is a pipe", lambda at: os.mkfifo(at / "start.npy")),
]

# ---------------------------------------------------------------------- studies and shelves


STUDY: list[tuple[str, str, str, Change]] = []
for _what, _change in {
        "is a list": holds(CELL, "[]"), "is a number": holds(CELL, "7"), "is null": holds(CELL, "null"), "is empty": holds(CELL, ""),
        "is nested deeply": holds(CELL, "[" * 100000), "holds NaN for all": holds(CELL, "NaN"),
        "without a tag": json_value(CELL, "tag", KeyError), "tag is a number": json_value(CELL, "tag", 5),
        "tag is of nothing": json_value(CELL, "tag", "../../x"), "tag of another cell": json_value(CELL, "tag", "train_x_y_z_a_s0"),
        "scores are a list": json_value(CELL, "scores", []), "scores are missing": json_value(CELL, "scores", KeyError),
        "a score is a text": json_value(CELL, "scores.dgnet.rne", "low"), "a score is missing": json_value(CELL, "scores.dgnet", {}),
        "curves are a number": json_value(CELL, "curves", 3), "a date is a number": json_value(CELL, "date", 5),
        "cell is a text": json_value(CELL, "cell", "x"), "about is a list": json_value(CELL, "about", [1]),
        "history is a text": json_value(CELL, "history", "x"),
        "seconds are a text": json_value(CELL, "seconds", "long")}.items():
    STUDY.append(("paper report study --out report.html", "cell.json", f"cell.json {_what}", _change))
SAMPLE, WEIGHTS = f"study/cells/{TAG}/sample.npz", f"study/cells/{TAG}/run/weights.pt"
for _what, _change in {
        "history is a list of numbers": json_value(CELL, "history", [1]), "curves are texts": json_value(CELL, "curves", {"dgnet": "x"}), "curves of other lengths": json_value(CELL, "curves.dgnet", [1.0]),
        "hardware is a list": json_value(CELL, "hardware", [1]), "figures are a number": json_value(CELL, "figures", 3), "figures are numbers": json_value(CELL, "figures", [5]), "sharing is a text": json_value(CELL, "sharing", "two"),
        "tag is null": json_value(CELL, "tag", None), "is noise": holds(CELL, bytes(range(256)))}.items():
    STUDY.append(("paper reproduce pack study --out packed", "cell.json", f"pack, cell.json {_what}", _change))
    STUDY.append((f"paper pretrained pack study/cells/{TAG} --out shelf2", "cell.json", f"paper pretrained pack, cell.json {_what}", _change))
for _what, _change in {
        "is empty": holds(SAMPLE, ""), "is noise": holds(SAMPLE, bytes(range(256))), "is cut": cut(SAMPLE, 0.4), "without frames": arrays(SAMPLE, frames=None), "without the truth": arrays(SAMPLE, truth=None),
        "frames are texts": arrays(SAMPLE, frames=np.array(["x", "y"])), "frames of another number": arrays(SAMPLE, frames=np.arange(99)), "the truth is flat": arrays(SAMPLE, truth=np.ones(3)), "the truth is a text": arrays(SAMPLE, truth=np.array(["a"])),
        "the truth is of another shape": arrays(SAMPLE, truth=np.ones((2, 9, 1)))}.items():
    STUDY.append(("paper reproduce pack study --out packed", "sample.npz", f"sample.npz {_what}", _change))
STUDY += [(f"paper pretrained pack study/cells/{TAG} --out shelf2", "weights.pt", f"paper pretrained pack, weights {_what}", _change)
          for _what, _change in {"are empty": holds(WEIGHTS, ""), "are cut": cut(WEIGHTS, 0.5), "have a bit flipped": lambda at: _flip(at / WEIGHTS, 2000), "are a list": checkpoint(WEIGHTS, lambda s: [1])}.items()]
for _what, _change in {
        "is a list": holds(CARD, "[]"), "is empty": holds(CARD, ""), "is not UTF-8": holds(CARD, b"\xff\xfe"),
        "minutes is a text": json_value(CARD, "minutes", "many"), "figures is a list": json_value(CARD, "figures", []),
        "a figure is a text": json_value(CARD, "figures.dgnet.rne", "low"), "seed is a list": json_value(CARD, "seed", [1]),
        "bytes is negative": json_value(CARD, "bytes", -1), "error_ratio is a text": json_value(CARD, "error_ratio", "x"),
        "size is unknown": json_value(CARD, "size", "giant"), "scenario is a number": json_value(CARD, "scenario", 3),
        "learned is a text": json_value(CARD, "learned", "yes"), "notes are numbers": json_value(CARD, "notes", [1]),
        "measured is a number": json_value(CARD, "measured", 3), "nodes is a fraction": json_value(CARD, "nodes", 1.5),
        "an unknown key": json_value(CARD, "spede", 3)}.items():
    STUDY.append(("paper pretrained --folder shelf", "card.json", f"card.json {_what}", _change))
STUDY += [
    ("paper reproduce merge study --out merged", "symbolic link", "merge of a cell with a link", lambda at: _linked(at)),
    ("paper reproduce merge study --out merged", "cells.jsonl", "merge of a store of nonsense", holds("study/cells.jsonl", "[1]\n")),
    ("paper report study --out report.html", "cells.jsonl", "a store of bytes", holds("study/cells.jsonl", bytes(range(256)))),
    ("paper report study --out report.html", "cells.jsonl", "a store without scores", holds("study/cells.jsonl", '{"tag": "train_laser-heat_small_same-mesh_mgn_s0_d1"}\n')),
    ("paper report study --out report.html", "cells.jsonl", "a store of numbers for tags", holds("study/cells.jsonl", '{"tag": 3}\n')),
    ("paper cards --only laser-heat --out cards --certificates x.json", "x.json", "certificates that are a list", holds("x.json", "[]")),
    ("paper cards --only laser-heat --out cards --certificates x.json", "x.json", "certificates of numbers",
     holds("x.json", '{"laser-heat/small/converged": 3}')),
    ("paper report study --out report.html", "failed.json", "failed.json is a list", lambda at: _failed(at, "[]")),
    ("paper report study --out report.html", "failed.json", "failed.json is noise", lambda at: _failed(at, "{")),
    ("paper reproduce merge study --out merged", "cell.json", "merge of a cell that points elsewhere", json_value(CELL, "tag", "../../../x")),
]


def _failed(at: Path, text: str) -> None:
    folder = at / "study/cells/train_laser-heat_small_same-mesh_mgn_s0_d1"
    folder.mkdir()
    (folder / "failed.json").write_text(text)


def _linked(at: Path) -> None:
    (at / CELL).rename(at / "cell.json")
    (at / CELL).symlink_to(at / "cell.json")


CASES = [Case("check tiny", word, does, "project", name=name) for name, (word, does) in PROJECT.items()]
CASES += [Case(command, word, does, "run", name=name) for command, word, name, does in RUN]
CASES += [Case(command, word, does, "study", name=name) for command, word, name, does in STUDY]


@pytest.mark.parametrize("case", parameters(CASES))
def test_case(case: Case, grounds: Callable[[str], Path], tmp_path: Path) -> None:
    face(case, grounds, tmp_path)

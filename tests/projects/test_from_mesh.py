"""`dgnet new FOLDER --mesh FILE`: from a mesh of one's own to a moving picture by two commands."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import dgnet as dg
from dgnet.cli import app
from dgnet.errors import InputError


@pytest.mark.parametrize("shape", [(9, 6), (4, 3, 3)])
def test_from_a_mesh_to_a_moving_picture(shape: tuple[int, ...], tmp_path: Path) -> None:
    mesh, folder = dg.box(shape, upper=(120.0, 80.0, 40.0)[: len(shape)]), tmp_path / "My part 1"
    dg.save_mesh(mesh, tmp_path / "part.msh")
    made = CliRunner().invoke(app, ["new", str(folder), "--mesh", str(tmp_path / "part.msh")])
    assert made.exit_code == 0, made.output
    assert sorted(p.name for p in folder.iterdir()) == ["part.msh", "problem.toml", "spots.csv"]
    text = (folder / "problem.toml").read_text()
    assert all(name in text for name in mesh.boundaries) and f"{mesh.n_nodes} nodes" in text
    picture = tmp_path / "part.gif"
    done = CliRunner().invoke(app, ["simulate", str(folder), "--source", str(folder / "spots.csv"), "--steps", "4", "--gif",
                                    str(picture)])
    assert done.exit_code == 0, done.output
    assert picture.read_bytes()[:3] == b"GIF"


def test_what_is_no_folder_is_said(tmp_path: Path) -> None:
    dg.save_mesh(dg.box((3, 3)), tmp_path / "part.msh")
    for words, command in (("dgnet new my-part --mesh", ["simulate", str(tmp_path / "part.msh")]),
                           ("nothing is random", ["new", str(tmp_path / "a"), "--mesh", str(tmp_path / "part.msh"), "--seed", "3"]),
                           ("not empty", ["new", str(tmp_path), "--mesh", str(tmp_path / "part.msh")])):
        told = CliRunner().invoke(app, command)
        assert isinstance(told.exception, InputError) and words in str(told.exception), told.exception

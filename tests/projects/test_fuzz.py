"""98 malformed inputs through the real command: each ends in one sentence and exit code 2, and leaves nothing half-made.

The mutations are drawn from a seed. One that happens to leave a valid problem may succeed, but at least 89 must not.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from dgnet.data import Header, Trajectory, write_dataset
from dgnet.mesh import load as load_mesh
from dgnet.mesh import save
from tests.projects.conftest import DT, STEPS, TOML, command, plate, write_tiny

Mutation = Callable[[Path, np.random.Generator], None]


# ---------------------------------------------------------------------- TOML


def toml_words(folder: Path, rng: np.random.Generator) -> None:
    """A key gets a typo, goes missing, or gets a value of another kind; or a header does."""
    path = folder / "problem.toml"
    lines = path.read_text().splitlines()
    keys = [k for k, line in enumerate(lines) if "=" in line and not line.startswith(("name = \"tiny\"", "length", "time", "T ="))]
    k = int(rng.choice(keys))
    key, value = (part.strip() for part in lines[k].split("=", 1))
    strange = ["nan", "-inf", "true", "[]", "{}", "\"\"", "\"7 apples\"", "[1, [2]]", "1979-05-27", "{ function = \"gone\" }",
               "1e400", "[\"a\", 3]", "{ a = { b = 1 } }"]
    choice = int(rng.integers(4))
    if choice == 0:
        lines[k] = f"{key[:-1]}{key[-1] * 2}x = {value}"
    elif choice == 1:
        lines[k] = f"{key} = {rng.choice(strange)}"
    elif choice == 2:
        lines[k] = lines[k] + f"\n{key} = {value}"
    else:
        heads = [j for j, line in enumerate(lines) if line.startswith("[")]
        j = int(rng.choice(heads))
        lines[j] = lines[j].replace("]", "s]", 1)
    path.write_text("\n".join(lines) + "\n")


def toml_bytes(folder: Path, rng: np.random.Generator) -> None:
    """Cut off, or characters that do not belong there."""
    path = folder / "problem.toml"
    text = path.read_bytes()
    if rng.random() < 0.5:
        cut = int(rng.integers(1, int(0.7 * len(text))))
        path.write_bytes(text[:cut])
    else:
        at = int(rng.integers(len(text)))
        path.write_bytes(text[:at] + bytes(rng.choice([0, 34, 61, 91, 255, 195], 3).astype(np.uint8)) + text[at:])


def toml_numbers(folder: Path, rng: np.random.Generator) -> None:
    """Numbers that make no sense where they stand, names that nobody knows."""
    path = folder / "problem.toml"
    text = path.read_text()
    old, new = [("dt = 0.1", "dt = -0.1"), ("dt = 0.1", "dt = 0.37"), ("diffusion = 0.05", "diffusion = -0.05"),
                ("diffusion = 0.05", "diffusion = [[1, 0, 0], [0, 1, 0], [0, 0, 1]]"), ("coefficient = 0.02", "coefficient = -2"),
                ("\"left\"", "\"lefd\""), ("\"robin\"", "\"rubin\""), ("plate.msh", "../plate.msh"), ("run-*", "../run-*"),
                ("run-1.csv", "run-9.csv"), ("length = \"m\"", "length = \"ell\""), ("fields = [\"T\"]", "fields = [\"T\", \"T\"]"),
                ("fields = [\"T\"]", "fields = [\"S\"]"), ("fields = [\"T\"]", "fields = [\"T\", \"S\"]"), ("last.npz", "."),
                ("file = \"plate.msh\"", "shape = \"rectangle\"\nsize = [1, 1]\nspacing = 0.3"),
                ("split = \"train\"", "split = \"test\""),
                ("file = \"plate.msh\"", "shape = \"l-shape\"\nsize = [1, 1]\narms = [2, 2]\nspacing = 0.3"),
                ][int(rng.integers(18))]
    path.write_text(text.replace(old, new))


# ---------------------------------------------------------------------- CSV


def spots_csv(folder: Path, rng: np.random.Generator) -> None:
    path = folder / "run-1.csv"
    lines = [line.split(",") for line in path.read_text().splitlines()]
    row, column = int(rng.integers(1, len(lines))), int(rng.integers(len(lines[0])))
    choice = int(rng.integers(6))
    if choice == 0:
        lines[row][column] = str(rng.choice(["nan", "inf", "", "ten", "1,5", "0x1"]))
    elif choice == 1:
        lines[0][column] += "s"
    elif choice == 2:
        lines[row] = lines[row][:column]
        lines[row] += [] if column else ["0"]
    elif choice == 3:
        lines = lines[:int(rng.integers(1, 3))]
    elif choice == 4:
        lines[1], lines[2] = lines[2], lines[1]
    else:
        lines[row][3] = str(rng.choice(["0", "-1", "1e-30"]))
    path.write_text("\n".join(",".join(line) for line in lines) + "\n")


def sensor_csv(folder: Path, rng: np.random.Generator) -> None:
    mesh = plate()
    where = mesh.points[::7]
    lines = ["t,x,y,value"] + [f"{DT * k:g},{x:g},{y:g},{20 + k * x:g}" for k in range(STEPS + 1) for x, y in where]
    row = int(rng.integers(1, len(lines)))
    choice = int(rng.integers(6))
    if choice == 0:
        del lines[row]
    elif choice == 1:
        lines.insert(row, lines[row])
    elif choice == 2:
        lines[row] = lines[row].replace(",", ";")
    elif choice == 3:
        lines[row] = lines[row].rsplit(",", 1)[0] + ",NaN"
    elif choice == 4:
        lines = lines[:1 + int(rng.integers(len(where)))]
    else:
        lines[0] = str(rng.choice(["t,x,y", "t,x,y,value,value", "time,x,y,value", "x,y,value", "t,x,y,z,value"]))
    _instead(folder, "sensors.csv")
    (folder / "sensors.csv").write_text("\n".join(lines) + "\n")


def _instead(folder: Path, name: str) -> None:
    """The project with one data file and no source."""
    path = folder / "problem.toml"
    path.write_text(TOML[:TOML.index("[[data]]")] + f'[[data]]\nfile = "{name}"\n')


# ---------------------------------------------------------------------- npz


def npz(folder: Path, rng: np.random.Generator) -> None:
    path = folder / "run-2.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    choice = int(rng.integers(11))
    if choice == 0:
        whole = path.read_bytes()
        path.write_bytes(whole[:int(rng.integers(0, len(whole) - 30))])
        return
    if choice == 1:
        path.write_bytes(rng.bytes(300))
        return
    if choice == 2:
        arrays["state"][tuple(rng.integers(s) for s in arrays["state"].shape)] = rng.choice([np.nan, np.inf])
    elif choice == 3:
        arrays["state"] = arrays["state"][:, :-int(rng.integers(1, 9))]
    elif choice == 4:
        arrays["state"] = arrays["state"].T
    elif choice == 5:
        arrays[str(rng.choice(["stat", "Temperature", "u", "Source"]))] = arrays.pop("state")
    elif choice == 6:
        arrays["time"] = rng.permutation(arrays["time"] + rng.uniform(0.01, 0.03))
    elif choice == 7:
        arrays["state"] = arrays["state"].astype(str)
    elif choice == 8:
        arrays["points"] = rng.uniform(0, 1, (int(rng.integers(1, 40)), int(rng.integers(1, 5))))
    elif choice == 9:
        arrays["source"] = arrays["state"][:-int(rng.integers(1, 4))]
    else:
        arrays["cells"] = rng.integers(-5, 500, (10, 3))
        arrays["points"] = rng.uniform(0, 1, (arrays["state"].shape[1], 2))
    np.savez(path, **arrays)


# ---------------------------------------------------------------------- HDF5


def hdf5(folder: Path, rng: np.random.Generator) -> None:
    mesh, path = plate(), folder / "data.h5"
    state = np.full((STEPS + 1, mesh.n_nodes, 1), 20.0, dtype=np.float32)
    write_dataset(path, Header(mesh, ("T",), DT, STEPS), [Trajectory(state, DT * np.arange(STEPS + 1)) for _ in range(2)])
    _instead(folder, "data.h5")
    choice = int(rng.integers(10))
    if choice == 0:
        whole = path.read_bytes()
        path.write_bytes(whole[:int(rng.integers(0, len(whole) - 8))])
        return
    if choice == 1:
        whole = bytearray(path.read_bytes())
        at = int(rng.integers(0, 1200))
        whole[at:at + 40] = rng.bytes(40)
        path.write_bytes(bytes(whole))
        return
    with h5py.File(path, "r+") as file:
        group = file["trajectories/00001"]
        if choice == 2:
            del file.attrs[str(rng.choice(["format", "version", "fields", "dt", "steps"]))]
        elif choice == 3:
            name = str(rng.choice(["fields", "dt", "steps", "version"]))
            file.attrs[name] = str(rng.choice(["what", "3.5x"]))
        elif choice == 4:
            del group[str(rng.choice(["state", "time"]))]
        elif choice == 5:
            group["state"][int(rng.integers(STEPS)), int(rng.integers(mesh.n_nodes)), 0] = np.nan
        elif choice == 6:
            del group["state"]
            group["state"] = np.zeros((STEPS, mesh.n_nodes, int(rng.integers(1, 3))))
        elif choice == 7:
            file["mesh/cells"][int(rng.integers(mesh.n_cells)), 0] = int(rng.choice([-1, 10**6]))
        elif choice == 8:
            file["mesh/points"][int(rng.integers(mesh.n_nodes)), 0] = np.nan
        else:
            del group["state"]
            group["state"] = np.array(["a", "b"], dtype="S")


# ---------------------------------------------------------------------- meshes


def mesh_file(folder: Path, rng: np.random.Generator) -> None:
    """.msh and .vtu with broken bytes, cells that overlap, nodes at one place, numbers that are none."""
    mesh = load_mesh(folder / "plate.msh")
    name = str(rng.choice(["plate.msh", "plate.vtu"]))
    path = folder / name
    save(mesh, path)
    text = (folder / "problem.toml").read_text()
    (folder / "problem.toml").write_text(text.replace("plate.msh", name).replace("\"left\"", "\"boundary\""))
    choice = int(rng.integers(7))
    if choice == 0:
        whole = path.read_bytes()
        path.write_bytes(whole[:int(rng.integers(0, int(0.95 * len(whole))))])
        return
    if choice == 1:
        whole = path.read_bytes()
        at = int(rng.integers(0, min(200, len(whole))))
        path.write_bytes(whole[:at] + rng.bytes(20) + whole[at + 20:])
        return
    import meshio

    points = np.pad(mesh.points.copy(), ((0, 0), (0, 1)))
    cells = mesh.cells.copy()
    node = int(np.flatnonzero(~mesh.on_boundary)[rng.integers(20)])
    if choice == 2:  # a node dragged across its neighbours: inverted cells
        points[node, :2] += 0.5
    elif choice == 3:
        points[node] = points[(node + 3) % len(points)]
    elif choice == 4:
        points[node, int(rng.integers(2))] = np.nan
    elif choice == 5:
        cells[int(rng.integers(len(cells)))] = rng.choice(len(points), 3, replace=False)
    else:
        cells = np.concatenate([cells, cells[:1]])
    path.unlink()
    data = meshio.Mesh(points, [("triangle", cells)])
    meshio.write(path, data, file_format="gmsh22" if name.endswith("msh") else "vtu")


MUTATIONS: list[tuple[Mutation, int]] = [
    (toml_words, 22), (toml_bytes, 10), (toml_numbers, 10), (spots_csv, 10), (sensor_csv, 7), (npz, 12), (hdf5, 12),
    (mesh_file, 15)]


def test_malformed_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    whole = write_tiny(tmp_path / "whole")
    assert sum(count for _, count in MUTATIONS) == 98
    valid: list[str] = []
    for mutation, count in MUTATIONS:
        for k in range(count):
            folder = tmp_path / f"{mutation.__name__}-{k}"
            shutil.copytree(whole, folder)
            mutation(folder, np.random.default_rng([k, len(mutation.__name__)]))
            before = {p.name for p in folder.iterdir()}
            capfd.readouterr()
            code = command(monkeypatch, "check", folder, "--json", folder / "check.json")
            out, err = capfd.readouterr()
            what = f"{folder.name}: exit {code}, stdout {out[-300:]!r}, stderr {err[-2000:]!r}"
            if code == 0:
                valid.append(folder.name)
                shutil.rmtree(folder)
                continue
            said = err.strip()
            assert code == 2 and not out.strip(), what
            assert said.startswith("dgnet: ") and "\n" not in said and len(said) > 25 and "Traceback" not in said, what
            assert len(re.findall(r"[A-Za-z]{2,}", said.replace(str(folder), ""))) >= 4, what  # words, not a dump
            assert {p.name for p in folder.iterdir()} == before, what  # nothing was written, whole or half
            shutil.rmtree(folder)
    print(f"{len(valid)} of 98 were still valid: {', '.join(valid)}")
    assert len(valid) <= 9

"""Round trips, and files that are missing, cut short or something else."""

import builtins
import os
from pathlib import Path
from typing import Any

import meshio
import numpy as np
import pytest

from dgnet.errors import InputError
from dgnet.mesh import Mesh, box, load, save

SUFFIXES = [".npz", ".msh", ".vtu", ".xdmf"]


def named(dim: int) -> Mesh:
    mesh = box((5, 4, 3)[:dim], perturb=0.2, seed=2)
    west = np.flatnonzero(mesh.centroids[:, 0] < 0.5)
    boundaries = dict(mesh.boundaries)
    boundaries["two words"] = np.concatenate([boundaries["left"], boundaries.pop("top")])  # overlaps with left
    return Mesh(mesh.points, mesh.cells, boundaries, {"west": west})


def assert_same(a: Mesh, b: Mesh) -> None:
    np.testing.assert_array_equal(a.points, b.points)
    np.testing.assert_array_equal(a.cells, b.cells)
    assert set(a.boundaries) == set(b.boundaries) and set(a.regions) == set(b.regions)
    for name in a.boundaries:
        np.testing.assert_array_equal(a.facets(name), b.facets(name))
    for name in a.regions:
        np.testing.assert_array_equal(a.regions[name], b.regions[name])


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("dim", [2, 3])
def test_round_trip(tmp_path: Path, dim: int, suffix: str, capfd: pytest.CaptureFixture[str]) -> None:
    mesh, path = named(dim), tmp_path / f"mesh{suffix}"
    save(mesh, path, {"u": mesh.points[:, 0], "v": mesh.points})
    assert_same(load(path), mesh)
    assert os.listdir(tmp_path) == [path.name]  # one file, nothing temporary left
    assert capfd.readouterr() == ("", "")
    if suffix != ".npz":
        data = meshio.read(path).point_data
        np.testing.assert_array_equal(np.ravel(data["u"]), mesh.points[:, 0])
        np.testing.assert_array_equal(data["v"][:, :dim], mesh.points)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_mesh_without_names(tmp_path: Path, suffix: str) -> None:
    mesh = Mesh(box((2, 3)).points, box((2, 3)).cells)
    save(mesh, tmp_path / f"m{suffix}")
    assert_same(load(tmp_path / f"m{suffix}"), mesh)


def abaqus(path: Path, mesh: Mesh, kind: str, more: str = "") -> Path:
    """As Abaqus writes it, every line by hand."""
    nodes = [", ".join([str(k), *(repr(float(x)) for x in p)]) for k, p in enumerate(mesh.points, start=1)]
    cells = [", ".join(map(str, [k, *(cell + 1)])) for k, cell in enumerate(mesh.cells, start=1)]
    path.write_text("\n".join(["*HEADING", "by hand", "*NODE", *nodes, f"*ELEMENT, TYPE={kind}, ELSET=all", *cells, more, ""]))
    return path


@pytest.mark.parametrize(("dim", "kind"), [(2, "DC2D3"), (2, "CPE3"), (2, "CPS3"), (3, "DC3D4"), (3, "dc3d4"), (3, "C3D4"),
                                           (3, "C3D4T")])
def test_elements_of_abaqus(dim: int, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Elements for heat are those of the same shape; its sets are not read, and one line says so, once."""
    mesh = box((3, 2, 2)[:dim], perturb=0.2)
    path = abaqus(tmp_path / "part.inp", mesh, kind, "*NSET, NSET=fixed\n1, 2\n*SURFACE, NAME=top\nall, S1")
    for _ in range(2):
        found = load(path)
        np.testing.assert_allclose(found.points, mesh.points)
        np.testing.assert_array_equal(np.sort(found.cells, 1), np.sort(mesh.cells, 1))
    (record,) = caplog.records
    assert str(path) in record.message and "(all, fixed, top) are not read" in record.message


@pytest.mark.parametrize(("kind", "words"), [("DCAX3", "DCAX3"), ("DC2D6", "triangle6|DC2D6"), ("S4", "not a mesh|quad"),
                                             ("XYZ", "XYZ")])
def test_elements_of_abaqus_that_are_not_read_are_named(kind: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"part.inp: .*({words})"):
        load(abaqus(tmp_path / "part.inp", box((3, 2)), kind))


def test_an_empty_boundary_survives_where_the_format_can_say_so(tmp_path: Path) -> None:
    mesh = Mesh(box((2, 2)).points, box((2, 2)).cells, {"none": np.empty((0, 2), int), "left": box((2, 2)).facets("left")})
    for suffix in SUFFIXES:
        save(mesh, tmp_path / f"m{suffix}")
        assert_same(load(tmp_path / f"m{suffix}"), mesh)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_files(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(InputError, match=f"there is no mesh file .*gone{suffix}"):
        load(tmp_path / f"gone{suffix}")
    (tmp_path / f"folder{suffix}").mkdir()
    with pytest.raises(InputError, match=f"there is no mesh file .*folder{suffix}"):
        load(tmp_path / f"folder{suffix}")


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_truncated_files_never_load_as_something_else(tmp_path: Path, suffix: str, capfd: pytest.CaptureFixture[str]) -> None:
    mesh, path = named(2), tmp_path / f"whole{suffix}"
    save(mesh, path)
    whole, cut = path.read_bytes(), tmp_path / f"cut{suffix}"
    for length in [0, 1, 10, *np.linspace(20, 0.97 * len(whole), 40).astype(int)]:
        cut.write_bytes(whole[:length])
        with pytest.raises(InputError, match=f"cut{suffix}: ") as caught:
            load(cut)
        assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("content", [b"", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), b"solid text\n" * 30, b"<xml></xml>",
                                     b"PK\x03\x04" + bytes(64), b"$MeshFormat\n2.2 0 8\n$EndMeshFormat\n"])
def test_foreign_files(tmp_path: Path, suffix: str, content: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"foreign{suffix}"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"foreign{suffix}: ") as caught:
        load(path)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_an_npz_of_something_else(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", weights=np.ones(3))
    with pytest.raises(InputError, match=r"a.npz: the file holds no arrays 'points' and 'cells'"):
        load(tmp_path / "a.npz")
    np.savez(tmp_path / "b.npz", points=np.array([{"x": 1}], dtype=object), cells=np.ones((1, 3)))
    with pytest.raises(InputError, match=r"b.npz"):  # pickled objects are never loaded
        load(tmp_path / "b.npz")
    np.savez(tmp_path / "c.npz", points=np.array(["x"]), cells=np.ones((1, 3)))
    with pytest.raises(InputError, match=r"c.npz: the array 'points' holds <U1, not numbers"):
        load(tmp_path / "c.npz")
    np.save(tmp_path / "d.npy", np.ones(3))
    (tmp_path / "d.npy").rename(tmp_path / "d.npz")
    with pytest.raises(InputError, match=r"d.npz: the file is damaged, or does not hold a mesh"):
        load(tmp_path / "d.npz")


def test_a_bad_mesh_in_a_good_file_names_file_and_cell(tmp_path: Path) -> None:
    np.savez(tmp_path / "flat.npz", points=np.array([[0, 0], [1, 0], [2, 0.0]]), cells=np.array([[0, 1, 2]]))
    with pytest.raises(InputError, match=r"flat.npz: cell 0 \(nodes \[0, 1, 2\]\) is degenerate"):
        load(tmp_path / "flat.npz")
    meshio.write(tmp_path / "nan.vtu", meshio.Mesh([[0, 0, 0], [1, np.nan, 0], [0, 1, 0]], [("triangle", [[0, 1, 2]])]))
    with pytest.raises(InputError, match=r"nan.vtu: node 1 has a coordinate"):
        load(tmp_path / "nan.vtu")


def test_other_programs_files(tmp_path: Path) -> None:
    """Unused nodes (gmsh writes the control points of splines), unnamed groups, inner lines, a constant third coordinate."""
    points = np.array([[9.0, 9, 2], [0, 0, 2], [1, 0, 2], [1, 1, 2], [0, 1, 2]])
    cells = [("vertex", [[1]]), ("line", [[1, 2], [1, 3], [3, 4]]), ("triangle", [[1, 2, 3], [1, 3, 4]])]
    physical = [np.array([5]), np.array([1, 2, 7]), np.array([3, 0])]
    fields = {"floor": np.array([1, 1]), "crack": np.array([2, 1]), "lower": np.array([3, 2])}
    raw = meshio.Mesh(points, cells, field_data=fields, cell_data={"gmsh:physical": physical, "gmsh:geometrical": physical})
    for kind, binary in (("gmsh22", False), ("gmsh22", True)):
        meshio.write(tmp_path / "a.msh", raw, file_format=kind, binary=binary)
        mesh = load(tmp_path / "a.msh")
        assert (mesh.n_nodes, mesh.dim) == (4, 2)
        assert sorted(mesh.boundaries) == ["floor", "physical-7"]
        assert mesh.nodes_on("floor").tolist() == [0, 1] and mesh.nodes_on("physical-7").tolist() == [2, 3]
        assert mesh.regions["lower"].tolist() == [0]


@pytest.mark.parametrize("kind,cells,message", [
    ("quad", [[0, 1, 2, 3]], "cells of type 'quad'"), ("triangle6", [[0, 1, 2, 3, 4, 5]], "cells of type 'triangle6'"),
    ("line", [[0, 1]], "no triangles and no tetrahedra"), ("triangle", [[0, 1, 2], [1, 2, 4]], "surface in space")])
def test_meshes_of_another_kind(tmp_path: Path, kind: str, cells: list[list[int]], message: str) -> None:
    points = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [2, 2, 1], [3, 0, 0]])
    meshio.write(tmp_path / "a.vtu", meshio.Mesh(points, [(kind, cells)]))
    with pytest.raises(InputError, match=f"a.vtu: .*{message}"):
        load(tmp_path / "a.vtu")


def test_refused_writing(tmp_path: Path) -> None:
    mesh = box((2, 2))
    with pytest.raises(InputError, match=r"m.stl: meshes are read and written as .npz, .msh, .vtu or .xdmf, not '.stl'"):
        save(mesh, tmp_path / "m.stl")
    with pytest.raises(InputError, match=r"m.obj"):
        load(tmp_path / "m.obj")
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot write .*file.*m.npz: a part of the path is not a folder"):
        save(mesh, tmp_path / "file" / "m.npz")
    for values in (np.ones(3), np.ones((9, 2, 2)), np.array(["a"] * 9)):
        with pytest.raises(InputError, match=r"point.data.*'u'.* must be"):
            save(mesh, tmp_path / "m.vtu", {"u": values})
    with pytest.raises(InputError, match=r"point data 'u' of 4 components"):
        save(mesh, tmp_path / "m.msh", {"u": np.ones((9, 4))})
    both = Mesh(mesh.points, mesh.cells, {}, {"a": [0, 1], "b": [1, 2]})
    with pytest.raises(InputError, match=r"cannot hold region 'b': cell 1 is in another too"):
        save(both, tmp_path / "m.msh")
    save(both, tmp_path / "m.vtu")
    assert_same(load(tmp_path / "m.vtu"), both)
    assert sorted(os.listdir(tmp_path)) == ["file", "m.vtu"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"m{suffix}"
    save(box((2, 2)), path)
    before = path.read_bytes()

    def fail(target: Any, *_: object, **__: object) -> None:
        if hasattr(target, "write"):
            target.write(b"half")
        else:
            Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez_compressed", fail)
    monkeypatch.setattr(meshio, "write", fail)
    with pytest.raises(InputError, match=f"cannot write .*m{suffix}: the disk is full"):
        save(box((3, 3)), path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]


def test_without_meshio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(box((2, 2)), tmp_path / "m.msh")
    real = builtins.__import__

    def refuse(name: str, *args: object, **kwargs: object) -> object:
        if name == "meshio":
            raise ImportError("No module named 'meshio'")
        return real(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(InputError, match=r"pip install meshio"):
        load(tmp_path / "m.msh")
    with pytest.raises(InputError, match=r"pip install meshio"):
        save(box((2, 2)), tmp_path / "m.vtu")
    save(box((2, 2)), tmp_path / "m.npz")
    assert load(tmp_path / "m.npz").n_nodes == 9


def test_a_file_with_points_alone(tmp_path: Path) -> None:
    (tmp_path / "empty.off").write_text("OFF\n3 0 0\n0 0 0\n1 0 0\n0 1 0\n")
    with pytest.raises(InputError, match=r"empty.off: the file holds no triangles and no tetrahedra"):
        load(tmp_path / "empty.off")

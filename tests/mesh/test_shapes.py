"""Shapes through gmsh. Where gmsh does not import, the refusal is tested instead."""

import builtins
from pathlib import Path

import numpy as np
import pytest

from dgnet.errors import InputError
from dgnet.mesh import bracket, channel, dfg_channel, gear_plate, load, shipped

try:
    import gmsh
    HAVE_GMSH = True
except (ImportError, OSError):
    HAVE_GMSH = False
needs_gmsh = pytest.mark.skipif(not HAVE_GMSH, reason="gmsh does not import here")


@needs_gmsh
def test_channel_and_gear_plate() -> None:
    mesh = channel(10.0, 4.0, [((3, 2), 0.5), ((6, 2), 0.6)], size=0.5, near=0.2, reach=1.0)
    assert set(mesh.boundaries) == {"inlet", "outlet", "walls", "obstacle"}
    assert mesh.volumes.sum() == pytest.approx(40 - np.pi * (0.25 + 0.36), rel=0.01)
    assert mesh.facet_geometry("obstacle")[0].mean() == pytest.approx(0.2, rel=0.15)
    plain = channel(2.0, 1.0, size=0.3)
    assert set(plain.boundaries) == {"inlet", "outlet", "walls"} and plain.volumes.sum() == pytest.approx(2)
    assert gear_plate(0.06).volumes.sum() == pytest.approx(shipped("gear-plate").volumes.sum(), rel=0.01)


@needs_gmsh
def test_dfg_channel_and_bracket() -> None:
    coarse, fine = dfg_channel(0.08), dfg_channel(0.05)
    assert 1.8 < fine.n_nodes / coarse.n_nodes < 3
    assert coarse.facet_geometry("obstacle")[0].max() < 0.0085
    assert bracket(8e-3).dim == 3


@needs_gmsh
@pytest.mark.parametrize("version", [2.2, 4.1])
def test_files_that_gmsh_wrote(tmp_path: Path, version: float) -> None:
    gmsh.initialize(interruptible=False)
    try:
        gmsh.option.setNumber("General.Terminal", 0)
        gmsh.option.setNumber("Mesh.MshFileVersion", version)
        occ = gmsh.model.occ
        corners = [occ.addPoint(x, y, 0) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1))]
        control = occ.addPoint(0.5, -0.2, 0)
        curves = [occ.addSpline([corners[0], control, corners[1]])]
        curves += [occ.addLine(corners[i], corners[(i + 1) % 4]) for i in (1, 2, 3)]
        face = occ.addPlaneSurface([occ.addCurveLoop(curves)])
        occ.synchronize()
        gmsh.model.addPhysicalGroup(1, [curves[0]], name="belly")
        gmsh.model.addPhysicalGroup(1, curves[1:], name="other sides")
        gmsh.model.addPhysicalGroup(2, [face], name="body")
        gmsh.option.setNumber("Mesh.MeshSizeMax", 0.3)
        gmsh.model.mesh.generate(2)
        gmsh.write(str(tmp_path / "a.msh"))
    finally:
        gmsh.finalize()
    mesh = load(tmp_path / "a.msh")
    assert mesh.dim == 2 and set(mesh.boundaries) == {"belly", "other sides"} and len(mesh.regions["body"]) == mesh.n_cells
    assert len(mesh.facets("belly")) + len(mesh.facets("other sides")) == len(mesh.boundary_facets)
    assert mesh.points[mesh.nodes_on("belly"), 1].min() < -0.1


@needs_gmsh
def test_a_running_gmsh_is_left_running() -> None:
    gmsh.initialize(interruptible=False)
    try:
        gmsh.model.add("mine")
        gmsh.model.geo.addPoint(0, 0, 0)
        gmsh.model.geo.synchronize()
        channel(2.0, 1.0, size=0.5)
        assert gmsh.isInitialized()
        gmsh.model.setCurrent("mine")
        assert len(gmsh.model.getEntities(0)) == 1
    finally:
        gmsh.finalize()


@pytest.mark.parametrize("error", [ImportError("No module named 'gmsh'"), OSError("libGLU.so.1: cannot open shared object file")])
def test_without_gmsh(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    real = builtins.__import__

    def refuse(name: str, *args: object, **kwargs: object) -> object:
        if name == "gmsh":
            raise error
        return real(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", refuse)
    for shape in (channel, dfg_channel, gear_plate, bracket):
        with pytest.raises(InputError, match=r"pip install 'dgnet\[mesh\]'") as caught:
            shape()
        assert str(error) in str(caught.value)


@pytest.mark.parametrize("call,message", [
    (lambda: channel(-1.0), "length must be a positive number, got -1.0"),
    (lambda: channel(size=float("nan")), "size must be a positive number, got nan"),
    (lambda: gear_plate(0), "size must be a positive number"),
    (lambda: bracket(-1), "size must be a positive number"),
    (lambda: channel(obstacles=[((0.5, 4), 1)]), r"obstacle 0 at \(0.5, 4\) reaches out of the channel"),
    (lambda: channel(obstacles=[((6, 4), 1), ((7, 4), 1)]), "obstacles 0 and 1 overlap"),
    (lambda: channel(obstacles=[((6, 4), 2), ((6, 4), 1)]), "obstacles 0 and 1 overlap"),
    (lambda: channel(obstacles=[((6, 4), 0)]), "the radius of obstacle 0 must be a positive number")])
def test_bad_shapes(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=message):
        call()

"""Every way in: what is in the files arrives at the nodes, and what interpolation costs is said."""

import json
from pathlib import Path

import meshio
import numpy as np
import pytest
import torch

from dgnet.data import Dataset, Header, Trajectory, write_dataset
from dgnet.errors import InputError
from dgnet.mesh import Mesh, box
from dgnet.mesh.locate import from_cells
from dgnet.problems import step_average
from dgnet.problems.spot_table import SpotTable
from dgnet.problems.units import Units
from dgnet.projects import load
from dgnet.projects.between_meshes import error_of, from_cloud, transfer
from dgnet.projects.physics import Physics
from dgnet.projects.shapes import build, read_mesh
from dgnet.projects.table import Table
from dgnet.recipe import IN_A_FLOW
from dgnet.training.plan import make_plan
from tests.conftest import shuffled
from tests.projects.conftest import DT, SPOTS, STEPS, TOML, command, plate

HEAD = TOML[:TOML.index("[[data]]")]


def smooth(points: np.ndarray, steps: int = STEPS) -> np.ndarray:
    """[T+1, n]: a field that linear interpolation does well on, not exactly."""
    t = DT * np.arange(steps + 1)[:, None]
    return 20 + np.sin(2 * points[:, 0] + t) * np.cos(1.5 * points[:, 1])


def with_data(folder: Path, *entries: str) -> Path:
    (folder / "problem.toml").write_text(HEAD + "".join(f"[[data]]\n{e}\n" for e in entries))
    return folder


def imported(folder: Path) -> tuple[list[Trajectory], dict]:
    project = load(folder)
    with Dataset(project.data) as data:
        assert data.provenance["truth"] == "given" and data.offset == (20.0,)
        return [data.read(i) for i in range(len(data))], {n.label: n for n in project.notes}


def numbered(folder: Path, values: np.ndarray, mesh: Mesh) -> None:
    """name-000.vtu ... as other programs write them: no time, points in space."""
    points = np.pad(mesh.points, ((0, 0), (0, 1)))
    for k, row in enumerate(values):
        meshio.write(folder / f"out-{k}.vtu", meshio.Mesh(points, [("triangle", mesh.cells)], point_data={"T": row, "extra": row}))


@pytest.mark.parametrize("kind", ["npz", "npz-field", "npz-many", "npz-points", "h5", "pvd", "vtu", "xdmf", "csv", "csv-sensors"])
def test_round_trips(tiny: Path, kind: str) -> None:
    """Values at the nodes come back as they were, whatever the order of the nodes in the file."""
    mesh = plate()
    other = shuffled(mesh, 3)
    u, v = smooth(mesh.points), smooth(other.points)
    time = DT * np.arange(STEPS + 1)
    name = f"data.{kind.split('-')[0]}"
    if kind == "npz":
        np.savez(tiny / name, state=u, time=time)
    elif kind == "npz-field":
        np.savez(tiny / name, T=u)
    elif kind == "npz-many":
        np.savez(tiny / name, state=np.stack([u, 2 * u])[..., None])
    elif kind == "npz-points":
        np.savez(tiny / name, state=v[..., None], points=other.points.astype(np.float32), cells=other.cells)
    elif kind == "h5":
        write_dataset(tiny / name, Header(other, ("extra", "T"), DT, STEPS), [
            Trajectory(np.stack([0 * v, v], -1).astype(np.float32), time, split=s) for s in ("train", "test")])
    elif kind == "pvd":
        numbered(tiny, v, other)
        entries = "".join(f'<DataSet timestep="{t:.17g}" file="out-{k}.vtu"/>' for k, t in enumerate(time))
        (tiny / name).write_text(f'<?xml version="1.0"?><VTKFile type="Collection"><Collection>{entries}</Collection></VTKFile>')
    elif kind == "vtu":
        numbered(tiny, v, other)
        name = "out-*.vtu"
    elif kind == "xdmf":
        with meshio.xdmf.TimeSeriesWriter(str(tiny / name), data_format="XML") as writer:
            writer.write_points_cells(other.points, [("triangle", other.cells)])
            for t, row in zip(time, v):
                writer.write_data(t, point_data={"T": row})
    else:
        rows = [(t, *p, value) for t, row in zip(time, v) for p, value in zip(other.points, row)]
        if kind == "csv":
            text = "t,x,y,value\n" + "".join(f"{t:.17g},{x:.17g},{y:.17g},{value:.17g}\n" for t, x, y, value in rows)
        else:
            names = {tuple(p): f"s{k}" for k, p in enumerate(other.points)}
            text = "t,sensor,value\n" + "".join(f"{t:.17g},{names[x, y]},{value:.17g}\n" for t, x, y, value in rows)
            (tiny / "places.csv").write_text("sensor,x,y\n" + "".join(f"{n},{x:.17g},{y:.17g}\n" for (x, y), n in names.items()))
        (tiny / name).write_text(text)
    found, notes = imported(with_data(tiny, f'file = "{name}"' + ('\nsensors = "places.csv"' if kind == "csv-sensors" else "")))
    assert found[0].state.shape == (STEPS + 1, mesh.n_nodes, 1)
    assert np.allclose(found[0].state[..., 0], u, rtol=0, atol=1e-5) and np.allclose(found[0].time, time)
    assert all(n.how == "given at the nodes" and n.interpolation == 0 for n in notes.values())
    assert [t.split for t in found] == (["train", "test"] if kind == "h5" else ["train"] * len(found))
    assert len(found) == (2 if kind in ("npz-many", "h5") else 1)


def test_from_another_mesh(tiny: Path) -> None:
    """Interpolation from a finer mesh: the estimate is of the size of the true error."""
    mesh, fine = plate(), box((17, 13), upper=(1.2, 0.9), perturb=0.2, seed=4)
    np.savez(tiny / "fine.npz", state=smooth(fine.points), points=fine.points, cells=fine.cells)
    found, notes = imported(with_data(tiny, 'file = "fine.npz"'))
    note = notes["fine.npz"]
    true = np.linalg.norm(found[0].state[..., 0] - smooth(mesh.points)) / np.linalg.norm(smooth(mesh.points) - 20)
    assert "another mesh" in note.how and note.outside == 0
    assert true < 5e-3 and 0.3 * true < note.interpolation < 30 * true


def test_from_sensors(tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The estimate is of the size of the true error at the nodes; said by `dgnet import` and `dgnet check`."""
    where = box((7, 4), upper=(1.2, 0.9), perturb=0.25, seed=5).points
    lines = [f"{t:g},{x:.9g},{y:.9g},{v:.9g}" for t, row in zip(DT * np.arange(STEPS + 1), smooth(where))
             for (x, y), v in zip(where, row)]
    (tiny / "sensors.csv").write_text("t,x,y,value\n" + "\n".join(lines) + "\n")
    found, notes = imported(with_data(tiny, 'file = "sensors.csv"'))
    note, mesh = notes["sensors.csv"], plate()
    true = np.linalg.norm(found[0].state[..., 0] - smooth(mesh.points)) / np.linalg.norm(smooth(mesh.points) - 20)
    assert "40 points" in note.how and 0.002 < true < 0.01 and true / 2 < note.interpolation < 10 * true
    assert command(monkeypatch, "import", tiny, "--json", tiny / "import.json") == 0
    assert "interpolation error about" in capsys.readouterr().out
    assert json.loads((tiny / "import.json").read_text())["trajectories"][0]["interpolation"] == pytest.approx(note.interpolation)


def test_transfer_is_exact_on_linear_fields(mesh: Mesh) -> None:
    """From cells and from scattered points, in 2D and 3D; outside, values at the edge."""
    other = box((9, 8), perturb=0.2, seed=9) if mesh.dim == 2 else box((5, 4, 4), perturb=0.1, seed=9)
    a = np.arange(1.0, mesh.dim + 1)
    for matrix, outside in (from_cells(other.points, other.cells, mesh.points), from_cloud(other.points, mesh.points)[:2]):
        assert not len(outside) and np.allclose(matrix @ (other.points @ a), mesh.points @ a, atol=1e-9)
    beyond = mesh.points.copy()
    beyond[:, 0] += 0.1
    matrix, outside = from_cells(other.points, other.cells, beyond)
    assert len(outside) and (matrix @ other.points)[:, 0].max() <= 1 + 1e-12
    way = transfer(mesh, other.points, other.cells, "x")
    assert error_of(way, (other.points @ a)[None, :, None], np.zeros(1)) < 1e-9


def test_time(tiny: Path) -> None:
    """A later start, other steps, and trajectories of different lengths."""
    mesh = plate()
    u = smooth(mesh.points, 40)
    np.savez(tiny / "late.npz", state=u, time=3.0 + DT * np.arange(41))
    np.savez(tiny / "fine.npz", state=u, time=0.25 * DT * np.arange(41))
    for entry, words in (('file = "late.npz"', "starts at t = 3, .* say begin = 3"), ('file = "fine.npz"', "say resample = true"),
                         ('file = "late.npz"\nbegin = 9.5', "fewer than two stored times")):
        with pytest.raises(InputError, match=words):
            load(with_data(tiny, entry))
    found, notes = imported(with_data(tiny, 'file = "late.npz"\nbegin = 3', 'file = "fine.npz"\nresample = true'))
    assert found[0].steps == found[1].steps == 10 and "the first 10 of 40 steps" in notes["late.npz"].how
    assert np.allclose(found[0].state[..., 0], u[:11], atol=1e-5) and np.allclose(found[1].state[..., 0], u[::4], atol=1e-5)
    found, notes = imported(with_data(tiny, 'file = "late.npz"\nbegin = 3.1'))
    assert found[0].steps == 39 and np.allclose(found[0].state[..., 0], u[1:], atol=1e-5)


def test_sources(tiny: Path) -> None:
    """Spots, a function and samples; averages over each step, zeros where a trajectory has none."""
    mesh = plate()
    x = torch.tensor(mesh.points)
    (tiny / "physics.py").write_text("import torch\ndef lamp(x, t):\n    return torch.exp(-40 * (x[:, 0] - 2 * t) ** 2)\n")
    samples = smooth(mesh.points)
    np.savez(tiny / "samples.npz", state=samples, source=samples)
    found, _notes = imported(with_data(
        tiny, 'file = "run-1.npz"\nsource = "run-1.csv"', 'file = "run-1.npz"\nsource = { function = "lamp" }',
        'file = "samples.npz"', 'file = "run-1.npz"'))
    spots = SpotTable.read(tiny / "run-1.csv", 2).on(mesh)
    times = DT * torch.arange(STEPS, dtype=torch.float64)
    assert np.allclose(found[0].source_average, step_average(spots, x, times, DT, 60)[0], atol=1e-3 * 30)
    exact = step_average(lambda x, t: torch.exp(-40 * (x[None, :, 0] - 2 * t[:, None]) ** 2)[None, :, :, None], x, times, DT, 60)
    assert np.allclose(found[1].source_average, exact[0], atol=1e-4)
    assert np.allclose(found[2].source_average[..., 0], 0.5 * (samples[1:] + samples[:-1]), atol=1e-5)
    assert not found[3].source_average.any()
    assert [n.source for n in load(tiny).notes] == ["spots", "function", "samples", "none"]
    assert load(tiny).notes[0].travel == pytest.approx(np.hypot(0.6, 0.3) / 6 / 0.15, rel=1e-6)


def test_velocity_from_the_data(tiny: Path) -> None:
    mesh = plate()
    flow = np.broadcast_to(mesh.points, (STEPS + 1, *mesh.points.shape)).copy()
    np.savez(tiny / "flow.npz", state=smooth(mesh.points), velocity=flow)
    with_data(tiny, 'file = "flow.npz"')
    text = (tiny / "problem.toml").read_text()
    (tiny / "problem.toml").write_text(text.replace("diffusion = 0.05", "diffusion = 0.05\nvelocity = \"data\""))
    project = load(tiny)
    with Dataset(project.data) as data:
        assert data.has_velocity and np.allclose(data.read(0).velocity, flow)
    plan = make_plan(project, 2, 30)
    config, recipe = plan.config, plan.recipe
    assert project.case.given_flow and config.learn_streamline and recipe.stages == IN_A_FLOW


def test_imported_again_only_when_something_changed(tiny: Path) -> None:
    load(tiny)
    kept = tiny / "imported.h5"
    first = kept.stat().st_mtime_ns
    load(tiny)
    text = (tiny / "run-1.csv").read_text()
    (tiny / "run-1.csv").write_text(text)  # a new time stamp, the same content
    (tiny / "problem.toml").write_text(TOML + "[training]\nminutes = 1\n")
    load(tiny)
    assert kept.stat().st_mtime_ns == first
    (tiny / "run-1.csv").write_text(text.replace("30", "31"))
    load(tiny)
    second = kept.stat().st_mtime_ns
    assert second != first
    (tiny / "problem.toml").write_text(TOML.replace("T = 20.0", "T = 21.0"))
    load(tiny)
    assert kept.stat().st_mtime_ns != second
    for path in tiny.glob("*.npz"):  # what is imported serves without the files it came from
        path.unlink()
    with Dataset(load(tiny).data) as data:
        assert len(data.of("train")) == 2


BAD = [
    ("x.npz", lambda p, m: np.savez(p, state=np.zeros((3, 5))), "has 5 nodes and no points, but the mesh has 63 nodes"),
    ("x.npz", lambda p, m: np.savez(p, stat=np.zeros(3)), "unknown array 'stat'"),
    ("x.npz", lambda p, m: np.savez(p, time=np.zeros(3)), "neither 'state' nor the field 'T'"),
    ("x.npz", lambda p, m: np.savez(p, state=np.full((3, 63), np.nan)), "'state' is not finite at index .0, 0."),
    ("x.npz", lambda p, m: np.savez(p, state=np.zeros((3, 63)), time=np.array([0, 0.2, 0.1])), "times do not increase"),
    ("x.npz", lambda p, m: np.savez(p, state=np.zeros((3, 63)), source=np.zeros((2, 63))), "'source' has shape"),
    ("x.npz", lambda p, m: np.savez(p, state=np.array([["a"] * 63] * 3)), "holds <U1, not numbers"),
    ("x.npz", lambda p, m: np.savez(p, state=np.zeros((1, 63))), "at least two stored times"),
    ("x.npz", lambda p, m: p.write_bytes(b"PK\3\4 nonsense"), "the file is damaged"),
    ("x.h5", lambda p, m: p.write_bytes(b"nonsense"), "not an HDF5 file"),
    ("x.h5", lambda p, m: write_dataset(p, Header(m, ("S",), DT, 2), [
        Trajectory(np.zeros((3, 63, 1), np.float32), DT * np.arange(3))]), "has no field 'T'"),
    ("x.pvd", lambda p, m: p.write_text("<VTKFile><Collection>"), "truncated or not XML"),
    ("x.pvd", lambda p, m: p.write_text("<VTKFile><Collection/></VTKFile>"), "lists no stored times"),
    ("x.pvd", lambda p, m: p.write_text('<V><Collection><DataSet file="a.vtu" timestep="1"/></Collection></V>'), "is no file"),
    ("x.xdmf", lambda p, m: p.write_text("<Xdmf>"), "is truncated or not a time series"),
    ("x.csv", lambda p, m: p.write_text("t,x,y,valu\n0,0,0,1\n"), "unknown column 'valu'; did you mean 'value'"),
    ("x.csv", lambda p, m: p.write_text("t,x,y,value\n0,0,0,1\n0,1,0,1\n0.1,0,0,2\n"), "the sensor at .1.0, 0.0. has no value"),
    ("x.csv", lambda p, m: p.write_text("t,x,y,value\n0,0,0,1\n0,0,0,2\n"), "line 3: a second value for the same sensor"),
    ("x.csv", lambda p, m: p.write_text("t,x,y,value\n0,0,0,warm\n"), "line 2: 'warm' in column 'value' is not a finite number"),
]


@pytest.mark.parametrize("name, write, words", BAD, ids=[w[:32] for *_, w in BAD])
def test_bad_files(tiny: Path, name: str, write, words: str) -> None:
    write(tiny / name, plate())
    with pytest.raises(InputError, match=words) as caught:
        load(with_data(tiny, f'file = "{name}"'))
    assert str(tiny) in str(caught.value) and "\n" not in str(caught.value)
    assert not (tiny / "imported.h5").exists() and not list(tiny.glob("*.part"))


def test_a_source_twice(tiny: Path) -> None:
    np.savez(tiny / "own.npz", state=smooth(plate().points), source=smooth(plate().points))
    with pytest.raises(InputError, match="has a source of its own"):
        load(with_data(tiny, 'file = "own.npz"\nsource = "run-1.csv"'))
    (tiny / "spots.csv").write_text(SPOTS.replace("radius", "radios"))
    with pytest.raises(InputError, match="did you mean 'radius'"):
        load(with_data(tiny, 'file = "run-1.npz"\nsource = "spots.csv"'))


@pytest.mark.parametrize("name, measures, area, boundaries", [
    ("disc", {"radius": 1.0, "spacing": 0.12}, np.pi, {"rim"}),
    ("l-shape", {"size": (0.3, 0.2), "arms": (0.08, 0.1), "spacing": 0.015}, 0.3 * 0.08 + 0.1 * 0.12,
     {"bottom", "right", "inner", "top", "left"}),
    ("polygon", {"outline": ((0.0, 0.0), (2.0, 0.0), (1.0, 1.5)), "spacing": 0.12,
                 "holes": ({"centre": (1.0, 0.5), "radius": 0.3},)}, 1.5 - np.pi * 0.09, {"side-1", "side-2", "side-3", "hole-1"}),
    ("rectangle", {"size": (2.0, 1.0), "spacing": 0.2, "corner": (-1.0, 0.0)}, 2.0, {"left", "right", "bottom", "top"}),
    ("box", {"size": (1.0, 1.0, 0.5), "spacing": 0.25}, 0.5, {"left", "right", "bottom", "top", "back", "front"})])
def test_shapes(name: str, measures: dict, area: float, boundaries: set[str]) -> None:
    """The right area, well-shaped cells, boundaries that cover the edge, and the same mesh every time."""
    def shape() -> Mesh:
        table = Table({"shape": name, **json.loads(json.dumps(measures))}, Path("file"), "mesh")
        return build(read_mesh(table, Units()), Path(), Physics(Path()), "file")

    mesh = shape()
    assert mesh.volumes.sum() == pytest.approx(area, rel=0.02) and mesh.quality.min() > 0.25
    assert set(mesh.boundaries) == boundaries and sum(map(len, mesh.boundaries.values())) == len(mesh.boundary_facets)
    assert np.median(mesh.edge_lengths) == pytest.approx(measures["spacing"], rel=0.35)
    assert np.array_equal(shape().points, mesh.points)

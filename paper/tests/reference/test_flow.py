"""The flow solver against exact solutions, itself at smaller steps, and the published cylinder benchmark."""

from itertools import pairwise

import numpy as np
import pytest
import skfem
import torch
from scipy.sparse import block_array, csr_array, eye_array, kron
from scipy.sparse.linalg import splu
from skfem.models.general import divergence
from skfem.models.poisson import laplace, mass

from benchmarks import dfg as benchmark
from benchmarks.dfg import cylinder_flow, dfg, period
from dgnet.errors import InputError, SolveError
from dgnet.mesh.box import box
from dgnet.mesh.mesh import Mesh
from dgnet_paper.reference import flow as flow_module
from dgnet_paper.reference.flow import ChannelFlow
from dgnet_paper.reference.record import FlowRecord, simulate
from dgnet_paper.reference.taylor_hood import TaylorHood, p2_points, p2_values


def named(mesh: Mesh) -> Mesh:
    sides = mesh.boundaries
    walls = np.concatenate([sides["bottom"], sides["top"]])
    return Mesh(mesh.points, mesh.cells, {"inlet": sides["left"], "outlet": sides["right"], "walls": walls})


def channel(nx: int = 12, ny: int = 6, length: float = 2.0) -> Mesh:
    return named(box((nx, ny), upper=(length, 1.0), perturb=0.2, seed=1))


def blocked(n: int = 6) -> Mesh:
    """A channel [0, 4] x [0, 1] with a square hole off its middle line."""
    whole = box((4 * n, n), upper=(4.0, 1.0))
    hole = (abs(whole.centroids - [1.0, 0.5]) < [0.34, 0.17]).all(axis=1)
    cells = whole.cells[~hole]
    used = np.unique(cells)
    mesh = Mesh(whole.points[used], np.searchsorted(used, cells))
    middle = mesh.points[mesh.boundary_facets].mean(axis=1)
    facets = mesh.boundary_facets
    x, y = middle.T
    edge = {"inlet": x < 1e-9, "outlet": x > 4 - 1e-9, "walls": (y < 1e-9) | (y > 1 - 1e-9)}
    edge["obstacle"] = ~(edge["inlet"] | edge["outlet"] | edge["walls"])
    return Mesh(mesh.points, mesh.cells, {name: facets[mask] for name, mask in edge.items()})


def test_matrices_equal_those_of_scikit_fem():
    mesh = channel(5, 3)
    space = TaylorHood(mesh)
    triangles = skfem.MeshTri(mesh.points.T, mesh.cells.T)
    scalar = skfem.Basis(triangles, skfem.ElementTriP2(), intorder=4)
    vector = skfem.Basis(triangles, skfem.ElementVector(skfem.ElementTriP2()), intorder=4)
    pressure = vector.with_element(skfem.ElementTriP1())

    def order(places: np.ndarray) -> np.ndarray:  # our node of each of theirs
        return np.array([((p2_points(mesh) - x) ** 2).sum(axis=1).argmin() for x in places.T])

    ours = order(scalar.doflocs)
    for form, matrix in ((mass, space.mass), (laplace, space.stiffness)):
        assert abs(form.assemble(scalar).toarray() - matrix.toarray()[np.ix_(ours, ours)]).max() < 1e-12
    nodes = order(vector.doflocs)
    component = np.zeros(vector.N, dtype=int)
    for dofs in (vector.nodal_dofs, vector.facet_dofs):
        component[dofs[1]] = 1
    theirs = -divergence.assemble(vector, pressure).toarray()
    assert abs(theirs - space.divergence.toarray()[:, 2 * nodes + component]).max() < 1e-12


@pytest.mark.parametrize("method", ["lu", "schur"])
def test_poiseuille_flow_is_exact(method):
    mesh = channel()
    viscosity, speed = 0.1, 0.7
    flow = ChannelFlow(mesh, mean_velocity=speed, viscosity=viscosity, dt=0.02, ramp=0.2, perturbation=0.0, method=method)
    flow.advance(1200)
    y = p2_points(mesh)[:, 1]
    exact = np.stack([6 * speed * y * (1 - y), np.zeros_like(y)], axis=1)
    assert abs(flow.velocity - exact).max() < 1e-9
    assert abs(flow.pressure - 12 * viscosity * speed * (2 - mesh.points[:, 0])).max() < 1e-8
    assert flow.pressure_at([[1.0, 0.5]])[0] == pytest.approx(12 * viscosity * speed, rel=1e-8)


def test_third_order_in_time():
    mesh = blocked()

    def at_end(steps: int) -> np.ndarray:
        flow = ChannelFlow(mesh, mean_velocity=1.0, viscosity=0.02, dt=0.4 / steps, ramp=0.4, perturbation=0.3, pulse=0.8)
        flow.advance(steps)
        return flow.velocity

    runs = [at_end(40 * 2**k) for k in range(4)]
    gaps = [np.linalg.norm(b - a) for a, b in pairwise(runs)]
    orders = np.log2(np.array(gaps[:-1]) / gaps[1:])
    assert (orders > 2.4).all(), orders


def test_both_solvers_agree_and_conserve_volume():
    mesh = blocked()
    flows = [ChannelFlow(mesh, mean_velocity=1.0, viscosity=0.01, dt=0.005, method=m, tolerance=1e-10) for m in ("lu", "schur")]
    for flow in flows:
        flow.advance(150)
        momentum, volume = flow.check()
        assert momentum < 1e-10 and volume < 1e-12
    assert abs(flows[0].velocity - flows[1].velocity).max() < 1e-9
    assert abs(flows[0].pressure - flows[1].pressure).max() < 1e-7
    np.testing.assert_allclose(flows[0].forces("obstacle"), flows[1].forces("obstacle"), atol=1e-8)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_captured_step_on_cuda_equals_the_factored_one():
    mesh = blocked(12)
    flows = [ChannelFlow(mesh, mean_velocity=1.0, viscosity=0.01, dt=0.0025, device=d, tolerance=1e-10) for d in ("cpu", "cuda")]
    for flow in flows:
        flow.advance(150)
        flow.check()
    assert flows[1]._graph is not None
    assert abs(flows[0].velocity - flows[1].velocity).max() < 1e-9
    assert abs(flows[0].pressure - flows[1].pressure).max() < 1e-7


def test_the_velocity_iteration_is_bounded_by_its_elements():
    flow = ChannelFlow(blocked(), mean_velocity=1.0, viscosity=0.05, dt=0.01, method="schur", tolerance=1e-6)
    a = flow.a.to_dense().numpy()
    root = 1 / np.sqrt(np.diag(a))
    values = np.linalg.eigvalsh(root[:, None] * a * root)
    low, high = flow._bounds()
    assert low <= values[0] and values[-1] <= high
    force = torch.from_numpy(np.random.default_rng(0).normal(size=(len(a), 2)))
    exact = np.linalg.solve(a, force.numpy())
    assert np.linalg.norm(flow.solve.velocity(force).numpy() - exact) < 1e-5 * np.linalg.norm(exact)


def test_a_float32_inverse_still_conserves_volume(monkeypatch):
    mesh = blocked()
    monkeypatch.setattr(flow_module, "FLOAT32_INVERSE_ABOVE", 10)
    flow = ChannelFlow(mesh, mean_velocity=1.0, viscosity=0.01, dt=0.005, method="schur")
    assert flow.solve.inverse.dtype == torch.float32
    flow.advance(150)
    assert flow.check()[1] < 1e-7
    exact = ChannelFlow(mesh, mean_velocity=1.0, viscosity=0.01, dt=0.005)
    exact.advance(150)
    assert abs(flow.velocity - exact.velocity).max() < 1e-7


def test_a_step_too_long_is_an_error():
    flow = ChannelFlow(blocked(), mean_velocity=1.0, viscosity=1e-3, dt=0.2, ramp=0.5)
    with pytest.raises(SolveError, match="blew up"):
        flow.advance(1000)
    flow = ChannelFlow(blocked(), mean_velocity=1.0, viscosity=0.01, dt=0.02, ramp=0.5)
    flow.advance(25)  # viscosity holds it together, but not for long
    with pytest.raises(SolveError, match="take at most"):
        flow.check()


@pytest.mark.parametrize("refine", [0, 1])
@pytest.mark.parametrize("target", [0, 1, 2, 3])
def test_interpolation_is_exact_for_quadratics(refine, target):
    mesh = channel(4, 3)

    def field(x: np.ndarray) -> np.ndarray:
        return np.stack([1 + x[:, 0] - x[:, 1] ** 2, x[:, 0] * x[:, 1] - 2 * x[:, 0] ** 2], axis=1)

    values = np.stack([field(mesh.refined(refine + 1).points)] * 2)
    record = FlowRecord(mesh, refine, 0.1, values)
    want = field(mesh.refined(target).points)
    matrix = record.interpolator(target)
    assert matrix.shape == (len(want), values.shape[1])
    assert abs(matrix @ values[0] - want).max() < 1e-12
    assert abs(record.snapshots(target) - want).max() < 1e-12
    assert np.diff(matrix.indptr).max() <= 6


def test_simulate_stores_saves_and_begins_again(tmp_path):
    mesh = channel(8, 4)
    seen: list[tuple[int, int]] = []
    common = {"mean_velocity": 1.0, "viscosity": 0.02, "dt_flow": 0.005, "store_every": 10}
    record = simulate(mesh, spin_up=0.2, duration=0.5, progress=lambda *x: seen.append(x), **common)
    assert record.values.shape == (11, mesh.refined(1).n_nodes, 2) and record.values.dtype == np.float32
    assert record.dt == pytest.approx(0.05) and seen[-1] == (140, 140)
    record.save(tmp_path / "flow.npz")
    again = FlowRecord.load(tmp_path / "flow.npz")
    np.testing.assert_array_equal(again.values, record.values)
    np.testing.assert_array_equal(again.snapshots(0), record.values[:, : mesh.n_nodes])
    assert set(again.mesh.boundaries) == set(mesh.boundaries)
    finer = simulate(mesh, spin_up=0.0, duration=0.1, refine=1, begin=again, **common)
    assert abs(finer.snapshots(1)[0] - record.snapshots(1)[-1]).max() < 1e-6
    (tmp_path / "half.npz").write_bytes((tmp_path / "flow.npz").read_bytes()[:500])
    with pytest.raises(InputError, match="flow record"):
        FlowRecord.load(tmp_path / "half.npz")


def test_bad_input_is_named():
    mesh = channel(4, 3)
    with pytest.raises(InputError, match="no boundary 'inlet'"):
        ChannelFlow(Mesh(mesh.points, mesh.cells), mean_velocity=1, viscosity=1, dt=0.1)
    with pytest.raises(InputError, match="viscosity"):
        ChannelFlow(mesh, mean_velocity=1, viscosity=0, dt=0.1)
    with pytest.raises(InputError, match="unknown flow solver"):
        ChannelFlow(mesh, mean_velocity=1, viscosity=1, dt=0.1, method="magic")
    with pytest.raises(InputError, match="initial velocity"):
        ChannelFlow(mesh, mean_velocity=1, viscosity=1, dt=0.1, initial=np.zeros((3, 2)))
    with pytest.raises(InputError, match="unknown DFG case"):
        dfg("3D-1")


def test_period_of_a_sine():
    t = np.arange(0, 10, 0.01)
    assert period(0.3 + np.sin(2 * np.pi * t / 1.7), 0.01) == pytest.approx(1.7, rel=1e-4)


def coarse_cylinder() -> Mesh:
    """The DFG channel with 24 nodes on the cylinder: rings around it, a grid elsewhere."""
    centre, around = np.array([0.2, 0.2]), 24
    rings = []
    for k, r in enumerate(0.05 * 1.28 ** np.arange(5)):
        angle = 2 * np.pi * (np.arange(around) + 0.5 * (k % 2)) / around
        rings.append(centre + r * np.stack([np.cos(angle), np.sin(angle)], axis=1))
    x = np.concatenate([np.linspace(0, 0.6, 17)[:-1], np.linspace(0.6, 2.2, 25)])
    grid = np.stack(np.meshgrid(x, np.linspace(0, 0.41, 11), indexing="ij"), axis=-1).reshape(-1, 2)
    grid = grid[np.linalg.norm(grid - centre, axis=1) > 0.05 * 1.28**4 + 0.02]
    whole = Mesh.delaunay(np.concatenate([*rings, grid]))
    cells = whole.cells[(whole.cells >= around).any(axis=1)]  # without those inside of the cylinder
    mesh = Mesh(whole.points, cells)
    facets = mesh.boundary_facets
    middle = mesh.points[facets].mean(axis=1)
    side = {"inlet": middle[:, 0] < 1e-9, "outlet": middle[:, 0] > 2.2 - 1e-9, "obstacle": (facets < around).all(axis=1)}
    return Mesh(mesh.points, mesh.cells, {name: facets[mask] for name, mask in side.items()})


def test_dfg_cylinder_at_re_20():
    """Coarse and shortened: drag and pressure settle long before the lift does."""
    result = dfg("2D-1", mesh=coarse_cylinder(), longest=4.0, dt=0.005)["quantities"]
    assert result["drag"]["ours"] == pytest.approx(5.58, rel=0.02)
    assert result["pressure drop"]["ours"] == pytest.approx(0.1174, rel=0.02)
    assert abs(result["lift"]["ours"]) < 0.05


def test_the_cylinder_has_the_area_of_the_circle():
    mesh = coarse_cylinder()
    for equal_area, want in ((True, np.pi * 0.05**2), (False, 12 * 0.05**2 * np.sin(2 * np.pi / 24))):
        moved = benchmark._rounded(mesh.refined(1), (0.2, 0.2), 0.05, equal_area)
        if not equal_area:
            assert np.linalg.norm(moved.points[moved.nodes_on("obstacle")] - 0.2, axis=1) == pytest.approx(0.05)
            moved = benchmark._rounded(mesh, (0.2, 0.2), 0.05, False)
        assert 2.2 * 0.41 - moved.volumes.sum() == pytest.approx(want, rel=1e-9)


def test_a_p2_field_is_read_anywhere():
    mesh, other = channel(8, 5), channel(11, 7)

    def field(x: np.ndarray) -> np.ndarray:
        return np.stack([1 + x[:, 0] - x[:, 1] ** 2, x[:, 0] * x[:, 1] - 2 * x[:, 0] ** 2], axis=1)

    got = p2_values(mesh, field(p2_points(mesh)), p2_points(other))
    assert abs(got - field(p2_points(other))).max() < 1e-12


def test_dissection_orders_all_unknowns_with_less_fill():
    flow = ChannelFlow(blocked(10), mean_velocity=1.0, viscosity=0.01, dt=0.005)
    order = flow.solve.order
    assert np.array_equal(np.sort(order), np.arange(2 * len(flow.free) + flow.mesh.n_nodes))
    a, b = (csr_array((m.values(), m.col_indices(), m.crow_indices()), shape=m.shape) for m in (flow.a, flow.b))
    coupled = block_array([[kron(a, eye_array(2)), b.T], [b, None]], format="csc")
    plain = splu(coupled)
    assert flow.solve.lu.L.nnz + flow.solve.lu.U.nnz < 0.8 * (plain.L.nnz + plain.U.nnz)


def test_a_flow_begins_on_another_mesh():
    mesh = coarse_cylinder()
    flow, result = cylinder_flow("2D-1", mesh, longest=2.0, dt=0.005)
    assert not result["settled"] and result["around"] == 24
    _, again = cylinder_flow("2D-1", mesh.refined(1), begin=flow, longest=0.5, dt=0.0025)
    assert again["nodes"] > 3 * result["nodes"]
    assert again["quantities"]["drag"]["ours"] == pytest.approx(result["quantities"]["drag"]["ours"], rel=0.02)


def test_the_page_shows_ours_beside_the_published_figures():
    def row(near: float, error: float) -> dict:
        ours = {"drag max": 3.22 + error, "lift max": 0.98 - error, "Strouhal": 0.3 + 0 * error}
        published = benchmark.DFG["2D-2"]
        quantities = {k: {"ours": v, "published": published[k], "inside": k != "lift max"} for k, v in ours.items()}
        return {"case": "2D-2", "mesh": "m", "size": 4 * near, "near": near, "nodes": 1000, "cells": 1800, "around": 90, "dt": 1e-4,
                "settled": True, "quantities": quantities, "also": {"lift min": -1.02 + error, "lift amplitude": 1.0 - error}}

    rows = [row(h, 100 * h**2) for h in (0.008, 0.004, 0.002)]
    limit = benchmark.limits(rows)
    assert limit["lift max"]["value"] == pytest.approx(0.98) and limit["lift max"]["order"] == pytest.approx(2)
    assert limit["Strouhal"]["value"] == pytest.approx(0.3) and limit["Strouhal"]["order"] is None

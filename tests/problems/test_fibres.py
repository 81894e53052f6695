"""Tensors of diffusion from fibres: exact solutions, rotation, the reference solver, problem files."""

from pathlib import Path

import numpy as np
import pytest
import torch

import dgnet as dg
from dgnet.errors import InputError
from dgnet.problems import fibre_tensors
from dgnet.projects.project import described
from dgnet_paper.reference import solve as reference_solve

TOML = """
[problem]
fields = ["u"]
dt = 0.1
[mesh]
shape = "rectangle"
size = [1, 1]
spacing = 0.25
regions.core = {{ x = [0, 0.5] }}
[pde]
diffusion = {{ {} }}
"""


def turned(angle: float) -> np.ndarray:
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])


def test_a_polynomial_is_met_exactly_with_a_rotated_tensor() -> None:
    """u = x . Q x + 2 tr(D Q) t solves du/dt = div(D grad u); quadratic elements and Crank-Nicolson hold it to rounding."""
    mesh = dg.box((4, 3), perturb=0.2, seed=2)
    D = fibre_tensors([[np.cos(0.7), np.sin(0.7)]], along=2.0, across=0.1)[0]
    assert np.allclose(D, turned(0.7) @ np.diag([2.0, 0.1]) @ turned(0.7).T)
    Q, rate = torch.tensor([[1.0, 0.3], [0.3, -2.0]], dtype=torch.float64), 2 * np.trace(D @ [[1.0, 0.3], [0.3, -2.0]])

    def exact(x: torch.Tensor, t: float) -> torch.Tensor:
        return ((x @ Q) * x).sum(-1) + rate * t

    pde = dg.PDE(diffusion=np.tile(D, (mesh.n_cells, 1, 1)))
    problem = dg.Problem(mesh, pde, [dg.Dirichlet("boundary", exact)], dt=0.1)
    model = dg.Classical(degree=2)
    start = exact(torch.tensor(model.points(problem)), 0.0)[None, :, None]
    last = dg.rollout(model, problem, start, steps=5)[0, -1, :, 0]
    assert torch.allclose(last, exact(torch.tensor(mesh.points), 0.5), atol=1e-10)


def test_turning_mesh_and_fibres_together_changes_nothing() -> None:
    mesh, R = dg.box((6, 6)), turned(0.4)
    angle = 3 * mesh.centroids[:, 0]
    fibres = np.stack([np.cos(angle), np.sin(angle)], 1)
    start = torch.rand(1, mesh.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    other = dg.Mesh(mesh.points @ R.T, mesh.cells)
    states = [dg.rollout(dg.Classical(), dg.Problem(m, dg.PDE(diffusion=fibre_tensors(f, 0.1, 0.001)), [], dt=0.1), start, steps=5)
              for m, f in ((mesh, fibres), (other, fibres @ R.T), (mesh, -2 * fibres), (mesh, fibres[:, ::-1]))]
    assert torch.allclose(states[0], states[1], atol=1e-12) and torch.allclose(states[0], states[2], atol=1e-12)
    assert not torch.allclose(states[0], states[3], atol=1e-3)


def test_the_reference_solver_knows_the_tensors_of_cells() -> None:
    mesh = dg.box((3, 3, 2), upper=(1.0, 1.0, 0.5))
    angle = 2 * mesh.centroids[:, 2]
    fibres = np.stack([np.cos(angle), np.sin(angle), 0 * angle], 1)
    pde = dg.PDE(diffusion=fibre_tensors(fibres, 0.2, 0.02))

    def start(x: torch.Tensor) -> torch.Tensor:
        return torch.exp(-4 * ((x - 0.3) ** 2).sum(-1))[None, :, None]

    problem = dg.Problem(mesh, pde, [], dt=0.005)
    model = dg.Classical(degree=2)
    ours = dg.rollout(model, problem, start(torch.tensor(model.points(problem))), steps=60)[:, ::10]
    truth = reference_solve(mesh, pde, [], start, dt=0.05, steps=6, degree=2, substeps=10)
    assert float((ours - truth).norm() / truth.norm()) < 2e-4


@pytest.mark.parametrize("text, expected", [
    ('fibres = "f.npy", along = 2, across = 1', [[1.5, 0.5], [0.5, 1.5]]),
    ('fibres = [1, 1], along = 2, across = 1', [[1.5, 0.5], [0.5, 1.5]]),
    ('fibres = { function = "diagonal" }, along = { core = 2, elsewhere = 1 }, across = 1', [[1.5, 0.5], [0.5, 1.5]])])
def test_problem_files(text: str, expected: list[list[float]], tmp_path: Path) -> None:
    (tmp_path / "problem.toml").write_text(TOML.format(text))
    (tmp_path / "physics.py").write_text("import torch\n\ndef diagonal(x):\n    return torch.ones_like(x)\n")
    np.save(tmp_path / "f.npy", np.ones((32, 2)))
    case = described(tmp_path, "", tmp_path / "none", 1).case
    tensors = np.asarray(case.pde.diffusion)
    inside = case.mesh.centroids[:, 0] < 0.5
    assert tensors.shape == (32, 2, 2) and np.allclose(tensors[inside], expected)
    assert np.allclose(tensors[~inside], np.eye(2) if "core" in text else expected)


@pytest.mark.parametrize("text, words", [
    ('fibres = "f.npy", along = 2, across = 1', r"f.npy must hold numbers \[32, 2\], got float64 \[31, 2\]"),
    ('fibres = "zero.npy", along = 2, across = 1', "direction of the fibres in cell 5 must be finite and not zero"),
    ('fibres = [1, 0, 0], along = 2, across = 1', "fibres has 3 components, but the mesh is 2D"),
    ('fibres = [1, 0], along = 2', "diffusion.across is missing"),
    ('along = 2, across = 1', "diffusion.fibres is missing"),
    ('fibres = [1, 0], along = -2, across = 1', "along must not be negative, got -2")])
def test_bad_fibres_are_one_sentence(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "problem.toml").write_text(TOML.format(text))
    np.save(tmp_path / "f.npy", np.ones((31, 2)))
    np.save(tmp_path / "zero.npy", np.arange(64).reshape(32, 2) - [10, 11])
    with pytest.raises(InputError, match=words):
        described(tmp_path, "", tmp_path / "none", 1)

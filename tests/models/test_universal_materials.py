"""Universal weights on bodies of two and three materials: never much worse than the better classical solver on the same mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import dgnet as dg
from dgnet.mesh import Mesh, box
from dgnet.models import Classical, Model, rollout
from dgnet.models.universal import Universal
from dgnet.models.universal.local import surroundings
from dgnet.training.simulator import simulator

STEPS, AMBIENT = 30, 20.0


def disc(x: np.ndarray) -> np.ndarray:
    return (np.linalg.norm(x - 0.5, axis=1) < 0.25).astype(int)


def halves(x: np.ndarray) -> np.ndarray:
    return (x[:, 0] > 0.5).astype(int)


def layers(x: np.ndarray) -> np.ndarray:
    return (3 * x[:, 1]).astype(int)


def quarters(x: np.ndarray) -> np.ndarray:
    return (x[:, 0] > 0.5) + 2 * ((x[:, 0] <= 0.5) & (x[:, 1] > 0.5)).astype(int)


def coating(x: np.ndarray) -> np.ndarray:
    return (x[:, 1] > 15 / 16).astype(int)


def cube(x: np.ndarray) -> np.ndarray:
    return (np.abs(x - 0.5).max(1) < 0.22).astype(int)


@dataclass(frozen=True)
class Body:
    """Conductivities and capacities of its materials; a spot warms it, and what is exchanged with the surroundings."""

    parts: Callable[[np.ndarray], np.ndarray]
    conductivity: tuple[float, ...]
    capacity: tuple[float, ...]
    fourier: float  # of the geometric mean of the diffusivities
    spot: tuple[float, ...]  # place, radius
    exchange: float
    hot: float = AMBIENT  # what surrounds the left side
    cells: int = 16
    dim: int = 2
    perturbed: float = 0.0

    def problem(self, refined: int = 0, substeps: int = 1) -> dg.Problem:
        mesh = box((self.cells,) * self.dim, perturb=self.perturbed, seed=3)
        which = self.parts(mesh.centroids)
        k, c = np.array(self.conductivity), np.array(self.capacity)
        dt = self.fourier * mesh.spacing**2 / np.exp(np.log(k / c).mean()) / substeps
        k, c = (np.repeat(v[which], 2 ** (self.dim * refined)) for v in (k, c))
        rest = [name for name in mesh.boundaries if name != "left"]
        rules = [dg.Robin("left", self.exchange, self.hot), *(dg.Robin(name, self.exchange, AMBIENT) for name in rest)]
        return dg.Problem(mesh.refined(refined), dg.PDE(diffusion=torch.tensor(k), capacity=torch.tensor(c)), rules, dt)

    def states(self, model: Model, refined: int = 0, substeps: int = 1) -> torch.Tensor:
        """[T, N] at the nodes of the mesh that is not refined."""
        p = self.problem(refined, substeps)
        x, found = torch.tensor(model.points(p)), []
        place, radius = torch.tensor(self.spot[:-1]), self.spot[-1]
        size = self.conductivity[0] / radius**2
        f = (size * torch.exp(-(x - place).square().sum(1) / (2 * radius**2)))[None, None, :, None]
        f = f.expand(1, STEPS * substeps, -1, -1)
        nodes = box((self.cells,) * self.dim).n_nodes

        def sink(k: int, u: torch.Tensor) -> None:
            if k % substeps == 0:
                found.append(u[0, :nodes, 0].clone())

        with torch.no_grad():
            rollout(model, p, torch.full((1, len(x), 1), AMBIENT, dtype=torch.float64), f, STEPS * substeps, sink=sink)
        return torch.stack(found)


BODIES = {
    "metal beside ceramic": Body(halves, (200.0, 0.5), (3.5, 2.5), 1.0, (0.25, 0.4, 0.15), 20.0, hot=60.0),
    "ceramic in metal": Body(disc, (200.0, 0.5), (3.5, 2.5), 1.0, (0.25, 0.3, 0.1), 50.0, perturbed=0.2),
    "metal in ceramic": Body(disc, (0.5, 200.0), (2.5, 3.5), 0.3, (0.5, 0.5, 0.15), 1.0, perturbed=0.2),
    "1 to 10": Body(disc, (1.0, 10.0), (1.0, 1.0), 0.5, (0.4, 0.5, 0.15), 3.0, perturbed=0.2),
    "1 to 500": Body(disc, (1.0, 500.0), (2.0, 0.6), 0.2, (0.3, 0.6, 0.15), 0.7, perturbed=0.2),
    "three layers": Body(layers, (5.0, 500.0, 1.0), (0.5, 1.0, 0.6), 0.15, (0.5, 0.6, 0.15), 0.2, cells=15),
    "three parts, 1 to 1000": Body(quarters, (1.0, 100.0, 0.1), (1.0, 2.0, 1.0), 1.0, (0.8, 0.2, 0.12), 5.0),
    "coating": Body(coating, (1.0, 100.0), (1.0, 1.0), 0.5, (0.5, 1.0, 0.1), 5.0),
    "cube in a cube": Body(cube, (0.3, 300.0), (1.0, 1.0), 0.3, (0.5, 0.5, 0.8, 0.15), 2.0, cells=6, dim=3),
    "solid halves": Body(halves, (50.0, 1.0), (0.8, 0.4), 0.13, (0.4, 0.6, 0.5, 0.25), 5.0, cells=6, dim=3)}
"""Ratios of diffusivities from 10 to 1,000; the training had up to 10."""


@pytest.mark.parametrize("names", [("metal beside ceramic", "1 to 500", "coating", "cube in a cube"),
                                   pytest.param(tuple(BODIES), marks=pytest.mark.slow)], ids=["four bodies", "all"])
def test_never_much_worse_than_the_better_classical_solver(names: tuple[str, ...]) -> None:
    """Against quadratic elements on the mesh refined twice (once in 3D) with a quarter of the step. Which mass is better changes
    from body to body by up to a factor of 2.3, so no fixed one can be the better of both everywhere."""
    ratios = {}
    for name, body in ((name, BODIES[name]) for name in names):
        truth = body.states(Classical(degree=2, start=4), 4 - body.dim, 4)
        size = (truth - AMBIENT).norm()
        models = Universal(), Classical(1.0), Classical(0.0)
        universal, *classical = (float((body.states(m) - truth).norm() / size) for m in models)
        assert min(classical) > 5e-3  # there is something to be better at
        ratios[name] = universal / min(classical)
    whole = len(names) == len(BODIES)
    assert max(ratios.values()) < 1.3 and (not whole or np.exp(np.mean(np.log(list(ratios.values())))) < 0.87), ratios


def test_jumps_within_the_training_range_change_nothing() -> None:
    """The fade by jumps is 1, exactly, in one material and up to a ratio of ten."""
    for ratio in (1.0, 3.0, 10.0):
        p = Body(disc, (1.0, ratio), (1.0, 1.0), 0.5, (0.5, 0.5, 0.1), 1.0).problem()
        assert all(bool((Universal(degree=degree).net(2).jumps(surroundings(p)) == 1).all()) for degree in (1, 2))
    far = surroundings(Body(disc, (1.0, 300.0), (1.0, 1.0), 0.5, (0.5, 0.5, 0.1), 1.0).problem())
    assert all(float(Universal(degree=degree).net(2).jumps(far).min()) == 0.0 for degree in (1, 2))


def test_simulate_names_jumps_beyond_the_training_range(tmp_path: Path) -> None:
    mesh = box((12, 12))
    regions = {"ceramic": np.flatnonzero(disc(mesh.centroids)), "metal": np.flatnonzero(1 - disc(mesh.centroids))}
    dg.save_mesh(Mesh(mesh.points, mesh.cells, mesh.boundaries, regions), tmp_path / "body.msh")
    for ceramic, named in ((0.5, True), (50.0, False)):
        (tmp_path / "problem.toml").write_text(
            f'problem = {{ name = "body", fields = ["T"], dt = 0.1 }}\nmesh = {{ file = "body.msh" }}\n'
            f"pde = {{ diffusion = {{ metal = 200.0, ceramic = {ceramic} }} }}\n")
        notes = " ".join(simulator(tmp_path).notes)
        assert ("by more than the factor 10.6 of the training, by 400 at (" in notes) == named

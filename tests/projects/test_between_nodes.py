"""Data that are not at the nodes: what interpolation misses goes with them, and no unknown reaction is made of it.

Truths are series of cosines: diffusion is exact, the reaction is stepped by Runge and Kutta, ten small steps to each step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.fft import dctn, idctn

from dgnet.data import Dataset
from dgnet.discovery.found import summands
from dgnet.discovery.identify import identify
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.projects import load

Array = np.ndarray
N, DT, STEPS = 64, 0.02, 24


@dataclass(frozen=True)
class Kinetics:
    """r(w) of w [..., F] and its terms; with what values fields begin, and how much they differ from place to place."""

    rate: Callable[[Array, Array], tuple[Array, Array]]
    terms: dict[tuple[str, str], float]
    diffusion: tuple[float, float]
    middle: tuple[float, float]
    swing: tuple[float, float]


BRUSSELATOR = Kinetics(lambda u, v: (1 - 4 * u + u**2 * v, 3 * u - u**2 * v),
                       {("u", "1"): 1, ("u", "u"): -4, ("u", "u² v"): 1, ("v", "u"): 3, ("v", "u² v"): -1},
                       (0.01, 0.02), (1, 2), (0.6, 0.8))
HUNTERS = Kinetics(lambda u, v: (2 * u - 1.5 * u * v, u * v - 1.2 * v),
                   {("u", "u"): 2, ("u", "u v"): -1.5, ("v", "u v"): 1, ("v", "v"): -1.2}, (0.01, 0.005), (1.2, 1.2), (0.6, 0.6))
NERVE = Kinetics(lambda u, v: (3 * u - 3 * u**3 - 3 * v, 0.9 * u - 0.6 * v + 0.3),
                 {("u", "u"): 3, ("u", "u³"): -3, ("u", "v"): -3, ("v", "u"): 0.9, ("v", "v"): -0.6, ("v", "1"): 0.3},
                 (0.01, 0.02), (0, 0), (0.8, 0.5))
POLYGON = 'shape = "polygon"\noutline = [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]\nspacing = 0.07'


def rectangle(cells: int, more: str = "") -> str:
    return f'shape = "rectangle"\nsize = [1.0, 1.0]\nspacing = {1 / cells}\n{more}'


def truth(kinetics: Kinetics, rng: np.random.Generator) -> Array:
    """[STEPS + 1, N + 1, N + 1, 2] from a random start."""
    x = np.pi * np.arange(N + 1) / N
    waves, h = np.cos(np.multiply.outer(np.arange(3), x)), 0.1 * DT
    w = np.empty((N + 1, N + 1, 2))
    for f in range(2):
        size = rng.standard_normal((3, 3))
        size[0, 0] = 0
        shape = np.einsum("ij,ix,jy->xy", size, waves, waves)
        w[..., f] = kinetics.middle[f] + kinetics.swing[f] * shape / np.abs(shape).max()
    square = np.pi**2 * np.add.outer(np.arange(N + 1) ** 2, np.arange(N + 1) ** 2)
    fade = np.exp(-0.5 * h * square[..., None] * kinetics.diffusion)

    def spread(w: Array) -> Array:
        return idctn(fade * dctn(w, type=1, axes=(0, 1)), type=1, axes=(0, 1))

    def rate(w: Array) -> Array:
        return np.stack(kinetics.rate(w[..., 0], w[..., 1]), -1)

    states = [w]
    for _ in range(STEPS):
        for _ in range(10):
            w = spread(w)
            a = rate(w)
            b = rate(w + 0.5 * h * a)
            c = rate(w + 0.5 * h * b)
            w = spread(w + h / 6 * (a + 2 * b + 2 * c + rate(w + h * c)))
        states.append(w)
    return np.stack(states)


@pytest.mark.parametrize(("kinetics", "mesh", "every", "count", "noise", "seed"), [
    pytest.param(NERVE, POLYGON, 8, 3, 0.0, 0, id="nerve-polygon"),
    pytest.param(HUNTERS, rectangle(16), 8, 4, 0.003, 0, id="hunters-noise"),
    pytest.param(BRUSSELATOR, rectangle(16, "perturb = 0.0"), 4, 4, 0.0, 0, id="at-the-nodes"),
])
def test_no_terms_of_a_reaction_come_from_interpolation(tmp_path: Path, kinetics: Kinetics, mesh: str, every: int, count: int,
                                                        noise: float, seed: int) -> None:
    """Data on a regular grid; the nodes of the mesh are not on it."""
    rng = np.random.default_rng(seed)
    states = np.stack([truth(kinetics, rng) for _ in range(count)])[:, :, ::every, ::every].reshape(count, STEPS + 1, -1, 2)
    states = states + noise * states.std() * rng.standard_normal(states.shape)
    x = np.linspace(0, 1, N + 1)[::every]
    points = np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2)
    np.savez(tmp_path / "train.npz", state=states, points=points, time=DT * np.arange(STEPS + 1))
    u, v = kinetics.diffusion
    (tmp_path / "problem.toml").write_text(f"""
[problem]
name = "between"
fields = ["u", "v"]
dt = {DT}

[mesh]
{mesh}

[pde]
diffusion = {{ u = {u}, v = {v} }}
reaction = "unknown"

[[data]]
file = "train.npz"
split = "train"
""")
    project = load(tmp_path)
    base = project.case.problem()
    with Dataset(project.data) as data:
        train = data.batch(range(count), dtype=torch.float64)
    model = DGNet(DGNetConfig(decoder="none", reaction="learned", reaction_degree=3), base).double()
    model.fit_statistics(train.state, None, train.dt)
    identify(model, base, train)
    found = {(s.field, s.term): (s.coefficient, s.deviation) for s in summands(model)}
    assert found.keys() == kinetics.terms.keys()
    for name, value in kinetics.terms.items():
        assert abs(found[name][0] - value) < 2 * found[name][1] < 0.1 * abs(value), name

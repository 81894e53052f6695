"""What every learned part guarantees, with weights so large that each number sits at its limit or beyond."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dgnet.mesh import box
from dgnet.models.dgnet import Build, DGNet, DGNetConfig, FlowInCells
from dgnet.models.dgnet.parts import Calibration, Diffusion, Mass, Reaction, Source, Start, Streamline, Swirl
from dgnet.models.gnn import MeshGraph
from dgnet.operators import EdgeMatrix, Pattern
from dgnet.problems import PDE, Problem, Robin
from dgnet.stepping import product
from dgnet_paper.model import BOUNDED, EdgeDecoder, Residual

Tensor = torch.Tensor

EVERYTHING = DGNetConfig(network=False, free=True, learn_streamline=True, learn_swirl=True, learn_start=True,
                         calibrate=("diffusion", "decay", "convection"), reaction="learned", reaction_hidden=8)


def dense(A: EdgeMatrix) -> Tensor:
    """The matrix of the first field, [n, n]."""
    pattern: Pattern = A.pattern
    full = torch.zeros(pattern.n, pattern.n, dtype=torch.float64)
    full[pattern.row.long(), pattern.col.long()] = A.values[0, 0].detach().double()
    return full


def problem(dim: int, consistent: float = 1.0) -> Problem:
    mesh = box((4,) * dim, perturb=0.2)
    velocity = torch.randn(mesh.n_nodes, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return Problem(mesh, PDE(diffusion=0.1, decay=0.2, velocity=velocity), (Robin("left", 1.0, 2.0),), 0.05, consistent)


@pytest.fixture(params=[(2, 1.0), (2, 1e3), (3, 1.0), (3, 1e3)], ids=lambda p: f"{p[0]}D-{p[1]:g}")
def saturated(request: pytest.FixtureRequest) -> tuple[Problem, DGNet, Build]:
    """A problem, a model with weights of this size in every part, and its operators under construction."""
    dim, size = request.param
    return drawn(EVERYTHING, problem(dim), size)


def drawn(config: DGNetConfig, p: Problem, size: float) -> tuple[Problem, DGNet, Build]:
    torch.manual_seed(0)
    model = DGNet(config, p).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(size * torch.randn(weight.shape, dtype=torch.float64))
        build = model.hybrid_operator(p, MeshGraph.of(p.geometry))[1]
    return p, model, build


def flow_term(model: DGNet, p: Problem, kind: type[Streamline] | type[Swirl]) -> Tensor:
    build = model.L_physics(p, MeshGraph.of(p.geometry))
    with torch.no_grad():
        for part in model.parts:
            if type(part).__name__ == "Heads" or isinstance(part, kind):
                part.contribute(build)
        ((term, tensors),) = build.flow_terms
        return dense(term(FlowInCells.at(p, 0.0), *tensors))


def test_every_part_is_in_the_list(saturated: tuple[Problem, DGNet, Build]) -> None:
    model = saturated[1]
    for kind in (Calibration, Mass, Source, Start, Diffusion, Streamline, Swirl, Reaction):
        assert model.part(kind) is not None


def test_mass(saturated: tuple[Problem, DGNet, Build]) -> None:
    p, _, build = saturated
    M = dense(build.mass)
    assert float((M - M.T).abs().max()) < 1e-15 and float((M.sum(1) - dense(p.mass).sum(1)).abs().max()) < 1e-14
    scaled = M / M.diagonal().sqrt()[:, None] / M.diagonal().sqrt()
    assert float(torch.linalg.eigvalsh(scaled)[0]) >= build.mass_low > 0


def test_source(saturated: tuple[Problem, DGNet, Build]) -> None:
    p, _, build = saturated
    assert float((dense(build.source).sum(1) - dense(p.source_mass).sum(1)).abs().max()) < 1e-14


def test_diffusion(saturated: tuple[Problem, DGNet, Build]) -> None:
    K = dense(saturated[2].diffusion)
    assert float((K - K.T).abs().max()) < 1e-14 and float(K.sum(1).abs().max()) < 1e-14
    assert float(torch.linalg.eigvalsh(K)[0]) > -1e-14


def test_streamline(saturated: tuple[Problem, DGNet, Build]) -> None:
    p, model, _ = saturated
    K = flow_term(model, p, Streamline)
    assert float(K.abs().max()) > 0 and float((K - K.T).abs().max()) < 1e-14 and float(K.sum(1).abs().max()) < 1e-13
    assert float(torch.linalg.eigvalsh(K)[0]) > -1e-13


def test_swirl(saturated: tuple[Problem, DGNet, Build]) -> None:
    p, model, _ = saturated
    K = flow_term(model, p, Swirl)
    assert float(K.abs().max()) > 0 and float((K + K.T).abs().max()) < 1e-14
    assert float(K.sum(0).abs().max()) < 1e-13 and float(K.sum(1).abs().max()) < 1e-13


def test_calibration(saturated: tuple[Problem, DGNet, Build]) -> None:
    factors = saturated[1].coefficients()
    assert list(factors) == ["diffusion", "decay", "convection"]
    assert all(0.999e-6 <= factor <= 1.001e6 for factor in factors.values())


def test_start(saturated: tuple[Problem, DGNet, Build]) -> None:
    p, _, build = saturated
    assert build.start is not None
    with torch.no_grad():
        flat = torch.full((1, p.mesh.n_nodes, 1), 3.0, dtype=torch.float64)
        rough = torch.randn(1, p.mesh.n_nodes, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        assert float(build.start(flat).abs().max()) < 1e-10
        change = build.start(rough)
        assert float(change.abs().max()) > 1e-6 and abs(float(product(p.mass, change).sum())) < 1e-10


def test_reaction(saturated: tuple[Problem, DGNet, Build]) -> None:
    p, model, _ = saturated
    model.low.fill_(-1.0)
    model.high.fill_(1.0)
    reaction = model.reaction(p)
    assert reaction is not None
    with torch.no_grad():
        u = torch.cat([torch.linspace(-1, 1, 201), torch.tensor([-1e6, 1e6])]).double()[:, None]
        bounded = reaction(u) + u / p.dt
    assert float(bounded[-2:].abs().max()) <= float(bounded[:-2].abs().max()) * (1 + 1e-9)


@pytest.mark.parametrize("size", [1.0, 1e3])
def test_the_papers_edge_decoder_and_residual_network(size: float) -> None:
    config = replace(BOUNDED, hidden=8, layers=1, residual_hidden=8, residual_layers=1, free=True)
    p, model, build = drawn(config, problem(2, consistent=0.0), size)
    model.rate.fill_(2.0)
    assert model.part(EdgeDecoder) is not None and model.part(Residual) is not None and build.unsigned is not None
    L = dense(build.unsigned(0.0))
    assert float(L.sum(1).abs().max()) < 1e-13
    scale = p.diffusion_part.diagonal + p.decay_part.diagonal + 0.5 * EdgeMatrix(p.mass.pattern, dense_values(p)).row_sums()
    beside = L - torch.diag(L.diagonal())
    assert bool((beside.abs().sum(1) <= config.edge_limit * scale[0, 0] * (1 + 1e-9)).all())
    u = torch.randn(2, p.mesh.n_nodes, 1, dtype=torch.float64)
    with torch.no_grad():
        assert float((build.corrections[0](u, u, None, 0.0) - u).abs().max()) <= p.dt * 2.0 * (1 + 1e-12)


def dense_values(p: Problem) -> Tensor:
    """|advection|, whose row sums tell how large it is."""
    advection = p.advection(0.0)
    assert advection is not None
    return advection.values.abs()

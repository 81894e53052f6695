"""An unknown reaction of several fields as a sum of few terms."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from dgnet.data import Corpus
from dgnet.discovery.found import Summand, formulas, summands
from dgnet.discovery.identify import Fit, identify
from dgnet.discovery.reactions import unknown_of
from dgnet.errors import InputError
from dgnet.mesh import perturbed_square
from dgnet.models import Classical, rollout
from dgnet.models.dgnet import DGNet, DGNetConfig, Library
from dgnet.problems import PDE, Dirichlet, Problem
from dgnet.training.fit import evaluate_rne

TRUE = {("u", "1"): 1.0, ("u", "u"): -4.0, ("u", "u² v"): 1.0, ("v", "u"): 3.0, ("v", "u² v"): -1.0}


def brusselator(w: torch.Tensor) -> torch.Tensor:
    u, v = w.unbind(-1)
    return torch.stack([1 - 4 * u + u**2 * v, 3 * u - u**2 * v], -1)


def saturated(w: torch.Tensor) -> torch.Tensor:
    u, v = w.unbind(-1)
    return torch.stack([-2 * u * v / (0.3 + u), 2 * u * v / (0.3 + u) - 0.5 * v], -1)


@cache
def world(reaction, moving: bool = False) -> tuple[Problem, Corpus, Corpus]:
    """Four training and two test trajectories of the classical solver with a quarter of the step."""
    mesh, rng = perturbed_square(8), np.random.default_rng(0)
    pde = PDE(("u", "v"), diffusion={"u": 0.01, "v": 0.02}, reaction=reaction, velocity=(0.3, 0.1) if moving else None)
    conditions = [Dirichlet("left", 1.0)] if moving else []
    x, y = mesh.points.T
    start = [np.stack([1 + 0.6 * np.sin(a * x + b) * np.cos(c * y), 2 + 0.8 * np.cos(b * x) * np.sin(a * y + c)], -1)
             for a, b, c in rng.uniform(1, 5, (6, 3))]
    with torch.no_grad():
        fine = Problem(mesh, pde, conditions, 0.005)
        states = rollout(Classical(start=4 * moving), fine, torch.tensor(np.stack(start)), None, 96)[:, ::4]
    train, test = (Corpus(part.clone(), None, None, 0.02, (0.0, 0.0)) for part in (states[:4], states[4:]))
    return Problem(mesh, pde, conditions, 0.02), train, test


def fresh(base: Problem, train: Corpus, **settings) -> DGNet:
    model = DGNet(DGNetConfig(decoder="none", reaction="learned", **({"reaction_degree": 3} | settings)), base).double()
    model.fit_statistics(train.state, None, train.dt)
    return model


def coefficients(model: DGNet) -> dict[tuple[str, str], float]:
    return {(s.field, s.term): s.coefficient for s in summands(model)}


@pytest.mark.parametrize(("moving", "noise", "within"), [(False, 0.0, 0.01), (True, 0.0, 0.02), (False, 0.01, 0.1)])
def test_the_terms_of_a_reaction_are_found(moving: bool, noise: float, within: float) -> None:
    base, train, test = world(brusselator, moving)
    shake = torch.randn(train.state.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    data = replace(train, state=train.state + noise * train.state.std() * shake)
    model = fresh(base, data)
    left = identify(model, base, data)
    found = coefficients(model)
    assert found.keys() == TRUE.keys() and left < 0.1
    for name, value in TRUE.items():
        assert found[name] == pytest.approx(value, rel=within), name
    if not noise:
        assert evaluate_rne(model, base, test) < 5e-3
    if moving:
        identify(model, base, data)  # goes on from what it has
        assert coefficients(model) == pytest.approx(found, rel=1e-2)


def test_one_trajectory_and_a_term_of_the_user() -> None:
    base, train, test = world(saturated)
    plain, helped = fresh(base, train.part([0])), fresh(base, train.part([0]), reaction_terms=("u*v/(0.3+u)",))
    for model in (plain, helped):
        identify(model, base, train.part([0]))
    assert evaluate_rne(helped, base, test) < 0.2 * evaluate_rne(plain, base, test)
    found = coefficients(helped)
    assert found[("u", "u*v/(0.3+u)")] == pytest.approx(-2.0, rel=0.02)


def test_tangents_of_two_fields_are_derivatives() -> None:
    base, train, _ = world(brusselator, True)
    model = fresh(base, train)
    fit = Fit(model, unknown_of(model, train), base, train)
    fit.pieces = train.windows(torch.tensor([0, 1]), torch.tensor([0, 3]), 5)
    theta = torch.linspace(-0.1, 0.1, len(fit.theta), dtype=torch.float64)
    found = fit.at(theta)
    for k in (1, 8, 15):
        shift = torch.zeros_like(theta)
        shift[k] = 1e-5
        ends = [0.5 * fit.at(theta + sign * shift).misfit for sign in (1, -1)]
        assert float(-found.downhill[k]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=5e-4)


def test_terms_begin_at_zero_and_are_written_as_a_person_would() -> None:
    library = Library(("u", "v"), 3, added=("exp(-u)",))
    assert library.names == ["1", "u", "v", "u²", "u v", "v²", "u³", "u² v", "u v²", "v³", "exp(-u)"]
    assert Library(("u", "v"), 3, odd=True).names == ["u", "v", "u³", "u² v", "u v²", "v³"]
    w = torch.rand(7, 2)
    assert not library(w).any()
    torch.testing.assert_close(library.features(w)[:, 7], w[:, 0] ** 2 * w[:, 1])
    torch.testing.assert_close(library.features(w)[:, -1], torch.exp(-w[:, 0]))
    found = [Summand("u", "u v", -1.2345, 0.012, 1.0), Summand("u", "1", 2.0, float("nan"), 0.5)]
    assert formulas(found) == ["r_u = − (1.234 ± 0.012) u v + 2"]


@pytest.mark.parametrize(("term", "says"), [("u+", "cannot be read"), ("w*u", "'w'"), ("__import__('os')", "not known here"),
                                            ("u.real", "not known here"), ("log(u-9)", "not finite")])
def test_a_term_that_cannot_be_used_is_named(term: str, says: str) -> None:
    base, train, _ = world(brusselator)
    with pytest.raises(InputError, match=says):
        fresh(base, train, reaction_terms=(term,))


def test_settings_that_do_not_fit_are_refused() -> None:
    for settings in ({"reaction_degree": 9, "reaction": "learned"}, {"reaction_degree": 2}, {"reaction_terms": ("u",)},
                     {"reaction_degree": 2, "reaction": "learned", "reaction_table": 8}):
        with pytest.raises(InputError, match="reaction_"):
            DGNetConfig(**settings)


def predation(w: torch.Tensor) -> torch.Tensor:
    """Rosenzweig and MacArthur: prey that grows, eaten by predators that are soon sated. No sum of products is that."""
    u, v = w.unbind(-1)
    eaten = u * v / (0.3 + u)
    return 20 * torch.stack([u * (2 - u) - eaten, 0.6 * eaten - 0.3 * v], -1)


def test_terms_that_cannot_say_what_the_reaction_is_do_not_make_rollouts_worse() -> None:
    base, train, test = world(predation)
    model = fresh(base, train)
    without = [evaluate_rne(model, base, data) for data in (train, test)]
    assert identify(model, base, train) < 0.1
    for data, error in zip((train, test), without):
        assert evaluate_rne(model, base, data) < 0.1 * error

"""Our two scenarios of excitation: spirals that stay, a front that follows the fibres, and the measures of both."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import dgnet as dg
from dgnet.errors import InputError
from dgnet_paper.reference import solve as reference_solve
from dgnet_paper.scenarios import Truth, get
from dgnet_paper.scenarios.cardiac import ACROSS, ALONG, Stimuli, reaction
from dgnet_paper.scenarios.generate import truth_states
from dgnet_paper.scenarios.spiral import CENTRE
from dgnet_paper.scenarios.waves import activation_error, activation_times, tips


def test_a_spiral_turns_around_one_tip_for_good() -> None:
    s = get("spiral", "small")
    draws = s.draws(2)
    states = truth_states(s, s.sample(draws), Truth(0, 4, degree=2), None).numpy()
    for row in states:
        winding = np.array([tips(s.mesh, state, CENTRE) for state in row])
        assert (np.abs(winding).sum(1) == 1).all()  # one tip at every time
        assert len({int(w.sum()) for w in winding}) == 1  # of the same sense
    excited = states[..., 0] > 0.5
    assert (excited.any(1) & ~excited.all(1)).mean() > 0.9  # waves pass nearly everywhere
    assert 0.05 < excited[:, -1].mean() < 0.6


def test_the_papers_excitable_medium_has_no_spiral() -> None:
    """The same start under the paper's kinetics dies out: nothing winds at the end."""
    spiral, paper = get("spiral", "small"), get("fitzhugh-nagumo", "small")
    moved = replace(spiral, pde=replace(paper.pde, diffusion={"u": 1.0, "v": 6.181}), steps=60)
    last = truth_states(moved, spiral.sample(spiral.draws(1)[:1]), Truth(0, 8), None)[0, -1].numpy()
    assert not tips(spiral.mesh, last, (0.0, 0.0)).any()


def test_tips_of_a_phase_that_is_known() -> None:
    mesh = dg.box((9, 9))
    x, y = (mesh.points - [0.47, 0.43]).T
    assert tips(mesh, np.stack([x, y], 1), (0, 0)).sum() == 1 and tips(mesh, np.stack([y, x], 1), (0, 0)).sum() == -1
    assert not tips(mesh, np.stack([x + 1, y], 1), (0, 0)).any()
    with pytest.raises(InputError, match="2D"):
        tips(dg.box((1, 1, 1)), np.zeros((8, 2)), (0, 0))


def test_activation_times_are_those_of_a_known_wave() -> None:
    """u = t - x reaches 0.5 at t = x + 0.5, between stored times; places beyond the end never do."""
    x, t = torch.linspace(0, 1, 11), 0.2 * torch.arange(6)
    found = activation_times((t[:, None] - x)[None], 0.2)
    reached = x <= 0.5
    assert torch.allclose(found[0, reached], x[reached] + 0.5, atol=1e-6) and bool(found[0, ~reached].isnan().all())
    assert activation_times(torch.ones(1, 3, 2), 0.2).tolist() == [[0.0, 0.0]]
    assert activation_error(found + 0.1, found) == pytest.approx(0.1)


def test_the_front_runs_along_the_fibres() -> None:
    """One stimulus in the middle of a thin slab with parallel fibres: speeds along and across go with the root of D."""
    s = get("cardiac", "small")
    mesh = dg.box((24, 24, 1), upper=(24.0, 24.0, 1.0))
    D = dg.PDE(("u", "v"), diffusion={"u": np.diag([ALONG, ACROSS, ACROSS]), "v": 0.0}, reaction=reaction)
    source = Stimuli(torch.tensor([[[12.0, 12.0, 0.5, 0.0]]], dtype=torch.float64))
    states = reference_solve(mesh, D, [], torch.zeros(1, mesh.n_nodes, 2, dtype=torch.float64), dt=2 * s.dt, steps=30, degree=2,
                                substeps=2, source=source, order=2, panels=2)
    times = activation_times(states[..., 0], 2 * s.dt)[0].numpy()

    def at(x: float, y: float) -> float:
        return float(times[np.argmin(((mesh.points - [x, y, 0.0]) ** 2).sum(1))])

    along, across = (at(12 + 8, 12) - at(12 + 4, 12)) / 4, (at(12, 12 + 6) - at(12, 12 + 3)) / 3  # ms/mm
    assert across / along == pytest.approx((ALONG / ACROSS) ** 0.5, rel=0.15)


def test_every_place_of_the_slab_is_activated() -> None:
    s = get("cardiac", "small")
    sample = s.sample(s.draws(1))
    states = truth_states(s, sample, Truth(0, 2, degree=1), None)
    times = activation_times(states[..., 0], s.dt)
    assert float(times.isnan().double().mean()) < 0.2
    assert float(times.nanmean()) > 20 and float(states[..., 0].max()) < 1.3

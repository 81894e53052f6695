"""Every scenario: complete, reproducible, with disjoint splits and sources that are functions of (x, t)."""

import numpy as np
import pytest
import torch

from dgnet.errors import InputError
from dgnet.problems import given_velocity
from dgnet.problems.sources import step_average
from dgnet_paper.scenarios import SIZES, TRUTHS, Draw, Sample, Scenario, get, names, paper_names
from dgnet_paper.scenarios.lasers import TEST_KINDS, TRAINING_KINDS
from dgnet_paper.study.targets import TARGETS

PAPER = {  # nodes (None: ours), dt, steps, train, test: Appendix B and the supplementary experiments
    "allen-cahn": (1296, 0.005, 1000, 10, 10), "fisher-kpp": (1681, 0.00125, 1600, 10, 10),
    "fitzhugh-nagumo": (10_000, 0.005, 1200, 7, 3), "cylinder": (2275, 0.05, 2000, 15, 5),
    "sediments": (5758, 0.05, 2000, 15, 5), "obstacles": (8841, 0.05, 2000, 15, 5), "laser-heat": (6072, 0.5, 120, 20, 20),
    "laser-heat-3d": (6000, 0.5, 120, 20, 40), "wavy-channel": (6000, 0.05, 2000, 15, 5),
    "light-reaction": (30_000, 0.5, 200, 40, 160), "phase-transition": (6000, 0.5, 120, 20, 20)}


@pytest.fixture(params=names())
def small(request: pytest.FixtureRequest) -> Scenario:
    return get(request.param, "small")


def points(scenario: Scenario) -> torch.Tensor:
    return torch.tensor(scenario.mesh.points)


def start(scenario: Scenario, sample: Sample) -> torch.Tensor:
    return sample.initial(points(scenario)) if callable(sample.initial) else sample.initial


def test_all_are_there() -> None:
    assert set(paper_names()) == set(PAPER) and set(names()) - set(PAPER) == {"melting", "cardiac", "spiral"}
    with pytest.raises(InputError, match="did you mean 'laser-heat'"):
        get("laser-haet")
    with pytest.raises(InputError, match="there is no size 'large'"):
        get("cylinder", "large")


@pytest.mark.parametrize("name", sorted(set(names()) - set(PAPER)))
def test_our_own_say_so_and_stand_in_no_table_of_the_paper(name: str) -> None:
    s = get(name, "paper")
    assert not s.paper and "ours" in {p.origin for p in s.parameters}
    assert set(s.truths) == set(TRUTHS) and s.truth("same-mesh").refine == 0
    assert all(name not in target.scenarios for target in TARGETS.values())


@pytest.mark.parametrize("name", paper_names())
def test_paper_size_is_the_papers(name: str) -> None:
    s = get(name, "paper")
    nodes, dt, steps, train, test = PAPER[name]
    assert (s.dt, s.steps, s.train, s.test) == (dt, steps, train, test)
    assert s.mesh.n_nodes == pytest.approx(nodes, rel=0.02)
    assert set(s.truths) == set(TRUTHS) and s.truth("same-mesh").refine == 0
    assert s.paper.get("DGNet") is not None or name == "phase-transition"
    assert {p.origin for p in s.parameters} <= {"paper", "script", "ours"}
    with pytest.raises(InputError, match="unknown kind of truth"):
        s.truth("exact")


def test_small_size_is_small(small: Scenario) -> None:
    assert 200 <= small.mesh.n_nodes <= 700 and 20 <= small.steps <= 100
    assert 3 <= small.train + small.test <= 10 and min(small.train, small.test) >= 2
    assert small.pde.fields == get(small.name, "paper").pde.fields
    if small.flow is None:
        small.problem()  # boundary names and coefficients fit the mesh


def test_sampling_depends_on_the_seed_alone(small: Scenario) -> None:
    draws = small.draws()
    whole, alone, again = small.sample(draws), small.sample(draws[1:2]), small.sample(draws)
    other = small.sample(small.draws(seed=1))
    t = torch.tensor([0.3, 0.9]) * small.horizon
    for pick in (lambda s: start(small, s), lambda s: None if s.source is None else s.source(points(small), t)):
        a = pick(whole)
        if a is None:
            continue
        assert torch.equal(a, pick(again))
        assert torch.allclose(a[1:2], pick(alone), rtol=1e-12, atol=1e-14)  # whatever else is in the batch
    assert whole.phases == again.phases and whole.labels == again.labels
    varied = start if small.sample(draws).source is None else (lambda s, x: x.source(points(small), t))
    assert not torch.equal(varied(small, whole), varied(small, other))
    assert start(small, whole).shape[1:] == (small.mesh.n_nodes, len(small.pde.fields))


@pytest.mark.parametrize("name", names())
def test_splits_are_disjoint(name: str) -> None:
    s = get(name, "paper")
    draws = s.draws()
    assert [d.split for d in draws] == ["train"] * s.train + ["test"] * s.test
    seeds = [d.seed(name) for d in draws]
    assert len(set(seeds)) == len(seeds) == s.train + s.test
    assert draws[0].seed("cylinder") != draws[0].seed("sediments")
    assert [d.seed(name) for d in s.draws(2)] == [seeds[0], seeds[1], seeds[s.train], seeds[s.train + 1]]


def test_laser_test_kinds_never_occur_in_training() -> None:
    s = get("laser-heat", "paper")
    draws = s.draws()
    kinds = {split: {kind for draw, row in zip(draws, s.sample(draws).labels) if draw.split == split for kind in row}
             for split in ("train", "test")}
    assert kinds["train"] == {"orbit", *TRAINING_KINDS} and kinds["test"] == {"orbit", *TEST_KINDS}
    assert all(row[:4] == ("orbit",) * 4 and len(row) == 10 for row in s.sample(draws[:3]).labels)
    assert all(set(row[4:]).isdisjoint(kinds["train"]) for row in s.sample(draws[20:]).labels)


SOURCES = [name for name in names() if get(name, "small").sample(get(name, "small").draws(1)).source is not None]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", SOURCES)
def test_step_averages_are_accurate(name: str, size: str) -> None:
    """The stored quadrature against one eight times as fine, on every few nodes and steps."""
    s = get(name, size)
    source = s.sample(s.draws(2)).source
    x = points(s)[:: max(1, s.mesh.n_nodes // 300)]
    first = s.times[:-1][:: max(1, s.steps // 6)]
    coarse = step_average(source, x, first, s.dt, s.panels)
    fine = step_average(source, x, first, s.dt, 8 * s.panels)
    assert coarse.shape == (4, len(first), len(x), len(s.pde.fields)) and float(fine.abs().max()) > 0
    assert float((coarse - fine).norm() / fine.norm()) < 1e-4


@pytest.mark.parametrize("name", SOURCES)
def test_sources_are_functions_of_place_and_time(name: str) -> None:
    s = get(name, "small")
    source = s.sample(s.draws(1)).source
    x = points(s)
    t = torch.linspace(0, s.horizon, 7, dtype=torch.float64)
    whole = source(x, t)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(source(x, t[order]), whole[:, order], rtol=1e-12, atol=1e-14)
    assert torch.allclose(source(x[5:9], t[2:3]), whole[:, 2:3, 5:9], rtol=1e-12, atol=1e-14)
    assert source(x.float(), t).dtype == torch.float32


def test_channels_share_one_flow_and_differ_in_phase() -> None:
    for name, velocity in (("cylinder", 0.6), ("sediments", 0.6), ("obstacles", 0.6), ("wavy-channel", 0.75)):
        s = get(name, "paper")
        assert s.flow is not None and s.flow.mean_velocity == pytest.approx(velocity) and s.flow.viscosity == 5e-3
        phases = s.sample(s.draws()).phases
        assert len(set(phases)) > 10 and 0 <= min(phases) and max(phases) <= s.flow.phases
        assert np.allclose(np.array(phases) / s.dt, np.round(np.array(phases) / s.dt))
        every = s.dt / s.flow.dt
        assert every == pytest.approx(round(every))
    with pytest.raises(InputError, match="needs a flow"):
        s.problem()


def test_scaling_the_sources() -> None:
    s = get("laser-heat-3d", "small")
    draws = s.draws(1)
    x, t = points(s), torch.tensor([5.0])
    base = s.sample(draws).source
    assert torch.allclose(s.scaled(power=2).sample(draws).source(x, t), 2 * base(x, t))
    more = s.scaled(count=3).sample(draws)
    assert len(more.labels[0]) == 30 and more.labels[0][:10] == s.sample(draws).labels[0]
    assert torch.allclose(more.source.radius[:10], base.radius[:10])
    assert torch.allclose(s.scaled(size=2).sample(draws).source.radius, 2 * base.radius)
    assert s.scaled(count=0.5).sample(draws).source.shape == (2, 5)
    with pytest.raises(InputError, match="cannot be scaled"):
        get("laser-heat").scaled(power=2)
    with pytest.raises(InputError, match="must be positive"):
        s.scaled(size=0)


def test_bad_requests() -> None:
    s = get("allen-cahn", "small")
    with pytest.raises(InputError, match="must be positive"):
        s.draws(0)
    with pytest.raises(InputError, match="must not be negative"):
        s.draws(seed=-1)
    assert Draw("train", 0, 0).seed("x") != Draw("test", 0, 0).seed("x")


def test_given_velocity_is_linear_in_time() -> None:
    rows = torch.randn(2, 5, 3, 2, dtype=torch.float64)
    velocity = given_velocity(rows, 0.1)
    assert torch.allclose(velocity(0.25), 0.5 * (rows[:, 2] + rows[:, 3]))
    assert torch.equal(velocity(-1.0), rows[:, 0]) and torch.allclose(velocity(9.0), rows[:, 4])

"""A step with a given flow as it is captured on a GPU: fixed buffers, fixed count; here the same step is called again instead."""

from functools import partial

import pytest
import torch

from dgnet.errors import SolveError
from dgnet.mesh.box import box
from dgnet.models import Classical, capture, rollout
from dgnet.models.classical import ClassicalStepper
from dgnet.models.dgnet import DGNet
from dgnet.models.registry import all_models, build
from dgnet.problems import PDE, Dirichlet, HeldFlow, Problem, given_velocity
from dgnet.stepping import GreenSolver, backends
from dgnet_paper.scenarios import get
from dgnet_paper.study.throughput import Workload, presets, shaken, swaying

STEPS = 14


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    """Fixed counts as long as a GPU would take them."""
    monkeypatch.setitem(backends.MAX_FIXED, "cpu", backends.MAX_FIXED["cuda"])


@pytest.fixture(scope="module")
def case():
    return Workload.of(get("cylinder", "small"), 2, STEPS, "cpu")


@pytest.fixture
def recorded(monkeypatch):
    """The times a captured step was called for."""
    times = []
    call = capture.CapturedStep.__call__

    def spy(self, u, f, t):
        times.append(t)
        return call(self, u, f, t)

    monkeypatch.setattr(capture.CapturedStep, "__call__", spy)
    return times


def double(case):
    scenario = get("cylinder", "small")
    velocity = swaying(scenario, 2, STEPS).double()
    return Workload(lambda: scenario.problem(velocity), case.u0.double(), case.sources.double(), velocity, case.dt, case.offset,
                    "cpu")


@pytest.mark.parametrize("kind", ["classical", "lumped", "damped", "dgnet", "dgnet-paper", "mgn"])
def test_recorded_step_is_the_step(case, recorded, kind):
    case = double(case)
    problem, source = case.problem(), case.source(STEPS)
    if kind.startswith("dgnet"):
        torch.manual_seed(0)
        model = shaken(DGNet(presets("cylinder")[kind], problem).double(), 0)
    elif kind in all_models() and kind != "classical":
        torch.manual_seed(0)
        model = build(kind, None, problem)
        model.fit_statistics(case.u0[:, None] + torch.rand(2, 3, *case.u0.shape[1:]).double(), source, case.dt)
    else:
        model = Classical(0.0 if kind == "lumped" else 1.0, backend="iterative", start=2 if kind == "damped" else 0)
    with torch.no_grad():
        plain = rollout(model, problem, case.u0, source, STEPS, capture=False)
        held = rollout(model, problem, case.u0, source, STEPS, capture="always")
    assert recorded == pytest.approx([k * case.dt for k in range(3, STEPS)])
    assert float((plain - held).abs().max() / plain.abs().max()) < 1e-9  # tolerance of a solve: 1e-12 of its right-hand side
    assert float((plain[:, -1] - plain[:, 3]).abs().max()) > 0.1 * float(plain.abs().max())  # something happens meanwhile


def test_count_holds_for_the_worst_step_of_the_record(case):
    """A flow that becomes ten times faster: bounds of the first steps would not do, those of the record are its worst ones."""
    case = double(case)
    ramp = torch.linspace(0.1, 1.0, STEPS + 1, dtype=torch.float64)[:, None, None]
    flow = HeldFlow(given_velocity(case.velocity * ramp, case.dt), case.dt)
    problem = case.problem().with_velocity(flow)
    solver = GreenSolver(problem, "iterative")
    times = [k * case.dt for k in range(STEPS)]
    each = [GreenSolver(problem, "iterative").operator(t).bounds for t in times]
    assert solver.freeze(times)
    assert solver._frozen is not None and solver.monitor.deferred
    assert solver._frozen.imag == pytest.approx(max(b.imag for b in each), rel=1e-6)
    assert solver._frozen.low == pytest.approx(min(b.low for b in each), rel=1e-6)
    assert solver._frozen.iterations(1e-12) >= max(b.iterations(1e-12) for b in each)
    assert each[-1].iterations(1e-12) > each[0].iterations(1e-12)


def test_held_flow_shows_a_step_in_place():
    rows = torch.arange(10, dtype=torch.float64).reshape(1, 5, 1, 2)
    flow = HeldFlow(given_velocity(rows, 0.5), 0.5)
    assert torch.equal(flow(1.0), rows[:, 2])
    flow.show(0.5)
    start, middle = flow(0.0), flow(0.25)
    assert torch.equal(start, rows[:, 1]) and torch.equal(middle, (rows[:, 1] + rows[:, 2]) / 2)
    flow.show(1.5)
    assert torch.equal(start, rows[:, 3]) and torch.equal(middle, (rows[:, 3] + rows[:, 4]) / 2)  # the same memory
    flow.spread([0.0, 1.0])
    assert torch.equal(flow(0.0), rows[0, [0, 2]])
    flow.release()
    assert torch.equal(flow(0.0), rows[:, 0])


def test_what_changes_besides_the_flow_is_not_recorded(recorded):
    mesh = box((4, 4))
    flow = given_velocity(torch.ones(1, 2, mesh.n_nodes, 2, dtype=torch.float64), 0.1)
    p = Problem(mesh, PDE(diffusion=0.1, velocity=flow), [Dirichlet("left", lambda x, t: 0 * x[:, 0] + t)], 0.1)
    assert not p.only_flow_changes
    with torch.no_grad():
        rollout(Classical(), p, torch.zeros(1, mesh.n_nodes, 1, dtype=torch.float64), None, 12, capture="always")
    assert not recorded


def test_a_solve_that_misses_is_done_again_with_care(case, monkeypatch):
    """The deferred check of a recorded rollout that missed: a second one, launched step by step, gives the result."""
    case = double(case)
    problem, source = case.problem(), case.source(STEPS)
    seen = []
    check = ClassicalStepper.finish

    def finish(self):
        seen.append(self.main._frozen is not None)
        if seen[-1]:
            raise SolveError("missed")
        check(self)

    monkeypatch.setattr(ClassicalStepper, "finish", finish)
    with torch.no_grad():
        states = rollout(Classical(backend="iterative"), problem, case.u0, source, STEPS, capture="always")
    assert seen == [True, False] and torch.isfinite(states).all()


def test_a_step_that_cannot_be_captured_is_launched_piece_by_piece(case, monkeypatch):
    def refuse(self, *arguments):
        raise RuntimeError("operation not permitted when stream is capturing")

    run = partial(rollout, Classical(backend="iterative"), case.problem(), case.u0, case.source(STEPS), STEPS)
    with torch.no_grad():
        plain = run(capture=False)
        monkeypatch.setattr(capture.CapturedStep, "__init__", refuse)
        with pytest.warns(RuntimeWarning, match="launched piece by piece"):
            states = run(capture="always")
    torch.testing.assert_close(states, plain, rtol=1e-4, atol=1e-5 * float(plain.abs().max()))

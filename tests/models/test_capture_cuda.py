"""On a GPU: a captured rollout gives what the launched one does, with networks, with a given flow, in mixed precision."""

import warnings
from dataclasses import replace

import pytest
import torch

from dgnet.models import Classical, rollout
from dgnet.models.gnn import MeshGraph, StateNet
from dgnet.operators import Geometry
from dgnet.scoring.judge import finer
from dgnet_paper.scenarios import get
from dgnet_paper.study.throughput import CLASSICAL, Workload, fresh, presets

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
STEPS = 20


@pytest.mark.parametrize("scenario", ["laser-heat", "cylinder", "fitzhugh-nagumo"])
@pytest.mark.parametrize("name", ["dgnet", "dgnet-paper", "dgnet-paper amp", "classical_consistent", "classical_lumped",
                                  "classical_p2", "classical_refined", "mgn"])
def test_captured_is_launched(scenario, name):
    case = Workload.of(get(scenario, "small"), 2, STEPS, "cuda")
    data = case.corpus(8)
    if name in CLASSICAL:
        model = Classical(CLASSICAL[name])
    elif name.startswith("classical"):
        model = finer(0)[name]
    elif name == "mgn":
        model = fresh("mgn", None, case.fresh(), data, 0)
    else:
        config = presets(scenario)[name.split()[0]]
        model = fresh("dgnet", replace(config, amp=name.endswith("amp")), case.fresh(), data, 0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # "could not be captured"
        launched = rollout(model, case.problem(), case.u0, case.source(STEPS), STEPS, capture=False)
        captured = rollout(model, case.problem(), case.u0, case.source(STEPS), STEPS)
    change = (launched - launched[:, :1]).norm()
    assert float((captured - launched).norm() / change) < (2e-2 if name.endswith("amp") else 1e-3)


@pytest.mark.parametrize("scenario", ["laser-heat", "cylinder", "laser-heat-3d"])
def test_quadratic_elements_on_the_gpu_are_those_of_the_cpu(scenario):
    """States, and gradients in start and source."""
    results = []
    for device in ("cpu", "cuda"):
        case = Workload.of(get(scenario, "small"), 2, STEPS, device)
        source = case.source(4)
        u0 = case.u0.clone().requires_grad_()
        with torch.no_grad():
            states = rollout(Classical(degree=2), case.problem(), case.u0, case.source(STEPS), STEPS)
        end = rollout(Classical(degree=2), case.problem(), u0, source, 4)[:, -1]
        (end - end.mean()).square().sum().backward()
        assert u0.grad is not None
        results.append(((states - states[:, :1]).cpu(), u0.grad.cpu()))
    for a, b in zip(*results):
        assert float((a - b).norm()) < 2e-3 * float(a.norm()) + 1e-12


def test_message_passing_on_the_gpu_is_that_of_the_cpu():
    torch.manual_seed(0)
    mesh, x = get("laser-heat", "small").mesh, torch.randn(3, 482, 2)
    net = StateNet(2, 2, 1, 16, 2)
    torch.nn.init.normal_(net.decode[-1].weight)
    results = []
    for device in ("cpu", "cuda"):
        net = net.to(device)
        net.zero_grad()
        out = net(x.to(device), MeshGraph.of(Geometry.of(mesh, device, torch.float32)))
        out.square().mean().backward()
        # copies: moving the network moves its gradients, too
        results.append([out.detach().cpu(), *(p.grad.cpu().clone() for p in net.parameters())])
    for a, b in zip(*results):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4 * float(a.abs().max()) + 1e-7)

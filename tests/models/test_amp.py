"""Mixed precision: networks in bfloat16, everything that is solved in single precision."""

from dataclasses import replace

import pytest
import torch

from dgnet.models import rollout
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet_paper.model import BOUNDED
from dgnet_paper.scenarios import get
from dgnet_paper.study.throughput import Workload, measure_training, shaken

CONFIGS = {"structured": DGNetConfig(hidden=16, layers=2, free=True), "paper": replace(BOUNDED, hidden=16, layers=2),
           "learned reaction": DGNetConfig(hidden=16, layers=1, reaction="learned", reaction_hidden=16)}


@pytest.fixture(scope="module")
def case():
    return Workload.of(get("laser-heat", "small"), 2, 8, "cpu")


@pytest.fixture(scope="module")
def data(case):
    return case.corpus(8)


def pair(config, case, data):
    """The same weights, in full and in mixed precision."""
    models = []
    for amp in (False, True):
        torch.manual_seed(0)
        model = DGNet(replace(config, amp=amp), case.fresh())
        model.fit_statistics(data.state, data.source_average, data.dt)
        models.append(shaken(shaken(model, 0), 1))
    return models


@pytest.mark.parametrize("name", CONFIGS)
def test_operators_stay_in_single_precision_and_results_are_near(case, data, name):
    full, mixed = pair(CONFIGS[name], case, data)
    seen = []
    for part in ("geometry_net", "residual_net", "reaction_net"):
        net = getattr(mixed, part, None)
        if net is not None:
            for layer in [m for m in net.modules() if isinstance(m, torch.nn.Linear)]:
                layer.register_forward_hook(lambda m, i, out: seen.append(out.dtype))
    with torch.no_grad():
        exact, near = (rollout(m, case.problem(), case.u0, case.source(8), 8) for m in (full, mixed))
        ops = mixed.prepare(case.problem()).solver.operators
    assert seen and set(seen) == {torch.bfloat16}
    assert near.dtype == torch.float32
    assert all(A.values.dtype == torch.float32 for A in (ops.mass, ops.source, ops.stiffness(0.0)))
    change = (exact - exact[:, :1]).norm()
    assert 0 < float((near - exact).norm() / change) < 2e-2


@pytest.mark.parametrize("name", CONFIGS)
def test_a_training_iteration_gives_gradients_like_those_of_single_precision(case, data, name):
    grads = []
    for model in pair(CONFIGS[name], case, data):
        assert measure_training(model, case, data, 1, batch=2, window=3)["ms"] > 0
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
        assert all(p.dtype == torch.float32 and torch.isfinite(p).all() for p in model.parameters())
    cosine = torch.nn.functional.cosine_similarity(grads[0], grads[1], dim=0)
    assert float(cosine) > 0.97

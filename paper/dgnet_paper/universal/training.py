"""Training of universal weights on a family of meshes: random heat problems on them, their truths, then a network that fits all.

    loss = mean r + 2 mean max(r + 0.15, 0)^2,      r = log( error / error of the better classical solver ) of each problem

The second term pulls at problems that are hardly better than classical, or worse. Adam with decoupled weight decay and a rate that
falls to zero along a half cosine over the time that is given. The weights of the best validation are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import torch

from dgnet.errors import InputError, SolveError
from dgnet.mesh import Mesh
from dgnet.models.universal import Universal, UniversalNet
from dgnet.progress import Report
from dgnet.recipe import Recipe, Stage
from dgnet.training.checkpoints import Progress
from dgnet.training.fit import Loop
from dgnet_paper.universal.batched import Part, Parts, gather, log_ratio
from dgnet_paper.universal.problems import draw

Tensor = torch.Tensor

LARGEST = 1500  # nodes of a part whose steps are dense matrices
_TOGETHER = 12  # problems in a batch
_VALIDATIONS, _WARM_UP = 10, 50  # of a training; updates until the full rate
_MAX_UPDATES = 10**9  # the time ends it


def part_of(kind: str, mesh: Mesh, seed: Sequence[int]) -> Part | None:
    """A random problem on a mesh with its truth; None where the reference could not solve it."""
    problem = draw(kind, mesh, np.random.default_rng(seed))
    try:
        truth = problem.truth()[..., 0]
    except SolveError:
        return None
    nodes = torch.tensor(mesh.points)
    middles = nodes[torch.tensor(mesh.edges)].mean(1)
    return Part(f"{kind}/{problem.conditions_kind}", problem.fourier, problem.problem(), problem.samples(nodes)[..., 0],
                problem.samples(middles)[..., 0], problem.start(middles)[..., 0], truth)


def parts_on(meshes: Sequence[tuple[str, Mesh]], draws: int, seed: int, workers: int = 1,
             report: Report | None = None) -> list[Part]:
    """`draws` random problems on each mesh."""
    for name, mesh in meshes:
        if mesh.n_nodes > LARGEST:
            raise InputError(f"{name} has {mesh.n_nodes} nodes; universal weights are trained on meshes of at most {LARGEST}")
    jobs = [(name, mesh, (seed, k, r)) for r in range(draws) for k, (name, mesh) in enumerate(meshes)]
    found: list[Part] = []
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        made = pool.map(part_of, *zip(*jobs)) if workers > 1 else (part_of(*job) for job in jobs)
        for done, part in enumerate(made, start=1):
            found += [] if part is None else [part]
            if report is not None:
                report("truths", done, len(jobs))
    if not found:
        raise InputError("none of the problems could be solved by the reference")
    return found


def batches(parts: Sequence[Part], device: str = "cpu") -> list[Parts]:
    """Problems of about the same size together."""
    ordered = sorted(parts, key=lambda part: part.problem.mesh.n_nodes)
    return [gather(ordered[i:i + _TOGETHER], device) for i in range(0, len(ordered), _TOGETHER)]


@torch.no_grad()
def ratio(net: UniversalNet, valid: Sequence[Parts]) -> float:
    """The geometric mean of the error ratio."""
    return float(torch.cat([log_ratio(b, net(b.surroundings)) for b in valid]).mean().exp())


def ranges(train: Sequence[Parts]) -> dict[str, Tensor]:
    """The least and largest value of every feature."""
    def span(parts: list[Tensor]) -> Tensor:
        flat = torch.cat([x.flatten(0, -2) for x in parts])
        return torch.stack([flat.amin(0), flat.amax(0)])

    real = [b.surroundings.graph.node[(b.surroundings.graph.node != 0).any(-1)] for b in train]  # padding is zero throughout
    return {"node": span(real), "edge": span([b.surroundings.graph.edge for b in train]),
            "side": span([b.surroundings.side for b in train])}


class _Fit(Loop):
    """Batches of problems, judged by the error ratio on problems that are held out."""

    model: UniversalNet

    def __init__(self, net: UniversalNet, train: Sequence[Parts], valid: Sequence[Parts], seconds: float, rate: float) -> None:
        stage = Stage(_MAX_UPDATES, 1, lr=rate, end=0.01)
        super().__init__(net, Recipe("universal", (stage,), validations=_VALIDATIONS, weight_decay=1e-4), seconds)
        self.train, self.valid = train, valid

    def step(self, stage: Stage) -> float:
        for group in self.optimiser.param_groups:
            group["lr"] *= min(1.0, (self.progress.updates + 1) / _WARM_UP)
        batch = self.train[int(torch.randint(len(self.train), ()))]
        r = log_ratio(batch, self.model(batch.surroundings))
        return self.descend(r.mean() + 2 * torch.relu(r + 0.15).square().mean())

    def error(self) -> float:
        return ratio(self.model, self.valid)


def fit(net: UniversalNet, train: Sequence[Parts], valid: Sequence[Parts], seconds: float, rate: float = 3e-3, seed: int = 0,
        report: Report | None = None) -> Progress:
    """Train in place; at the end the weights are those of the best validation, the first one included. Errors of the progress are
    geometric means of the error ratio on the problems that are held out."""
    def tell(progress: Progress, total: int) -> None:
        if report is not None:
            report("training", min(int(progress.seconds), int(seconds)), max(1, int(seconds)))

    torch.manual_seed(seed)
    net.requires_grad_(True)
    found = _Fit(net, train, valid, seconds, rate).fit(tell)
    net.requires_grad_(False)
    return found


def tune(meshes: Sequence[tuple[str, Mesh]], seconds: float, draws: int = 2, workers: int = 1, seed: int = 0, device: str = "cpu",
         report: Report | None = None) -> tuple[UniversalNet, Progress]:
    """The shipped weights, or new ones, trained on a family of meshes of which a fifth is held out."""
    if len(meshes) < 4 or len({mesh.dim for _, mesh in meshes}) > 1:
        raise InputError("universal weights need at least four meshes, all flat or all solid")
    held = max(1, len(meshes) // 5)
    train, valid = (batches(parts_on(some, draws, seed + k, workers, report), device)
                    for k, some in enumerate((meshes[held:], meshes[:held])))
    dim = meshes[0][1].dim
    shipped = Universal().net(dim)
    net = (shipped if isinstance(shipped, UniversalNet) else UniversalNet(dim)).to(device)
    found = fit(net, train, valid, seconds, seed=seed, report=report)
    net.trained_on(ranges(train))
    return net, found

"""Training of universal weights for quadratic elements: random heat problems on meshes, their truths, then a network that fits all.

`tune` goes on from the shipped weights on a family of meshes (`dgnet-paper universal`), `train` begins with nothing on random
parts. The loss is that of `batched`. AdamW with decoupled weight decay, gradients clipped, a rate that falls to zero along a half
cosine over the time that is given. What is judged and kept is the exponential average of the weights, at its best validation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context

import numpy as np
import torch

from dgnet.errors import InputError
from dgnet.mesh import Mesh
from dgnet.models import few_threads
from dgnet.models.universal import ElementNet, Universal
from dgnet.problems import LUMPED
from dgnet.progress import Report
from dgnet.recipe import Recipe, Stage
from dgnet.training.checkpoints import Progress
from dgnet.training.fit import Loop
from dgnet_paper.reference.galerkin import march
from dgnet_paper.universal.batched import Batch, Example, errors, example, gather, loss, numbers, roll
from dgnet_paper.universal.bodies import TRAIN, random_parts
from dgnet_paper.universal.problems import PANELS, STEPS, TRAINED, PartProblem, draw, draw_flow

Tensor = torch.Tensor
Meshes = Sequence[tuple[str, Mesh]]
Errors = tuple[float, float, float]
"""Relative errors of quadratic, linear and lumped linear elements with an L-stable start."""

DEGREE = 2
LARGEST = 2500  # nodes and middles of a part whose steps are dense matrices
SIZES = {2: (55, 170), 3: (100, 300)}  # nodes of random parts
RATE, DECAY, BETAS, AVERAGE = 2e-3, 1e-3, (0.9, 0.99), 0.998
TUNING_RATE = 3e-4  # on some tens of problems weights that are good already get worse with more
_TOGETHER = 32  # problems in a batch
_ENTRIES = {"cpu": 1_500_000, "cuda": 64_000_000}  # of one matrix of all of them
_VALIDATIONS, _WARM_UP = 10, 100  # of a training; updates until the full rate, unless a tenth of the time is over before
_MAX_UPDATES = 10**9  # the time ends it
_LEAST = 1e-6  # error from which there is something to correct


def drawn(kind: str, mesh: Mesh, seed: Sequence[int], flow: bool = False) -> PartProblem:
    """The random problem of a seed on a mesh."""
    return (draw_flow if flow else draw)(kind, mesh, np.random.default_rng(seed), span=TRAINED)


def solved(part: PartProblem) -> tuple[np.ndarray, Errors] | None:
    """The truth [b, T+1, N] of a problem, and the errors of the classical solvers; None where they make none to speak of."""
    with few_threads(0):
        truth, plain, n = part.truth()[..., 0].numpy(), part.problem(), part.mesh.n_nodes
        found = [march(p, part.start, part.source, STEPS, 1, "c", 1, 2, panels=PANELS, averages=True)[:, :, :n]
                 for p in (plain.quadratic, plain, plain.recast(LUMPED, plain.advection_form))]
    quadratic, linear, lumped = (float(np.linalg.norm(states - truth) / np.linalg.norm(truth)) for states in found)
    return (truth, (quadratic, linear, lumped)) if np.isfinite(quadratic) and quadratic > _LEAST else None


def _solved(kind: str, mesh: Mesh, seed: Sequence[int], flow: bool) -> tuple[np.ndarray, Errors] | None:
    return solved(drawn(kind, mesh, seed, flow))  # arrays alone go from one process to another


def examples(meshes: Meshes, draws: int, seed: int, flow: bool = False, workers: int = 1,
             report: Report | None = None) -> list[Example]:
    """`draws` random problems on each mesh, with their truths."""
    for name, mesh in meshes:
        if mesh.n_nodes + len(mesh.edges) > LARGEST:
            raise InputError(f"{name} has {mesh.n_nodes} nodes and {len(mesh.edges)} edges; universal weights are trained on "
                             f"meshes with at most {LARGEST} of both, and hold for meshes of any size")
    jobs = [(name, mesh, (seed, k, r), flow) for r in range(draws) for k, (name, mesh) in enumerate(meshes)]
    found: list[Example] = []
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        made = pool.map(_solved, *zip(*jobs)) if workers > 1 else (_solved(*job) for job in jobs)
        for done, (job, one) in enumerate(zip(jobs, made), start=1):
            found += [] if one is None else [example(drawn(*job), DEGREE, *one)]
            if report is not None:
                report("truths", done, len(jobs))
    if not found:
        raise InputError("on none of the problems the classical solver makes an error to speak of")
    return found


def batches(parts: Sequence[Example], device: str = "cpu") -> list[Batch]:
    """Problems of about the same size together."""
    ordered, found = sorted(parts, key=lambda one: len(one.held)), list[Batch]()
    room = _ENTRIES[torch.device(device).type]
    while ordered:
        count = max(1, min(_TOGETHER, room // len(ordered[-1].held) ** 2))
        found.append(gather(ordered[-count:], DEGREE, device))
        del ordered[-count:]
    return found


@torch.no_grad()
def ratio(net: ElementNet, valid: Sequence[Batch]) -> float:
    """The error over that of the best classical solver, in the geometric mean."""
    return float(torch.cat([(errors(b, roll(b, numbers(net, b))) / b.rival).log() for b in valid]).mean().exp())


def ranges(train: Sequence[Batch]) -> dict[str, Tensor]:
    """The least and largest value of every feature."""
    def span(parts: list[Tensor]) -> Tensor:
        flat = torch.cat([x.flatten(0, -2) for x in parts])
        return torch.stack([flat.amin(0), flat.amax(0)])

    real = [b.surroundings.graph.node[(b.surroundings.graph.node != 0).any(-1)] for b in train]  # padding is zero throughout
    return {"node": span(real), "edge": span([b.surroundings.graph.edge for b in train]),
            "side": span([b.surroundings.side for b in train])}


class _Fit(Loop):
    """Batches of problems; the average of the weights is judged by the error ratio on problems that are held out."""

    model: ElementNet

    def __init__(self, net: ElementNet, train: Sequence[Batch], valid: Sequence[Batch], seconds: float, rate: float) -> None:
        stage = Stage(_MAX_UPDATES, 1, lr=rate, end=0.01)
        super().__init__(net, Recipe("universal", (stage,), validations=_VALIDATIONS, weight_decay=DECAY), seconds)
        for group in self.optimiser.param_groups:
            group["betas"] = BETAS
        self.train, self.valid, self.seconds, self.order = train, valid, seconds, list[int]()
        self.average = [p.detach().clone() for p in net.parameters()]

    def step(self, stage: Stage) -> float:
        count = self.progress.updates + 1
        for group in self.optimiser.param_groups:
            group["lr"] *= min(1.0, max(count / _WARM_UP, 10 * self.progress.seconds / self.seconds))
        if not self.order:
            self.order = torch.randperm(len(self.train)).tolist()
        batch = self.train[self.order.pop()]
        value = self.descend(loss(batch, roll(batch, numbers(self.model, batch)))[0])
        share = 1 - min(AVERAGE, (count + 1) / (count + 10))
        with torch.no_grad():
            for mean, now in zip(self.average, self.model.parameters()):
                mean.lerp_(now, share)
        return value

    def descend(self, loss: Tensor) -> float:
        """A batch that blows up is left out."""
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        if torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip).isfinite():
            self.optimiser.step()
        return float(loss.detach())

    def validate(self, known: float | None = None) -> None:
        with self._averaged():
            super().validate(known)

    def error(self) -> float:
        return ratio(self.model, self.valid)

    @contextmanager
    def _averaged(self) -> Iterator[None]:
        """The average in place of the weights of now."""
        weights = list(self.model.parameters())
        now = [p.detach().clone() for p in weights]

        def put(values: Sequence[Tensor]) -> None:
            with torch.no_grad():
                for p, value in zip(weights, values):
                    p.copy_(value)

        put(self.average)
        try:
            yield
        finally:
            put(now)


def fit(net: ElementNet, train: Sequence[Batch], valid: Sequence[Batch], seconds: float, rate: float = RATE, seed: int = 0,
        report: Report | None = None) -> Progress:
    """Train in place; at the end the weights are those of the best validation, the first one included, with the range of the
    features of the training problems. Errors of the progress are geometric means of the error ratio on the problems held out."""
    def tell(progress: Progress, total: int) -> None:
        if report is not None:
            report("training", min(int(progress.seconds), int(seconds)), max(1, int(seconds)))

    torch.manual_seed(seed)
    net.requires_grad_(True)
    found = _Fit(net, train, valid, seconds, rate).fit(tell)
    net.requires_grad_(False)
    net.trained_on(ranges(train))
    return found


def tune(meshes: Meshes, seconds: float, draws: int = 2, workers: int = 1, seed: int = 0, device: str = "cpu",
         report: Report | None = None, flow: bool = False) -> tuple[ElementNet, Progress]:
    """The shipped weights, or new ones, trained on a family of meshes of which a fifth is held out. `flow`: for steady flows."""
    dim = meshes[0][1].dim if meshes else 0
    if len(meshes) < 4 or any(mesh.dim != dim for _, mesh in meshes):
        raise InputError("universal weights need at least four meshes, all flat or all solid")
    _check_flow(dim, flow)
    net = Universal(degree=DEGREE).net(dim, flow)
    net = net if isinstance(net, ElementNet) else ElementNet(dim, DEGREE, flow=flow)
    return _trained(net, meshes, max(1, len(meshes) // 5), seconds, TUNING_RATE, draws, workers, seed, device, report)


def train(dim: int, seconds: float = 1800.0, parts: int = 3000, flow: bool = False, workers: int = 1, seed: int = 101,
          device: str = "cuda", report: Report | None = None) -> tuple[ElementNet, Progress]:
    """New weights from random parts, one problem on each, as the shipped ones were made. Needs gmsh.

        >>> net, progress = train(2, workers=16)                                                     # doctest: +SKIP
        >>> net.cpu().save(Path("elements2-2d.pt"))                                                  # doctest: +SKIP
    """
    _check_flow(dim, flow)
    torch.manual_seed(seed)
    net = ElementNet(dim, DEGREE, flow=flow)
    meshes = random_parts(TRAIN[dim], parts, SIZES[dim], seed)
    return _trained(net, meshes, max(1, min(60, parts // 5)), seconds, RATE, 1, workers, seed, device, report)


def _check_flow(dim: int, flow: bool) -> None:
    if flow and dim != 2:
        raise InputError("universal weights for flows are trained on flat meshes")


def _trained(net: ElementNet, meshes: Meshes, held: int, seconds: float, rate: float, draws: int, workers: int, seed: int,
             device: str, report: Report | None) -> tuple[ElementNet, Progress]:
    """A network fitted to problems on all meshes but the first ones, which are held out."""
    made = partial(examples, flow=net.flow, workers=workers, report=report)
    train, valid = (batches(made(some, draws, seed + k), device) for k, some in enumerate((meshes[held:], meshes[:held])))
    net = net.to(device)
    return net, fit(net, train, valid, seconds, rate, seed, report)

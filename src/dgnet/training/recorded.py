"""Updates recorded once for a whole training: short windows with the loss on their ends, as the paper trains.

Everything from the weights to the clipped gradients is one CUDA graph: L_neural, the matrices of a step, the steps of the windows,
with gradients or without (`Stage.cut`), the loss and its gradients. Only the windows are copied in and the optimiser is outside.
The number of iterations of a solve follows from bounds of the spectrum that were measured with room for the weights to move; every
solve leaves its residual, and where one misses the bounds are measured again and the update is recorded anew. Without a GPU the
same function is called each time, which is how it is tested.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

from dgnet.data import Corpus
from dgnet.errors import SolveError
from dgnet.models.base import Again, LearnedModel
from dgnet.models.capture import Recorded
from dgnet.problems import Problem
from dgnet.recipe import Stage
from dgnet.training.processes import world
from dgnet.training.update import Drawn, misfit, predictions, unit_of

Tensor = torch.Tensor

_ROOM = 1.5  # factor on the bounds, for weights that move
_TRIES = 3
_LONGEST = 32  # steps of a window: all of its states and what networks make of them are kept


class RecordedUpdate:
    """The gradients of the windows of an iteration, as `update.iterate` needs them."""

    def __init__(self, model: LearnedModel[Any], again: Again[Any], base: Problem, train: Corpus, stage: Stage,
                 scale: Tensor, clip: float) -> None:
        self.model, self.again, self.base, self.train = model, again, base, train
        self.stage, self.scale, self.clip = stage, scale, clip
        self.graph: Recorded | None = None

    @classmethod
    def of(cls, model: LearnedModel[Any], base: Problem, train: Corpus, stage: Stage, scale: Tensor, clip: float,
           device: str = "cuda") -> RecordedUpdate | None:
        """None where updates are launched piece by piece: elsewhere than on a GPU (`device`), for other windows, for several
        processes, or where the model cannot be made ready without the host."""
        fits = stage.method == "adam" and stage.loss == "ends" and stage.length <= _LONGEST
        fits = fits and not (stage.only or stage.relative or stage.noise or stage.pushforward or stage.skip)
        if not fits or train.state.device.type != device or world() > 1 or train.timed(base) or train.velocity is not None:
            return None
        again = model.again(base, 2 * stage.batch)
        return None if again is None else cls(model, again, base, train, stage, scale, clip)

    def __call__(self, windows: Drawn) -> tuple[float, float]:
        """Loss and norm of the gradients, which are left, clipped, with the weights."""
        data = self.train.windows(torch.as_tensor(windows.rows), torch.as_tensor(windows.starts), windows.length)
        u, unit = data.state[:, 0], unit_of(self.stage, self.train, data, self.scale)
        if windows.noise is not None:
            u = u + self.stage.step_noise * (unit if self.stage.unit == "own" else self.train.change) * windows.noise
        counted = [1, windows.length] if windows.length > 1 else [1]
        inputs = (u, data.state[:, counted], data.source_average, unit.expand(len(data), 1, -1)[:, None])
        for _ in range(_TRIES):
            if self.graph is None:
                self.record(windows, inputs)
            assert self.graph is not None
            loss, size, missed, *found = self.graph(*inputs)
            value, norm, worst = torch.stack([loss, size.to(loss), missed.to(loss)]).tolist()
            if worst <= 1.0 or value != value:
                break
            self.graph.close()
            self.graph = None
        else:
            raise SolveError(f"the iterative solve missed its tolerance: residual {worst:.2g} times the allowed one")
        for weight, g in zip(self.weights, found):
            weight.grad = g
        return value, norm

    def record(self, windows: Drawn, inputs: tuple[Tensor | None, ...]) -> None:
        """Measure the bounds at the weights of now, and record the update."""
        self.weights = [p for p in self.model.parameters() if p.requires_grad]
        with torch.no_grad():
            bounds = self.again(None).solver.operator().measure_bounds().widened(_ROOM)
        steps = [(0.0, windows.number + k) for k in range(windows.length)]

        def update(u: Tensor, true: Tensor, source: Tensor | None, unit: Tensor) -> tuple[Tensor, ...]:
            with torch.enable_grad():
                stepper = self.again(bounds)
                solver = stepper.solver
                made = predictions(stepper, u, source, steps, self.stage.cut, alike=True)
                loss = misfit(made, true, unit, None)
                found = torch.autograd.grad(loss, self.weights, allow_unused=True, materialize_grads=True)
            norm = torch.stack([g.norm() for g in found]).norm()
            factor = (self.clip / (norm + 1e-6)).clamp(max=1.0)
            missed = torch.stack([worst.to(loss) for worst in solver.monitor.worst.values()]).max()
            result = (loss.detach(), norm, missed.clone(), *(g * factor for g in found))
            for worst in solver.monitor.worst.values():
                worst.zero_()
            return result

        try:
            self.graph = Recorded(update, self.stage.iterations, *inputs)
        except RuntimeError as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            warnings.warn(f"the update could not be recorded and is launched piece by piece: {error}", RuntimeWarning, stacklevel=3)
            self.graph = Recorded(update, 0, *inputs)

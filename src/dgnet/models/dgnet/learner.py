"""What a DGNet holds: its parts and their weights, statistics of the training data, what was learned about the physics. And what
it answers for a state that it has made ready."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Self, TypeVar

import torch
from torch import nn

from dgnet.errors import InputError
from dgnet.green import GreenSolver, Linear
from dgnet.models.base import LearnedModel, Memory, set_memory, solver_memory
from dgnet.models.dgnet.build import Rate, Scales
from dgnet.models.dgnet.config import DGNetConfig
from dgnet.models.dgnet.parts import Calibration, Part, Reaction, parts_of
from dgnet.models.dgnet.parts.library import Library
from dgnet.models.dgnet.parts.reaction import ReactionTable
from dgnet.models.dgnet.parts.start import phase_of_step
from dgnet.models.dgnet.prepared import PreparedDGNet
from dgnet.models.gnn import MLP, StateNet
from dgnet.problems import Discretisation, Rule

Tensor = torch.Tensor
P = TypeVar("P", bound=Part)


class Learner(LearnedModel[PreparedDGNet]):
    """Parts by a configuration, then `extra` ones. Their weights are the model's own, under their own names."""

    calibration: nn.ParameterDict
    reaction_net: MLP | ReactionTable | Library
    residual_net: StateNet
    mean: Tensor
    std: Tensor
    source_std: Tensor
    rate: Tensor
    low: Tensor
    high: Tensor
    capacity: Tensor

    def __init__(self, config: DGNetConfig, problem: Discretisation, extra: Sequence[Part] = ()) -> None:
        super().__init__()
        self.config, self.dim, self.fields = config, problem.mesh.dim, problem.n_fields
        self.parts = (*parts_of(config, problem), *extra)  # a tuple: the weights below have no part in their names
        for part in self.parts:
            for name, weight in part.named_parameters(recurse=False):
                self.register_parameter(name, weight)
            for name, module in part.named_children():
                self.add_module(name, module)
        F, capacity = self.fields, problem.capacity
        mean_capacity = torch.ones(F) if capacity is None else capacity.detach().mean(1).expand(F).float().cpu()
        starts = {"mean": torch.zeros(F), "std": torch.ones(F), "source_std": torch.ones(F), "rate": torch.ones(F),
                  "low": torch.full((F,), -torch.inf), "high": torch.full((F,), torch.inf), "capacity": mean_capacity.clone()}
        for name, value in starts.items():
            self.register_buffer(name, value, persistent=name != "capacity")
        self.register_load_state_dict_pre_hook(_older)

    # ------------------------------------------------------------------ answers for a state that was made ready

    @property
    def rule(self) -> Rule:
        return self.config.rule

    @property
    def solves(self) -> bool:
        return True

    @property
    def any_step(self) -> bool:
        return self.config.green and self.config.physics and not self.config.residual and not self.config.early_steps

    @property
    def rival_mass(self) -> float:
        return self.config.consistent

    def begin(self, state: PreparedDGNet, u: Tensor) -> Tensor:
        return u if state.start is None else u + state.start(u)

    @property
    def first_steps(self) -> int:
        return self.config.early_steps + 1 if self.config.early_steps else 0

    @property
    def plain_start(self) -> bool:
        return self.first_steps == 0 and not self.config.learn_start

    def phase(self, k: int) -> int:
        return phase_of_step(k, self.config.early_steps)

    def capturable(self, state: PreparedDGNet) -> bool:
        return state.capturable

    def freeze(self, state: PreparedDGNet, times: Sequence[float]) -> bool:
        return state.freeze(times)

    def memory(self, state: PreparedDGNet) -> Memory:
        return solver_memory(**state.solvers)

    def remember(self, state: PreparedDGNet, memory: Memory) -> None:
        set_memory(memory, **state.solvers)

    def finish(self, state: PreparedDGNet) -> None:
        state.finish()

    def severed(self, state: PreparedDGNet) -> tuple[PreparedDGNet, list[tuple[Tensor, Tensor]]] | None:
        return state.severed()

    def solver(self, state: PreparedDGNet) -> GreenSolver | None:
        return state.stepper if isinstance(state.stepper, GreenSolver) else None

    def linear_steps(self, state: PreparedDGNet) -> Linear | None:
        solver = self.solver(state)
        return None if solver is None or state.instead is not None or state.corrections else solver.linear()

    def step_weights(self) -> Iterator[nn.Parameter]:
        return (weight for part in self.parts if part.acts_in_step for weight in part.parameters())

    # ------------------------------------------------------------------ statistics of the training data

    @property
    def scales(self) -> Scales:
        return Scales(self.mean, self.std, self.source_std, self.rate, self.low, self.high, self.capacity)

    def fit_statistics(self, state: Tensor, source: Tensor | None, dt: float, velocity: Tensor | None = None) -> None:
        self.mean.copy_(state.mean((0, 1, 2)))
        self.std.copy_(state.std((0, 1, 2)).clamp(min=1e-12))
        if source is not None:
            self.source_std.copy_(source.std((0, 1, 2)).clamp(min=1e-12))
        self.rate.copy_(((state[:, 1:] - state[:, :-1]) / dt).std((0, 1, 2)).clamp(min=1e-12))
        low, high = state.amin((0, 1, 2)), state.amax((0, 1, 2))
        span = (high - low).clamp(min=1e-12)
        self.low.copy_(low - span)
        self.high.copy_(high + span)
        for part in self.parts:
            part.fit_statistics(state, self.scales)

    def typical(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.mean, self.std, self.source_std

    # ------------------------------------------------------------------ what was learned about the physics

    def part(self, kind: type[P]) -> P | None:
        """The part of this kind, if there is one."""
        return next((part for part in self.parts if isinstance(part, kind)), None)

    def keeping(self, *kinds: type[Part]) -> Self:
        """A copy with these kinds of parts and no others."""
        twin = copy.deepcopy(self)
        twin.parts = tuple(part for part in twin.parts if isinstance(part, kinds))
        twin.config = replace(self.config, early_steps=0)
        return twin

    def coefficients(self) -> dict[str, float]:
        """By how much each calibrated coefficient differs from the given one, see `Calibration.coefficients`."""
        found = self.part(Calibration)
        return {} if found is None else found.coefficients()

    def reaction(self, problem: Discretisation) -> Rate | None:
        """r(u), guarded outside of the range of the training data; None where there is none."""
        found = self.part(Reaction)
        return None if found is None else found.guarded(problem, self.scales)

    def curved(self, problem: Discretisation) -> bool:
        """Capacity or diffusion change with u in this model: its steps have no single operator."""
        return bool(self.config.unknown_curves) or (problem.pde.curved and not self.config.linear)

    def learned_reaction(self) -> Rate:
        """The learned reaction r(u), without its guard."""
        found = self.part(Reaction)
        if found is None or self.config.reaction != "learned":
            raise InputError("this model has no learned reaction")
        return found.learned(self.scales)


def _older(model: nn.Module, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Weights saved before there was a range use the reaction everywhere; unused numbers of edges are dropped."""
    for name in ("low", "high"):
        state.setdefault(prefix + name, model.get_buffer(name))
    if prefix + "free_edge" in state and "free_edge" not in dict(model.named_parameters(recurse=False)):
        del state[prefix + "free_edge"]

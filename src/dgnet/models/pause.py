"""`Pause`: where a rollout stopped, and its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from dgnet.arguments import Count, Finite, Positive, Precision, Whole, axes, checked
from dgnet.errors import InputError
from dgnet.files import read_arrays, write_arrays
from dgnet.models.base import Memory, Model
from dgnet.problems import Problem

Tensor = torch.Tensor


@checked
@dataclass(frozen=True, eq=False)
class Pause:
    """Where a rollout stopped, with all that it needs to go on as if it never had: `rollout` takes it in place of a first state.

    - `state`: what the next step works on, at the nodes and then what the model has beside them [B, P, F]. A state at the nodes
      alone is completed by a fit, as a start is, but not filtered like one
    - `step`: the number of the next step, counted from the start
    - `t0`, `dt`: the time of the start, and the length of a step
    - `model`: its name
    - `mesh`: the fingerprint of its mesh; empty where it does not matter
    - `nodes`: how many of `state` are those of the mesh
    - `dtype`: precision of the states that a rollout returns
    - `size`: what has driven the states so far, at most, against which growth is judged; None for the size of `state`
    - `memory`: what steps leave to the next beside the state, by name

    The parts of a rollout equal the whole to rounding, wherever it is cut. `save` and `Pause.load` keep one in a file.

        >>> import dgnet as dg, torch
        >>> problem = dg.Problem(dg.box((4, 4)), dg.PDE(diffusion=0.1), [dg.Dirichlet("left", 1.0)], dt=0.5)
        >>> states, end = dg.rollout(dg.Universal(), problem, torch.zeros(1, 25, 1), steps=30, pause=True)
        >>> end.save("day-one.npz")
        >>> more = dg.rollout(dg.Universal(), problem, dg.Pause.load("day-one.npz"), steps=70)
        >>> end.step, end.time, torch.equal(more[:, 0], states[:, -1])
        (30, 15.0, True)
    """

    state: Annotated[Tensor, axes("trajectory, point, field")]
    step: Whole
    t0: Finite
    dt: Positive
    model: str
    nodes: Count
    dtype: Precision
    mesh: str = ""
    size: float | None = None
    memory: Memory = field(default_factory=dict)

    @property
    def time(self) -> float:
        """When the next step begins."""
        return self.t0 + self.step * self.dt

    @property
    def values(self) -> Tensor:
        """The state at the nodes [B, N, F]."""
        return self.state[:, :self.nodes].to(self.dtype)

    def check(self, model: Model[Any], problem: Problem) -> None:
        """Refuse to go on with another model, mesh or step."""
        nodes, fields = problem.mesh.n_nodes, problem.n_fields
        if self.nodes != nodes or (self.mesh and self.mesh != problem.mesh.fingerprint):
            raise InputError(f"the pause belongs to another mesh, with {self.nodes} nodes; this one has {nodes}")
        if self.state.dim() != 3 or self.state.shape[2] != fields or self.state.shape[1] < nodes:
            raise InputError(f"the pause must hold a state [batch, {nodes} nodes, {fields} fields], got {list(self.state.shape)}")
        for what, mine, other in (("model", self.model, model.name), ("time step", self.dt, problem.dt)):
            if mine != other:
                raise InputError(f"the pause was made with the {what} {mine}, not {other}: to change it, begin anew from `values`")

    # ------------------------------------------------------------------ files

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it as arrays: those of numbers, and one text."""
        about = {"version": 1, "step": self.step, "t0": self.t0, "dt": self.dt, "model": self.model, "nodes": self.nodes,
                 "dtype": str(self.dtype).removeprefix("torch."), "mesh": self.mesh, "size": self.size}
        memory = {f"memory/{name}": value.detach().cpu().numpy() for name, value in self.memory.items()}
        return {"pause": np.array(json.dumps(about)), "state": self.state.detach().cpu().numpy(), **memory}

    @classmethod
    def of(cls, arrays: Mapping[str, np.ndarray]) -> Pause:
        """What `arrays` gave, perhaps beside others."""
        about = json.loads(str(arrays["pause"]))
        if about.pop("version") != 1:
            raise ValueError("another version")
        dtype = {str(kind).removeprefix("torch."): kind for kind in (torch.float32, torch.float64)}[about.pop("dtype")]
        memory = {name.removeprefix("memory/"): torch.from_numpy(np.array(value)) for name, value in arrays.items()
                  if name.startswith("memory/")}
        return cls(torch.from_numpy(np.array(arrays["state"])), dtype=dtype, memory=memory, **about)

    @checked
    def save(self, path: Path | str) -> None:
        """Write it to an .npz file: numbers and one text, no code, and a checksum of them."""
        write_arrays(Path(path), self.arrays())

    @classmethod
    @checked
    def load(cls, path: Path | str) -> Pause:
        """Read what `save` wrote."""
        arrays = read_arrays(Path(path), "the pause of a rollout")
        try:
            return cls.of(arrays)
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"{path} does not hold the pause of a rollout") from error

"""One trajectory as NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dgnet.errors import InputError

SPLITS = ("train", "test")


@dataclass(frozen=True, eq=False)
class Trajectory:
    """States at the nodes, with source and flow; axes [time, node, field].

    `source` holds f at the stored times, `source_average` its mean over each step (the Duhamel term); both are None
    where the equation has no source. `velocity` is the given flow where it changes in time. Instead of its own velocity
    a trajectory may name its first row (`velocity_start`) in the record that a file shares among its trajectories. `source_middles`
    are averages at the middles of the mesh's edges, where the source is known as a function. `state_error` is about what
    interpolation missed of states that were not given at the nodes.
    """

    state: np.ndarray  # [T+1, N, F]
    time: np.ndarray  # [T+1]
    source: np.ndarray | None = None  # [T+1, N, F]
    source_average: np.ndarray | None = None  # [T, N, F]
    velocity: np.ndarray | None = None  # [T+1, N, d]
    velocity_start: int | None = None
    seed: int = 0
    split: str = "train"
    index: int = 0
    labels: tuple[str, ...] = ()
    source_middles: np.ndarray | None = None  # [T, E, F]
    state_error: np.ndarray | None = None  # [T+1, N, F]

    def __post_init__(self) -> None:
        if self.state.ndim != 3:
            raise InputError(f"a state has axes [time, node, field], got shape {list(self.state.shape)}")
        if self.split not in SPLITS:
            raise InputError(f"a trajectory belongs to the split train or test, got '{self.split}'")
        times, nodes, width = self.state.shape
        wanted = {"time": (times,), "source": (times, nodes, width), "source_average": (times - 1, nodes, width),
                  "state_error": self.state.shape}
        for name, shape in wanted.items():
            value = getattr(self, name)
            if value is not None and value.shape != shape:
                raise InputError(f"{name} has shape {list(value.shape)}, expected {list(shape)}")
        m = self.source_middles
        if m is not None and (m.ndim != 3 or (m.shape[0], m.shape[2]) != (times - 1, width)):
            raise InputError(f"source_middles has shape {list(m.shape)}, expected [{times - 1}, edges, {width}]")
        if self.velocity is not None and (self.velocity.ndim != 3 or self.velocity.shape[:2] != (times, nodes)):
            raise InputError(f"velocity has shape {list(self.velocity.shape)}, expected [{times}, {nodes}, d]")

    @property
    def steps(self) -> int:
        return len(self.state) - 1

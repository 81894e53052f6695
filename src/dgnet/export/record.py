"""What every kind of export shares: what was written, and the description beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from dgnet import __version__
from dgnet.errors import InputError
from dgnet.files import write_json
from dgnet.mesh import save
from dgnet.models import Model
from dgnet.problems import Problem
from dgnet.training import Simulator
from dgnet.trust import training_range

Tensor = torch.Tensor

CLOSE = 1e-5
"""Largest difference from the package's own step, relative to the largest value."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    program: Path
    mesh: Path
    about: Path
    extra: dict[str, Path]  # what belongs to it: a program for the start, or a header
    record: dict[str, Any]

    @property
    def paths(self) -> list[Path]:
        return [self.program, *self.extra.values(), self.mesh, self.about]


def described(run: Simulator, problem: Problem, out: Path) -> dict[str, Any]:
    """The entries of the .json that do not depend on the kind of file."""
    known, case = training_range(run), run.case
    start = run.model.stable_steps(problem)
    notes = [*run.notes, *([f"The step is that long after a start: the {start} L-stable ones after it, and those around a boundary "
                            "value that jumps, are left out."] if start else [])]
    return {"program": out.name, "mesh": out.with_suffix(".vtu").name, "scenario": case.name, "notes": notes,
            "model": run.name, "version": __version__, "dt": case.dt, "fields": list(case.pde.fields),
            "offset": list(case.offsets), "nodes": problem.mesh.n_nodes,
            "training_range": None if known is None else known.as_dict()}


def write_beside(out: Path, problem: Problem, extra: dict[str, Path], record: dict[str, Any]) -> Exported:
    """OUT.vtu and OUT.json, beside what was written as OUT."""
    mesh, about = out.with_suffix(".vtu"), out.with_suffix(".json")
    save(problem.mesh, mesh)
    write_json(about, record)
    return Exported(out, mesh, about, extra, record)


def reason(error: Exception) -> str:
    """The first line of an error of another library."""
    return str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__


def probe(model: Model[Any], problem: Problem, batch: int) -> tuple[Tensor, Tensor]:
    """States and sources of the size that the model was trained on [batch, nodes, fields]."""
    g, shape = torch.Generator().manual_seed(0), (batch, problem.mesh.n_nodes, problem.n_fields)
    mean, std, size = model.typical()
    u = mean + std * torch.randn(shape, generator=g)
    return problem.expand(problem.restrict(u)), size * torch.randn(shape, generator=g)


def agree(found: Tensor, expected: Tensor, what: str) -> None:
    """Refuse to write what differs from the model."""
    gap = float((found - expected).abs().max() / expected.abs().max().clamp(min=1e-30))
    if not gap <= CLOSE:
        raise InputError(f"the exported {what} would differ from the model's own by {gap:.1e}; nothing was written")

"""What a training has reached, and the files it resumes from. Weights and numbers only: nothing in a file can run code."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import nn

from dgnet.data.digests import load_checkpoint, save_tensors
from dgnet.errors import InputError

Tensor = torch.Tensor


@dataclass
class Progress:
    """What a training has reached; stored with every checkpoint.

    - `iteration`: place in the recipe, which the clock may move on
    - `best`, `best_iteration`: smallest validation error, and where it was reached; 0 is the untrained model
    - `classical`: validation error of the classical solver
    - `seconds`: of wall clock
    - `updates`: optimiser steps taken
    - `setbacks`: windows that blew up: the best weights were taken again, and the rate halved
    - `retreats`, `slower`: validations that were far worse than the best, after which its weights were taken again; factor on the
      learning rate that came of them
    - `validation_steps`: of the pieces of a validation where the budget is too short for whole rollouts; 0 where it is not
    - `left_out`: numbers of the stages for which the budget is too short
    - `history`: a row for each validation, the untrained model first: iteration, updates, loss, validation, best, seconds
    """

    iteration: int = 0
    best: float = math.inf
    best_iteration: int = 0
    classical: float = math.inf
    seconds: float = 0.0
    updates: int = 0
    setbacks: int = 0
    retreats: int = 0
    slower: float = 1.0
    validation_steps: int = 0
    left_out: list[int] = field(default_factory=list)
    history: list[dict[str, float]] = field(default_factory=list)


def store(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer, best: dict[str, Tensor], progress: Progress) -> None:
    """Write a checkpoint that `restore` reads."""
    save_tensors(path, {"model": model.state_dict(), "best": best, "optimiser": optimiser.state_dict(),
                        "progress": dict(vars(progress))})


def restore(path: Path, model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[dict[str, Tensor], Progress]:
    """Best weights and progress of a checkpoint; model and optimiser take theirs. What does not fit is refused by name."""
    data = load_checkpoint(path, str(next(iter(model.state_dict().values())).device))
    own = vars(Progress())
    for key in ("model", "best", "optimiser", "progress"):
        if not isinstance(data, dict) or not isinstance(data.get(key), dict):
            raise InputError(f"{path} is no checkpoint to go on from: it holds no table '{key}'")
    stored = data["progress"]
    for key, value in stored.items():
        number = isinstance(value, int | float) and (key == "best" or value >= 0)
        fits = isinstance(value, list) if key in ("history", "left_out") else number
        if key not in own or not fits:
            raise InputError(f"{path} is no checkpoint to go on from: its progress has '{key}' = {str(value)[:40]}")
    rows = stored.get("history", [])
    if any(not isinstance(row, dict) or {"iteration", "validation", "seconds"} - set(row) for row in rows):
        raise InputError(f"{path} is no checkpoint to go on from: its history is not one of validations")
    try:
        model.load_state_dict(data["best"])
        model.load_state_dict(data["model"])
        optimiser.load_state_dict(data["optimiser"])
    except (RuntimeError, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
        raise InputError(f"{path} does not fit the model that is trained here") from error
    return data["best"], Progress(**stored)

"""A user's own problem: a folder with problem.toml, a mesh, data, and optionally physics.py."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dgnet.errors import InputError
from dgnet.scenarios.scenario import Scenario


@dataclass(frozen=True, eq=False)
class Project:
    """What problem.toml describes."""

    folder: Path
    scenario: Scenario


def load(folder: Path) -> Project:
    raise InputError(f"{folder} has no problem.toml")

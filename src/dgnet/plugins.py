"""Models, cases and scenes of other distributions, found by entry points. `dgnet-paper` registers those of the paper.

| entry point | value | called with |
|---|---|---|
| `dgnet.models` | a mapping from names to `models.registry.Entry` | |
| `dgnet.cases` | a function that returns a `Case`, or None for an unknown name | name and size of a run's case |
| `dgnet.scenes` | a function that returns the entries of the studio's first page | nothing |
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dgnet.problems.case import Case


@cache
def loaded(group: str) -> tuple[Any, ...]:
    """The objects behind the entry points of a group, by name."""
    return tuple(point.load() for point in sorted(entry_points(group=group), key=lambda point: point.name))


def case(name: str, size: str) -> Case | None:
    """The case of that name, from the distribution that knows it; None without one."""
    return next((found for find in loaded("dgnet.cases") if (found := find(name, size)) is not None), None)

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

from dgnet.errors import InputError

if TYPE_CHECKING:
    from dgnet.problems.case import Case


@cache
def loaded(group: str) -> tuple[Any, ...]:
    """The objects behind the entry points of a group, by name."""
    return tuple(point.load() for point in sorted(entry_points(group=group), key=lambda point: point.name))


def case(name: str, size: str) -> Case:
    """The case of a run that carries no problem, from the distribution that knows its name."""
    for find in loaded("dgnet.cases"):
        found: Case | None = find(name, size)
        if found is not None:
            return found
    raise InputError(f"no installed package knows the case '{name}' of size '{size}' (those of the paper come with dgnet-paper)")

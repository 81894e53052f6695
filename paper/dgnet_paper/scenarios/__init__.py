"""The scenarios of the paper and our own: `get(name, size)`, `names()` and `paper_names()`."""

from __future__ import annotations

from collections.abc import Callable

from dgnet.errors import InputError
from dgnet.files import did_you_mean
from dgnet_paper.scenarios import (
    allen_cahn,
    cardiac,
    cylinder,
    fisher_kpp,
    fitzhugh_nagumo,
    laser_heat,
    laser_heat_3d,
    light_reaction,
    melting,
    obstacles,
    phase_transition,
    sediments,
    spiral,
    wavy_channel,
)
from dgnet_paper.scenarios.scenario import SIZES, TRUTHS, Draw, Figure, Flow, Parameter, Sample, Scale, Scenario, Truth

_PAPER: dict[str, Callable[[str], Scenario]] = {
    "allen-cahn": allen_cahn.scenario,
    "fisher-kpp": fisher_kpp.scenario,
    "fitzhugh-nagumo": fitzhugh_nagumo.scenario,
    "cylinder": cylinder.scenario,
    "sediments": sediments.scenario,
    "obstacles": obstacles.scenario,
    "laser-heat": laser_heat.scenario,
    "laser-heat-3d": laser_heat_3d.scenario,
    "wavy-channel": wavy_channel.scenario,
    "light-reaction": light_reaction.scenario,
    "phase-transition": phase_transition.scenario,
}
_OURS: dict[str, Callable[[str], Scenario]] = {
    "melting": melting.scenario,
    "cardiac": cardiac.scenario,
    "spiral": spiral.scenario,
}
_SCENARIOS = _PAPER | _OURS


def names() -> list[str]:
    """Those of the paper first."""
    return list(_SCENARIOS)


def paper_names() -> list[str]:
    """What the paper's tables are made of."""
    return list(_PAPER)


def get(name: str, size: str = "paper") -> Scenario:
    if name not in _SCENARIOS:
        raise InputError(f"there is no scenario '{name}'" + did_you_mean(name, _SCENARIOS))
    if size not in SIZES:
        raise InputError(f"there is no size '{size}' (known: {', '.join(SIZES)})")
    return _SCENARIOS[name](size)


def find(name: str, size: str) -> Scenario | None:
    """The scenario of a run's case (entry point `dgnet.cases`); None for an unknown name."""
    return get(name, size) if name in _SCENARIOS and size in SIZES else None


__all__ = ["SIZES", "TRUTHS", "Draw", "Figure", "Flow", "Parameter", "Sample", "Scale", "Scenario", "Truth", "find", "get",
           "names", "paper_names"]

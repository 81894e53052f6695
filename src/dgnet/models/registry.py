"""Every model by name: its configuration, how it is built, and how its paper trains it.

A configuration is a plain table (as in TOML). Its key `setting` chooses where to start: `comparable` (the default: a size like
DGNet's) or `published` (the size of the method's own paper); other keys change single values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import isfinite
from typing import Any

from torch import nn

from dgnet import plugins
from dgnet.errors import InputError
from dgnet.files import did_you_mean, read_dataclass
from dgnet.mesh import perturbed_square
from dgnet.models.classical import Classical
from dgnet.models.dgnet import DGNet, DGNetConfig
from dgnet.models.universal import AsShipped, Tuned, TunedConfig, Universal
from dgnet.problems import PDE, Problem

SETTINGS = ("comparable", "published")
DGNETS = ("dgnet", "dgnet-paper")
"""Ours, and the one that the paper's text describes: they solve the equation and are trained by a plan (`training.plan`)."""
LARGEST_COUNT = 100_000  # of units, layers, iterations: above, a number in a file is a mistake
TUNED = "universal-tuned"
"""Universal weights that are tuned to data: trained by `training.plan`."""
TOLD_ALL, TOLD_FIELDS = "whole equation", "coefficients, flow"
"""What a model is told besides mesh, sources and boundary values: the equation, or fields of it that a network reads."""


@dataclass(frozen=True)
class Entry:
    """`recipe`: lr, lr_end, weight_decay, noise, pushforward, window, loss, clip as the method's paper has them.

    `method = "fitted"` stands alone: the model is not iterated but fitted at once (`LearnedModel.fit_data`). `told`: what the model
    knows besides mesh, sources and boundary values; a column of the paper's tables.
    """

    title: str
    config: type
    make: Callable[[Any, Problem], Any]
    settings: Mapping[str, Any]
    recipe: Mapping[str, float | int | str]
    published: int | None = None  # parameters, where the method's paper (or its code) has a figure
    told: str = TOLD_FIELDS


_OURS: dict[str, Entry] = {
    "dgnet": Entry("DGNet", DGNetConfig, DGNet, {"comparable": DGNetConfig(), "published": DGNetConfig()}, {},
                   told=TOLD_ALL),
    TUNED: Entry("universal weights, tuned", TunedConfig, Tuned, {"comparable": TunedConfig(), "published": TunedConfig()}, {},
                 told=TOLD_ALL),
    "universal": Entry("universal weights, without data", AsShipped, lambda config, problem: Universal(),
                       {"comparable": AsShipped(), "published": AsShipped()}, {}, told=TOLD_ALL),
    "universal-quadratic": Entry("universal weights, quadratic elements", AsShipped, lambda config, problem: Universal(degree=2),
                                 {"comparable": AsShipped(), "published": AsShipped()}, {}, told=TOLD_ALL),
    "classical": Entry("classical", Classical, lambda config, problem: config,
                       {"comparable": Classical(), "published": Classical()}, {}, told=TOLD_ALL),
    "classical-p2": Entry("classical, quadratic elements", Classical, lambda config, problem: config,
                          {"comparable": Classical(degree=2), "published": Classical(degree=2)}, {}, told=TOLD_ALL),
}


@cache
def all_models() -> dict[str, Entry]:
    """Every model by name: those of other distributions (`plugins`), then ours."""
    found: dict[str, Entry] = {}
    for more in plugins.loaded("dgnet.models"):
        found |= more
    return found | _OURS


def entry(name: str) -> Entry:
    models = all_models()
    if name not in models:
        raise InputError(f"there is no model '{name}'" + did_you_mean(name, models))
    return models[name]


def config_class(name: str) -> type:
    return entry(name).config


def current(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration without the settings that the model had before (`DGNetConfig.former`)."""
    former = getattr(config_class(name), "former", {})
    return {key: value for key, value in table.items() if not (key in former and former[key] in (None, value))}


def as_stored(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration as a file has it that may be older than some of its settings (`DGNetConfig.unsaid`)."""
    return {**getattr(config_class(name), "unsaid", {}), **current(name, table)}


def configure(name: str, config: Mapping[str, Any] | None = None) -> Any:
    """The frozen configuration of a table (see the module)."""
    model, values = entry(name), dict(config or {})
    setting = values.pop("setting", "comparable")
    if setting not in SETTINGS:
        raise InputError(f"unknown setting '{setting}' of {name} (known: {', '.join(SETTINGS)})")
    return read_dataclass(model.config, current(name, values), name, model.settings[setting])


def changes(name: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """What a problem file's [model] (dgnet) and [model.NAME] say of this model."""
    plain = {key: value for key, value in table.items() if key not in all_models()} if name == "dgnet" else {}
    own = table.get(name, {})
    return plain | (dict(own) if isinstance(own, Mapping) else {})


def changed(name: str, table: Mapping[str, Any], base: Any, where: str) -> Any:
    """`base` with the changes of a problem file's [model] (dgnet) and [model.NAME]."""
    where = where if name == "dgnet" else f"{where}.{name}"
    if not isinstance(table.get(name, {}), Mapping):
        raise InputError(f"{where} must be a table")
    found = read_dataclass(type(base), changes(name, table), where, base)
    for key in changes(name, table):
        value = getattr(found, key)
        if (isinstance(value, int) and not 0 <= value < LARGEST_COUNT) or (isinstance(value, float) and not isfinite(value)):
            raise InputError(f"{where}: '{key}' must be finite, and a count from 0 to {LARGEST_COUNT - 1}, got {value}")
    return found


def build(name: str, config: Mapping[str, Any] | None, problem: Problem) -> Any:
    """The model with fresh weights (draw them under `torch.manual_seed`), on the problem's device in its precision."""
    model = entry(name).make(configure(name, config), problem)
    return model.to(device=problem.geometry.device, dtype=problem.dtype) if isinstance(model, nn.Module) else model


def listed() -> list[dict[str, Any]]:
    """All models with their titles and numbers of parameters (two dimensions, one field)."""
    problem = Problem(perturbed_square(12), PDE(diffusion=0.1), [], 0.01)
    return [{"name": name, "title": one.title, "parameters": parameter_count(build(name, None, problem))}
            for name, one in all_models().items()]


def parameter_count(model: Any) -> int:
    """Trainable numbers; 0 for the classical solver."""
    return sum(p.numel() for p in model.parameters()) if isinstance(model, nn.Module) else 0


_ROWS = {"classical_consistent": "classical, consistent mass", "classical_lumped": "classical, lumped mass",
         "classical_p2": "classical, quadratic elements", "classical_refined": "classical, mesh refined once",
         "universal": "universal weights", "universal_p2": "universal weights, quadratic elements"}


def title_of(name: str) -> str:
    """The title of a model or of a classical row in tables and pictures; an unknown name is its own title."""
    models = all_models()
    return _ROWS.get(name) or (models[name].title if name in models else name)

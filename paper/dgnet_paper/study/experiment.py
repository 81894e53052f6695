"""One experiment, a cell of a study, named by everything that decides its result.

    TAG = KIND_SCENARIO_SIZE_TRUTH_METHOD_sSEED[_nTRAJECTORIES][_xSIZE-POWER-COUNT][_unknown][_dFEW][_fFACTOR]

A method is a model with its configuration and recipe under one name. A tag can be read back (`Experiment.parse`), so it is also
what the command line takes to run one cell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dgnet.errors import InputError
from dgnet.files import did_you_mean
from dgnet.models.registry import DGNETS, TUNED, all_models, configure
from dgnet_paper.model import BOUNDED, PAPER, variants
from dgnet_paper.scenarios import SIZES, TRUTHS, get, names
from dgnet_paper.scenarios.scenario import Scenario

Record = dict[str, Any]

KINDS = {
    "classical": "the classical solvers on the test trajectories",
    "train": "a model trained and scored on the test trajectories",
    "robust": "a trained model scored where sources are scaled",
    "operator": "spectrum, matrices and action of the operator of a trained DGNet",
    "long": "a trained model rolled out ten times longer than its data",
    "throughput": "time and memory of a rollout",
    "scaling": "time and memory against nodes",
    "tradeoff": "error against cost, beside the classical solver with other elements, meshes and steps",
}
TRAINED = ("train", "robust", "operator", "long", "tradeoff")  # kinds about one trained model
CLOCKED = ("throughput", "scaling", "tradeoff")  # kinds that need the device for themselves
SQUARES = "squares"  # in place of a scenario: meshes of any size
BASELINES = tuple(name for name in all_models() if name not in (*DGNETS, TUNED, "universal", "classical", "classical-p2"))
FAMILIES = {"dgnet-paper": "the paper's model", "dgnet-bounded": "the paper's networks with limits, on lumped finite elements"}
"""Models that the paper's ablation is made of, each with its variants A to D."""


@dataclass(frozen=True)
class Method:
    """A model as a row of a table. `config` None: the scenario's preset; `published` is its name in the paper's tables."""

    title: str
    model: str
    recipe: str = "staged"
    config: Any = None
    published: str = ""


_VARIANTS = {"A": "without L_physics", "B": "without L_neural", "C": "without the residual network", "D": "without Green"}


def _methods() -> Mapping[str, Method]:
    found = {"classical": Method("classical", "classical"), "every": Method("every model", "")}
    for name in BASELINES:
        known = "SINGER" if name == "singer" else all_models()[name].title
        found[name] = Method(all_models()[name].title, name, published=known)
        found[f"{name}-published"] = Method(f"{all_models()[name].title}, published size", name,
                                            config=configure(name, {"setting": "published"}), published=known)
    found["dgnet-paper"] = Method("DGNet, the paper's", "dgnet-paper", "paper", published="DGNet")
    found["dgnet-bounded"] = Method("DGNet, the paper's, bounded", "dgnet-paper", "paper", BOUNDED, published="DGNet")
    for name, full in (("dgnet-paper", PAPER), ("dgnet-bounded", BOUNDED)):
        for letter, config in variants(full).items():
            found[f"{name}-{letter}"] = Method(f"{letter}: {_VARIANTS[letter]}", found[name].model, "paper", config)
    found["dgnet"] = Method("DGNet, ours", "dgnet", published="DGNet")
    return found


METHODS = _methods()


def is_variant(name: str) -> bool:
    """One of the variants A to D of an ablation."""
    return any(name.startswith(f"{family}-") for family in FAMILIES)


def method(name: str) -> Method:
    if name not in METHODS:
        raise InputError(f"there is no model '{name}'" + did_you_mean(name, METHODS))
    return METHODS[name]


@dataclass(frozen=True)
class Experiment:
    """One experiment. `trajectories` 0 means all; `few` and `factor` are for trials (data sets and recipes cut short)."""

    kind: str
    scenario: str
    size: str = "small"
    truth: str = "converged"
    method: str = "classical"
    seed: int = 0
    trajectories: int = 0
    scale: tuple[float, float, float] = (1.0, 1.0, 1.0)
    unknown_reaction: bool = False
    few: int = 0
    factor: float = 1.0

    def __post_init__(self) -> None:
        for value, known, what in ((self.kind, KINDS, "kind of cell"), (self.size, SIZES, "size"),
                                   (self.truth, TRUTHS, "kind of truth")):
            if value not in known:
                raise InputError(f"unknown {what} '{value}' (known: {', '.join(known)})")
        if self.scenario not in names() and (self.kind, self.scenario) != ("scaling", SQUARES):
            get(self.scenario, self.size)
        method(self.method)
        if min(self.seed, self.trajectories, self.few) < 0 or not all(0 < v < math.inf for v in (self.factor, *self.scale)):
            raise InputError(f"a number of the cell {self.tag} is negative or not finite")
        if (self.kind == "classical") != (self.method == "classical") or (self.kind in TRAINED and self.method == "every"):
            raise InputError(f"the cell {self.tag} makes no sense: '{self.kind}' is {KINDS[self.kind]}, not about '{self.method}'")
        if len(self.scale) != 3 or (self.scaled and not get(self.scenario, self.size).scalable):
            raise InputError(f"the sources of '{self.scenario}' cannot be scaled as the cell {self.tag} says")

    @property
    def tag(self) -> str:
        parts = [self.kind, self.scenario, self.size, self.truth, self.method, f"s{self.seed}"]
        parts += [f"n{self.trajectories}"] if self.trajectories else []
        parts += ["x" + "-".join(f"{v:g}" for v in self.scale)] if self.scaled else []
        parts += ["unknown"] if self.unknown_reaction else []
        parts += [f"d{self.few}"] if self.few else []
        parts += [f"f{self.factor:g}"] if self.factor != 1.0 else []
        return "_".join(parts)

    @classmethod
    def parse(cls, tag: str) -> Experiment:
        parts = tag.split("_")
        try:
            kind, scenario, size, truth, name, seed = parts[:6]
            found: dict[str, Any] = {"seed": int(seed.removeprefix("s"))}
            for part in parts[6:]:
                if part == "unknown":
                    found["unknown_reaction"] = True
                elif part.startswith("x"):
                    found["scale"] = tuple(float(v) for v in part[1:].split("-"))
                else:
                    key, read = {"n": ("trajectories", int), "d": ("few", int), "f": ("factor", float)}[part[0]]
                    found[key] = read(part[1:])
        except (ValueError, KeyError, IndexError) as error:
            raise InputError(f"'{tag}' is not the name of a cell") from error
        return cls(kind, scenario, size, truth, name, **found)

    @property
    def scaled(self) -> bool:
        return self.scale != (1.0, 1.0, 1.0)

    def definition(self) -> Scenario:
        """The scenario with this cell's sources."""
        scenario = get(self.scenario, self.size)
        return scenario.scaled(*self.scale) if self.scaled else scenario

    @property
    def needs(self) -> tuple[Experiment, ...]:
        """Cells that must be finished before this one."""
        if self.kind not in TRAINED:
            return ()
        rival = replace(self, kind="classical", method="classical", seed=0, trajectories=0, unknown_reaction=False, factor=1.0)
        if self.kind == "train":
            return (rival,)
        if self.kind == "robust":
            return rival, self.trained
        return (self.trained,)

    @property
    def trained(self) -> Experiment:
        """The cell whose weights this one uses."""
        return replace(self, kind="train", scale=(1.0, 1.0, 1.0))

    def folder(self, out: Path) -> Path:
        return out / "cells" / self.tag

    def lock(self, out: Path) -> Path:
        """The file that a process locks while it works on the cell."""
        return out / "cells" / f".{self.tag}.lock"

    def finished(self, out: Path) -> bool:
        return (self.folder(out) / "cell.json").exists()

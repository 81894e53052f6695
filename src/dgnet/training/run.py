"""A training run as a folder: what was asked for, the weights, the history.

    run.toml      scenario, data, model, recipe, seed: all that is needed to build the model again
    weights.pt    the best weights by validation rollout
    last.pt       where to resume
    history.csv   iteration, loss, validation error, seconds; history.png draws it
"""

from __future__ import annotations

import csv
import os
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from dgnet import __version__
from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.models.base import few_threads
from dgnet.models.registry import configure, entry
from dgnet.problems import Discretisation
from dgnet.scenarios import get
from dgnet.scenarios.fits import check_fits
from dgnet.scenarios.scenario import Scenario
from dgnet.training.fit import Corpus, Progress, fit, join_processes, load_checkpoint, split, wait_for_all
from dgnet.training.presets import baseline_recipe, model_config, recipe_for
from dgnet.training.recipe import Recipe

Tensor = torch.Tensor


@dataclass(frozen=True)
class Settings:
    """What identifies a run; stored as [run] in run.toml."""

    scenario: str
    size: str
    truth: str
    data: str
    model: str = "dgnet"
    recipe: str = "staged"
    seed: int = 0
    trajectories: int = 0  # training trajectories used; 0 means all
    unknown_reaction: bool = False
    project: str = ""  # folder of the user's problem file; empty for a scenario of the paper
    version: str = __version__


@dataclass(frozen=True, eq=False)
class Run:
    """An opened run: its settings, the scenario and the model with its best weights."""

    folder: Path
    settings: Settings
    scenario: Scenario
    model: Any

    @classmethod
    def open(cls, folder: Path, device: str = "cpu", scenario: Scenario | None = None) -> Run:
        """`scenario` takes the place of the one that run.toml names: for problems made in Python."""
        path = folder / "run.toml"
        try:
            text = tomllib.loads(path.read_text())
        except FileNotFoundError as error:
            raise InputError(f"{folder} is no training run: it has no run.toml") from error
        except tomllib.TOMLDecodeError as error:
            raise InputError(f"{path} is damaged: {error}") from error
        settings = read_dataclass(Settings, text.get("run", {}), f"{path} [run]")
        described = entry(settings.model)
        config = read_dataclass(described.config, text.get("model", {}), f"{path} [model]")
        scenario = scenario or scenario_of(settings)
        model = described.make(config, base_problem(scenario, device)).to(device)
        state = load_checkpoint(folder / "weights.pt", device)
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            raise InputError(f"{folder / 'weights.pt'} does not fit the model that run.toml describes") from error
        return cls(folder, settings, scenario, model)


def scenario_of(settings: Settings) -> Scenario:
    """The experiment of a run: one of the paper's, or the user's own."""
    if settings.project:
        from dgnet.projects import load

        return load(Path(settings.project)).scenario
    if settings.size == "own":
        raise InputError(f"'{settings.scenario}' was made in Python: open its run with Run.open(folder, scenario=project.scenario)")
    return get(settings.scenario, settings.size)


def base_problem(scenario: Scenario, device: str, dtype: torch.dtype = torch.float32) -> Discretisation:
    """The scenario's problem; a flow that changes in time is put in for each batch."""
    velocity = None
    if scenario.flow is not None:
        velocity = torch.zeros(1, 2, scenario.mesh.n_nodes, scenario.mesh.dim)
    return scenario.problem(velocity, device=device, dtype=dtype)


def train(scenario: Scenario, truth: str, data: Path, folder: Path, *, model: str = "dgnet", recipe: str = "staged", seed: int = 0,
          device: str = "cpu", budget: float | None = None, trajectories: int | None = None, config: Any = None,
          plan: Recipe | None = None, factor: float = 1.0, unknown_reaction: bool = False, project: Path | None = None,
          amp: bool = False, report: Callable[[Progress, int], None] | None = None) -> tuple[Run, Progress]:
    """Train a model on a data set; a run that was interrupted goes on. `factor` scales the number of iterations.

    `config` and `plan` take the place of the presets: what is learned, and how.
    """
    if model == "classical":
        raise InputError("the classical solver has nothing to train; it stands beside every evaluation")
    if amp and model != "dgnet":
        raise InputError(f"mixed precision is an option of dgnet, not of {model}")
    folder.mkdir(parents=True, exist_ok=True)
    if config is None:
        config = model_config(scenario.name, recipe, unknown_reaction, scenario.size) if model == "dgnet" else configure(model)
    if amp:
        config = replace(config, amp=True)
    settings = Settings(scenario.name, scenario.size, truth, str(data), model, recipe if model == "dgnet" else model, seed,
                        trajectories or 0, unknown_reaction, "" if project is None else str(project))
    text = to_toml({"run": settings, "model": config})
    path = folder / "run.toml"
    if path.exists() and path.read_text() != text:
        raise InputError(f"{folder} holds another run; choose another folder or remove it")
    with Dataset(data) as dataset:
        check_fits(dataset, scenario, truth)
        count = len(dataset.of("train")[:trajectories])
        if plan is None and model == "dgnet":
            plan = recipe_for(scenario.name, recipe, count, dataset.steps, unknown_reaction, scenario.size)
        elif plan is None:
            plan = baseline_recipe(model, scenario.name, count, dataset.steps, scenario.mesh.n_nodes)
        plan = plan.scaled(factor)
        numbers, held = split(dataset, plan, seed, trajectories)
        training, validation = Corpus.read(dataset, numbers, device), Corpus.read(dataset, held, device)
    writes = join_processes(device)
    if writes:
        _write(path, text)
    base = base_problem(scenario, device)
    torch.manual_seed(seed)
    network = entry(model).make(config, base).to(device)
    with few_threads(scenario.mesh.n_nodes, device):
        progress = fit(network, base, training, validation, plan, seed=seed, budget=budget, folder=folder, report=report)
    if writes:
        weights = folder / "weights.part"
        torch.save(network.state_dict(), weights)
        os.replace(weights, folder / "weights.pt")
        write_history(folder, progress)
    wait_for_all()
    return Run(folder, settings, scenario, network), progress


def write_history(folder: Path, progress: Progress) -> None:
    """history.csv and history.png."""
    with (folder / "history.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, ["iteration", "loss", "validation", "best", "seconds"])
        rows.writeheader()
        rows.writerows(progress.history)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    at = [h["iteration"] for h in progress.history]
    axis.semilogy(at, [h["validation"] for h in progress.history], "o-", ms=3, label="validation rollout")
    axis.axhline(progress.classical, color="k", ls="--", lw=1, label="classical, same mesh")
    axis.set(xlabel="iteration", ylabel="relative error")
    axis.legend(frameon=False)
    figure.savefig(folder / "history.png", dpi=150)
    plt.close(figure)


# ---------------------------------------------------------------------- TOML


def to_toml(tables: dict[str, Any]) -> str:
    """Dataclasses of plain values as TOML tables."""
    lines = []
    for name, value in tables.items():
        lines.append(f"[{name}]")
        lines += [f"{f.name} = {_toml(getattr(value, f.name))}" for f in fields(value)]
        lines.append("")
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return repr(value)


def read_dataclass(kind: type, values: dict[str, Any], where: str) -> Any:
    """A frozen dataclass from a TOML table; an unknown key fails with the nearest known name."""
    from difflib import get_close_matches

    known = {f.name: f for f in fields(kind)}
    for key in values:
        if key not in known:
            near = get_close_matches(key, known, 1)
            raise InputError(f"{where}: unknown key '{key}'" + (f", did you mean '{near[0]}'?" if near else ""))
    try:
        return kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
    except TypeError as error:
        raise InputError(f"{where} is incomplete: {error}") from error


def _write(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text)
    os.replace(part, path)

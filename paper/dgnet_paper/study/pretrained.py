"""Weights that ship with the package, one folder each with a card that says where they come from and what they reach.

    NAME-TRUTH/run.toml     as in any training run, without the place of its data
    NAME-TRUTH/weights.pt   tensors only; large ones in half precision, loaded back to single precision
    NAME-TRUTH/card.json    command, hardware, minutes, figures of DGNet and of both classical solvers, checksum of the weights

A folder is an ordinary run: `Run.open` and all commands that take a run read it. `pack` makes it from a finished cell of
`dgnet-paper reproduce`; `compared.check` makes the test data again, rolls out and compares with the card.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dgnet.data.digests import load_checkpoint, save_tensors
from dgnet.errors import InputError
from dgnet.files import did_you_mean, discard, read_dataclass, read_toml, unfinished, write_json, write_text
from dgnet.models.registry import as_stored, config_class, title_of
from dgnet.scoring.judge import rivals
from dgnet.training.run import Run, Settings, to_toml
from dgnet_paper.scenarios import SIZES, TRUTHS, get, names, paper_names
from dgnet_paper.study.blocks import template
from dgnet_paper.study.experiment import Experiment
from dgnet_paper.study.results import number
from dgnet_paper.study.stored import read_from

Tensor = torch.Tensor

_FORMER = {"fluctuation": "rne_from_offset", "gain": "error_ratio"}

SHELF = Path(__file__).parents[1] / "pretrained"
HALF_FROM = 64  # numbers of a tensor that is worth storing in half precision
FIGURES = ("mse", "rne", "rne_from_offset", "rne_final", "trajectories")


@dataclass(frozen=True)
class Measured:
    """The first test trajectories, rolled out again elsewhere. Figures as in Card."""

    trajectories: int
    hardware: str
    device: str
    version: str
    torch: str
    figures: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Card:
    """Where weights come from and what they reach.

    `figures`: for dgnet and both classical solvers MSE, RNE, RNE from offset, RNE of the last step, and the RNE
    from the offset of every test trajectory; None where a rollout diverged. `learned` is False where validation never fell below
    that of the untrained model, so that the weights are those of the classical solver it starts as.
    """

    scenario: str
    size: str
    truth: str
    command: str
    hardware: str
    sharing: int  # processes that shared the device
    minutes: float  # of training
    budget: float | None  # minutes allowed
    seed: int
    training_trajectories: int
    test_trajectories: int
    nodes: int
    steps: int
    parameters: int
    learned: bool
    error_ratio: float | None  # error of DGNet / that of the better classical solver; below 1 is better
    figures: dict[str, dict[str, Any]]
    version: str
    torch: str
    date: str
    bytes: int  # of weights.pt
    sha256: str
    half: tuple[str, ...] = ()  # tensors stored in half precision
    notes: tuple[str, ...] = ()
    measured: tuple[Measured, ...] = field(default=())

    @property
    def label(self) -> str:
        return label(self.scenario, self.size, self.truth)


def label(scenario: str, size: str, truth: str) -> str:
    """Name of the folder; weights for the paper's size need not say so."""
    return f"{scenario}-{truth}" if size == "paper" else f"{scenario}-{size}-{truth}"


# ---------------------------------------------------------------------- reading


def shipped(shelf: Path = SHELF) -> list[Card]:
    """The cards of a shelf, in the order of the scenarios."""
    if not shelf.is_dir():
        raise InputError(f"there is no folder {shelf}")
    cards = [read_card(path.parent) for path in sorted(shelf.glob("*/card.json"))]
    if not cards:
        raise InputError(f"{shelf} holds no pretrained weights")
    return sorted(cards, key=lambda c: (names().index(c.scenario), c.size, c.truth))


def current_names(value: Any) -> Any:
    """A stored result with the names of today: `rne_from_offset` was `fluctuation` and `error_ratio` was `gain` in older files."""
    if isinstance(value, dict):
        return {_FORMER.get(key, key): current_names(item) for key, item in value.items()}
    return [current_names(item) for item in value] if isinstance(value, list) else value


def read_card(folder: Path) -> Card:
    path = folder / "card.json"
    try:
        table = current_names(json.loads(path.read_text()))
        measured = tuple(read_dataclass(Measured, m, f"{path} [measured]") for m in table.pop("measured", []))
        card = replace(read_dataclass(Card, table, str(path)), measured=measured)
        sound = (card.scenario in names() and card.size in SIZES and card.truth in TRUTHS and card.bytes > 0
                 and card.test_trajectories >= 1
                 and all(set(FIGURES) <= set(row) and all(isinstance(v, int | float | list | None) for v in row.values())
                         for figures in (card.figures, *(m.figures for m in measured))
                         for row in [figures["dgnet"], *(figures[name] for name in rivals())]))
    except FileNotFoundError as error:
        raise InputError(f"{folder} holds no pretrained weights: it has no card.json") from error
    except InputError:
        raise
    except Exception as error:  # whatever a stranger's file holds
        raise InputError(f"{path} is damaged") from error
    if not sound:
        raise InputError(f"{path} is damaged")
    return card


def find(name: str, truth: str = "converged", shelf: Path = SHELF) -> Path:
    """The folder of shipped weights, or of any others that `pack` has made, by its path."""
    if (Path(name) / "card.json").exists():
        return Path(name)
    known = {card.label: card for card in shipped(shelf)}
    if label(name, "paper", truth) in known:
        return shelf / label(name, "paper", truth)
    if name in names():
        other = [card.truth for card in known.values() if (card.scenario, card.size) == (name, "paper")]
        if truth not in TRUTHS:
            raise InputError(f"unknown kind of truth '{truth}' (known: {', '.join(TRUTHS)})")
        hint = f"there are some for {' and '.join(other)} truth" if other else f"train them with `{training_command(name, truth)}`"
        raise InputError(f"no weights for '{name}' with {truth} truth ship with dgnet; {hint}")
    raise InputError(f"no weights for '{name}' ship with dgnet" + did_you_mean(name, sorted({c.scenario for c in known.values()})))


def load(name: str, truth: str = "converged", device: str = "cpu", shelf: Path = SHELF) -> Run:
    """Shipped weights as an opened run, in single precision."""
    return opened(find(name, truth, shelf), device)[0]


def opened(folder: Path, device: str = "cpu") -> tuple[Run, Card]:
    """A run whose weights are those that its card describes."""
    card, path = read_card(folder), folder / "weights.pt"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"{folder} has no weights.pt") from error
    if hashlib.sha256(content).hexdigest() != card.sha256:
        raise InputError(f"{path} is damaged: it is not the file that its card describes")
    state = load_checkpoint(path)
    if not isinstance(state, dict) or not all(isinstance(v, Tensor) for v in state.values()):
        raise InputError(f"{path} is not a checkpoint of weights: it holds something else than tensors")
    settings, _ = _settings(folder)
    if (settings.scenario, settings.size, settings.truth, settings.project) != (card.scenario, card.size, card.truth, ""):
        raise InputError(f"{folder / 'run.toml'} is not the run that its card describes")
    run = Run.open(folder, device)
    wrong = [name for name, value in run.model.named_parameters() if not bool(value.isfinite().all())]
    if wrong:
        raise InputError(f"{path} is damaged: '{wrong[0]}' holds numbers that are not finite")
    return run, card


def _settings(folder: Path) -> tuple[Settings, Any]:
    """The tables of run.toml: what identifies the run, and the configuration of its model."""
    path = folder / "run.toml"
    try:
        table = tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise InputError(f"{folder} is no training run: it has no run.toml") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is damaged: {error}") from error
    settings = Settings.read(table.get("run", {}), f"{path} [run]")
    config = as_stored(settings.model, table.get("model", {}))
    return settings, read_dataclass(config_class(settings.model), config, f"{path} [model]")


# ---------------------------------------------------------------------- packing


def pack(cell: Path, shelf: Path = SHELF, notes: Sequence[str] = ()) -> Path:
    """Turn a finished cell of `dgnet-paper reproduce` into a folder of the shelf and return that; an earlier one is replaced.

    What was measured of the same weights elsewhere stays on the card.
    """
    record = read_from(cell)
    kind = Experiment.parse(record["tag"])
    if kind.kind != "train" or kind.method != "dgnet":
        raise InputError(f"{cell} is not about a trained dgnet")
    if kind.trajectories or kind.unknown_reaction or kind.factor != 1.0:
        raise InputError(f"{cell} is a variation; shipped are runs with the known reaction, all trajectories and the whole recipe")
    settings, config = _settings(cell / "run")
    if (settings.scenario, settings.size, settings.truth, settings.project) != (kind.scenario, kind.size, kind.truth, ""):
        raise InputError(f"{cell / 'run'} is not the run of its cell")
    state = {name: halved(value) for name, value in load_checkpoint(cell / "run" / "weights.pt").items()}
    target = shelf / label(kind.scenario, kind.size, kind.truth)
    part = unfinished(target)
    try:
        checksum = save_tensors(part / "weights.pt", state)
        tables = {"run": replace(settings, data=""), "model": config}
        known = read_toml(cell / "run" / "run.toml").get("trained_on")
        write_text(part / "run.toml", to_toml(tables if known is None else {**tables, "trained_on": known}))
        card = _card(record, kind, state, (part / "weights.pt").stat().st_size, checksum, tuple(notes))
        if (target / "card.json").exists():
            before = read_card(target)
            card = replace(card, measured=before.measured if before.sha256 == card.sha256 else ())
        write_json(part / "card.json", asdict(card))
        opened(part)  # nothing is shipped that cannot be opened
        discard(target)
        os.replace(part, target)
    finally:
        discard(part)
    return target


def halved(value: Tensor) -> Tensor:
    """Half precision where there is enough to save and nothing overflows.

    Decoders and free numbers are dimensionless changes of operators: 2^-11 of the change, or 2^-25 of the operator where the
    change is that small, is below what training resolves. Statistics of the data are few numbers and stay as they are.
    """
    value = value.detach().cpu().contiguous()
    if not value.is_floating_point() or value.numel() < HALF_FROM:
        return value.clone()
    half = value.half()
    close = (half.float() - value).abs() <= 2.0**-11 * value.abs() + 2.0**-25
    return half if bool(close.all()) else value.clone()


def _card(record: dict[str, Any], cell: Experiment, state: dict[str, Tensor], size: int, checksum: str,
          notes: tuple[str, ...]) -> Card:
    try:
        budget = record["budget"]
        command = f"dgnet-paper reproduce {cell.tag}" + ("" if budget is None else f" --budget {budget / 60:.3g}")
        command += f" --sharing {record['sharing']}" if record["sharing"] > 1 else ""
        command += f" --device {record['device']}" if record["device"] != "cpu" else ""
        figures = {name: {key: record["scores"][name][key] for key in FIGURES} for name in ("dgnet", *rivals())}
        return Card(
            cell.scenario, cell.size, cell.truth, command, record["hardware"], record["sharing"], record["seconds"]["train"] / 60,
            None if budget is None else budget / 60, cell.seed, record["training_trajectories"], record["test_trajectories"],
            record["about"]["nodes"], record["about"]["steps"], record["parameters"], record["best_iteration"] > 0,
            record["error_ratio"], figures, record["version"], record["torch"], record["date"], size, checksum,
            tuple(name for name, value in state.items() if value.dtype == torch.float16), notes)
    except (KeyError, TypeError) as error:
        raise InputError(f"the cell {cell.tag} lacks {error}") from error


# ---------------------------------------------------------------------- tables


def mean(values: Sequence[float | None]) -> float | None:
    """None where a value is missing."""
    known = [v for v in values if v is not None]
    return sum(known) / len(known) if len(known) == len(values) and known else None


def text(value: float | None) -> str:
    """A figure, which a rollout that broke down does not have."""
    return "diverged" if value is None else number(value)


def deviation(here: dict[str, Any], there: dict[str, Any], whole: bool) -> float:
    """Largest relative difference of comparable figures; two that diverged are equal, one that did is infinitely far."""
    if whole:
        pairs = [(here[key], there[key]) for key in ("rne", "rne_from_offset")]
    else:
        pairs = list(zip(here["trajectories"], there["trajectories"]))
    return max(0.0 if a == b else math.inf if a is None or not b else abs(a - b) / b for a, b in pairs)


HEAD = ("scenario", "truth", "DGNet", "classical, consistent", "classical, lumped", "error ratio", "test trajectories", "KiB",
        "minutes", "hardware")


def rows(cards: Sequence[Card]) -> list[tuple[str, ...]]:
    """One line per card, under HEAD. Errors are RNE from the offset over all test trajectories."""
    found = []
    for c in cards:
        size, tests = "" if c.size == "paper" else f" ({c.size})", get(c.scenario, c.size).test
        figures = (text(c.figures[name]["rne_from_offset"]) for name in ("dgnet", "classical_consistent", "classical_lumped"))
        shared = f", shared by {c.sharing}" if c.sharing > 1 else ""
        found.append((c.scenario + size, c.truth, *figures, "–" if c.error_ratio is None else f"{c.error_ratio:.2f}",
                      f"{c.test_trajectories}" + (f" of {tests}" if c.test_trajectories < tests else ""), f"{c.bytes / 1024:.0f}",
                      f"{c.minutes:.1f}", c.hardware + shared))
    return found


def missing(cards: Sequence[Card]) -> list[tuple[str, str]]:
    """(scenario, truth) at paper size that nothing on the shelf is for."""
    have = {(c.scenario, c.truth) for c in cards if c.size == "paper"}
    return [(name, truth) for name in paper_names() for truth in reversed(TRUTHS) if (name, truth) not in have]


def training_command(scenario: str, truth: str) -> str:
    return f"dgnet-paper reproduce {Experiment('train', scenario, 'paper', truth, 'dgnet').tag} --device cuda"


def remarks(card: Card) -> list[str]:
    """What a table cannot say."""
    found = list(card.notes)
    all_of = get(card.scenario, card.size)
    if not card.learned:
        found.append("validation never fell below that of the untrained model, so these are its weights: the classical solver's "
                     "answers to rounding")
    if card.training_trajectories < all_of.train:
        found.append(f"trained on {card.training_trajectories} of {all_of.train} and tested on {card.test_trajectories} of "
                     f"{all_of.test} trajectories")
    broken = [title_of(name) for name, row in card.figures.items() if row["rne_from_offset"] is None]
    if broken:
        found.append(f"diverged on some trajectory: {', '.join(broken)}")
    return found


def markdown(cards: Sequence[Card]) -> str:
    """The page docs/results/pretrained.md."""
    page: str = template("pretrained.md").render(
        head=HEAD, rows=rows(cards), remarks=[(c, remark) for c in cards for remark in remarks(c)], cards=cards,
        measured=[_measured_row(c, m) for c in cards for m in c.measured],
        missing=[(*which, training_command(*which)) for which in missing(cards)])
    return page


def _measured_row(card: Card, again: Measured) -> list[str]:
    """Means of the trajectories that were rolled out again, beside those of the card."""
    found = [text(mean(figures[name]["trajectories"][:again.trajectories])) for name in ("dgnet", "classical_consistent")
             for figures in (again.figures, card.figures)]
    far = max(deviation(row, card.figures[name], False) for name, row in again.figures.items())
    return [card.scenario, card.truth, str(again.trajectories), again.hardware, *found,
            f"{100 * far:.2g}%" if math.isfinite(far) else "diverged"]

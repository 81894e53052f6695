"""Shipped weights rolled out again, beside the figures of their card: `dgnet-paper evaluate`.

Other devices round and order sums in other ways, and the truth is made again, too. How much that changes the figures was measured:
cards hold rollouts on other hardware than that of training (`Card.measured`). What is within the largest of
these, with half as much again for what was not measured, is expected. Errors of the size of rounding have a limit of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.files import strict
from dgnet.models.registry import title_of
from dgnet.progress import Report
from dgnet.training.evaluate import scores as scores_of
from dgnet_paper.scenarios.generate import file_stem, generate, provenance
from dgnet_paper.scenarios.scenario import Scenario, scenario_of
from dgnet_paper.study.pretrained import Card, deviation, mean, opened, shipped, text
from dgnet_paper.study.timing import hardware

LEAST = 0.02  # limit where next to nothing was measured: what half precision alone may change
MARGIN = 1.5  # limit against the largest deviation that was measured
ROUNDING = 1e-4  # RNE below which rounding in single precision over hundreds of steps, and with it the device, decides


@dataclass(frozen=True)
class Expected:
    """Deviation to expect between devices, as a share of a figure: the largest that was measured, in how many rows of tables."""

    largest: float
    rows: int

    @property
    def limit(self) -> float:
        return max(LEAST, MARGIN * self.largest)

    @classmethod
    def measured(cls, cards: Sequence[Card], rounding: bool) -> Expected:
        """From all rollouts on other hardware, of rows with errors of the size of `rounding` or of those above it."""
        found = [deviation(m.figures[name], card.figures[name], m.trajectories == card.test_trajectories)
                 for card in cards for m in card.measured for name in m.figures
                 if m.hardware != card.hardware and tiny(card.figures[name]) == rounding]
        return cls(max((far for far in found if math.isfinite(far)), default=0.0), len(found))


def tiny(row: dict[str, Any]) -> bool:
    """An error of the size of rounding."""
    return row["rne_from_offset"] is not None and row["rne_from_offset"] < ROUNDING


def check(folder: Path, *, data: Path, trajectories: int | None = None, device: str = "cpu",
          report: Report | None = None) -> dict[str, Any]:
    """Roll out DGNet and the classical solvers on the first test trajectories, as many as the card's by default, for JSON.

    The data are taken from `data` where a file there holds them and made there where not. `deviation` compares with the card: over
    its whole test set RNE and RNE from the offset, over fewer trajectories the RNE from the offset of each. `agrees` says that all
    are within the `limit` of what to expect between devices.
    """
    run, card = opened(folder, device)
    count = card.test_trajectories if trajectories is None else trajectories
    if not 1 <= count <= scenario_of(run).test:
        raise InputError(f"'{card.scenario}' has {scenario_of(run).test} test trajectories, {count} were asked for")
    path = tests_of(scenario_of(run), card.truth, count, data, device, report)
    if report is not None:
        report("rollouts", 0, 1)
    found = strict(scores_of(run, path, device, limit=count)[0])
    if report is not None:
        report("rollouts", 1, 1)
    whole, cards = count == card.test_trajectories, shipped()
    rows = {name: deviation(row, card.figures[name], whole) for name, row in found["scores"].items() if name in card.figures}
    expected = {name: Expected.measured(cards, tiny(card.figures[name])) for name in rows}
    return {**found, "folder": folder.name, "subset": not whole, "data": str(path), "device": device,
            "hardware": hardware(torch.device(device).type), "torch": torch.__version__, "card": asdict(card), "deviation": rows,
            "expected": {name: {**asdict(e), "limit": e.limit} for name, e in expected.items()},
            "agrees": all(far <= expected[name].limit for name, far in rows.items())}


def tests_of(scenario: Scenario, truth: str, count: int, folder: Path, device: str = "cpu", report: Report | None = None) -> Path:
    """A data set that begins with the first test trajectories: one that is there, whole or only tests, or else a new one.

    Each trajectory draws by its own seed, so it does not matter what else a file holds.
    """
    wanted = provenance(scenario, truth, scenario.draws(), 0, device)
    wanted = {key: value for key, value in wanted.items() if key not in ("train", "test", "device")}
    for stem in (file_stem(scenario, truth), file_stem(scenario, truth, "test"), file_stem(scenario, truth, "test", count)):
        path = folder / f"{stem}.h5"
        if path.exists():
            with Dataset(path) as found:
                if len(found.of("test")) >= count and all(found.provenance.get(key) == value for key, value in wanted.items()):
                    return path
    return generate(scenario, folder, truth=truth, trajectories=None if count == scenario.test else count, split="test",
                    device=device, report=report)


# ---------------------------------------------------------------------- words


def table(result: dict[str, Any]) -> str:
    """The scores as a Markdown table with the card's figures beside them, and whether they agree."""
    card, count, of = result["card"], result["trajectories"], result["card"]["test_trajectories"]
    keys = {"MSE": "mse", "RNE": "rne", "RNE from offset": "rne_from_offset"}
    same = ["mean of trajectories", "card, same trajectories"] if result["subset"] else []
    head = ["model", *keys, *same, *(f"card: {key}" for key in keys), "largest deviation"]
    lines = [f"{result['scenario']} ({result['size']}), {result['truth']} truth, {count} test trajectories on "
             f"{result['hardware']}; card: {of} on {card['hardware']}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, own in result["scores"].items():
        there = card["figures"].get(name)  # None for solvers that the card does not have
        means = [] if there is None else [text(mean(row["trajectories"][:min(count, of)])) for row in (own, there) if same]
        row = [text(own[key]) for key in keys.values()] + (["–"] * (len(head) - 4) if there is None else [
            *means, *(text(there[key]) for key in keys.values()), _percent(result["deviation"][name])])
        lines.append(f"| {title_of(name)} | {' | '.join(row)} |")
    return "\n".join([*lines, "", verdict(result)])


def verdict(result: dict[str, Any]) -> str:
    """Whether the figures are those of the card, within what to expect between devices, and what that is."""
    count, of = result["trajectories"], result["card"]["test_trajectories"]
    far, expected = result["deviation"], result["expected"]
    beyond = [name for name, value in far.items() if value > expected[name]["limit"]]
    said = [f"These agree with the card's figures (at most {_percent(max(far.values()))} off)."]
    if beyond:
        said = ["These DIFFER from the card's figures by more than devices do: " + ", ".join(
            f"{title_of(name)} by {_percent(far[name])} (limit {_percent(expected[name]['limit'])})"
            if math.isfinite(far[name]) else f"{title_of(name)} diverged in one of them only" for name in beyond) + "."]
    for rounding in (False, True):
        rows = [e for name, e in expected.items() if tiny(result["card"]["figures"][name]) == rounding]
        if rows:
            e, what = rows[0], " where errors below 1e-4 are rounding in single precision" if rounding else ""
            said.append(f"Up to {_percent(e['limit'])} is expected between devices{what}: shipped weights that were rolled out on "
                        f"other hardware differed by up to {_percent(e['largest'])} ({e['rows']} rows).")
    if not result["subset"]:
        return " ".join([*said, "This is the whole test set of the card."])
    which = f"a subset, {count} of the card's {of} test trajectories" if count < of else f"more than the card's {of} trajectories"
    return " ".join([*said, f"This is {which}, compared one by one; figures over all of them are other numbers."])


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if math.isfinite(share) else "diverged"

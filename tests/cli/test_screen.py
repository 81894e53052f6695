"""What is printed: tables for people and for programs, no figure before there is one, commands that can be copied."""

from __future__ import annotations

import io
import math
import re

import pytest
from rich.console import Console

from dgnet.cli import screen
from dgnet.report.trained import headline
from dgnet.training.checkpoints import Progress

PAGE = """## Speed

One table.

| model | error | steps/s |
|---|---|---|
| **DGNet** | 0.0123 | 1,200 |
| classical, consistent mass | 0.2 | not run: no room |
| paper | – | |

A long line about words that must not be broken in the middle, however narrow the terminal of the reader happens to be."""


def test_a_page_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    screen.page(PAGE)
    out = capsys.readouterr().out
    rows = [re.split(r" {2,}", line.strip()) for line in out.splitlines()[4:8]]
    assert rows == [["model", "error", "steps/s"], ["DGNet", "0.0123", "1,200"],
                    ["classical, consistent mass", "0.2", "not run: no room"], ["paper", "–"]]
    assert "|" not in out and "*" not in out and "#" not in out and PAGE.splitlines()[-1] in out
    ends = {line[: line.index(cell) + len(cell)].__len__() for line, cell in zip(out.splitlines()[4:7], ("error", "0.0123", "0.2"))}
    assert len(ends) == 1  # numbers are aligned on the right


def test_a_page_for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = io.StringIO()
    monkeypatch.setattr(screen, "console", Console(file=seen, force_terminal=True, width=60, markup=False, color_system=None))
    screen.page(PAGE)
    lines = seen.getvalue().splitlines()
    assert max(map(len, lines)) <= 60 and "|" not in seen.getvalue() and "─" in seen.getvalue()
    assert set(PAGE.splitlines()[-1].split()) <= set(seen.getvalue().split())  # no word is broken
    assert "consistent" in seen.getvalue() and "…" not in seen.getvalue()


def test_figures_that_are_not_known_yet() -> None:
    start = Progress()
    assert screen.figures(start) == "iteration 0"
    start.history.append({"loss": math.nan, "validation": 0.25})
    start.classical = start.best = 0.25
    assert "nan" not in screen.figures(start) and "validation 2.50e-01" in screen.figures(start)


def test_the_next_command_can_be_copied(capsys: pytest.CaptureFixture[str]) -> None:
    screen.advise("train", "my problem", "--out", "run")
    said = capsys.readouterr()
    assert said.out == "" and said.err == "Next: dgnet train 'my problem' --out run\n"


@pytest.mark.parametrize(("best", "after", "says"), [(0.96978314, 417, "the same as"), (0.5, 9, "below"), (1.2, 9, "NOT below")])
def test_two_errors_that_are_printed_alike_are_not_told_apart(best: float, after: int, says: str) -> None:
    line = headline("dish", Progress(best=best, best_iteration=after, classical=0.96978315))
    assert f"after {after} iterations, {says} the classical solver's 9.698e-01" in line

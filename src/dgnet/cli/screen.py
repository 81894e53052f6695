"""What commands print: results on stdout, progress and advice on stderr.

In a terminal, lines are wrapped between words and tables have rules. Elsewhere (a pipe, a file) no line is wrapped, and the columns
of a table are separated by two or more spaces, so that other programs can read them.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from dgnet.files import visible


class Screen(Console):
    """A terminal or a file. Titles and names of other people's files cannot steer it: control characters are written out."""

    def print(self, *objects: Any, **settings: Any) -> None:
        super().print(*(visible(x, but="\n") if isinstance(x, str) else x for x in objects), **settings)


console = Screen(markup=False, emoji=False)  # paths and messages are printed as they are, [brackets] and all
errors = Screen(stderr=True, markup=False, emoji=False)

_FIGURE = re.compile(r"[-+±~]?[\d.,]+(e[-+]?\d+)?([%/].*)?|-?inf|nan|–|diverged|not run.*|")


def say(text: object, style: str | None = None) -> None:
    """A line of the result."""
    console.print(str(text), style=style, highlight=False, soft_wrap=not console.is_terminal)


def say_path(path: object) -> None:
    """A file that was written. Never wrapped, so that it can be copied."""
    console.print(visible(str(path)), highlight=False, soft_wrap=True)


def advise(*words: object, program: str = "dgnet") -> None:
    """The command to run next, on stderr: it is not part of the result. Never wrapped, so that it can be copied."""
    errors.print(visible(f"Next: {program} {shlex.join(map(str, words))}"), highlight=False, soft_wrap=True)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], bold: Sequence[int] = ()) -> None:
    """Columns under a head, numbers aligned on the right; the rows in `bold` stand out."""
    head, rows = [visible(cell) for cell in head], [[visible(cell) for cell in row] for row in rows]
    right = [all(_FIGURE.fullmatch(row[k]) for row in rows) for k in range(len(head))]
    if console.is_terminal:
        from rich.box import SIMPLE_HEAD
        from rich.table import Table

        shown = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        for k, name in enumerate(head):
            widest = max(cell_len(word) for row in [head, *rows] for word in row[k].split() or [""])  # no word is broken
            shown.add_column(name, justify="right" if right[k] else "left", no_wrap=k == 0, min_width=widest)
        for number, row in enumerate(rows):
            shown.add_row(*row, style="bold" if number in bold else None)
        console.print(shown, highlight=False)
        return
    width = [max(cell_len(row[k]) for row in [head, *rows]) for k in range(len(head))]
    for row in [head, *rows]:
        space = [" " * (width[k] - cell_len(cell)) for k, cell in enumerate(row)]
        say("  ".join(space[k] + cell if right[k] else cell + space[k] for k, cell in enumerate(row)).rstrip())


def page(markdown: str) -> None:
    """Markdown for people: its tables as columns, headings in bold, the rest as it is."""
    rows: list[list[str]] = []
    for line in [*markdown.splitlines(), None]:
        if line is not None and line.startswith("|"):
            rows.append([cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")])
            continue
        if len(rows) > 2:  # head, rule, figures
            best = [k for k, row in enumerate(rows[2:]) if row[0].startswith("**")]
            table(rows[0], [[cell.strip("*") for cell in row] for row in rows[2:]], best)
        rows = []
        if line is not None:
            say(line.lstrip("# "), "bold" if line.startswith("#") else None)


# ---------------------------------------------------------------------- progress


@contextmanager
def reporting() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar per task name: report(what, done, total)."""
    with narrating(math.inf) as (report, _):
        yield report


@contextmanager
def narrating(budget: float) -> Iterator[tuple[Callable[[str, int, int], None], Callable[[Any, int], None]]]:
    """Progress bars as in `reporting`, and one for training that takes at most `budget` seconds, with its errors beside it."""
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(24), TextColumn("{task.percentage:3.0f}%"),
               TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}", markup=False))
    with Progress(*columns, console=errors, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def update(what: str, done: float, total: float, note: str = "") -> None:
            what = visible(what)
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total, note=note)
            bars.update(tasks[what], completed=done, total=total, note=note)

        def tell(progress: Any, total: int) -> None:
            update("training", min(1.0, max(progress.iteration / total, progress.seconds / budget)), 1.0, figures(progress))

        yield update, tell


def figures(progress: Any) -> str:
    """The errors of a training so far; those that are not known yet are left out."""
    last = progress.history[-1] if progress.history else {}
    known = {"loss": last.get("loss", math.nan), "validation": last.get("validation", math.nan), "best": progress.best,
             "classical": progress.classical}
    return "  ".join([f"iteration {progress.iteration}", *(f"{k} {v:.2e}" for k, v in known.items() if math.isfinite(v))])

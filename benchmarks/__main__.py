"""`python -m benchmarks NAME [options] [--json FILE]`: one measurement, as a table on the screen and as JSON.

A benchmark is a module with a function `run`: its keywords are the options, its docstring the help, and what it returns the JSON.
`table(result)` makes the text of the screen; without it every list of rows in the result is printed as columns.
"""

from __future__ import annotations

import inspect
import json
import sys
import typing
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from dgnet.cli import screen, shell

HERE = Path(__file__).parent
ELSEWHERE = {"model": "throughput:run", "throughput": "throughput:throughput", "scaling": "throughput:scaling"}
"""Measurements that are cells of the paper's tables, too: they live in `dgnet_paper.study`."""
NO_BENCHMARKS = ("claims", "sizes", "peers_run", "peers_torch", "materials")
REPORTS = ("report", "progress")
Json = Annotated[Path | None, typer.Option("--json", help="Write the result as JSON to this file.")]
OPTIONS = (int, float, str, bool, Path, list[str])


def names() -> list[str]:
    own = [path.stem.replace("_", "-") for path in HERE.glob("[a-z]*.py") if path.stem not in NO_BENCHMARKS]
    return sorted([*own, *ELSEWHERE])


def command(name: str) -> typer.Typer:
    """The command line of one benchmark, made from the signature of its function."""
    place, _, function = ELSEWHERE.get(name, f"{name}:run").partition(":")
    module = import_module(f"dgnet_paper.study.{place}" if name in ELSEWHERE else f"benchmarks.{place.replace('-', '_')}")
    run, hints = getattr(module, function), typing.get_type_hints(getattr(module, function))
    kept = [p for p in inspect.signature(run).parameters.values()
            if p.name not in REPORTS and any(kind in (hints[p.name], *typing.get_args(hints[p.name])) for kind in OPTIONS)]
    reports = [p for p in REPORTS if p in inspect.signature(run).parameters]

    def measured(json_path: Path | None = None, **options: Any) -> None:
        with screen.reporting() as report:
            result = run(**options, **dict.fromkeys(reports, report))
        if json_path is not None:
            json_path.write_text(json.dumps(result, indent=1, default=str) + "\n")
        if hasattr(module, "table"):
            screen.page(module.table(result))
        else:
            show(result)

    measured.__doc__ = run.__doc__
    extra = [inspect.Parameter(p.name, p.KEYWORD_ONLY, default=p.default if p.default is not p.empty else ..., annotation=hints[p.name])
             for p in kept]
    target = inspect.Parameter("json_path", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Json)
    measured.__signature__ = inspect.Signature([*extra, target])  # type: ignore[attr-defined]
    app = typer.Typer(name=f"python -m benchmarks {name}", pretty_exceptions_enable=False)
    app.command()(measured)
    return app


def show(result: dict[str, Any]) -> None:
    """Every list of rows in a result as columns, and its other entries in lines."""
    for key, value in result.items():
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            rows = [_flat(row) for row in value]
            columns = list(dict.fromkeys(name for row in rows for name in row))
            screen.table(columns, [[_text(row.get(name)) for name in columns] for row in rows])
        else:
            screen.say(f"{key}: {_text(value)}")


def _flat(row: dict[str, Any], head: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in row.items():
        flat |= _flat(value, f"{head}{key}.") if isinstance(value, dict) else {f"{head}{key}": value}
    return flat


def _text(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in names():
        sys.exit(f"python -m benchmarks NAME; the names are {', '.join(names())}")
    name = sys.argv.pop(1)
    shell.main(command(name))

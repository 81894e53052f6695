"""The command line. Each command is a thin shell around one function of the library."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from dgnet import __version__
from dgnet.errors import InputError, SolveError

app = typer.Typer(name="dgnet", help="Discrete Green networks on unstructured meshes.", no_args_is_help=True,
                  pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})
bench = typer.Typer(help="Measurements, one command each, with JSON out.", no_args_is_help=True)
app.add_typer(bench, name="bench")
console = Console()
errors = Console(stderr=True)


def write_json(path: Path | None, result: Any) -> None:
    """Write results for machines; the file appears under its name only when it is whole."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False) as part:
        json.dump(result, part, indent=1)
    os.replace(part.name, path)


@app.command()
def version() -> None:
    """Print the version."""
    console.print(__version__)


def main() -> None:
    try:
        app(standalone_mode=True)
    except (InputError, SolveError) as error:
        errors.print(f"dgnet: {error}", style="red", highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()

"""Commands that take a trained run elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dgnet.cli.options import file_to_write
from dgnet.cli.shell import AllowDifferent, Json, Problem, app, console, write_json


@app.command()
def export(run: Path, out: Annotated[Path, typer.Option(help="FILE.pt2; its mesh (.vtu) and how to call it (.json) go beside it.",
                                                              callback=file_to_write)],
           batch: Annotated[int | None, typer.Option(help="Fix the number of trajectories; any number by default.", min=1)] = None,
           problem: Problem = None, allow_different: AllowDifferent = False, json_path: Json = None) -> None:
    """Write one step of a run as a torch.export program that runs without this package."""
    from dgnet.output.export import export as write
    from dgnet.training.run import Run

    opened = Run.open(run, problem=problem, allow_different=allow_different)
    result = write(opened, out, batch)
    shape = f"[{result.record['batch'] or 'batch'}, {result.record['nodes']}, {len(result.record['fields'])}]"
    write_json(json_path, result.record)
    console.print(f"One step of {result.record['dt']:g}: u {shape}, source {shape} -> u {shape}", highlight=False, soft_wrap=True,
                  markup=False)
    for note in opened.notes:
        console.print(note, highlight=False, soft_wrap=True, markup=False)
    for path in result.paths:
        console.print(str(path), highlight=False, soft_wrap=True)

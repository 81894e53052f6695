"""Commands that take a trained run elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dgnet.cli.options import file_to_write
from dgnet.cli.screen import advise, say, say_path
from dgnet.cli.shell import AllowDifferent, Json, Problem, command, write_json


@command("dgnet export run --out step.pt2", "dgnet export run --out step.onnx")
def export(run: Annotated[Path, typer.Argument(help="Folder of a run.")],
           out: Annotated[Path, typer.Option(help="FILE.pt2 (torch.export) or FILE.onnx; the mesh (.vtu) and a description (.json) "
                                                 "are written beside it.", callback=file_to_write)],
           batch: Annotated[int | None, typer.Option(help="Fix the number of trajectories; the default is any "
                                                          "number.", min=1)] = None,
           problem: Problem = None, allow_different: AllowDifferent = False, json_path: Json = None) -> None:
    """Write one step of a run as a program that runs without this package."""
    from dgnet.output.export import export as write
    from dgnet.training.run import Run

    opened = Run.open(run, problem=problem, allow_different=allow_different)
    result = write(opened, out, batch)
    shape = f"[{result.record['batch'] or 'batch'}, {result.record['nodes']}, {len(result.record['fields'])}]"
    write_json(json_path, result.record)
    say(f"One step of {opened.case.units.in_time(result.record['dt'])}: u {shape}, source {shape} -> u {shape}")
    for note in opened.notes:
        say(note)
    for path in result.paths:
        say_path(path)
    advise("analyse", run)

"""The command that draws data sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dgnet.cli.options import folder_to_write, refuse
from dgnet.cli.screen import advise, reporting, say_path
from dgnet.cli.shell import command


@command("dgnet show data/laser-heat-small-converged.h5 --out pictures --trajectory 2")
def show(context: typer.Context, file: Annotated[Path, typer.Argument(help="A data set, FILE.h5.")],
         out: Annotated[Path, typer.Option(help="Folder for the pictures.", callback=folder_to_write())],
         trajectory: Annotated[int, typer.Option(help="Number of the trajectory, from 0.", min=0)] = 0,
         snapshots: Annotated[int, typer.Option(help="Panels of the picture.", min=2)] = 5,
         frames: Annotated[int, typer.Option(help="Frames of the animation.", min=2)] = 40, gif: bool = True) -> None:
    """Draw snapshots (PNG) and an animation (GIF) of one trajectory of a data set."""
    from dgnet.report.show import show as draw

    if not gif:
        refuse(context, {"frames": "--no-gif draws no animation"})
    with reporting() as report:
        written = draw(file, out, trajectory=trajectory, columns=snapshots, frames=frames, gif=gif, progress=report)
    for path in written:
        say_path(path)
    advise("train", "PROBLEM", "--out", "run")







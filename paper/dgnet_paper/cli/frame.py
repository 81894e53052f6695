"""The frame of the command line `dgnet-paper`: that of dgnet with other commands."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import typer

from dgnet.cli import screen, shell

GROUPS = {
    "Scenarios": ("demo", "scenarios", "generate", "certify", "cards"),
    "Models": ("train", "evaluate", "pretrained", "analyse", "universal"),
    "Tables": ("reproduce", "report", "score"),
}
"""Groups of `dgnet-paper --help` and the order of their commands."""

app = shell.group("dgnet-paper", "The experiments of the paper: scenarios, baselines, tables, figures.", GROUPS)
command = partial(shell.command, of=app)
advise = partial(screen.advise, program="dgnet-paper")

Size = Annotated[str, typer.Option(help="small or paper")]
Truth = Annotated[str, typer.Option(help="same-mesh or converged")]

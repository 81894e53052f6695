"""What the server of forked processes does once, so that no case has to: the tree of commands, and what typer imports for it."""

from __future__ import annotations

import functools
import gc

import typer._adapters
import typer.main

from dgnet import cli

typer.main.get_command = functools.cache(typer.main.get_command)  # type: ignore[assignment]
typer.main.get_command(cli.app)
gc.collect()
gc.freeze()  # collections in the forked processes leave alone, and so do not copy, what is here

"""What the server of forked processes does once, so that no case has to: the tree of commands, and what typer imports for it."""

from __future__ import annotations

import gc

import typer._adapters  # noqa: F401

import dgnet_paper.cli
from dgnet.cli import shell

shell.commands()
shell.commands(dgnet_paper.cli.app)
gc.collect()
gc.freeze()  # collections in the forked processes leave alone, and so do not copy, what is here

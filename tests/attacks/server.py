"""What the server of forked processes does once, so that no case has to: the tree of commands, and what typer imports for it."""

from __future__ import annotations

import gc

import typer._adapters  # noqa: F401

import dgnet.cli  # noqa: F401, registers the commands
from dgnet.cli import shell

shell.commands()
gc.collect()
gc.freeze()  # collections in the forked processes leave alone, and so do not copy, what is here

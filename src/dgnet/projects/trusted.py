"""Which physics.py the user has run before: SHA-256 sums, one a line, in a file of the user's own.

A run carries the physics.py of its problem as a record. It is run from there only if the user has run the same text before, from
a problem folder that they named (`check`, `train`, `--problem`).
"""

from __future__ import annotations

import os
from pathlib import Path


def place() -> Path:
    """$XDG_STATE_HOME/dgnet/trusted-physics, by default under ~/.local/state; $DGNET_TRUSTED names another file."""
    named = os.environ.get("DGNET_TRUSTED")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")) / "dgnet" / "trusted-physics"


def is_trusted(digest: str) -> bool:
    try:
        return digest in place().read_text().split()
    except (OSError, UnicodeDecodeError):
        return False


def trust(digest: str) -> None:
    """Remember it; where the file cannot be written, nothing is remembered and `--problem` stays the way to confirm."""
    if is_trusted(digest):
        return
    try:
        place().parent.mkdir(parents=True, exist_ok=True)
        with place().open("a") as file:
            file.write(digest + "\n")
    except OSError:
        pass

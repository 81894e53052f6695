"""The command line. Each command calls functions of the library and prints what they return."""

from __future__ import annotations

from dgnet.cli import design, follow, problems, runs, sensors  # noqa: F401  (each adds its commands)
from dgnet.cli.shell import app, main

__all__ = ["app", "main"]

if __name__ == "__main__":
    main()

"""The command line. Each command is a thin shell around one function of the library."""

from __future__ import annotations

from dgnet.cli import data, design, follow, learn, projects, sensors, studio, use  # noqa: F401  (each adds its commands)
from dgnet.cli.shell import app, main

__all__ = ["app", "main"]

if __name__ == "__main__":
    main()

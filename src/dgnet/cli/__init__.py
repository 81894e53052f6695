"""The command line. Each command is a thin shell around one function of the library."""

from __future__ import annotations

import sys

from dgnet.cli import data, learn, measure, pretrained, projects, reproduce, use  # noqa: F401  (each adds its commands)
from dgnet.cli.options import Usage, usage
from dgnet.cli.shell import app, errors
from dgnet.errors import InputError, SolveError


def main() -> None:
    try:
        code = app(prog_name="dgnet", standalone_mode=False)
    except Usage as error:
        errors.print(f"dgnet: {usage(error)}", style="red", highlight=False, soft_wrap=True, markup=False)
        sys.exit(2)
    except (InputError, SolveError) as error:
        errors.print(f"dgnet: {error}", style="red", highlight=False, soft_wrap=True, markup=False)
        sys.exit(2)
    sys.exit(code or 0)


if __name__ == "__main__":
    main()

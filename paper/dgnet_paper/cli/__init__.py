"""The command line `dgnet-paper`."""

from dgnet.cli import shell
from dgnet_paper.cli import learn, pretrained, reproduce, scenarios  # noqa: F401  (each adds its commands)
from dgnet_paper.cli.frame import app


def main() -> None:
    """Run the command line (see `dgnet.cli.shell.main` for its exit codes)."""
    shell.main(app)


__all__ = ["app", "main"]

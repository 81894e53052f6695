"""The command `dgnet-paper` as tests call it."""

from __future__ import annotations

import re

from typer.testing import CliRunner

from dgnet.errors import InputError
from dgnet_paper.cli import app


def dgnet_paper(*arguments: object, code: int = 0) -> str:
    """What a command prints, with single spaces."""
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    assert done.exit_code == code, (done.output, done.exception)
    return re.sub(r"\s+", " ", done.output)


def refused(*arguments: object) -> str:
    """The sentence of an InputError, or of an option that is out of its range."""
    done = CliRunner().invoke(app, [str(a) for a in arguments])
    if done.exit_code == 2 and isinstance(done.exception, SystemExit):
        return re.sub(r"\s+", " ", done.output)
    assert isinstance(done.exception, InputError) and "\n" not in str(done.exception), (done.output, done.exception)
    return str(done.exception)

"""`python -m benchmarks NAME`: every benchmark has a command line made from its function."""

import json

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import __main__ as runner


@pytest.mark.parametrize("name", runner.names())
def test_every_benchmark_has_options_and_help(name: str) -> None:
    command = typer.main.get_command(runner.command(name))
    assert "--json" in [option for p in command.params for option in p.opts] and (command.help or "").strip()


def test_a_result_is_printed_and_written(tmp_path) -> None:
    done = CliRunner().invoke(runner.command("kernels"), ["--sensors", "2", "--steps", "3", "--json", str(tmp_path / "x.json")])
    assert done.exit_code == 0 and "float64" in done.output, done.output
    assert len(json.loads((tmp_path / "x.json").read_text())["rows"]) == 2

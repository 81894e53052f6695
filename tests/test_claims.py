"""Pages and `benchmarks/claims.py` agree: every claim is in its page once, beside its command, and README has no other figures."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
claims: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "claims.py"), run_name="claims")
UNIT = r"(?:%|[µm]?s\b|steps/s|times\b|updates\b| K\b)"
MEASUREMENT = re.compile(rf"(?<![\w.-])(?<!Python )\d[\d,]*(?:\.\d+(?:e-?\d+)?|e-?\d+|(?= ?{UNIT}))")


def test_every_claim_is_in_its_page_once_and_has_numbers() -> None:
    assert len(claims["CLAIMS"]) > 80
    for claim in claims["CLAIMS"]:
        assert claim.place()[2], claim


def test_the_command_is_named_on_the_page() -> None:
    for claim in claims["CLAIMS"]:
        text, command = " ".join((ROOT / claim.page).read_text().split()), claims["COMMANDS"][claim.command]
        assert command.line in text or (command.stored and Path(command.stored).name in text), f"{claim.page}: {command.line}"


def test_stored_outputs_have_the_figures_of_the_pages() -> None:
    for claim in claims["CLAIMS"]:
        command = claims["COMMANDS"][claim.command]
        if command.stored:
            measured = claim.measured((ROOT / command.stored).read_text())
            assert claim.holds(claim.place()[2], measured), f"{claim.page}: {claim.place()[1:]}, {command.stored}: {measured}"


def test_every_figure_of_the_readme_is_a_claim() -> None:
    text = (ROOT / "README.md").read_text()
    spans = [claim.span() for claim in claims["CLAIMS"] if claim.page == "README.md"]
    spans += [m.span() for m in re.finditer(r"^```.*?^```", text, re.S | re.M)]
    free = [text[m.start() - 40: m.end() + 10] for m in MEASUREMENT.finditer(text)
            if not any(a <= m.start() and m.end() <= b for a, b in spans)]
    assert not free, "\n".join(map(repr, free))


@pytest.mark.parametrize(("claimed", "measured", "same"), [
    ("0.0117", "0.01171", True), ("0.0117", "0.0119", False), ("390,000", "68,000", False), ("1e-5", "1.2e-05", True),
    ("3.5", "3.52", True), ("94%", "94%", True), ("−0.5", "0.5", False)])
def test_a_number_holds_to_its_digits(claimed: str, measured: str, same: bool) -> None:
    claim = claims["Claim"]("", "", "")
    assert claim.holds(claims["numbers"]([claimed]), claims["numbers"]([measured])) is same


def test_commands_run_wherever_the_script_stands() -> None:
    lines = {"dgnet-paper report x": "python -m dgnet_paper report x", "dgnet check plate": "python -m dgnet check plate",
             "pytest -s x": "python -m pytest -s x", "python -m benchmarks step": "python -m benchmarks step"}
    assert {line: claims["_runnable"](line) for line in lines} == lines
    done = claims["Command"]("python -m benchmarks kernels --help").output(quick=True)
    assert "--sensors" in done

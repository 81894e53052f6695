"""The notebooks run from top to bottom, their numbers are those their text claims, and they are stored without output."""

import json
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def executed(name: str) -> dict[str, Any]:
    """The names that are left after the last code cell."""
    names: dict[str, Any] = {}
    for number, cell in enumerate(cells(FOLDER / f"{name}.ipynb", "code")):
        exec(compile("".join(cell["source"]), f"{name}.ipynb, code cell {number}", "exec"), names)
    plt.close("all")
    return names


@pytest.fixture(autouse=True)
def no_window() -> None:
    plt.switch_backend("Agg")


def test_every_notebook_is_tested_and_holds_no_output() -> None:
    paths = sorted(FOLDER.glob("*.ipynb"))
    assert [p.stem for p in paths] == ["heat_on_a_plate", "sensors", "unknown_material"]
    for path in paths:
        assert not [c for c in cells(path, "code") if c["outputs"] or c["execution_count"]]


def test_heat_on_a_plate() -> None:
    errors = executed("heat_on_a_plate")["errors"]
    assert max(errors["quadratic elements"], errors["universal weights"]) < 0.5 * errors["linear elements"]


@pytest.mark.slow  # the example of the same name is tested always
def test_unknown_material() -> None:
    names = executed("unknown_material")
    assert names["found"][0].hump[2] == pytest.approx(names["latent"], rel=0.1)
    assert names["errors"]["dgnet"] < 0.05 * names["errors"]["classical_consistent"]


def test_sensors() -> None:
    names = executed("sensors")
    assert names["error"] < 0.1 and names["inside"] > 0.8

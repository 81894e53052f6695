"""The notebooks run from top to bottom, their numbers are those their text claims, and what they hold is what they print.

`python -m tests.test_notebooks` runs them and stores their output anew, pictures with few pixels.
"""

import base64
import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pytest
from PIL import Image

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def cells(path: Path, kind: str) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def executed(name: str) -> tuple[dict[str, Any], list[tuple[str, list[bytes]]]]:
    """The names that are left after the last code cell; what each cell has printed, and its pictures as PNG."""
    names: dict[str, Any] = {}
    shown = []
    for number, cell in enumerate(cells(FOLDER / f"{name}.ipynb", "code")):
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile("".join(cell["source"]), f"{name}.ipynb, code cell {number}", "exec"), names)
        shown.append((printed.getvalue(), [_png(plt.figure(k)) for k in plt.get_fignums()]))
        plt.close("all")
    return names, shown


def _png(figure: Any) -> bytes:
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=80)
    Image.open(full).convert("RGB").quantize(128).save(small, format="PNG", optimize=True)
    return small.getvalue()


def told(name: str) -> dict[str, Any]:
    """Run a notebook, and compare what it prints with what is stored: the same words, numbers within a fifth."""
    names, shown = executed(name)
    for cell, (printed, pictures) in zip(cells(FOLDER / f"{name}.ipynb", "code"), shown, strict=True):
        stored = "".join("".join(o["text"]) for o in cell["outputs"] if o["output_type"] == "stream")
        assert NUMBER.sub("#", printed) == NUMBER.sub("#", stored), cell["source"]
        assert [float(x) for x in NUMBER.findall(printed)] == pytest.approx([float(x) for x in NUMBER.findall(stored)], rel=0.2)
        assert len(pictures) == sum(o["output_type"] == "display_data" for o in cell["outputs"])
    return names


@pytest.fixture(autouse=True)
def no_window() -> None:
    plt.switch_backend("Agg")


def test_every_notebook_is_tested_and_small() -> None:
    paths = sorted(FOLDER.glob("*.ipynb"))
    assert [p.stem for p in paths] == ["heat_on_a_plate", "sensors", "unknown_material"]
    for path in paths:
        assert [c["execution_count"] for c in cells(path, "code")] == list(range(1, len(cells(path, "code")) + 1))
        assert any("image/png" in o.get("data", ()) for c in cells(path, "code") for o in c["outputs"])
        assert path.stat().st_size < 120_000


def test_heat_on_a_plate() -> None:
    errors = told("heat_on_a_plate")["errors"]
    assert max(errors["quadratic elements"], errors["universal weights"]) < 0.5 * errors["linear elements"]


@pytest.mark.slow  # the example of the same name is tested always
def test_unknown_material() -> None:
    names = told("unknown_material")
    assert names["found"][0].hump[2] == pytest.approx(names["latent"], rel=0.1)
    assert names["errors"]["dgnet"] < 0.05 * names["errors"]["classical_consistent"]


def test_sensors() -> None:
    names = told("sensors")
    assert names["error"] < 0.1 and names["inside"] > 0.8


def record(name: str) -> None:
    """Store what a notebook prints and draws."""
    path = FOLDER / f"{name}.ipynb"
    content = json.loads(path.read_text(encoding="utf-8"))
    code = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    for number, (cell, (printed, pictures)) in enumerate(zip(code, executed(name)[1]), start=1):
        text = [{"name": "stdout", "output_type": "stream", "text": printed.splitlines(keepends=True)}] if printed else []
        drawn = [{"data": {"image/png": base64.b64encode(png).decode()}, "metadata": {}, "output_type": "display_data"}
                 for png in pictures]
        cell["execution_count"], cell["outputs"] = number, [*text, *drawn]
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    plt.switch_backend("Agg")
    for notebook in sorted(FOLDER.glob("*.ipynb")):
        record(notebook.stem)

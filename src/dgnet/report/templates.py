"""Pages from templates (`templates/*.html`): every value is escaped, pictures and files are inside the page."""

from __future__ import annotations

import base64
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from dgnet.files import write_text
from dgnet.report.viewer import VIEWER


def write_page(path: Path, template: str, **values: Any) -> Path:
    """A page that needs nothing beside itself: `title` and what the template asks for."""
    css = Markup((VIEWER / "report.css").read_text())
    write_text(path, environment().get_template(template).render(css=css, **values))
    return path


@cache
def environment() -> Environment:
    """The templates with their filters; a value that is missing is an error."""
    found = Environment(loader=FileSystemLoader(Path(__file__).parent / "templates"), autoescape=True, undefined=StrictUndefined,
                        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    found.filters |= {"percent": percent, "figure": figure, "png": _png, "download": _download, "json": _json}
    return found


def percent(value: float) -> str:
    """An error as a share."""
    if not math.isfinite(value):
        return "unbounded"
    return f"{100 * value:.2g}%" if value < 0.995 else f"{100 * value:.3g}%"


def figure(value: float | None) -> str:
    """A number of a table; a dash for none."""
    if value is None:
        return "–"
    return f"{value:.3g}" if math.isfinite(value) else "unbounded"


def _png(path: Path) -> Markup:
    """The picture as an element; nothing where it does not exist."""
    if not path.exists():
        return Markup("")
    return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(path.stem, base64.b64encode(path.read_bytes()).decode())


def _download(path: Path) -> Markup:
    """A link that holds the file itself."""
    data = base64.b64encode(path.read_bytes()).decode()
    return Markup('<a download="{0}" href="data:text/csv;base64,{1}">{0}</a>').format(path.name, data)


def _json(value: Any) -> Markup:
    """JSON that cannot end the script element that holds it."""
    return Markup(json.dumps(value).replace("<", "\\u003c"))

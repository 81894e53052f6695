"""Pages of headings, text, tables and pictures: one self-contained HTML file (`templates/page.html`), or Markdown with pictures."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from dgnet.files import write_bytes


@dataclass(frozen=True)
class Head:
    kind: ClassVar[str] = "head"
    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph; `code` in backticks, **strong** in two stars, *words that are explained* in one."""

    kind: ClassVar[str] = "text"
    text: str


@dataclass(frozen=True)
class Slot:
    """A cell of a table: its value, and in small print what stands beside it."""

    text: str
    strong: bool = False
    beside: str = ""
    faint: bool = False


@dataclass(frozen=True)
class Table:
    kind: ClassVar[str] = "table"
    head: Sequence[str]
    rows: Sequence[Sequence[Slot | str]]

    @property
    def slots(self) -> list[list[Slot]]:
        return [[value if isinstance(value, Slot) else Slot(value) for value in row] for row in self.rows]


@dataclass(frozen=True)
class Picture:
    kind: ClassVar[str] = "picture"
    path: Path
    caption: str

    @property
    def png(self) -> bytes:
        """The picture in 256 colours: a third of the bytes, no visible difference."""
        with Image.open(self.path) as image:
            out = io.BytesIO()
            few = image.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
            few.save(out, "PNG", optimize=True)
        return out.getvalue()


@dataclass(frozen=True)
class Lines:
    """Commands or notes, one a line; folded away under a title."""

    kind: ClassVar[str] = "lines"
    title: str
    lines: Sequence[str]


Block = Head | Text | Table | Picture | Lines


# ---------------------------------------------------------------------- HTML


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """One file without anything from outside: style and pictures inside, no scripts."""
    return template("page.html", autoescape=True).render(title=title, blocks=blocks)


def template(name: str, autoescape: bool = False) -> Any:
    """A Jinja template of this folder."""
    pages = Environment(loader=PackageLoader("dgnet_paper.study"), autoescape=autoescape, trim_blocks=True, lstrip_blocks=True,
                        keep_trailing_newline=True, undefined=StrictUndefined)
    pages.filters.update(inline=_inline, base64=_base64)
    return pages.get_template(name)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _inline(text: str) -> Markup:
    text = html.escape(text, quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
    return Markup(re.sub(r"\*(\w[^*]*\w)\*", r"<em>\1</em>", text))


# ---------------------------------------------------------------------- Markdown


def to_markdown(title: str, blocks: Sequence[Block], pictures: Path = Path(), link: str = "") -> str:
    """Markdown text; pictures are copied to the folder `pictures`, which the text calls `link`."""
    out = [f"# {title}"]
    for block in blocks:
        if isinstance(block, Head):
            out.append("#" * block.level + " " + tagless(block.text))
        elif isinstance(block, Text):
            out.append(tagless(block.text))
        elif isinstance(block, Table):
            out.append("\n".join([_line(block.head), "|" + "---|" * len(block.head),
                                  *(_line(map(_slot, row)) for row in block.slots)]))
        elif isinstance(block, Picture):
            write_bytes(pictures / block.path.name, block.png)
            caption = tagless(block.caption)
            out.append(f"![{caption}]({link}/{block.path.name})\n\n*{caption}*")
        else:
            summary = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(block.title, quote=False))
            lines = (" ".join(line.splitlines()).replace("```", "'''") for line in block.lines)  # no line ends the block of code
            out.append(f"<details><summary>{summary}</summary>\n\n```sh\n" + "\n".join(lines) + "\n```\n\n</details>")
    return "\n\n".join(out) + "\n"


def tagless(text: str) -> str:
    """Markdown without HTML: what begins a tag is shown as it is. Texts of cells come from files that anyone may have written."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def _slot(slot: Slot) -> str:
    text = f"**{slot.text}**" if slot.strong else f"*{slot.text}*" if slot.faint else slot.text
    return f"{text} ({slot.beside})" if slot.beside else text


def _line(values: Any) -> str:
    return "| " + " | ".join(tagless(v).replace("|", "\\|") for v in values) + " |"

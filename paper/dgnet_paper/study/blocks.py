"""A page of headings, text, tables and pictures, as one self-contained HTML file or as Markdown with pictures beside it."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from dgnet.files import write_bytes


@dataclass(frozen=True)
class Head:
    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph; `code` in backticks, **strong** in two stars, *words that are explained* in one."""

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
    head: Sequence[str]
    rows: Sequence[Sequence[Slot | str]]


@dataclass(frozen=True)
class Picture:
    path: Path
    caption: str


@dataclass(frozen=True)
class Lines:
    """Commands or notes, one a line; folded away under a title."""

    title: str
    lines: Sequence[str]


Block = Head | Text | Table | Picture | Lines


def _small(path: Path) -> bytes:
    """A picture in 256 colours: a third of the bytes, no visible difference."""
    with Image.open(path) as image:
        out = io.BytesIO()
        few = image.convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(out, "PNG", optimize=True)
    return out.getvalue()


def slot(value: Slot | str) -> Slot:
    return value if isinstance(value, Slot) else Slot(value)


# ---------------------------------------------------------------------- HTML


_CSS = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#6a737d;--line:#dfe3e8;--paper:#fff;--tint:#f5f7f9;--accent:#b8324a}
@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--soft:#98a1ab;--line:#343a42;--paper:#15181c;--tint:#1d2127;--accent:#ff7d90}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1120px;padding:2.2rem 1.4rem 4rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
h1{font-size:1.9rem;line-height:1.2;margin:0 0 .3rem;letter-spacing:-.01em}
h2{font-size:1.35rem;margin:2.6rem 0 .5rem;padding-top:.7rem;border-top:2px solid var(--accent)}
h3{font-size:1.05rem;margin:1.7rem 0 .4rem}
p{margin:.4rem 0 .7rem;max-width:52rem}
.wide{overflow-x:auto;margin:.6rem 0 1rem}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.86rem;white-space:nowrap}
th,td{padding:.28rem .7rem;text-align:right;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;color:var(--soft);border-bottom-width:2px}
th:first-child,td:first-child{text-align:left;position:sticky;left:0;background:var(--paper)}
tbody tr:hover td{background:var(--tint)}
td b{color:var(--accent)}
td small{display:block;color:var(--soft);font-size:.78em}
.faint{color:var(--soft);font-style:italic}
figure{margin:1rem 0 1.4rem}
figure img{max-width:100%;height:auto;background:#fff;border-radius:6px;padding:6px;border:1px solid var(--line)}
figcaption{color:var(--soft);font-size:.86rem;max-width:52rem;margin-top:.3rem}
code{font:.86em ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;background:var(--tint);padding:.08em .3em;border-radius:4px}
details{margin:.5rem 0 1rem;font-size:.88rem}
summary{cursor:pointer;color:var(--soft)}
pre{background:var(--tint);padding:.7rem .9rem;border-radius:6px;overflow-x:auto;font-size:.8rem;line-height:1.45}
pre code{background:none;padding:0}
@media print{body{max-width:none}details{display:none}h2{break-after:avoid}figure,table{break-inside:avoid}}
"""


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """One file without anything from outside: style and pictures inside, no scripts."""
    body = "\n".join(_html(block) for block in blocks)
    return (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
            f'content="width=device-width,initial-scale=1"><title>{html.escape(title)}</title><style>{_CSS}</style></head>\n'
            f"<body>\n<h1>{html.escape(title)}</h1>\n{body}\n</body></html>\n")


def _html(block: Block) -> str:
    if isinstance(block, Head):
        return f"<h{block.level}>{_inline(block.text)}</h{block.level}>"
    if isinstance(block, Text):
        return f"<p>{_inline(block.text)}</p>"
    if isinstance(block, Table):
        head = "".join(f"<th>{_inline(h)}</th>" for h in block.head)
        rows = "\n".join("<tr>" + "".join(_html_slot(slot(s)) for s in row) + "</tr>" for row in block.rows)
        return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table></div>'
    if isinstance(block, Picture):
        data = base64.b64encode(_small(block.path)).decode()
        return (f'<figure><img alt="{html.escape(block.caption)}" src="data:image/png;base64,{data}">'
                f"<figcaption>{_inline(block.caption)}</figcaption></figure>")
    text = html.escape("\n".join(block.lines))
    return f"<details><summary>{_inline(block.title)}</summary><pre><code>{text}</code></pre></details>"


def _html_slot(s: Slot) -> str:
    text = _inline(s.text)
    text = f"<b>{text}</b>" if s.strong else text
    text = f'<span class="faint">{text}</span>' if s.faint else text
    return f"<td>{text}{f'<small>{_inline(s.beside)}</small>' if s.beside else ''}</td>"


def _inline(text: str) -> str:
    text = html.escape(text, quote=False)
    text = re.sub(r"`([^`]+)`", r"<code>\1</code>", text)
    text = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", text)
    return re.sub(r"\*(\w[^*]*\w)\*", r"<em>\1</em>", text)


# ---------------------------------------------------------------------- Markdown


def to_markdown(title: str, blocks: Sequence[Block], pictures: Path, link: str) -> str:
    """Markdown text; pictures are copied to the folder `pictures`, which the text calls `link`."""
    out = [f"# {title}"]
    for block in blocks:
        if isinstance(block, Head):
            out.append("#" * block.level + " " + tagless(block.text))
        elif isinstance(block, Text):
            out.append(tagless(block.text))
        elif isinstance(block, Table):
            out.append("\n".join([_line([tagless(h) for h in block.head]), "|" + "---|" * len(block.head),
                                  *(_line([_md_slot(slot(s)) for s in row]) for row in block.rows)]))
        elif isinstance(block, Picture):
            write_bytes(pictures / block.path.name, _small(block.path))
            caption = tagless(block.caption)
            out.append(f"![{caption}]({link}/{block.path.name})\n\n*{caption}*")
        else:
            title = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(block.title, quote=False))
            lines = (" ".join(line.splitlines()).replace("```", "'''") for line in block.lines)  # no line ends the block of code
            out.append(f"<details><summary>{title}</summary>\n\n```sh\n" + "\n".join(lines) + "\n```\n\n</details>")
    return "\n\n".join(out) + "\n"


def tagless(text: str) -> str:
    """Markdown without HTML: what begins a tag is shown as it is. Texts of cells come from files that anyone may have written."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)


def _md_slot(s: Slot) -> str:
    text = f"**{s.text}**" if s.strong else f"*{s.text}*" if s.faint else s.text
    return tagless(f"{text} ({s.beside})" if s.beside else text)


def _line(values: Sequence[str]) -> str:
    return "| " + " | ".join(v.replace("|", "\\|") for v in values) + " |"

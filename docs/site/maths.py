"""Formulas as MathML, made from LaTeX while the pages are built: browsers draw it themselves, without a script or the network."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)


def on_page_content(html: str, **_: Any) -> str:
    """A hook of mkdocs: what pymdownx.arithmatex has marked becomes MathML."""
    return FORMULA.sub(lambda found: mathml(unescape(found[2]), block=found[1] == "div"), html)


def mathml(latex: str, block: bool) -> str:
    r"""One formula, in a line of text or a block of its own; ValueError names a command that would show as \name."""
    from latex2mathml.converter import convert

    made: str = convert(latex.strip(), display="block" if block else "inline")
    if unknown := re.search(r"\\[A-Za-z]+", made):
        raise ValueError(f"no MathML for {unknown[0]} in the formula {latex.strip()}")
    return f'<div class="formula">{made}</div>' if block else made

"""Examples of docstrings as code. After a list, Markdown would take the indented `>>>` lines for quotations in quotations."""

import re
from textwrap import dedent

import griffe

EXAMPLE = re.compile(r"^( *)>>> .*\n?(?:\1 *\S.*\n?)*", re.M)  # up to an empty line


class Examples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: object) -> None:
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"\n```pycon\n{dedent(found[0]).rstrip()}\n```\n", obj.docstring.value)

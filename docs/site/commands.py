"""The reference of the command line, written from the commands themselves while the pages are built."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

PLACE = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A hook of mkdocs: the mark in a page becomes the reference."""
    return markdown.replace(PLACE, reference()) if PLACE in markdown else markdown


def reference() -> str:
    """Every command by its group: purpose, arguments, options, examples."""
    import dgnet_paper.cli
    from dgnet.cli import shell
    from dgnet_paper.cli import frame

    lines = list[str]()
    for program, app, groups in (("dgnet", shell.app, shell.GROUPS), ("dgnet-paper", dgnet_paper.cli.app, frame.GROUPS)):
        for group, names in groups.items():
            lines += [f"## {group}" if program == "dgnet" else f"## The paper: {group.lower()}", ""]
            for name in names:
                lines += _command(shell.commands(app).commands[name], f"{program} {name}")
    return "\n".join(lines)


def _command(command: Any, name: str) -> Iterator[str]:
    yield from (f"### {name}", "", _plain(command.help or "").strip(), "")
    parameters = [p for p in command.params if not p.hidden and p.name != "help"] if not hasattr(command, "commands") else []
    if parameters:
        yield from ("| option | meaning | default |", "|---|---|---|")
        for p in parameters:
            yield f"| {_called(p)} | {_plain(p.help or '')} | {_default(p)} |"
        yield ""
    examples = [line.strip() for line in _plain(command.epilog or "").splitlines() if line.strip().startswith("dgnet")]
    if examples:
        yield from ("```text", *examples, "```", "")
    for inner, child in getattr(command, "commands", {}).items():
        yield from _command(child, f"{name} {inner}")


def _called(p: Any) -> str:
    if p.param_type_name == "argument":
        return f"`{p.name.upper()}`"
    return ", ".join(f"`{o}`" for o in (*p.opts, *p.secondary_opts))


def _default(p: Any) -> str:
    if p.required:
        return "required"
    if p.default is None or callable(p.default) or p.default in ([], ()):
        return ""
    return {True: "yes", False: "no"}[p.default] if isinstance(p.default, bool) else f"`{p.default}`"


def _plain(text: str) -> str:
    """Without the escapes that rich needs; bars would end a cell of a table."""
    return text.replace("\\[", "[").replace("|", "\\|")

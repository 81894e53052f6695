"""Commands about the weights that ship with the package."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dgnet.cli.options import file_to_write, folder_to_write
from dgnet.cli.screen import reporting, say, table
from dgnet.cli.shell import CarefulGroup, Json, write_json
from dgnet.files import write_text
from dgnet_paper.cli.frame import advise, app, command

pretrained = typer.Typer(cls=CarefulGroup, help="List the weights that ship with dgnet, or pack new ones.",
                         invoke_without_command=True)
app.add_typer(pretrained, name="pretrained", rich_help_panel="Models")
Folder = Annotated[Path | None, typer.Option(help="Folder of packed weights; the default is the package's own.")]


@pretrained.callback(epilog="Examples:\n\ndgnet-paper pretrained\n\ndgnet-paper pretrained --markdown pretrained.md")
def listing(context: typer.Context, folder: Folder = None,
            markdown: Annotated[Path | None, typer.Option(help="Write the cards as a page, FILE.md.",
                                                       callback=file_to_write(".md"))] = None,
            json_path: Json = None) -> None:
    """List the weights that ship with dgnet: their errors, their size, how they were trained."""
    if context.invoked_subcommand is not None:
        return
    from dgnet_paper.study import pretrained as shelf

    cards = shelf.shipped(folder or shelf.SHELF)
    write_json(json_path, [asdict(card) for card in cards])
    table(shelf.HEAD, shelf.rows(cards))
    for card in cards:
        for remark in shelf.remarks(card):
            say(f"{card.scenario}, {card.truth}: {remark}")
    todo = shelf.missing(cards)
    if todo:
        say("\nNot trained yet: " + ", ".join(f"{name} ({truth})" for name, truth in todo)
            + f"; for instance `{shelf.training_command(*todo[0])}`")
    if markdown is not None:
        write_text(markdown, shelf.markdown(cards))
        say(f"wrote {markdown}")
    if cards:
        advise("evaluate", cards[0].scenario, "--truth", cards[0].truth)


@command("dgnet-paper pretrained pack out/reproduce/cells/TAG --out weights", of=pretrained)
def pack(cells: Annotated[list[Path], typer.Argument(help="Finished cells of `dgnet-paper reproduce`: OUT/cells/TAG.")],
         out: Annotated[Path | None, typer.Option(help="Folder to write to; the default is the package's own.",
                                                  callback=folder_to_write())] = None,
         note: Annotated[list[str] | None, typer.Option(help="A sentence for the card.")] = None, json_path: Json = None) -> None:
    """Pack finished cells for shipping: weights in half precision, settings, card."""
    from dgnet_paper.study import pretrained as shelf

    made = []
    with reporting() as report:
        for at, cell in enumerate(cells):
            report("packing", at, len(cells))
            made.append(shelf.pack(cell, out or shelf.SHELF, note or ()))
    write_json(json_path, [asdict(shelf.read_card(folder)) for folder in made])
    for folder in made:
        say(f"{folder} ({(folder / 'weights.pt').stat().st_size / 1024:.0f} KiB)")
    advise("evaluate", made[0])

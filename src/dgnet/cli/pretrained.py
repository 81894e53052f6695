"""Commands about the weights that ship with the package."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from dgnet.cli.shell import Json, app, console, reporting, write_json
from dgnet.files import write_text

pretrained = typer.Typer(help="Weights that ship with the package: list, pack.", invoke_without_command=True)
app.add_typer(pretrained, name="pretrained")
Folder = Annotated[Path | None, typer.Option(help="Folder of packed weights; those of the package by default.")]


@pretrained.callback()
def listing(context: typer.Context, folder: Folder = None,
            markdown: Annotated[Path | None, typer.Option(help="Write the cards as a page, FILE.md.")] = None,
            json_path: Json = None) -> None:
    """List the weights that ship with dgnet: what they reach, their size, how they were trained."""
    if context.invoked_subcommand is not None:
        return
    from rich.table import Column, Table

    from dgnet.paper import pretrained as shelf

    cards = shelf.shipped(folder or shelf.SHELF)
    write_json(json_path, [asdict(card) for card in cards])
    table = Table(*(Column(name, no_wrap=at < 2) for at, name in enumerate(shelf.HEAD)), box=None)
    for row in shelf.rows(cards):
        table.add_row(*row)
    console.print(table)
    for card in cards:
        for remark in shelf.remarks(card):
            console.print(f"{card.scenario}, {card.truth}: {remark}", highlight=False, soft_wrap=True, markup=False)
    todo = shelf.missing(cards)
    if todo:
        console.print("\nNot trained yet: " + ", ".join(f"{name} ({truth})" for name, truth in todo)
                      + f"; for instance `{shelf.training_command(*todo[0])}`", highlight=False, soft_wrap=True, markup=False)
    if markdown is not None:
        write_text(markdown, shelf.markdown(cards))
        console.print(f"wrote {markdown}", highlight=False, soft_wrap=True)


@pretrained.command()
def pack(cells: Annotated[list[Path], typer.Argument(help="Finished cells of `dgnet reproduce`: OUT/cells/TAG.")],
         out: Annotated[Path | None, typer.Option(help="Folder to put them in; that of the package by default.")] = None,
         note: Annotated[list[str] | None, typer.Option(help="A sentence for the card.")] = None, json_path: Json = None) -> None:
    """Turn finished cells into folders that ship: weights in half precision, settings, card."""
    from dgnet.paper import pretrained as shelf

    made = []
    with reporting() as report:
        for at, cell in enumerate(cells):
            report("packing", at, len(cells))
            made.append(shelf.pack(cell, out or shelf.SHELF, note or ()))
    write_json(json_path, [asdict(shelf.read_card(folder)) for folder in made])
    for folder in made:
        console.print(f"{folder} ({(folder / 'weights.pt').stat().st_size / 1024:.0f} KiB)", highlight=False, soft_wrap=True)


@pretrained.command()
def measured(results: Annotated[list[Path], typer.Argument(help="Files of `dgnet evaluate --pretrained NAME --json FILE`.")],
             folder: Folder = None) -> None:
    """Put what an evaluation found on the card of the same weights, beside the figures of training."""
    from dgnet.paper import pretrained as shelf

    for path in results:
        card, new = shelf.add_measured(path, folder or shelf.SHELF)
        console.print(f"{card.scenario}, {card.truth}: {new.trajectories} trajectories on {new.hardware}", highlight=False,
                      soft_wrap=True)

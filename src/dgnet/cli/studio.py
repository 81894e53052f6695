"""The command that opens the studio."""

from __future__ import annotations

import signal
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dgnet import plugins
from dgnet.cli.screen import advise, say
from dgnet.cli.shell import Stopped, command
from dgnet.errors import InputError
from dgnet.files import did_you_mean

if TYPE_CHECKING:
    from dgnet.studio.server import Entry


@command("dgnet studio", "dgnet studio run", "dgnet studio my-problem", "dgnet studio part.msh", "dgnet studio laser-heat")
def studio(what: Annotated[str | None, typer.Argument(help="Folder of a run, folder with problem.toml, file of a mesh, or a "
                                                           "scene of the gallery; without it, the gallery.")] = None,
           port: Annotated[int, typer.Option(help="Port on this computer; 0 takes a free one.", min=0, max=65535)] = 0,
           browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page in the browser.")] = True) -> None:
    """Draw sources with the mouse and watch the field in the browser. The page is served to this computer only."""
    from dgnet.studio.server import listening

    entries: dict[str, Entry] = {}
    for scenes in plugins.loaded("dgnet.scenes"):
        entries |= scenes()
    first = "" if what is None else what if what in entries else "given"
    if first == "given":
        assert what is not None
        entries = {"given": _given(Path(what), list(entries)), **entries}

    address, serve, _ = listening(entries, first, port)
    say(f"The studio is open at {address} (Ctrl-C closes it)")
    if browser:
        webbrowser.open(address)
    try:
        serve()
    except Stopped as stopped:
        if stopped.number != signal.SIGINT:
            raise
        say("The studio is closed.")
        advise("new", "my-problem")






def _given(path: Path, known: list[str]) -> Entry:
    """What the command line names, opened at once: what is wrong with it is told here and not in the browser."""
    from dgnet.mesh import load
    from dgnet.studio.scene import mesh_scene, run_scene
    from dgnet.studio.server import Entry
    from dgnet.training.run import Run
    from dgnet.training.simulator import simulator

    if (path / "run.toml").exists():
        scene = run_scene(Run.open(path))
    elif path.is_dir():
        scene = run_scene(simulator(path, "classical"))
    elif path.exists():
        scene = mesh_scene(load(path), path.name)
    else:
        raise InputError(f"there is no run, problem or mesh '{path}', and no scene of that name{did_you_mean(str(path), known)}")
    return Entry(scene.title, f"{path.name}, as given on the command line", lambda: scene)

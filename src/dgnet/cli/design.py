"""The command that designs sources."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dgnet.cli.options import Seed, folder_to_write
from dgnet.cli.screen import advise, say, say_path, table
from dgnet.cli.sensors import Folder, ModelName
from dgnet.cli.shell import AllowDifferent, Json, Problem, command, write_json


@command("dgnet design plate goal.toml --out designed", "dgnet design plate goal.toml --out designed --correct")
def design(folder: Folder,
           goal: Annotated[Path, typer.Argument(help="TOML file of sources that are free, targets and limits.")],
           out: Annotated[Path, typer.Option(help="Folder for the table of sources, pictures and a page.",
                                             callback=folder_to_write())],
           initial: Annotated[Path | None, typer.Option(help="Start, a .npy file of shape [nodes]; the default is the problem's "
                                                             "offset.")] = None,
           correct: Annotated[bool, typer.Option("--correct", help="Meet the targets on the mesh refined once with half the step, "
                                                                   "not on the given one.")] = False,
           starts: Annotated[int, typer.Option(help="How many beginnings of free paths and times are tried.", min=1)] = 4,
           seed: Seed = 0, model: ModelName = "universal", problem: Problem = None, allow_different: AllowDifferent = False,
           json_path: Json = None) -> None:
    """Choose powers, paths and times of sources so that a field becomes what it shall be and stays within limits."""
    from dgnet.designs import design_from_goal
    from dgnet.report import designed
    from dgnet.training import open_simulator

    run = open_simulator(folder, problem, allow_different, model)
    case, field = run.case, run.case.pde.fields[0]
    found = design_from_goal(run, goal, initial=initial, starts=starts, seed=seed, correct=correct)
    paths = designed.write(found, case.mesh, field, case.units.fields.get(field, ""), case.title or case.name, out)
    write_json(json_path, designed.summary(found))
    for note in (*run.notes, *found.notes):
        say(note)
    table(designed.TARGETS, designed.target_rows(found))
    table(designed.LIMITS, designed.limit_rows(found))
    limits = "all limits hold" if found.holds else "LIMITS ARE BROKEN"
    say(f"{'Targets met' if found.reached else 'Targets missed'}, {limits}; {found.rollouts} rollouts in {found.seconds:.1f} s"
        + ("; one quadratic program" if found.exact else ""))
    for path in paths:
        say_path(path)
    verb = "rollout" if (folder / "run.toml").exists() else "simulate"
    advise(verb, folder, "--source", paths[0], "--steps", len(found.times) - 1)

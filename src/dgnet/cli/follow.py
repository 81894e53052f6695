"""The command that follows a running part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dgnet.cli.options import folder_to_write, positive, refuse
from dgnet.cli.screen import advise, say, say_path
from dgnet.cli.sensors import Folder, ModelName, Sensors, Spots
from dgnet.cli.shell import AllowDifferent, Problem, command
from dgnet.errors import LARGEST, InputError
from dgnet.files import did_you_mean

if TYPE_CHECKING:
    from dgnet.following import Prior


@command("dgnet follow plate readings.csv --sensors sensors.csv --out live --horizon 20",
         "dgnet follow plate - --sensors sensors.csv --out live --json",
         "dgnet follow plate readings.csv --sensors sensors.csv --out live --wait 60 --noise 0.1 --strength field=2")
def follow(context: typer.Context, folder: Folder,
           sensors: Sensors,
           out: Annotated[Path, typer.Option(help="Folder for estimates, events, fields, the page and the state.",
                                             callback=folder_to_write())],
           readings: Annotated[str, typer.Argument(help="CSV table of readings that may go on growing: t and one column for each "
                                                        "sensor; - for standard input.")] = "-",
           unknown: Annotated[list[str] | None, typer.Option(help="What the filter is told that it does not know: start, field (a "
                                                                  "source anywhere that changes), source (the strengths of spots), "
                                                                  "flux:BOUNDARY, ambient. May be repeated; start and field unless "
                                                                  "given.")] = None,
           noise: Annotated[float | None, typer.Option(help="Standard deviation of a reading; from the likelihood of the first "
                                                            "rows unless given.", callback=positive)] = None,
           strength: Annotated[list[str] | None, typer.Option(help="NAME=NUMBER, the standard deviation of an unknown; of all of "
                                                                   "them or none: otherwise from the likelihood of the first "
                                                                   "rows. May be repeated.")] = None,
           length: Annotated[list[str] | None, typer.Option(help="NAME=NUMBER, the distance over which a start or a field is "
                                                                 "correlated; with --strength.")] = None,
           duration: Annotated[list[str] | None, typer.Option("--time", help="NAME=NUMBER, the time over which an unknown is "
                                                                             "correlated; with --strength.")] = None,
           learn: Annotated[int, typer.Option(help="Rows from which strengths and noise are learned.", min=2)] = 30,
           spots: Spots = None,
           source: Annotated[Path | None, typer.Option(help="CSV table of moving spots that are known.")] = None,
           initial: Annotated[Path | None, typer.Option(help="Start, a .npy file of shape [nodes] or [nodes, fields]; the default "
                                                             "is the problem's offset.")] = None,
           points: Annotated[Path | None, typer.Option(help="CSV table of places where estimates are asked for, as of sensors; the "
                                                            "sensors themselves unless given.")] = None,
           horizon: Annotated[int, typer.Option(help="Steps to forecast at the end of the readings.", min=0, max=10_000)] = 0,
           smooth: Annotated[bool, typer.Option("--smooth", help="Also look back, in the light of all readings.")] = False,
           wait: Annotated[float, typer.Option(help="Seconds to wait for further rows at the end of the file.", min=0)] = 0.0,
           resume: Annotated[bool, typer.Option("--resume", help="Go on from the state in the folder of results.")] = False,
           rank: Annotated[int | None, typer.Option(help="Directions of largest variance that the filter keeps; exact up to 800 "
                                                         "numbers and 150 beyond unless given.", min=1)] = None,
           chance: Annotated[float, typer.Option(help="Probability of a false alarm in a row.", min=1e-12, max=0.5)] = 1e-6,
           json_lines: Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON.")] = False,
           model: ModelName = "universal", problem: Problem = None, allow_different: AllowDifferent = False) -> None:
    """Follow a running part from readings as they come: the field with bands, a forecast, an alarm when readings leave them."""
    from dgnet.following import Event, described, follow_from_files
    from dgnet.inverse import read_sensors
    from dgnet.report.followed import Journal
    from dgnet.training import open_simulator

    names = tuple(unknown or ("start", "field"))
    priors = _priors(names, strength, length, duration)
    if resume:
        kept = "it is kept in the state"
        refuse(context, {name: kept for name in ("unknown", "noise", "strength", "length", "duration", "learn", "rank", "chance")})
    run = open_simulator(folder, problem, allow_different, model)
    part, stream = follow_from_files(
        run, None if readings == "-" else Path(readings), sensors, names, priors=priors, noise=noise, learn=learn, spots=spots,
        source=source, initial=initial, rank=rank, chance=chance, wait=wait, resume=out / "state.npz" if resume else None)
    asked = part.sensors if points is None else read_sensors(points, run.case.mesh.dim)
    journal = Journal(part, asked, out, run.case.title or run.case.name, resume)

    def tell(event: Event, line: str) -> None:
        say(line if json_lines else f"t = {event.time:g}: {event.text}")

    for line in (*run.notes, *part.notes, *described(part.priors, part.noise)):
        say(line)
    try:
        journal.follow(stream, tell)
    finally:
        paths = journal.finish(horizon, smooth)
    for line in journal.lines():
        say(line)
    for path in paths:
        say_path(path)
    more = {"--model": model, "--initial": initial, "--source": source, "--spots": spots, "--points": points, "--problem": problem}
    again = [word for option, value in more.items() if value not in (None, "universal") for word in (option, value)]
    again += ["--allow-different"] * allow_different
    advise("follow", folder, readings, "--sensors", sensors, "--out", out, *again, "--resume")


def _priors(names: Sequence[str], strength: list[str] | None, length: list[str] | None, time: list[str] | None) -> dict[str, Prior]:
    """From NAME=NUMBER; empty where no strength is given."""
    from dgnet.following import Prior

    def numbers(entries: list[str] | None, option: str) -> dict[str, float]:
        found = {}
        for entry in entries or ():
            name, _, text = entry.rpartition("=")
            try:
                found[name] = float(text)
            except ValueError:
                found[name] = math.nan
            if not (found[name] == 0 or 1 / LARGEST <= found[name] <= LARGEST):
                raise InputError(f"{option} {entry}: give NAME=NUMBER, such as {option} {names[-1]}=2")
            if name not in names:
                raise InputError(f"{option} {entry}: '{name}' is none of the unknowns{did_you_mean(name, names)}")
        return found

    strengths, lengths, times = numbers(strength, "--strength"), numbers(length, "--length"), numbers(time, "--time")
    left = [name for name in names if name not in strengths]
    if left and (strengths or lengths or times):
        raise InputError(f"--strength is missing for {', '.join(left)}: give all of them, or none to have them learned")
    return {name: Prior(value, lengths.get(name, 0.0), times.get(name, 0.0)) for name, value in strengths.items()}

"""Commands about sensors: what is unknown, from readings; where to measure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from dgnet.cli.options import folder_to_write, positive, refuse
from dgnet.cli.screen import advise, say, say_path
from dgnet.cli.shell import AllowDifferent, Json, Problem, command, write_json
from dgnet.errors import InputError

Folder = Annotated[Path, typer.Argument(help="Folder with problem.toml, or of a run.")]
Sensors = Annotated[Path, typer.Option(help="CSV table of the sensors: sensor, x, y[, z] and, where needed, radius (averages over "
                                            "a patch), field, boundary (fluxes), lag (time constant).")]
Unknown = Annotated[list[str], typer.Option(help="source (the strength of each spot over time), field (a steady source anywhere), "
                                                 "start, flux:BOUNDARY, ambient, lag (time constants of sensors); diffusion, "
                                                 "decay, convection, latent (factors on the given coefficients); or place, path "
                                                 "(of one spot). May be repeated.")]
Spots = Annotated[Path | None, typer.Option(help="CSV table of the places of the sources: x, y[, z], radius[, spot]; or of their "
                                                 "paths, with t and power, too.")]
ModelName = Annotated[str, typer.Option(help="Model of a problem: universal, classical or quadratic.")]


@command("dgnet recover plate readings.csv --sensors sensors.csv --unknown source --spots spots.csv --out answers",
         "dgnet recover plate readings.csv --sensors sensors.csv --unknown start --out answers",
         "dgnet recover plate readings.csv --sensors sensors.csv --unknown flux:left --out answers --noise 0.2",
         "dgnet recover plate readings.csv --sensors sensors.csv --unknown diffusion --source spots.csv --out answers",
         "dgnet recover plate readings.csv --sensors sensors.csv --unknown path --radius 0.1 --out answers")
def recover(context: typer.Context, folder: Folder,
            readings: Annotated[Path, typer.Argument(help="CSV table of readings: t and one column for each sensor.")],
            sensors: Sensors, unknown: Unknown,
            out: Annotated[Path, typer.Option(help="Folder for answers, bands and pictures.", callback=folder_to_write())],
            spots: Spots = None,
            radius: Annotated[float | None, typer.Option(help="Of the spot whose place or path is unknown.",
                                                         callback=positive)] = None,
            source: Annotated[Path | None, typer.Option(help="CSV table of moving spots that are known.")] = None,
            initial: Annotated[Path | None, typer.Option(help="Start, a .npy file of shape [nodes] or [nodes, fields]; the default "
                                                         "is the problem's offset.")] = None,
            noise: Annotated[float | None, typer.Option(help="Standard deviation of a reading; found from all readings unless "
                                                             "given.",
                                                        callback=positive)] = None,
            per_region: Annotated[bool, typer.Option("--per-region", help="One factor on a coefficient for each region of the "
                                                                          "mesh.")] = False,
            model: ModelName = "universal", problem: Problem = None, allow_different: AllowDifferent = False,
            json_path: Json = None) -> None:
    """Find sources and their places, the start, boundary fluxes, surroundings or coefficients from readings, with uncertainty."""
    from dgnet.inverse import COEFFICIENTS, TRACKS, recover_from_files
    from dgnet.report.recovered import write_answer
    from dgnet.training import open_simulator

    with_coefficients, tracked = bool(set(unknown) & set(COEFFICIENTS)), bool(set(unknown) & set(TRACKS))
    classical = {"model": "coefficients are those of the classical solver"}
    refuse(context, classical if with_coefficients else {"per_region": "it is about coefficients"})
    refuse(context, {} if "source" in unknown else {"spots": "they are the places of an unknown source"})
    refuse(context, {} if tracked else {"radius": "it is that of the spot whose place or path is unknown"})
    run = open_simulator(folder, problem, allow_different, model)
    found = recover_from_files(run, readings, sensors, unknown, spots=spots, radius=radius, source=source, initial=initial,
                               noise=noise, per_region=per_region)
    summary, lines, paths = write_answer(found, run.case.mesh, run.case.pde.fields, out)
    print_answer(summary, json_path, (*(() if with_coefficients else run.notes), *lines), paths)
    if not with_coefficients:
        advise("simulate", folder, *(("--source", out / "spot.csv") if tracked else ()))


def train_from_sensors(context: typer.Context, folder: Path | None, out: Path, readings: list[Path], sensors: Path | None,
                       source: list[Path], initial: list[Path], seed: int, minutes: float | None, json_path: Path | None) -> None:
    """`dgnet train FOLDER --readings ...`: one experiment for each table."""
    why = "training from readings learns what problem.toml leaves open, with dgnet, on the CPU"
    refuse(context, dict.fromkeys(("size", "truth", "recipe", "data", "trajectories", "unknown_reaction", "unknown_curves", "model",
                                   "from_scratch", "amp", "device"), why))
    if folder is None or sensors is None:
        raise InputError("--readings needs the folder of a problem and a table of --sensors")
    from dgnet.discovery import sentences
    from dgnet.inverse import train_from_tables

    run, found = train_from_tables(folder, out, readings, sensors, source=source, initial=initial, seed=seed, minutes=minutes)
    lines = [f"{run.case.name}: rollouts miss the readings by {found.after:.3g} of their spread, untrained by {found.before:.3g}"]
    if found.held is not None:
        lines.append(f"readings that were held out: {found.held[1]:.3g} with corrections of the operator, {found.held[0]:.3g} "
                     "without")
    factors = run.dgnet.coefficients() if run.dgnet.config.calibrate else {}
    lines += [f"{name}: {factor:.4g} times the value in problem.toml, standard deviation {found.sd[name]:.2%} by the noise"
              for name, factor in factors.items()]
    print_answer({"before": found.before, "after": found.after, "held": found.held, "coefficients": factors, "sd": found.sd,
                  "notes": list(found.notes)}, json_path, (*found.notes, *lines, *sentences(run.model)), [out])
    advise("rollout", out)


def print_answer(summary: dict[str, Any], json_path: Path | None, lines: Iterable[str], paths: Iterable[Path]) -> None:
    """JSON, sentences and files of an answer."""
    write_json(json_path, summary)
    for line in lines:
        say(line)
    for path in paths:
        say_path(path)


@command("dgnet place plate --count 12 --unknown source --spots spots.csv --steps 40 --noise 0.5 --strength 20 --out placed",
         "dgnet place plate --count 6 --unknown start --steps 20 --noise 0.2 --strength 10 --candidates sensors.csv --out placed")
def place(folder: Folder,
          count: Annotated[int, typer.Option(help="How many sensors to choose.", min=1)],
          unknown: Unknown,
          steps: Annotated[int, typer.Option(help="Number of steps, each of which ends with a reading.", min=1)],
          noise: Annotated[float, typer.Option(help="Standard deviation of a reading.", callback=positive)],
          strength: Annotated[float, typer.Option(help="Standard deviation of what is unknown, before any reading.",
                                                  callback=positive)],
          out: Annotated[Path, typer.Option(help="Folder for the list of sensors, the curve and a picture.",
                                            callback=folder_to_write())],
          length: Annotated[float | None, typer.Option(help="Time (of histories) or distance (of fields) over which it is "
                                                            "correlated; a quarter of the whole unless given.",
                                                       callback=positive)] = None,
          spots: Spots = None,
          candidates: Annotated[Path | None, typer.Option(help="CSV table of places to choose from: sensor, x, y[, z]; the default "
                                                               "is 100 nodes all over the part.")] = None,
          criterion: Annotated[str, typer.Option(help="A (least variance of all unknowns) or D (most information).")] = "A",
          model: ModelName = "universal", problem: Problem = None, allow_different: AllowDifferent = False,
          json_path: Json = None) -> None:
    """Choose the best places for sensors, before anything is measured, with the uncertainty left by each number of them."""
    from dgnet.inverse import place_from_files
    from dgnet.report.recovered import write_placement
    from dgnet.training import open_simulator

    if criterion not in ("A", "D"):
        raise InputError(f"--criterion {criterion}: known are A and D")
    run = open_simulator(folder, problem, allow_different, model)
    found, where = place_from_files(run, count, unknown, steps, noise=noise, strength=strength, length=length, spots=spots,
                                    candidates=candidates, criterion="D" if criterion == "D" else "A")
    paths = write_placement(found, where, run.case.mesh, out)
    chosen = [f"{k:3d}  {sensor.name}: leaves {left:.1%} of the standard deviation before any reading"
              for k, (sensor, left) in enumerate(zip(found.sensors, found.uncertainty[1:]), start=1)]
    print_answer({"sensors": [s.name for s in found.sensors], "uncertainty": found.uncertainty.tolist()}, json_path,
                 (*run.notes, *chosen), paths)
    asked = [word for name in unknown for word in ("--unknown", name)]
    advise("recover", folder, "readings.csv", "--sensors", paths[0], *asked, *(() if spots is None else ("--spots", spots)),
           "--out", "answers")

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


def opened(folder: Path, problem: Path | None, allow_different: bool, model: str) -> tuple[Any, Any, Any]:
    """The run or problem of a folder, its discretised problem and its model, in the precision of its weights."""
    import torch

    from dgnet.problems.case import base_problem
    from dgnet.training.run import open_simulator

    run = open_simulator(folder, problem, allow_different, model)
    if run.case.given_flow:
        raise InputError(f"{folder}: its flow changes from trajectory to trajectory, so sensors respond differently in each")
    weights = list(run.model.parameters()) if isinstance(run.model, torch.nn.Module) else []
    return run, base_problem(run.case, "cpu", weights[0].dtype if weights else torch.float64), run.model


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
    import numpy as np
    import torch

    from dgnet.files import did_you_mean, read_array
    from dgnet.inverse import read_readings, read_sensors, read_spots, recover_coefficients, recover_track
    from dgnet.inverse import recover as solve
    from dgnet.inverse.factors import COEFFICIENTS
    from dgnet.inverse.recover import KINDS
    from dgnet.inverse.tracks import TRACKS
    from dgnet.problems import SpotTable
    from dgnet.problems.case import base_problem
    from dgnet.report import recovered

    known_kinds = (*KINDS, *COEFFICIENTS, *TRACKS)
    for name in unknown:
        if name not in known_kinds and not name.startswith("flux:"):
            raise InputError(f"--unknown {name} cannot be recovered{did_you_mean(name, known_kinds)}")
    fitted, tracked = [name for name in unknown if name in COEFFICIENTS], bool(set(unknown) & set(TRACKS))
    if tracked and (len(unknown) > 1 or radius is None):
        raise InputError(f"--unknown {' '.join(unknown)}: a place or path is recovered on its own, and needs the spot's --radius")
    classical = {"model": "coefficients are those of the classical solver"}
    refuse(context, classical if fitted else {"per_region": "it is about coefficients"})
    refuse(context, {} if "source" in unknown else {"spots": "they are the places of an unknown source"})
    refuse(context, {} if tracked else {"radius": "it is that of the spot whose place or path is unknown"})
    run, discrete, solver = opened(folder, problem, allow_different, model)
    case, shape = run.case, (run.case.mesh.n_nodes, len(run.case.pde.fields))
    table = read_readings(readings, read_sensors(sensors, case.mesh.dim))
    start = np.broadcast_to(np.array(case.offsets), shape) if initial is None else read_array(
        initial, (shape, shape[:1]) if shape[1] == 1 else (shape,)).reshape(shape)
    moving = None if source is None else SpotTable.read(source, case.mesh.dim).on(case.mesh)
    places = None if spots is None else read_spots(spots, case.mesh.dim)
    begin = torch.from_numpy(np.array(start))
    if fitted:
        factors = recover_coefficients(base_problem(case, "cpu", torch.float64), table, fitted, per_region=per_region, start=begin,
                                       noise=noise, source=moving, spots=places,
                                       also=[name for name in unknown if name not in COEFFICIENTS])
        _tell(recovered.factors_summary(factors), json_path, (*factors.notes, *recovered.factor_lines(factors)),
              recovered.write_factors(factors, case.mesh, case.pde.fields, out))
        return
    if tracked:
        assert radius is not None
        track = recover_track(discrete, table, radius, moving="path" in unknown, start=begin, noise=noise, model=solver,
                              source=moving)
        _tell(recovered.track_summary(track), json_path, (*run.notes, *track.notes, *recovered.track_lines(track)),
              recovered.write_track(track, case.mesh, out))
        advise("simulate", folder, "--source", out / "spot.csv")
        return
    found = solve(discrete, table, unknown, spots=places, start=begin, noise=noise, model=solver, source=moving)
    count, sensed = int(np.isfinite(found.fitted).sum()), len(found.readings.sensors)
    told = (f"{count} readings of {sensed} sensors determine {found.determined:.1f} of {found.unknowns} numbers; "
            f"noise {found.noise:.3g}, misfit {found.misfit:.3g}")
    _tell(recovered.summary(found), json_path, (*run.notes, *found.notes, told, *recovered.answer_lines(found, case.pde.fields)),
          recovered.write(found, case.mesh, case.pde.fields, out))
    advise("simulate", folder)


def train_from_sensors(context: typer.Context, folder: Path | None, out: Path, readings: list[Path], sensors: Path | None,
                       source: list[Path], initial: list[Path], seed: int, minutes: float | None, json_path: Path | None) -> None:
    """`dgnet train FOLDER --readings ...`: one experiment for each table."""
    why = "training from readings learns what problem.toml leaves open, with dgnet, on the CPU"
    refuse(context, dict.fromkeys(("size", "truth", "recipe", "data", "trajectories", "unknown_reaction", "unknown_curves", "model",
                                   "from_scratch", "amp", "device"), why))
    if folder is None or sensors is None:
        raise InputError("--readings needs the folder of a problem and a table of --sensors")
    import numpy as np
    import torch

    from dgnet.discovery.found import sentences
    from dgnet.files import read_array
    from dgnet.inverse import read_readings, read_sensors
    from dgnet.inverse.fit_to_readings import Experiment
    from dgnet.inverse.readings import cleaned
    from dgnet.inverse.run_from_readings import train_on_readings
    from dgnet.problems import SpotTable
    from dgnet.problems.case import base_problem
    from dgnet.projects.project import described

    for given, option in ((source, "--source"), (initial, "--initial")):
        if len(given) not in (0, 1, len(readings)):
            raise InputError(f"{option} is given {len(given)} times for {len(readings)} tables of readings: once, or once for each")
    project = described(folder, "", folder / "none", 1)
    case, mesh, places = project.case, project.case.mesh, read_sensors(sensors, project.case.mesh.dim)
    shape, base = (mesh.n_nodes, len(case.pde.fields)), base_problem(case, "cpu", torch.float64)
    experiments = []
    for k, path in enumerate(readings):
        own, driven = (x[min(k, len(x) - 1)] if x else None for x in (initial, source))
        start = np.broadcast_to(np.array(case.offsets), shape) if own is None else read_array(
            own, (shape, shape[:1]) if shape[1] == 1 else (shape,)).reshape(shape)
        table = cleaned(read_readings(path, places), base, float(start.mean()))
        steps = int(np.ceil(table.times[-1] / case.dt - 1e-9))
        spots = None if driven is None else SpotTable.read(driven, mesh.dim).on(mesh)
        heat = None if spots is None else spots.average(torch.tensor(mesh.points), 0, steps, case.dt)[0]
        experiments.append(Experiment(table, torch.from_numpy(np.array(start)), heat))
    run, found = train_on_readings(project, out, experiments, seed=seed, minutes=minutes)
    lines = [f"{case.name}: rollouts miss the readings by {found.after:.3g} of their spread, untrained by {found.before:.3g}"]
    if found.held is not None:
        lines.append(f"readings that were held out: {found.held[1]:.3g} with corrections of the operator, {found.held[0]:.3g} "
                     "without")
    factors = run.dgnet.coefficients() if run.dgnet.config.calibrate else {}
    lines += [f"{name}: {factor:.4g} times the value in problem.toml, standard deviation {found.sd[name]:.2%} by the noise"
              for name, factor in factors.items()]
    _tell({"before": found.before, "after": found.after, "held": found.held, "coefficients": factors, "sd": found.sd,
           "notes": list(found.notes)}, json_path, (*found.notes, *lines, *sentences(run.model)), [out])
    advise("rollout", out)


def _tell(summary: dict[str, Any], json_path: Path | None, lines: Iterable[str], paths: Iterable[Path]) -> None:
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
    from dgnet.inverse import place as choose
    from dgnet.inverse import read_sensors, read_spots
    from dgnet.inverse.place import spread_out
    from dgnet.report import recovered

    if criterion not in ("A", "D"):
        raise InputError(f"--criterion {criterion}: known are A and D")
    run, discrete, solver = opened(folder, problem, allow_different, model)
    mesh = run.case.mesh
    where = spread_out(mesh, 100) if candidates is None else read_sensors(candidates, mesh.dim)
    found = choose(discrete, where, count, unknown, steps, noise=noise, strength=strength, length=length, model=solver,
                   spots=None if spots is None else read_spots(spots, mesh.dim), criterion="D" if criterion == "D" else "A")
    paths = recovered.write_placement(found, where, mesh, out)
    write_json(json_path, {"sensors": [s.name for s in found.sensors], "uncertainty": found.uncertainty.tolist()})
    for note in run.notes:
        say(note)
    for k, (sensor, left) in enumerate(zip(found.sensors, found.uncertainty[1:]), start=1):
        say(f"{k:3d}  {sensor.name}: leaves {left:.1%} of the standard deviation before any reading")
    for path in paths:
        say_path(path)
    asked = [word for name in unknown for word in ("--unknown", name)]
    advise("recover", folder, "readings.csv", "--sensors", paths[0], *asked, *(() if spots is None else ("--spots", spots)),
           "--out", "answers")

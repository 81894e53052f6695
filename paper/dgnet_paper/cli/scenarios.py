"""Commands about the scenarios and their data: list, generate, certify, cards, demo."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from dgnet.cli.options import Seed, file_to_write, folder_to_write, given, refuse
from dgnet.cli.screen import narrating, reporting, say, say_path, table
from dgnet.cli.shell import Device, Json, checked_device, write_json
from dgnet.errors import InputError
from dgnet_paper.cli.frame import Size, Truth, advise, command, named


@command("dgnet-paper scenarios", "dgnet-paper scenarios --json scenarios.json")
def scenarios(json_path: Json = None) -> None:
    """List the scenarios of the paper."""
    from dgnet_paper.scenarios import get, names

    lines, rows = [], []
    for name in names():
        row: dict[str, Any] = {"name": name, "sizes": {}}
        for size in ("small", "paper"):
            s = get(name, size)
            row["title"] = s.title
            row["fields"] = list(s.pde.fields)
            row["paper"] = {model: {"mse": f.mse, "rne": f.rne} for model, f in s.paper.items()}
            row["sizes"][size] = {"nodes": s.mesh.n_nodes, "dt": s.dt, "steps": s.steps, "train": s.train, "test": s.test}
        figure = row["paper"].get("DGNet")
        lines.append((name, s.title, f"{s.mesh.n_nodes:,}", str(s.steps), f"{s.dt:g}", f"{s.train}/{s.test}",
                      "" if figure is None else f"{figure['rne']:g}"))
        rows.append(row)
    write_json(json_path, rows)
    table(("name", "title", "nodes", "steps", "Δt", "train/test", "DGNet RNE (paper)"), lines)
    advise("train", "laser-heat", "--out", "run")


@command("dgnet-paper generate laser-heat --out data",
         "dgnet-paper generate laser-heat-3d --size paper --truth converged --out data --device cuda")
def generate(name: Annotated[str, typer.Argument(help="Any of `dgnet-paper scenarios`.")],
             out: Annotated[Path, typer.Option(help="Folder for the data set.", callback=folder_to_write(shared=True))],
             size: Size = "small", truth: Truth = "converged",
             trajectories: Annotated[int | None, typer.Option(help="Largest number of trajectories in each split.", min=1)] = None,
             seed: Seed = 0, device: Device = "cpu",
             scale: Annotated[tuple[float, float, float], typer.Option(
                 help="Factors on size, power and number of the sources.")] = (1.0, 1.0, 1.0),
             overwrite: bool = False, json_path: Json = None) -> None:
    """Write the data set of a scenario: OUT/NAME-SIZE-TRUTH.h5. If interrupted, rerun to resume."""
    from dgnet_paper.scenarios import get
    from dgnet_paper.scenarios.generate import generate as run

    chosen = get(name, size)
    if scale != (1.0, 1.0, 1.0):
        chosen = chosen.scaled(*scale)
    start = time.perf_counter()
    with reporting() as report:
        path = run(chosen, out, truth=truth, trajectories=trajectories, seed=seed, device=checked_device(device),
                   overwrite=overwrite, report=report)
    seconds, megabytes = time.perf_counter() - start, path.stat().st_size / 1e6
    write_json(json_path, {"path": str(path), "seconds": seconds, "megabytes": megabytes})
    say(f"{path} ({megabytes:.1f} MB, {seconds:.1f} s)")
    advise("show", path, "--out", out / "pictures")


@command("dgnet-paper certify laser-heat --trajectories 1 --steps 20")
def certify(context: typer.Context, name: Annotated[str, typer.Argument(help="Any of `dgnet-paper scenarios`.")],
            size: Size = "small", truth: Truth = "converged",
            trajectories: Annotated[int, typer.Option(help="Number of training trajectories to solve twice.", min=1)] = 2,
            seed: Seed = 0, device: Device = "cpu",
            steps: Annotated[int | None, typer.Option(help="Only the first steps of each trajectory.", min=1)] = None,
            flows: Annotated[Path | None, typer.Option(help="Folder that keeps computed flows (channel scenarios).")] = None,
            record: Annotated[Path | None, typer.Option(help="Also add the certificate to this JSON file.",
                                                     callback=file_to_write(".json"))] = None,
            json_path: Json = None) -> None:
    """Estimate the error of a reference solution by halving spacing and step, beside the error of the classical solver."""
    from dgnet_paper.scenarios import get
    from dgnet_paper.study.certify import certify as run
    from dgnet_paper.study.certify import update_record

    scenario = get(name, size)
    scenario.truth(truth)
    if scenario.flow is None:
        refuse(context, {"flows": f"'{name}' has no flow"})
    if (steps or 1) > scenario.steps:
        raise InputError(f"--steps {steps}: '{name}' has {scenario.steps} steps")
    if trajectories > scenario.train:
        raise InputError(f"--trajectories {trajectories}: '{name}' has {scenario.train} training trajectories")
    with reporting() as report:
        result = run(scenario, truth=truth, trajectories=trajectories, seed=seed, device=checked_device(device),
                     flows=flows, steps=steps, report=report)
    r, s = result.settings.refine, result.settings.substeps
    write_json(json_path, result.as_dict())
    say(f"{name} ({size}, {truth}): reference of degree {result.settings.degree}, mesh refined {r} times, {s} substeps in a step; "
        f"{result.trajectories} trajectories of {result.steps} steps")
    say(f"  change with one more refinement and half the substep: {result.distance:.3e} (last time {result.distance_final:.3e})")
    for kind, error in result.classical.items():
        say(f"  error of the classical solver, {kind} mass: {error:.3e} ({error / result.distance:.0f} times the change)")
    if record is not None:
        update_record(record, result)
    advise(*(("cards", "--certificates", record) if record is not None else ("generate", name, "--out", "data")))


@command("dgnet-paper cards --only laser-heat --out cards")
def cards(context: typer.Context,
          out: Annotated[Path, typer.Option(help="Folder of the cards.", callback=folder_to_write())] = Path("docs/scenarios"),
          certificates: Annotated[Path, typer.Option(help="JSON written by certify --record.")] = Path(
              "docs/results/certificates.json"),
          data: Annotated[Path | None, typer.Option(help="Folder of paper-size data sets for the snapshots.")] = None,
          only: Annotated[str | None, typer.Option(help="Only this scenario.", callback=named)] = None) -> None:
    """Write the page of each scenario (its card) with its pictures."""
    from dgnet_paper.scenarios import get, names
    from dgnet_paper.study.cards import write_cards

    if only is not None:
        get(only)
    for path, wanted in ((certificates, given(context, "certificates")), (data, data is not None)):
        if wanted and path is not None and not path.exists():
            raise InputError(f"there is no {path}")
    with reporting() as report:
        for path in write_cards(out, certificates, data, [only] if only else names(), report):
            say_path(path)
    advise("scenarios")


@command("dgnet-paper demo --out demo")
def demo(out: Annotated[Path, typer.Option(help="Folder for the pictures and demo.json.",
                                         callback=folder_to_write())] = Path("out"),
         seed: Seed = 0, device: Device = "cpu", json_path: Json = None) -> None:
    """Lasers on a steel plate: the classical solver first, then DGNet from data to test in about three minutes."""
    from dgnet_paper.demo import acts

    checked_device(device)
    begin = time.perf_counter()
    with narrating(acts.BUDGET) as (report, tell):
        record, written = acts.demo(out, seed=seed, device=device, report=report, tell=tell)
    write_json(json_path, record)
    say(acts.headline(record["show"]))
    rows, sentences = acts.table(record)
    table(("model", "RNE", "of the better classical"), rows)
    for sentence in sentences:
        say(sentence)
    say(f"{acts.times(record)}; {time.perf_counter() - begin:.0f} s in all.\n")
    for path in written:
        say_path(path)
    advise("new", "my-problem", program="dgnet")

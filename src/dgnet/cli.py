"""The command line. Each command is a thin shell around one function of the library."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from dgnet import __version__
from dgnet.errors import InputError, SolveError

app = typer.Typer(name="dgnet", help="Discrete Green networks on unstructured meshes.", no_args_is_help=True,
                  pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]})
bench = typer.Typer(help="Measurements, one command each, with JSON out.", no_args_is_help=True)
app.add_typer(bench, name="bench")
console = Console()
errors = Console(stderr=True)


def write_text(path: Path, text: str) -> None:
    """The file appears under its name only when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    os.replace(part, path)


def write_json(path: Path | None, result: Any) -> None:
    """Write results for machines."""
    if path is not None:
        write_text(path, json.dumps(result, indent=1))


@app.command()
def version() -> None:
    """Print the version."""
    console.print(__version__)


# ---------------------------------------------------------------------- data sets


@contextmanager
def reporting() -> Iterator[Callable[[str, int, int], None]]:
    """A progress bar per task name: report(what, done, total)."""
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f}%"), TimeElapsedColumn(),
               TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield report


@contextmanager
def narrating(budget: float) -> Iterator[tuple[Callable[[str, int, int], None], Callable[[Any, int], None]]]:
    """Progress bars as in `reporting`, and one for training: loss, validation error, the classical one beside it, time left."""
    from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(24), TextColumn("{task.percentage:3.0f}%"), TimeRemainingColumn(),
               TextColumn("{task.fields[note]}"))
    with Progress(*columns, console=errors, transient=True) as bars:
        tasks: dict[str, TaskID] = {}

        def update(what: str, done: float, total: float, note: str = "") -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total, note=note)
            bars.update(tasks[what], completed=done, total=total, note=note)

        def tell(progress: Any, total: int) -> None:
            last = progress.history[-1] if progress.history else {"loss": float("nan"), "validation": float("nan")}
            share = min(1.0, max(progress.iteration / total, progress.seconds / budget))
            update("training", share, 1.0, f"loss {last['loss']:.1e}  validation {last['validation']:.2e}  "
                                           f"(classical {progress.classical:.2e})")

        yield update, tell


Size = Annotated[str, typer.Option(help="small or paper")]
Truth = Annotated[str, typer.Option(help="same-mesh or converged")]
Device = Annotated[str, typer.Option(help="cpu or cuda")]
Json = Annotated[Path | None, typer.Option("--json", help="Write the result for machines to this file.")]


def checked_device(name: str) -> str:
    import torch

    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise InputError(f"unknown device '{name}' (known: cpu, cuda)")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError("this machine has no usable CUDA device")
    return name


@app.command()
def scenarios(json_path: Json = None) -> None:
    """List the scenarios of the paper."""
    from rich.table import Column, Table

    from dgnet.scenarios import get, names

    table = Table(Column("name", no_wrap=True), "title", "nodes", "steps", "step", "train/test", "DGNet RNE (paper)", box=None)
    rows = []
    for name in names():
        row: dict[str, Any] = {"name": name, "sizes": {}}
        for size in ("small", "paper"):
            s = get(name, size)
            row["title"] = s.title
            row["fields"] = list(s.pde.fields)
            row["paper"] = {model: {"mse": f.mse, "rne": f.rne} for model, f in s.paper.items()}
            row["sizes"][size] = {"nodes": s.mesh.n_nodes, "dt": s.dt, "steps": s.steps, "train": s.train, "test": s.test}
        figure = row["paper"].get("DGNet")
        table.add_row(name, s.title, f"{s.mesh.n_nodes:,}", str(s.steps), f"{s.dt:g}", f"{s.train}/{s.test}",
                      "" if figure is None else f"{figure['rne']:g}")
        rows.append(row)
    console.print(table)
    write_json(json_path, rows)


@app.command()
def generate(name: str, out: Annotated[Path, typer.Option(help="Folder for the data set.")], size: Size = "small",
             truth: Truth = "converged",
             trajectories: Annotated[int | None, typer.Option(help="At most so many of each split.")] = None,
             seed: int = 0, device: Device = "cpu",
             scale: Annotated[tuple[float, float, float], typer.Option(
                 help="Factors on size, power and number of the sources.")] = (1.0, 1.0, 1.0),
             overwrite: bool = False, json_path: Json = None) -> None:
    """Write the data set of a scenario: OUT/NAME-SIZE-TRUTH.h5. Interrupted, the same command goes on."""
    from dgnet.scenarios import get
    from dgnet.scenarios.generate import generate as run

    chosen = get(name, size)
    if scale != (1.0, 1.0, 1.0):
        chosen = chosen.scaled(*scale)
    start = time.perf_counter()
    with reporting() as report:
        path = run(chosen, out, truth=truth, trajectories=trajectories, seed=seed, device=checked_device(device),
                   overwrite=overwrite, report=report)
    seconds, megabytes = time.perf_counter() - start, path.stat().st_size / 1e6
    console.print(f"{path} ({megabytes:.1f} MB, {seconds:.1f} s)", highlight=False, soft_wrap=True)
    write_json(json_path, {"path": str(path), "seconds": seconds, "megabytes": megabytes})


@app.command()
def show(file: Path, out: Annotated[Path, typer.Option(help="Folder for the pictures.")], trajectory: int = 0,
         snapshots: int = 5, frames: int = 40, gif: bool = True) -> None:
    """Draw snapshots (PNG) and an animation (GIF) of one trajectory of a data set."""
    from dgnet.evaluation.show import show as draw

    with reporting() as report:
        written = draw(file, out, trajectory=trajectory, snapshots=snapshots, frames=frames, gif=gif, progress=report)
    for path in written:
        console.print(str(path), highlight=False, soft_wrap=True)


@app.command()
def certify(name: str, size: Size = "small", truth: Truth = "converged", trajectories: int = 2, seed: int = 0,
            device: Device = "cpu",
            steps: Annotated[int | None, typer.Option(help="Only the first steps of each trajectory.")] = None,
            flows: Annotated[Path | None, typer.Option(help="Folder that keeps the flows of channels.")] = None,
            record: Annotated[Path | None, typer.Option(help="JSON file of all certificates to update.")] = None,
            json_path: Json = None) -> None:
    """Distance of truth from truth on half the spacing and step, beside the error of the classical solver."""
    from dgnet.evaluation.certify import certify as run
    from dgnet.evaluation.certify import update_record
    from dgnet.scenarios import get

    with reporting() as report:
        result = run(get(name, size), truth=truth, trajectories=trajectories, seed=seed, device=checked_device(device),
                     flows=flows, steps=steps, report=report)
    r, s = result.settings.refine, result.settings.substeps
    console.print(f"{name} ({size}, {truth}): truth at (r, s) = ({r}, {s}), degree {result.settings.degree}, "
                  f"{result.trajectories} trajectories of {result.steps} steps", highlight=False)
    console.print(f"  distance to ({r + 1}, {2 * s}): {result.distance:.3e} (last time {result.distance_final:.3e})",
                  highlight=False)
    for kind, error in result.classical.items():
        console.print(f"  classical, {kind} mass: {error:.3e} ({error / result.distance:.0f} times the distance)",
                      highlight=False)
    write_json(json_path, result.as_dict())
    if record is not None:
        update_record(record, result)


@app.command()
def cards(out: Annotated[Path, typer.Option(help="Folder of the cards.")] = Path("docs/scenarios"),
          certificates: Annotated[Path, typer.Option(help="JSON written by certify --record.")] = Path(
              "docs/results/certificates.json"),
          data: Annotated[Path | None, typer.Option(help="Folder of paper-size data sets for the snapshots.")] = None,
          only: Annotated[str | None, typer.Option(help="One scenario.")] = None) -> None:
    """Write the scenario cards with their pictures."""
    from dgnet.evaluation.cards import write_cards
    from dgnet.scenarios import names

    with reporting() as report:
        for path in write_cards(out, certificates, data, [only] if only else names(), report):
            console.print(str(path), highlight=False, soft_wrap=True)


@bench.command("generate")
def bench_generate(out: Annotated[Path, typer.Option(help="Folder for the data sets.")], size: Size = "small",
                   truth: Truth = "converged", device: Device = "cpu",
                   only: Annotated[list[str] | None, typer.Option(help="Only these scenarios.")] = None,
                   keep: Annotated[bool, typer.Option(help="Keep the data sets.")] = False, json_path: Json = None) -> None:
    """Time the generation of every data set, flow included."""
    import shutil
    from dataclasses import asdict

    from dgnet.evaluation.bench.timing import hardware
    from dgnet.scenarios import names
    from dgnet.scenarios.generate import timed

    results = []
    for name in only or names():
        folder = out / f"{name}-{size}-{truth}"
        shutil.rmtree(folder, ignore_errors=True)
        with reporting() as report:
            results.append(timed(name, size, truth, folder, checked_device(device), report))
        if not keep:
            shutil.rmtree(folder)
        console.print(f"{name:18s} {results[-1].seconds:8.1f} s {results[-1].megabytes:10.1f} MB", highlight=False)
        write_json(json_path, [asdict(r) | {"hardware": hardware(device)} for r in results])
    console.print(f"{'all':18s} {sum(r.seconds for r in results):8.1f} s", highlight=False)


@app.command()
def demo(out: Annotated[Path, typer.Option(help="Folder for the pictures and demo.json.")] = Path("out"), seed: int = 0,
         device: Device = "cpu", json_path: Json = None) -> None:
    """Lasers on a steel plate: the classical solver's show, then DGNet from data to test in about three minutes."""
    from rich.table import Table

    from dgnet.evaluation import demo as acts

    checked_device(device)
    begin = time.perf_counter()
    with narrating(acts.BUDGET) as (report, tell):
        record, written = acts.demo(out, seed=seed, device=device, report=report, tell=tell)
    first, seconds = record["show"], record["seconds"]
    console.print(f"Classical show: {first['nodes']:,} nodes, {first['steps']} steps of {first['dt']:g} s at "
                  f"{first['steps_per_second']:,.0f} steps/s ({first['backend']}), peak {first['peak']:.1f} {first['unit']} at "
                  f"t = {first['peak_time']:g} s\n", highlight=False, soft_wrap=True)
    rows, sentences = acts.table(record)
    table = Table("model", "RNE", "of the better classical", box=None)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for sentence in sentences:
        console.print(sentence, highlight=False, soft_wrap=True)
    again = f" ({' and '.join(record['reused'])} of an earlier demo used again)" if record["reused"] else ""
    console.print(f"Data {seconds['generate']:.0f} s, training {seconds['train']:.0f} s, test {seconds['evaluate']:.1f} s; one "
                  f"rollout of all test trajectories {1e3 * seconds['rollout_dgnet']:.0f} ms with DGNet, "
                  f"{1e3 * seconds['rollout_classical']:.0f} ms classical; {time.perf_counter() - begin:.0f} s in all{again}.\n",
                  highlight=False, soft_wrap=True)
    for path in written:
        console.print(str(path), highlight=False, soft_wrap=True)
    write_json(json_path, record)


# ---------------------------------------------------------------------- training and evaluation


@app.command()
def train(name: str, out: Annotated[Path, typer.Option(help="Folder of the run.")], size: Size = "small",
          truth: Truth = "converged",
          recipe: Annotated[str, typer.Option(help="staged (ours) or paper")] = "staged",
          data: Annotated[Path | None, typer.Option(help="Folder of data sets; missing ones are generated there.")] = None,
          budget: Annotated[float | None, typer.Option(help="Minutes of training.")] = None,
          trajectories: Annotated[int | None, typer.Option(help="Use only this many training trajectories.")] = None,
          unknown_reaction: Annotated[bool, typer.Option(help="Learn the reaction instead of being told.")] = False,
          seed: int = 0, device: Device = "cpu", json_path: Json = None) -> None:
    """Train DGNet on a scenario. Interrupted, the same command goes on."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from dgnet.scenarios import get
    from dgnet.scenarios.generate import generate as make
    from dgnet.training import run as runs
    from dgnet.training.fit import join_processes, wait_for_all

    if recipe not in ("staged", "paper"):
        raise InputError(f"unknown recipe '{recipe}' (known: staged, paper)")
    scenario = get(name, size)
    checked_device(device)
    if join_processes(device):  # under torchrun one process makes the data, the others wait for it
        with reporting() as report:
            path = make(scenario, data or out / "data", truth=truth, seed=0, device=device, report=report)
    wait_for_all()
    path = make(scenario, data or out / "data", truth=truth, seed=0, device=device)
    columns = (TextColumn("train"), BarColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as bars:
        task = bars.add_task("train", total=None, note="")

        def tell(progress: Any, total: int) -> None:
            last = progress.history[-1] if progress.history else {"loss": float("nan"), "validation": float("nan")}
            share = progress.iteration / total
            if budget:
                share = max(share, progress.seconds / (60 * budget))
            note = (f"iteration {progress.iteration}  loss {last['loss']:.2e}  validation {last['validation']:.2e}  "
                    f"best {progress.best:.2e}  classical {progress.classical:.2e}")
            bars.update(task, total=1.0, completed=min(1.0, share), note=note)

        _, progress = runs.train(scenario, truth, path, out, recipe=recipe, seed=seed, device=device,
                                 budget=None if budget is None else 60 * budget, trajectories=trajectories,
                                 unknown_reaction=unknown_reaction, report=tell)
    verdict = "below" if progress.best < progress.classical else "NOT below"
    console.print(f"{name} ({size}, {truth}): validation error {progress.best:.3e} after {progress.best_iteration} iterations, "
                  f"{verdict} the classical solver's {progress.classical:.3e}; {progress.seconds:.0f} s", highlight=False)
    write_json(json_path, {"validation": progress.best, "classical": progress.classical, "iterations": progress.iteration,
                           "best_iteration": progress.best_iteration, "seconds": progress.seconds, "history": progress.history})


@app.command()
def models(json_path: Json = None) -> None:
    """List the models with their numbers of parameters (two dimensions, one field)."""
    from rich.table import Table

    from dgnet.mesh import perturbed_square
    from dgnet.models.registry import MODELS, build, parameter_count
    from dgnet.problems import PDE, Discretisation

    problem = Discretisation(perturbed_square(12), PDE(diffusion=0.1), [], 0.01)
    rows = [{"name": name, "parameters": parameter_count(build(name, None, problem))} for name in MODELS]
    table = Table("model", "parameters", box=None)
    for row in rows:
        table.add_row(str(row["name"]), f"{row['parameters']:,}")
    console.print(table)
    write_json(json_path, rows)


@app.command()
def evaluate(run: Path, data: Annotated[Path | None, typer.Option(help="Data set; the run's own by default.")] = None,
             split: Annotated[str, typer.Option(help="test or train")] = "test", device: Device = "cpu",
             figures: Annotated[bool, typer.Option(help="Draw figures into RUN/figures.")] = True, json_path: Json = None) -> None:
    """Score a run on its test trajectories, beside the classical solvers on the same mesh."""
    from dgnet.evaluation import evaluate as scoring
    from dgnet.training.run import Run

    opened = Run.open(run, checked_device(device))
    result, states, truth = scoring.evaluate(opened, data or Path(opened.settings.data), device, split)
    write_json(json_path, result)
    write_json(run / f"{split}.json", result)
    console.print(scoring.table(result), highlight=False)
    if figures:
        folder = run / "figures" if split == "test" else run / f"figures-{split}"
        with reporting() as report:
            written = scoring.draw(opened, result, states, truth, folder, report)
        console.print()
        for path in written:
            console.print(str(path), highlight=False, soft_wrap=True)


@app.command()
def rollout(run: Path,
            source: Annotated[Path | None, typer.Option(help="CSV of moving spots: t, x, y[, z], radius, power[, spot].")] = None,
            trajectory: Annotated[int | None, typer.Option(help="Stored trajectory: its start, its flow and, without --source, its "
                                                           "source.")] = None,
            initial: Annotated[Path | None, typer.Option(help="Start as .npy, [nodes] or [nodes, fields].")] = None,
            data: Annotated[Path | None, typer.Option(help="Data set of --trajectory; the run's own by default.")] = None,
            steps: Annotated[int | None, typer.Option(help="Steps; those of the scenario or trajectory by default.")] = None,
            out: Annotated[Path | None, typer.Option(help="HDF5 file for the states; written as they are made.")] = None,
            vtk: Annotated[Path | None, typer.Option(help="FILE.pvd for ParaView, with a folder of .vtu beside it.")] = None,
            every: Annotated[int, typer.Option(help="A .vtu every so many steps.")] = 1,
            device: Device = "cpu", json_path: Json = None) -> None:
    """Roll out a trained run for a new source and start, streaming the states to disk."""
    from dgnet.evaluation import rollouts

    with reporting() as report:
        result = rollouts.roll_out(run, source=source, trajectory=trajectory, initial=initial, data=data, steps=steps, out=out,
                                   vtk=vtk, every=every, device=checked_device(device), report=report)
    console.print(rollouts.summary(result), highlight=False, soft_wrap=True)
    write_json(json_path, result)


@app.command()
def analyse(run: Path, data: Annotated[Path | None, typer.Option(help="Data set; the run's own by default.")] = None,
            out: Annotated[Path | None, typer.Option(help="Folder for the pictures; RUN/analysis by default.")] = None,
            device: Device = "cpu", json_path: Json = None) -> None:
    """Spectrum, stability, step norm, size and consistency of what was learned, with pictures."""
    from dgnet.data import Dataset
    from dgnet.evaluation.analyse import analyse as study_operator
    from dgnet.training.fit import Corpus
    from dgnet.training.run import Run, base_problem

    opened = Run.open(run, checked_device(device))
    with Dataset(data or opened.settings.data) as dataset:
        corpus = Corpus.read(dataset, dataset.of("train")[:1], device)
    problem = corpus.problem(base_problem(opened.scenario, device))
    result = study_operator(opened.model, problem, corpus.state, corpus.source, folder=out or run / "analysis")
    write_json(json_path or run / "analysis.json", result)
    console.print_json(json.dumps({k: v for k, v in result.items() if not isinstance(v, list)}))


@app.command()
def study(out: Annotated[Path, typer.Option(help="Folder of the study; finished cells are skipped.")], size: Size = "small",
          truth: Truth = "converged", only: Annotated[list[str] | None, typer.Option(help="Only these scenarios.")] = None,
          budget: Annotated[float | None, typer.Option(help="Minutes of training per scenario.")] = None,
          recipe: Annotated[str, typer.Option(help="staged or paper")] = "staged",
          trajectories: Annotated[int | None, typer.Option(help="Use only this many training trajectories.")] = None,
          unknown_reaction: Annotated[bool, typer.Option(help="Learn the reaction instead of being told.")] = False,
          seed: int = 0, device: Device = "cpu",
          report: Annotated[Path | None, typer.Option(help="Write the table of all finished cells here.")] = None) -> None:
    """Train and score DGNet on many scenarios; the table is written from the finished cells."""
    from dgnet.evaluation import study as studies
    from dgnet.scenarios import names

    checked_device(device)
    for name in only or names():
        studies.cell(name, size, truth, out, seed=seed, budget=None if budget is None else 60 * budget, device=device,
                     trajectories=trajectories, recipe=recipe, unknown_reaction=unknown_reaction,
                     say=lambda text: console.print(text, highlight=False, soft_wrap=True))
        if report is not None:
            write_text(report, studies.markdown(studies.cells(out)))


# ---------------------------------------------------------------------- solver benchmarks


@bench.command("solver")
def bench_solver(device: Device = "cpu",
                 sizes: Annotated[list[str] | None, typer.Option(help="Only these sizes, such as '2D 10k'.")] = None,
                 stiffness: Annotated[list[float] | None, typer.Option(help="Only these stiffness numbers dt D / 2h^2.")] = None,
                 json_path: Json = None) -> None:
    """Every backend and auto against sparse LU: SciPy's on the CPU, CuPy's on the GPU."""
    from dgnet.evaluation.bench import report, solver

    def line(row: dict[str, Any]) -> None:
        if "apply_s" in row:
            console.print(f"{row['size']:8s} stiffness {row['stiffness']:<6g} columns {row['columns']:<3d} {row['backend']:12s} "
                          f"{row['label']:16s} set-up {1e3 * row['setup_s']:10.3f} ms  apply {1e3 * row['apply_s']:9.4f} ms  "
                          f"residual {row['residual']:.1e}", highlight=False)

    checked_device(device)
    result = solver.run(device, sizes, tuple(stiffness or solver.STIFFNESS), report=line)
    if device == "cpu":
        result["changing"] = solver.changing(device)
    write_json(json_path, result)
    console.print(report.solver_markdown(result | {"rows": []}), highlight=False)


@bench.command("rollout")
def bench_rollout(device: Device = "cpu", mesh: str = "gear-plate", json_path: Json = None) -> None:
    """Classical trajectories per second, beside the same loop with a cached sparse LU."""
    from dgnet.evaluation.bench import report, rollout

    result = rollout.run(checked_device(device), mesh)
    write_json(json_path, result)
    console.print(report.rollout_markdown(result), highlight=False)


@bench.command("dfg")
def bench_dfg(case: Annotated[str | None, typer.Option(help="2D-1 or 2D-2 (both by default)")] = None,
              refine: Annotated[int, typer.Option(help="Refinements of the shipped mesh.")] = 0,
              dt: Annotated[float | None, typer.Option(help="Time step (0.85 of the step limit by default).")] = None,
              ladder: Annotated[bool, typer.Option("--ladder", help="Instead: 2D-2 on ever finer meshes (needs gmsh).")] = False,
              page: Annotated[Path | None, typer.Option("--report", help="Page to update, with its JSON beside it.")] = None,
              device: Device = "cpu", json_path: Json = None) -> None:
    """Flow around a cylinder, drag and lift beside the intervals of Schäfer and Turek."""
    from dgnet.evaluation.bench import flow

    checked_device(device)
    results: list[dict[str, Any]] = []
    with reporting() as progress:
        if ladder:
            results.append(flow.ladder(device=device, progress=progress, done=lambda row: errors.print(
                "\n".join(flow.lines(row)), highlight=False)))
        else:
            for name in [case] if case else ["2D-1", "2D-2"]:
                results.append(flow.run(name, refine=refine, dt=dt, device=device, progress=progress))
                console.print("\n".join(flow.lines(results[-1])), highlight=False, soft_wrap=True)
    write_json(json_path, results)
    if page is not None:
        record = flow.read(page.with_suffix(".json")) | {flow.key(r): r for r in results}
        write_json(page.with_suffix(".json"), record)
        write_text(page, flow.markdown(record))
        console.print(f"wrote {page}")


@bench.command("report")
def bench_report(results: Annotated[list[Path], typer.Argument(help="JSON files of bench solver and bench rollout.")],
                 out: Annotated[Path, typer.Option(help="Markdown file to write.")] = Path("docs/results/solver.md")) -> None:
    """Write the tables of docs/results/solver.md."""
    from dgnet.evaluation.bench import report

    write_text(out, report.markdown(results))
    console.print(f"wrote {out}")


def main() -> None:
    try:
        app(standalone_mode=True)
    except (InputError, SolveError) as error:
        errors.print(f"dgnet: {error}", style="red", highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()

"""`python -m benchmarks`: measurements, one command each."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from dgnet.cli import screen, shell
from dgnet.cli.options import PROCESSES, Seed, file_to_write, folder_to_write, named, positive, positives, refuse
from dgnet.cli.screen import errors, page, reporting, say
from dgnet.cli.shell import Device, Json, checked_device, write_json
from dgnet.errors import InputError
from dgnet.files import write_text
from dgnet_paper.cli.frame import Size, Truth

app = shell.group("benchmarks", "Measure speed and accuracy of solvers and models, one command each.", {})
bench = app
command = shell.command
advise = partial(screen.advise, program="python -m benchmarks")

Page = Annotated[Path | None, typer.Option("--report", help="Page to write.", callback=file_to_write(".md"))]


def _advise(name: str, written: Path | None, *of: object) -> None:
    """What to do with a measurement: make a page of it, or keep it the next time. `of`: what was measured."""
    if written is None:
        advise(name, *of, "--json", f"{name}.json")
    else:
        advise("report", written, "--out", written.with_suffix(".md"))


def _show(text: str, target: Path | None) -> None:
    """The page on the screen, and in a file where one is asked for."""
    page(text)
    if target is not None:
        write_text(target, text)
        say(f"wrote {target}")


@command("python -m benchmarks solver --sizes '2D 10k' --stiffness 0.02 --json solver.json", name="solver", of=bench)
def bench_solver(device: Device = "cpu",
                 sizes: Annotated[list[str] | None, typer.Option(help="Only these sizes, such as '2D 10k'.")] = None,
                 stiffness: Annotated[list[float] | None, typer.Option(help="Only these stiffness numbers dt D / 2h^2.",
                                                                        callback=positives)] = None,
                 json_path: Json = None) -> None:
    """Compare every solver backend, and the automatic choice, with sparse LU (SciPy on the CPU, CuPy on the GPU)."""
    from benchmarks import report, solver

    def line(row: dict[str, Any]) -> None:
        if "apply_s" in row:
            say(f"{row['size']:8s} stiffness {row['stiffness']:<6g} columns {row['columns']:<3d} {row['backend']:12s} "
                f"{row['label']:16s} set-up {1e3 * row['setup_s']:10.3f} ms  apply {1e3 * row['apply_s']:9.4f} ms  "
                f"residual {row['residual']:.1e}")

    checked_device(device)
    result = solver.run(device, sizes, tuple(stiffness or solver.STIFFNESS), report=line)
    if device == "cpu":
        result["changing"] = solver.changing(device)
    write_json(json_path, result)
    page(report.solver_markdown(result | {"rows": []}))
    _advise("solver", json_path)


@command("python -m benchmarks fit --largest 20000 --json fit.json", name="fit", of=bench)
def bench_fit(largest: Annotated[int, typer.Option(help="Nodes of the largest mesh.", min=500)] = 400_000,
              json_path: Json = None) -> None:
    """Fit the cost model by which the automatic choice works on the CPU; its constants go into stepping/auto.py."""
    from benchmarks import fit

    def line(row: dict[str, Any]) -> None:
        say(" ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items()))

    result = fit.run(largest, line)
    write_json(json_path, result)
    for name, value in result["constants"].items():
        say(f"{name} = {value}")
    advise("solver")


@command("python -m benchmarks rollout --json rollout.json", name="rollout", of=bench)
def bench_rollout(device: Device = "cpu", mesh: str = "gear-plate", json_path: Json = None) -> None:
    """Measure classical rollouts in steps per second, beside the same loop with a cached sparse LU."""
    from benchmarks import report, rollout

    result = rollout.run(checked_device(device), mesh)
    write_json(json_path, result)
    page(report.rollout_markdown(result))
    _advise("rollout", json_path)


@command("python -m benchmarks step --sizes 500 --json step.json", name="step", of=bench)
def bench_step(sizes: Annotated[list[str] | None, typer.Option(help="Only these numbers of nodes: 500, 10k or 100k.")] = None,
               repeats: Annotated[int, typer.Option(help="Runs of each measurement.", min=1)] = 5, json_path: Json = None) -> None:
    """Measure a step, a gradient of 100 steps and the set-up beside the same in plain SciPy, on one core."""
    from benchmarks import step

    for size in sizes or ():
        if size not in step.SIZES:
            raise InputError(f"--sizes {size} is unknown (known: {', '.join(step.SIZES)})")
    write_json(json_path, step.run(sizes, repeats, say))
    _advise("step", json_path)


@command("python -m benchmarks kernels --sensors 5 --steps 20", name="kernels", of=bench)
def bench_kernels(device: Device = "cpu", mesh: str = "gear-plate",
                  sensors: Annotated[int, typer.Option(help="Number of sensors.", min=1)] = 20,
                  steps: Annotated[int, typer.Option(help="Steps that the kernels reach back.", min=2)] = 120,
                  json_path: Json = None) -> None:
    """Measure sensor kernels: how long they take, and a reading from them beside a rollout."""
    from benchmarks import kernels

    result = kernels.run(checked_device(device), mesh, sensors, steps)
    write_json(json_path, result)
    page(kernels.markdown(result))
    _advise("kernels", json_path)


@command("python -m benchmarks export run --json export.json", name="export", of=bench)
def bench_export(run: Annotated[Path, typer.Argument(help="Folder of a run, or of a problem.")],
                 steps: Annotated[int, typer.Option(help="Steps of a rollout.", min=1)] = 100, json_path: Json = None) -> None:
    """Measure steps of an exported C file and ONNX program beside those of the library, on one core."""
    from benchmarks import exported
    from dgnet.training.run import open_simulator

    result = exported.run(open_simulator(run), steps)
    write_json(json_path, result)
    page(exported.markdown(result))
    _advise("export", json_path, run)


@command("python -m benchmarks elements --size small", name="elements", of=bench)
def bench_elements(scenario: Annotated[str, typer.Option(help="Any of `dgnet-paper scenarios` without a flow.")] = "laser-heat",
                   size: Size = "paper", trajectories: Annotated[int, typer.Option(help="Trajectories at once.", min=1)] = 1,
                   data: Annotated[Path | None, typer.Option(help="Data set whose test trajectories give the errors.")] = None,
                   steps: Annotated[int | None, typer.Option(help="Steps of a rollout.", min=10)] = None,
                   device: Device = "cpu", json_path: Json = None) -> None:
    """Measure linear beside quadratic elements: time of a step, ratios at equal mesh and equal nodes, and errors."""
    from benchmarks import elements

    result = elements.run(scenario, size, checked_device(device), trajectories, data, steps)
    write_json(json_path, result)
    page(elements.markdown(result))
    _advise("elements", json_path)


@command("python -m benchmarks model --scenario laser-heat --size small", "python -m benchmarks model --run run", name="model", of=bench)
def bench_model(context: typer.Context,
                scenario: Annotated[str, typer.Option(help="Any of `dgnet-paper scenarios`.")] = "laser-heat", size: Size = "paper",
                run: Annotated[Path | None, typer.Option(help="Use the weights of this training run (and its scenario).")] = None,
                steps: Annotated[int | None, typer.Option(help="Steps of a rollout.", min=1)] = None,
                amp: Annotated[bool, typer.Option("--amp", help="Networks in bfloat16.")] = False,
                seed: Seed = 0, device: Device = "cpu", json_path: Json = None) -> None:
    """Measure DGNet: rollouts of 1 and 16 trajectories beside the classical solvers, and one training iteration."""
    from dgnet_paper.study import throughput as model

    checked_device(device)
    if run is not None:
        refuse(context, {name: "the run sets it" for name in ("scenario", "size")})
    with reporting() as progress:
        result = model.run(scenario, size, device, run, seed, steps, amp=amp, report=progress)
    write_json(json_path, result)
    page(model.markdown(result))
    _advise("model", json_path)


@command("python -m benchmarks throughput --size small --models dgnet --models mgn", name="throughput", of=bench)
def bench_throughput(scenario: Annotated[str, typer.Option(help="Any of `dgnet-paper scenarios`.")] = "laser-heat", size: Size = "paper",
                     models: Annotated[list[str] | None, typer.Option(help="Only these of `dgnet models`.")] = None,
                     trajectories: Annotated[int, typer.Option(help="Trajectories at once.", min=1)] = 1,
                     setting: Annotated[str, typer.Option(help="Size of the baselines: comparable or published.")] = "comparable",
                     steps: Annotated[int | None, typer.Option(help="Steps of a rollout.", min=1)] = None,
                     seed: Seed = 0, device: Device = "cpu", json_path: Json = None) -> None:
    """Measure every model: preparation, time per step, memory."""
    from dgnet_paper.study import throughput as model

    checked_device(device)
    with reporting() as progress:
        result = model.throughput(models, scenario, size, device, steps, trajectories, setting, seed, report=progress)
    write_json(json_path, result)
    page(model.markdown(result))
    _advise("throughput", json_path)


@command("python -m benchmarks scaling --nodes 1000 --nodes 10000", name="scaling", of=bench)
def bench_scaling(nodes: Annotated[list[int] | None, typer.Option(help="Numbers of nodes, roughly.", min=9, max=10**8)] = None,
                  seed: Seed = 0, device: Device = "cpu", json_path: Json = None) -> None:
    """Measure time per step and memory against the number of nodes, for DGNet and the classical solvers."""
    from dgnet_paper.study import throughput as model

    checked_device(device)
    with reporting() as progress:
        result = model.scaling(device, nodes, seed=seed, report=progress)
    write_json(json_path, result)
    page(model.markdown(result))
    _advise("scaling", json_path)


@command("python -m benchmarks tradeoff run --trajectories 2", "python -m benchmarks tradeoff --pretrained laser-heat --trajectories 2 --device cuda",
         name="tradeoff", of=bench)
def bench_tradeoff(run: Annotated[Path | None, typer.Argument(help="A training run.")] = None,
                   data: Annotated[Path | None, typer.Option(help="Data set with test trajectories; the default is the run's own. "
                                                                  "With --pretrained: a folder of data sets, by default "
                                                                  "out/pretrained.")] = None,
                   pretrained: Annotated[str | None, typer.Option(help="Instead of RUN: the shipped weights of this scenario. Test "
                                                                  "data are generated.", callback=named)] = None,
                   trajectories: Annotated[int | None, typer.Option(help="Largest number of trajectories.", min=1)] = None,
                   budget: Annotated[float, typer.Option(help="Seconds for the classical settings.", callback=positive)] = 45.0,
                   device: Device = "cpu", json_path: Json = None) -> None:
    """Compare cost at equal error: the model, and the classical solver with other elements, meshes and steps.

    Set-up and sources are part of the cost.
    """
    from dgnet.training.run import Run
    from dgnet_paper.scenarios.scenario import scenario_of
    from dgnet_paper.study import tradeoff

    checked_device(device)
    if (run is None) == (pretrained is None):
        raise InputError("give the folder of a run (RUN), or --pretrained with the name of a scenario")
    with reporting() as progress:
        if pretrained is None:
            opened = Run.open(run or Path(), device)
            path = data or opened.data
        else:
            from dgnet_paper.study.compared import tests_of
            from dgnet_paper.study.pretrained import load

            opened = load(pretrained, device=device)
            count = min(trajectories or scenario_of(opened).test, scenario_of(opened).test)
            path = tests_of(scenario_of(opened), opened.settings.truth, count, data or Path("out/pretrained"), device, progress)
        result = tradeoff.tradeoff(opened, path, device, trajectories, budget, report=progress)
    write_json(json_path, result)
    page(tradeoff.markdown(result))
    _advise("tradeoff", json_path)


@command("python -m benchmarks dfg --case 2D-1", name="dfg", of=bench)
def bench_dfg(context: typer.Context, case: Annotated[str | None, typer.Option(help="2D-1 or 2D-2; the default is both.")] = None,
              refine: Annotated[int, typer.Option(help="Refinements of the shipped mesh.", min=0, max=5)] = 0,
              dt: Annotated[float | None, typer.Option(help="Time step; the default is 0.85 times the step limit.",
                                                        callback=positive)] = None,
              ladder: Annotated[bool, typer.Option("--ladder", help="Instead: 2D-2 on a sequence of finer meshes (needs "
                                                                    "gmsh).")] = False,
              target: Annotated[Path | None, typer.Option("--report", help="Page to update, with its JSON beside it.",
                                                          callback=file_to_write(".md"))] = None,
              device: Device = "cpu", json_path: Json = None) -> None:
    """Compute the DFG benchmark, flow around a cylinder: drag and lift beside the intervals of Schäfer and Turek."""
    from benchmarks import flow

    checked_device(device)
    if ladder:
        refuse(context, {name: "--ladder uses its own meshes and steps" for name in ("case", "refine", "dt")})
    results: list[dict[str, Any]] = []
    record = {} if target is None else flow.read(target.with_suffix(".json"))  # before the work: a wrong file costs nothing
    with reporting() as progress:
        if ladder:
            results.append(flow.ladder(device=device, progress=progress, done=lambda row: errors.print(
                "\n".join(flow.lines(row)), highlight=False)))
        else:
            for name in [case] if case else ["2D-1", "2D-2"]:
                results.append(flow.run(name, refine=refine, dt=dt, device=device, progress=progress))
                say("\n".join(flow.lines(results[-1])))
    write_json(json_path, results)
    if target is not None:
        record |= {flow.key(r): r for r in results}
        write_json(target.with_suffix(".json"), record)
        write_text(target, flow.markdown(record))
        say(f"wrote {target}")
    advise("published")


@command("python -m benchmarks published", name="published", of=bench)
def bench_published(full: Annotated[bool, typer.Option("--full", help="Also the benchmarks that take minutes.")] = False,
                    target: Page = None,
                    json_path: Json = None) -> None:
    """Compute benchmarks of others with the classical solver: published value, source, ours, ratio."""
    from benchmarks import published

    with reporting() as progress:
        result = published.run(full, progress)
    write_json(json_path, result)
    text = published.markdown(result)
    _show(text, target)
    advise("elements")


@command("python -m benchmarks auto --cases 12 --largest 20000", name="auto", of=bench)
def bench_auto(count: Annotated[int, typer.Option("--cases", help="How many of the 64 cases.", min=1)] = 64,
               largest: Annotated[int, typer.Option(help="Only cases with so many nodes at most.", min=500)] = 500_000,
               target: Page = None,
               json_path: Json = None) -> None:
    """Check whether `auto` takes the fastest backend, on random problems that it was not fitted to."""
    from benchmarks import auto
    from dgnet.models.timeloop import few_threads

    with reporting() as progress, few_threads(0):
        result = auto.run(count, largest, progress)
    write_json(json_path, result)
    text = auto.markdown(result)
    _show(text, target)
    advise("solver")


@command("python -m benchmarks peers --quick", "python -m benchmarks peers --sizes '3D 50k' --json peers.json", name="peers", of=bench)
def bench_peers(quick: Annotated[bool, typer.Option("--quick", help="Two meshes of a thousand nodes, 10 steps: a trial.")] = False,
                sizes: Annotated[list[str] | None, typer.Option(help="Only these sizes, such as '2D 10k'.")] = None,
                stiffness: Annotated[list[float] | None, typer.Option(help="Only these numbers dt D / h^2, such as 0.5.",
                                                                       callback=positives)] = None,
                steps: Annotated[int, typer.Option(help="Steps to run.", min=2)] = 100,
                repeats: Annotated[int, typer.Option(help="Runs of each program.", min=1)] = 5,
                python: Annotated[Path, typer.Option(help="Interpreter with PETSc and FEniCSx.")] = Path("/usr/bin/python3"),
                target: Page = None,
                json_path: Json = None) -> None:
    """Time heat steps by dgnet beside scikit-fem, SciPy, PETSc, FEniCSx, TensorMesh and torch-fem, where they are installed."""
    from benchmarks import peers, peers_page

    with reporting() as progress:
        result = peers.run(quick, sizes, stiffness or peers.STIFFNESS, steps, repeats, str(python), progress)
    write_json(json_path, result)
    text = peers_page.markdown(result)
    _show(text, target)
    advise("solver")


@command("python -m benchmarks report solver.json rollout.json --out solver.md", name="report", of=bench)
def bench_report(results: Annotated[list[Path], typer.Argument(help="JSON files written by other `python -m benchmarks` commands.")],
                 out: Annotated[Path, typer.Option(help="Markdown file to write.",
                                                  callback=file_to_write(".md"))] = Path("docs/results/solver.md")) -> None:
    """Write results of other `python -m benchmarks` commands as Markdown tables."""
    from benchmarks import report

    write_text(out, report.markdown(results))
    say(f"wrote {out}")
    advise("--help")


@command("python -m benchmarks tune --part plate --budget 0.5", name="tune", of=bench)
def bench_tune(out: Annotated[Path, typer.Option(help="Folder for data and runs.", callback=folder_to_write())] = Path("out/tune"),
               part: Annotated[list[str] | None, typer.Option(help="plate, disc or tee; several times for several. All unless "
                                                                   "given.")] = None,
               budget: Annotated[float, typer.Option(help="Minutes of each of seven trainings.", callback=positive)] = 0.5,
               json_path: Json = None) -> None:
    """Tune universal weights to 1, 3 and 10 simulations of three parts, beside DGNet with the same data."""
    from benchmarks import tune

    for name in part or ():
        if name not in tune.PARTS:
            raise InputError(f"--part {name} is unknown (known: {', '.join(tune.PARTS)})")
    with reporting() as report:
        result = tune.run(out, budget, part or tuple(tune.PARTS), report=report)
    write_json(json_path, result)
    page(tune.markdown(result))
    advise("train", "my-problem", "--out", "run")


@command("python -m benchmarks equal --parts 3", name="equal", of=bench)
def bench_equal(parts: Annotated[int, typer.Option(help="Number of test parts.", min=1)] = 10,
                dim: Annotated[int, typer.Option(help="2 or 3.", min=2, max=3)] = 2,
                budget: Annotated[float, typer.Option(help="Seconds of search on each part.", callback=positive)] = 30.0,
                json_path: Json = None) -> None:
    """Measure what the error of universal weights costs classically, on parts that no training has seen."""
    from benchmarks import equal

    with reporting() as report:
        result = equal.run(parts, dim, budget, report)
    write_json(json_path, result)
    page(equal.markdown(result))
    advise("any-mesh")


@command("python -m benchmarks any-mesh --parts 4", name="any-mesh", of=bench)
def bench_any_mesh(dim: Annotated[int, typer.Option(help="2 or 3.", min=2, max=3)] = 2,
                   parts: Annotated[int | None, typer.Option(help="Only the first of the test parts.", min=1)] = None,
                   flow: Annotated[bool, typer.Option(help="With a steady flow on each part (2D).")] = False,
                   workers: Annotated[int, typer.Option(help="Problems side by side.", min=1, max=PROCESSES)] = 1,
                   picture: Annotated[Path | None, typer.Option(help="FILE.png: where the errors are on one part.",
                                                               callback=file_to_write(".png"))] = None,
                   device: Device = "cpu", json_path: Json = None) -> None:
    """Measure universal weights on parts that no training has seen, beside linear and quadratic elements."""
    from benchmarks import any_mesh

    checked_device(device)
    if flow and dim == 3:
        raise InputError("universal weights with a flow are for flat parts: leave out --flow or use --dim 2")
    with reporting() as report:
        result = any_mesh.run(dim, parts, device, report, flow, workers)
        if picture is not None:
            any_mesh.picture(picture, dim)
    write_json(json_path, result)
    page(any_mesh.markdown(result))
    advise("simulate", "--help")


@command("python -m benchmarks generate --out data --only laser-heat --json generate.json", name="generate", of=bench)
def bench_generate(out: Annotated[Path, typer.Option(help="Folder for the data sets.", callback=folder_to_write())],
                   size: Size = "small", truth: Truth = "converged", device: Device = "cpu",
                   only: Annotated[list[str] | None, typer.Option(help="Only these scenarios.")] = None,
                   keep: Annotated[bool, typer.Option(help="Keep the data sets.")] = False, json_path: Json = None) -> None:
    """Time the generation of every data set, flow included."""
    import shutil
    from dataclasses import asdict

    from dgnet_paper.scenarios import get, names
    from dgnet_paper.scenarios.generate import timed
    from dgnet_paper.study.timing import hardware

    results = []
    for name in only or names():
        get(name, size).truth(truth)
    for name in only or names():
        folder = out / f"{name}-{size}-{truth}"
        shutil.rmtree(folder, ignore_errors=True)
        with reporting() as report:
            results.append(timed(name, size, truth, folder, checked_device(device), report))
        if not keep:
            shutil.rmtree(folder)
        say(f"{name:18s} {results[-1].seconds:8.1f} s {results[-1].megabytes:10.1f} MB")
        write_json(json_path, [asdict(r) | {"hardware": hardware(device)} for r in results])
    say(f"{'all':18s} {sum(r.seconds for r in results):8.1f} s")
    advise("solver", "--json", "solver.json")

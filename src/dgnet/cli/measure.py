"""Measurements, one command each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dgnet.cli.options import Seed, file_to_write, positive, positives, refuse
from dgnet.cli.shell import Device, Json, Size, bench, checked_device, console, errors, reporting, write_json
from dgnet.files import write_text


@bench.command("solver")
def bench_solver(device: Device = "cpu",
                 sizes: Annotated[list[str] | None, typer.Option(help="Only these sizes, such as '2D 10k'.")] = None,
                 stiffness: Annotated[list[float] | None, typer.Option(help="Only these stiffness numbers dt D / 2h^2.",
                                                                        callback=positives)] = None,
                 json_path: Json = None) -> None:
    """Every backend and auto against sparse LU: SciPy's on the CPU, CuPy's on the GPU."""
    from dgnet.bench import report, solver

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
    from dgnet.bench import report, rollout

    result = rollout.run(checked_device(device), mesh)
    write_json(json_path, result)
    console.print(report.rollout_markdown(result), highlight=False)


@bench.command("model")
def bench_model(context: typer.Context,
                scenario: Annotated[str, typer.Option(help="Any of `dgnet scenarios`.")] = "laser-heat", size: Size = "paper",
                run: Annotated[Path | None, typer.Option(help="Use the weights of this training run (and its scenario).")] = None,
                steps: Annotated[int | None, typer.Option(help="Steps of a rollout.", min=1)] = None,
                amp: Annotated[bool, typer.Option("--amp", help="Networks in bfloat16.")] = False,
                seed: Seed = 0, device: Device = "cpu", json_path: Json = None) -> None:
    """DGNet with its networks: rollouts of 1 and 16 trajectories beside the classical solvers, and a training iteration."""
    from dgnet.bench import model

    checked_device(device)
    if run is not None:
        refuse(context, {name: "the run says what it is about" for name in ("scenario", "size")})
    with reporting() as progress:
        result = model.run(scenario, size, device, run, seed, steps, amp=amp, report=progress)
    write_json(json_path, result)
    console.print(model.markdown(result), highlight=False, soft_wrap=True)


@bench.command("throughput")
def bench_throughput(scenario: Annotated[str, typer.Option(help="Any of `dgnet scenarios`.")] = "laser-heat", size: Size = "paper",
                     models: Annotated[list[str] | None, typer.Option(help="Only these of `dgnet models`.")] = None,
                     trajectories: Annotated[int, typer.Option(help="Trajectories at once.", min=1)] = 1,
                     setting: Annotated[str, typer.Option(help="Size of the baselines: comparable or published.")] = "comparable",
                     steps: Annotated[int | None, typer.Option(help="Steps of a rollout.", min=1)] = None,
                     seed: Seed = 0, device: Device = "cpu", json_path: Json = None) -> None:
    """Every model in one run: preparation, time per step, memory."""
    from dgnet.bench import model

    checked_device(device)
    with reporting() as progress:
        result = model.throughput(models, scenario, size, device, steps, trajectories, setting, seed, report=progress)
    write_json(json_path, result)
    console.print(model.markdown(result), highlight=False, soft_wrap=True)


@bench.command("scaling")
def bench_scaling(nodes: Annotated[list[int] | None, typer.Option(help="Numbers of nodes, roughly.", min=9, max=10**8)] = None,
                  seed: Seed = 0, device: Device = "cpu", json_path: Json = None) -> None:
    """Time per step and memory against nodes, DGNet and the classical solvers."""
    from dgnet.bench import model

    checked_device(device)
    with reporting() as progress:
        result = model.scaling(device, nodes, seed=seed, report=progress)
    write_json(json_path, result)
    console.print(model.markdown(result), highlight=False, soft_wrap=True)


@bench.command("tradeoff")
def bench_tradeoff(run: Annotated[Path, typer.Argument(help="A training run.")],
                   data: Annotated[Path | None, typer.Option(help="Data set with test trajectories (that of the run).")] = None,
                   trajectories: Annotated[int | None, typer.Option(help="At most this many.", min=1)] = None,
                   budget: Annotated[float, typer.Option(help="Seconds for the ladders.", callback=positive)] = 45.0,
                   device: Device = "cpu", json_path: Json = None) -> None:
    """What an error costs: the model beside the reference and the classical solver on ladders of meshes and steps."""
    from dgnet.bench import tradeoff
    from dgnet.training.run import Run

    checked_device(device)
    opened = Run.open(run, device)
    with reporting() as progress:
        result = tradeoff.tradeoff(opened, data or opened.data, device, trajectories, budget, report=progress)
    write_json(json_path, result)
    console.print(tradeoff.markdown(result), highlight=False, soft_wrap=True)


@bench.command("dfg")
def bench_dfg(context: typer.Context, case: Annotated[str | None, typer.Option(help="2D-1 or 2D-2 (both by default)")] = None,
              refine: Annotated[int, typer.Option(help="Refinements of the shipped mesh.", min=0, max=5)] = 0,
              dt: Annotated[float | None, typer.Option(help="Time step (0.85 of the step limit by default).",
                                                        callback=positive)] = None,
              ladder: Annotated[bool, typer.Option("--ladder", help="Instead: 2D-2 on ever finer meshes (needs gmsh).")] = False,
              page: Annotated[Path | None, typer.Option("--report", help="Page to update, with its JSON beside it.",
                                                          callback=file_to_write)] = None,
              device: Device = "cpu", json_path: Json = None) -> None:
    """Flow around a cylinder, drag and lift beside the intervals of Schäfer and Turek."""
    from dgnet.bench import flow

    checked_device(device)
    if ladder:
        refuse(context, {name: "--ladder has meshes and steps of its own" for name in ("case", "refine", "dt")})
    results: list[dict[str, Any]] = []
    record = {} if page is None else flow.read(page.with_suffix(".json"))  # before the work, so that a wrong file costs nothing
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
        record |= {flow.key(r): r for r in results}
        write_json(page.with_suffix(".json"), record)
        write_text(page, flow.markdown(record))
        console.print(f"wrote {page}")


@bench.command("report")
def bench_report(results: Annotated[list[Path], typer.Argument(help="JSON files of bench solver and bench rollout.")],
                 out: Annotated[Path, typer.Option(help="Markdown file to write.")] = Path("docs/results/solver.md")) -> None:
    """Write the tables of docs/results/solver.md."""
    from dgnet.bench import report

    write_text(out, report.markdown(results))
    console.print(f"wrote {out}")

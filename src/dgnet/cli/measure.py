"""Measurements, one command each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from dgnet.cli.shell import Device, Json, bench, checked_device, console, errors, reporting, write_json, write_text


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

"""The page of `python -m benchmarks peers`: tables of ratios, who is ahead where, and what was left out for which reason."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.peers import AUTO, COLUMNS, GRADIENTS, LIMIT, LONG, MOST, OWN, PATIENCE, SHORT, TOO_LONG
from dgnet.stepping.backends import TOLERANCE

Row = dict[str, Any]
Columns = dict[str, tuple[str, ...]]

PARTS = {"total_s": "all steps with set-up", "whole_s": "the same with the mesh made from points and cells",
         "setup_s": "set-up alone", "step_s": "one step"}
_OPENING = """# Heat steps beside other programs, on one thread

{steps} Crank–Nicolson steps of the heat equation with a source: linear elements, consistent mass, perturbed boxes, insulated. Every
program has the same mesh, the same matrices and one thread. Numbers are processor times as multiples of that of `dgnet auto` in the
same row: below 1 is faster than dgnet, bold is the fastest program. Medians of {repeats} runs that took turns. Where a column has
several programs, that with the best time for all steps.

- *Set-up* is the time of all steps minus their number times the mean of the steps after the first: assembly, the choice of a
  solver, factorisation or preconditioner, and what the first step does more than others. Imports and compiled forms are there
  before. PETSc is given scikit-fem's matrices; the time to assemble them is added.
- *The mesh* in the program's own form is made before the clock starts, and counted in the second table. dgnet checks it there
  (double nodes, flat or folded cells, loose parts) and FEniCSx renumbers it; the others take the arrays as they are.
- *Equal accuracy:* iterative solvers stop at the same relative residual ({tolerances}). Every last state is compared with that of
  a direct solve in double precision; ! marks one that is off by more than {double:g} (float32: {single:g}, gradients:
  {gradient:g}). torch-fem would integrate the mass at one point of each cell: it is given the consistent mass.
- ¹: one run, since the first took more than {patience:g} times as long and more than {long:g} s. ²: set-up plus {steps} times the
  mean step of one run of {short} steps, since all of them would have taken more than {most:g} s. \\> N: ended after {too_long:g} s
  of processor time within the first {short} steps. –: the reason is at the end of the page, or the program does not tell this part.
"""
_GRADIENT = """Of the squared state at the end, in the diffusivity (a number) and in the source at every node. float64; set-up and
both directions included; as multiples of dgnet's time. The adjoint by hand keeps all states, and one factorisation (SuperLU) or the
diagonal as a preconditioner (SciPy's CG): the quicker of the two. TensorMesh and torch-fem would make a factorisation or a
multigrid anew in every step and take longer with it.
"""
_MEMORY = """MB that a run takes at its peak beyond what its process has in use before (libraries, the case itself): the mesh in the
program's own form and all {steps} steps, float64. \\>: of fewer steps. PETSc does not count the assembly.
"""


def best(programs: dict[str, Row], names: Sequence[str]) -> Row:
    """The quickest of these programs that met the tolerance; else one that says why there is none."""
    some = [programs[name] | {"name": name} for name in names if name in programs]
    fair = [p for p in some if "total_s" in p and not p["missed"]] or [p for p in some if "total_s" in p]
    return min(fair, key=lambda p: p["total_s"]) if fair else (some or [{"failed": "double precision only"}])[0]


def ahead(rows: Iterable[Row], key: str, columns: Columns = COLUMNS) -> list[Row]:
    """For each case the time of the first column as a multiple of the best other one's, and that one's name."""
    found = []
    for row in rows:
        first, *others = [(name, best(row["programs"], some)) for name, some in columns.items() if name != OWN]
        times = {name: p[key] for name, p in others if p.get(key) and not p["missed"]}
        if times and first[1].get(key):
            name = min(times, key=lambda n: times[n])
            found.append({"case": _case(row), "dtype": row["dtype"], "best": name, "ratio": first[1][key] / times[name]})
    return found


def markdown(result: dict[str, Any]) -> str:
    """The page of a result: ratios, and MB."""
    rows, steps = result["rows"], result["steps"]
    tolerances = ", ".join(f"{value:g} in {str(dtype).removeprefix('torch.')}" for dtype, value in TOLERANCE.items())
    lines = [_OPENING.format(steps=steps, repeats=result["repeats"], tolerances=tolerances, double=LIMIT["float64"],
                             single=LIMIT["float32"], gradient=100 * LIMIT["float64"], patience=PATIENCE, long=LONG, short=SHORT,
                             most=MOST, too_long=TOO_LONG)]
    for dtype in dict.fromkeys(r["dtype"] for r in rows):
        some = [r for r in rows if r["dtype"] == dtype]
        columns = {name: names for name, names in COLUMNS.items()
                   if any("double precision" not in best(r["programs"], names).get("failed", "") for r in some)}
        for key, title in PARTS.items():
            lines += [f"## {dtype}, {title}", "", *_table(some, key, columns), ""]
    lines += _verdict(rows)
    used = "; ".join(f"{_case(r)}, {r['dtype']}: {best(r['programs'], COLUMNS[AUTO]).get('label', '–')}, best "
                     f"{best(r['programs'], COLUMNS[OWN]).get('label', '–')}" for r in rows)
    lines += [f"What `auto` took, and the best own backend: {used}.", "",
              f"## Gradient of {steps} steps", "", _GRADIENT, *_table(result["gradients"], "total_s", GRADIENTS), "",
              *_gradient_verdict(result["gradients"]), "## Memory", "", _MEMORY.format(steps=steps), *_memory(rows, COLUMNS), "",
              "The same for the gradient:", "", *_memory(result["gradients"], GRADIENTS), "",
              *_left_out(rows + result["gradients"]),
              f"dgnet {result['version']}, {result['hardware']}; {result['others']}. `python -m benchmarks peers` makes this page.", "",
              "The other programs come with `pip install scikit-fem torch-fem tensormesh-fem pyvista pyamg`, and on Debian with "
              "`apt install python3-petsc4py python3-dolfinx`.", ""]
    return "\n".join(lines)


def _case(row: Row) -> str:
    return f"{row['size']} ({row['stiffness']:g})"


def _table(rows: Sequence[Row], key: str, columns: Columns) -> list[str]:
    lines = ["| case (Δt·D/h²) | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for row in rows:
        found = {name: best(row["programs"], names) for name, names in columns.items()}
        ours = next(iter(found.values()))
        there = {name: p[key] for name, p in found.items() if p.get(key) and not p["missed"] and name != OWN}
        first = min(there, key=lambda name: there[name]) if there else ""
        lines.append(f"| {_case(row)} | " + " | ".join(_cell(p, ours, key, name == first) for name, p in found.items()) + " |")
    return lines


def _cell(program: Row, ours: Row, key: str, bold: bool) -> str:
    if "missing" in program:
        return "not installed"
    if "over_s" in program and key in ("total_s", "whole_s") and ours.get(key):
        return f"\\> {program['over_s'] / ours[key]:.0f}"
    if "failed" in program or key not in program or not ours.get(key):
        return "–"
    text = f"{program[key] / ours[key]:.2f}"
    return (f"**{text}**" if bold else text) + ("!" if program["missed"] else "") + _note(program)


def _note(program: Row) -> str:
    return "²" if program["extrapolated"] else "¹" if program["runs"] < 2 else ""


def _memory(rows: Sequence[Row], columns: Columns) -> list[str]:
    lines = ["| case (Δt·D/h²) | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for row in rows:
        if row["dtype"] == "float64":
            found = [best(row["programs"], names) for names in columns.values()]
            lines.append(f"| {_case(row)} | " + " | ".join(
                "\\> " * p["extrapolated"] + f"{p['memory_MB']:.0f}" if "memory_MB" in p else "–" for p in found) + " |")
    return lines


def _verdict(rows: Sequence[Row]) -> list[str]:
    """Where `auto` stands beside other programs, with whole runs and with parts of them, and beside dgnet's own backends."""
    lines = ["## Who is ahead", ""]
    for dtype in dict.fromkeys(r["dtype"] for r in rows):
        some = [r for r in rows if r["dtype"] == dtype]
        for key, title in PARTS.items():
            found = ahead(some, key)
            behind = [f"{r['case']} {r['best']} {r['ratio']:.2f}" for r in found if r["ratio"] > 1]
            more = f" Faster there (dgnet's time as a multiple of theirs): {'; '.join(behind)}." if behind else ""
            first = len(found) - len(behind)
            lines.append(f"- {dtype}, {title}: `dgnet auto` is the fastest in {first} of {len(found)} cases.{more}")
        own = [best(r["programs"], COLUMNS[AUTO])["total_s"] / best(r["programs"], COLUMNS[OWN])["total_s"] for r in some
               if "total_s" in best(r["programs"], COLUMNS[AUTO])]
        if own:
            lines.append(f"- {dtype}: `auto` takes at most {max(own):.2f} times dgnet's own best backend. Where both are the same "
                         "backend, this is the difference of two timings of one computation.")
    return [*lines, ""]


def _gradient_verdict(rows: Sequence[Row]) -> list[str]:
    by_hand = ahead(rows, "total_s", {name: GRADIENTS[name] for name in list(GRADIENTS)[:2]})
    if not by_hand:
        return []
    ratios = ", ".join(f"{r['case']} {r['ratio']:.2f}" for r in by_hand)
    return [f"dgnet's gradient as a multiple of the adjoint by hand: {ratios}.", ""]


def _left_out(rows: Sequence[Row]) -> list[str]:
    """Reasons of the cells without a number; those of several cases are said once."""
    reasons: dict[str, list[str]] = {}
    for row in rows:
        for name, program in row["programs"].items():
            if "failed" in program and not name.startswith("dgnet "):
                where = f"{_case(row)}" + ("" if row["dtype"] == "float64" else f", {row['dtype']}")
                reasons.setdefault(f"{name}: {program['failed']}", []).append(where)
    if not reasons:
        return []
    return ["## Left out", "", *(f"- {reason} ({'; '.join(where)})" for reason, where in reasons.items()), ""]

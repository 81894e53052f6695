"""`python -m benchmarks choose`: how honest the estimates of `dgnet simulate --error` are, on parts that no training has seen.

Each part's problem is simulated with an asked error (root mean square over part and time, as a share of the field's range), and what
was chosen is compared with a truth of quadratic elements on the mesh refined twice, of fifth order in time. Printed for each asked
error: the share of parts whose error is said to be reached, and is; the share with an estimate between half and twice the true error;
counted seconds of the chosen solver, of all that was tried, and of the finest one, in the geometric mean.
"""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from dgnet import simulate
from dgnet.models import few_threads
from dgnet.prediction.choose import WITH_UNIVERSAL
from dgnet.problems.finer import refined
from dgnet.progress import Report
from dgnet_paper.reference.galerkin import march
from dgnet_paper.universal.problems import STEPS, PartProblem, Spots, unseen_parts, unseen_problem

ASKED = (0.01, 0.003, 0.001)


def truth_of(part: PartProblem) -> np.ndarray:
    """States of the first trajectory [T + 1, N]."""
    fine = refined(refined(part.problem())).quadratic
    return np.asarray(march(fine, part.start, part.source, STEPS, 2, panels=1))[0, :, :part.mesh.n_nodes]


def row(number: int, asked: float, truth: np.ndarray, flow: bool) -> dict[str, Any]:
    part = unseen_problem(2, number, flow)
    assert part.source is None or isinstance(part.source, Spots)
    source = part.source and replace(part.source, **{f.name: getattr(part.source, f.name)[:1] for f in fields(part.source)})
    found = simulate(part.problem(), error=f"{100 * asked:g}%", source=source, initial=lambda x: part.start(x)[:1], steps=STEPS)
    mesh, choice = part.mesh, found.choice
    assert choice is not None
    weights = np.bincount(mesh.cells.ravel(), np.repeat(mesh.volumes, mesh.dim + 1), mesh.n_nodes)
    gap = found.states[0, 1:, :, 0].numpy() - truth[1:]
    true = float(np.sqrt(np.square(gap).mean(0) @ weights / weights.sum()) / np.ptp(truth))
    return {"part": number, "fourier": part.fourier, "nodes": mesh.n_nodes, "asked": asked, "true": true,
            "relative": float(np.linalg.norm(gap) / np.linalg.norm(truth[1:])), "estimate": choice.estimate, "upper": choice.upper,
            "said": choice.reached, "chosen": str(choice.candidate), "work": choice.candidate.work(mesh, STEPS),
            "tried": sum(t.work for t in choice.trials), "finest": WITH_UNIVERSAL[-1].reference.work(mesh, STEPS)}


def run(parts: int = 64, truths: Path | None = None, flow: bool = False, report: Report | None = None) -> dict[str, Any]:
    """Estimates and true errors of chosen solvers; `truths`: a file .npz with the states of each part by its number, kept or made."""
    rows, kept = list[dict[str, Any]](), dict[str, np.ndarray]()
    if truths is not None and truths.exists():
        kept = {name: value.reshape(-1, STEPS + 1, value.shape[-1])[0] for name, value in np.load(truths).items()}
    count = min(parts, len(unseen_parts(2)))
    with few_threads(1):
        for number in range(count):
            if str(number) not in kept:
                kept[str(number)] = truth_of(unseen_problem(2, number, flow))
            rows += [row(number, asked, kept[str(number)], flow) for asked in ASKED]
            if report is not None:
                report("parts", number + 1, count)
    if truths is not None and not truths.exists():
        np.savez_compressed(truths, **kept)
    return {"parts": count, "flow": flow, "summary": [summary([r for r in rows if r["asked"] == asked]) for asked in ASKED] + [summary(rows)],
            "rows": rows}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    said = [r for r in rows if r["said"]]
    ratio = np.array([r["estimate"] / r["true"] for r in rows])

    def mean(name: str) -> float:
        return float(np.exp(np.mean([np.log(r[name]) for r in rows])))

    return {"asked": f"{100 * rows[0]['asked']:g}%" if len({r["asked"] for r in rows}) == 1 else "all", "said": len(said) / len(rows),
            "kept": float(np.mean([r["true"] <= r["asked"] for r in said])) if said else 1.0,
            "kept by all": float(np.mean([r["true"] <= r["asked"] for r in rows])), "within 2": float(((ratio > 0.5) & (ratio < 2)).mean()),
            "low": float(np.quantile(ratio, 0.05)), "high": float(np.quantile(ratio, 0.95)),
            "below upper": float(np.mean([r["true"] <= r["upper"] for r in rows])), "relative": mean("relative"),
            "chosen": mean("work"), "tried": mean("tried"), "finest": mean("finest")}


def table(result: dict[str, Any]) -> str:
    """The page of a result."""
    lines = [f"# A solver that chooses, on {result['parts']} unseen flat parts{' with a steady flow' * result['flow']}", "",
             "Errors are root mean squares over part and time as a share of the field's range; seconds are counted for one core "
             "(`dgnet.prediction.choose`), 24 steps with set-up, geometric means. Truth: quadratic elements on the mesh refined twice.", "",
             "| asked | said to be reached | and is | reached by all | estimate over true error between 0.5 and 2 | from (5%) to (95%) | "
             "true error below the upper estimate | relative RMS error | seconds of the chosen | of all tried | of the finest |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]
    for r in result["summary"]:
        shares = " | ".join(f"{100 * r[name]:.0f}%" for name in ("said", "kept", "kept by all", "within 2"))
        lines.append(f"| {r['asked']} | {shares} | {r['low']:.2f} to {r['high']:.2f} | {100 * r['below upper']:.0f}% | "
                     f"{r['relative']:.4f} | {r['chosen']:.4f} | {r['tried']:.3f} | {r['finest']:.3f} |")
    lines += ["", "How often each was chosen:", "", "| solver | " + " | ".join(f"{100 * a:g}%" for a in ASKED) + " |", "|---|---|---|---|"]
    for name in sorted({r["chosen"] for r in result["rows"]}):
        count = [sum(r["chosen"] == name and r["asked"] == a for r in result["rows"]) for a in ASKED]
        lines.append(f"| {name} | {count[0]} | {count[1]} | {count[2]} |")
    return "\n".join([*lines, ""])

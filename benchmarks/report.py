"""Tables for people from the JSON of `python -m benchmarks`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import elements, exported, kernels, step
from dgnet.errors import InputError
from dgnet.files import read_text
from dgnet_paper.scenarios import names
from dgnet_paper.study import throughput as model
from dgnet_paper.study import tradeoff

KNOWN = ("solver", "rollout", "step", "kernels", "generate", "model", "throughput", "scaling", "tradeoff", "elements", "export")


def load(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(read_text(path))
        if isinstance(data, list):  # bench generate writes a row per data set as it goes
            data = {"benchmark": "generate", "rows": data}
        assert data["benchmark"] in KNOWN
    except (OSError, ValueError, KeyError, AssertionError, TypeError) as error:
        raise InputError(f"{path} is no result of 'python -m benchmarks' (known: {', '.join(KNOWN)})") from error
    return data


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{1e3 * seconds:.3g}"


def solver_markdown(data: dict[str, Any]) -> str:
    lines = [f"## Solver on {data['hardware']}", "",
             f"One application of G to 1 or 32 right-hand sides, {data['dtype']}, in milliseconds; set-up in milliseconds; total: "
             f"{data['applications']} applications with set-up, in milliseconds. Stiffness is Δt·D/(2h²).", "",
             "| mesh | nodes | stiffness | columns | backend | set-up | apply | total | memory (MB) | residual |",
             "|---|---|---|---|---|---|---|---|---|---|"]
    for r in data["rows"]:
        head = f"| {r['size']} | {r['nodes']:,} | {r['stiffness']:g} | {r['columns']} "
        if r["backend"] == "auto":
            lines.append(head + f"| *auto → {r['choice']}* | | | | | |")
        elif "not_run" in r:
            lines.append(head + f"| {r['backend']} | not run: {r['not_run']} | | | | |")
        else:
            name = r["backend"] if r["label"] in r["backend"] else f"{r['backend']}: {r['label']}"
            memory = "–" if r.get("memory_bytes") is None else f"{r['memory_bytes'] / 1e6:.3g}"
            lines.append(head + f"| {name} | {_ms(r['setup_s'])} | {_ms(r['apply_s'])} | {_ms(r['total_s'])} | {memory} "
                                f"| {r['residual']:.1e} |")
    if "note" in data:
        lines += ["", data["note"]]
    auto = data["auto"]
    if auto:
        worst = max(auto, key=lambda a: a["ratio"])
        lines += ["", f"`auto` against the best backend of the same run, {len(auto)} cases: worst ratio {worst['ratio']:.2f} "
                      f"({worst['size']}, stiffness {worst['stiffness']:g}, {worst['columns']} columns: took {worst['choice']}, "
                      f"best {worst['best']}); {sum(a['ratio'] > 1.2 for a in auto)} cases above 1.2."]
    if data.get("memory") != "own":
        lines += ["", "Memory is the peak of the process, with what earlier cases of the run still held."]
        return "\n".join(lines)
    slopes = memory_slopes(data)
    lines += ["", *(f"Memory of the iteration grows as nodes^{s:.2f} ({what})." for what, s in slopes.items())]
    if "changing" in data:
        c = data["changing"]
        lines += ["", f"Operator changed every {c['every']} solves ({c['size']}, stiffness {c['stiffness']:g}): {c['choice']} "
                      f"{_ms(c['ours_s'])} ms, SciPy splu {_ms(c['splu_s'])} ms, ratio {c['ratio']:.1f}."]
    return "\n".join(lines)


def memory_slopes(data: dict[str, Any]) -> dict[str, float]:
    """Slope of log memory against log nodes for the iteration, one right-hand side, mild case."""
    out = {}
    for dim in ("2D", "3D"):
        picked = [r for r in data["rows"] if r["backend"] == "iterative" and r["size"].startswith(dim) and r["columns"] == 1
                  and r["stiffness"] == 0.02 and r.get("memory_bytes") and r["nodes"] >= 9_000]
        if len(picked) > 1:
            x, y = np.log([r["nodes"] for r in picked]), np.log([r["memory_bytes"] for r in picked])
            out[f"{dim}, {picked[0]['size'][3:]} to {picked[-1]['size'][3:]}"] = float(np.polyfit(x, y, 1)[0])
    return out


def rollout_markdown(data: dict[str, Any]) -> str:
    lines = [f"## Rollout on {data['hardware']}", "",
             f"Classical trajectories on `{data['mesh']}` ({data['nodes']:,} nodes), float32.", "",
             "| model | backend | trajectories | steps/s | trajectory-steps/s |", "|---|---|---|---|---|"]
    for r in data["rows"]:
        if "not_run" in r:
            lines.append(f"| {r['model']} | not run: {r['not_run']} | {r['trajectories']} | | |")
        else:
            lines.append(f"| {r['model']} | {r['backend']} | {r['trajectories']} | {r['steps_per_s']:,.0f} "
                         f"| {r['trajectory_steps_per_s']:,.0f} |")
    return "\n".join(lines)


def generate_markdown(data: dict[str, Any], known: list[str]) -> str:
    rows = {r["scenario"]: r for r in data["rows"]}
    first = data["rows"][0]
    lines = [f"## Data sets on {first.get('hardware', first['device'])}", "",
             f"`{first['size']}` size, `{first['truth']}` truth; flow, sources and writing included.", "",
             "| scenario | seconds | MB |", "|---|---|---|"]
    for name in known:
        r = rows.get(name)
        lines.append(f"| {name} | not run | |" if r is None else f"| {name} | {r['seconds']:.1f} | {r['megabytes']:,.0f} |")
    lines.append(f"| measured so far | {sum(r['seconds'] for r in rows.values()):.0f} | |")
    return "\n".join(lines)


def markdown(paths: list[Path]) -> str:
    parts = ["# Benchmarks", "",
             "Written by `python -m benchmarks report` from the JSON of other `python -m benchmarks` commands.",
             "Times on shared CPUs are to be read as ratios within one table."]
    for path in paths:
        data = load(path)
        write = {"solver": solver_markdown, "rollout": rollout_markdown, "generate": lambda d: generate_markdown(d, names()),
                 "tradeoff": tradeoff.markdown, "elements": elements.markdown, "export": exported.markdown,
                 "step": step.markdown, "kernels": kernels.markdown,
                 **dict.fromkeys(("model", "throughput", "scaling"), model.markdown)}
        try:
            parts += ["", write[data["benchmark"]](data)]
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise InputError(f"{path} is damaged: it is no whole result of `python -m benchmarks {data['benchmark']}`") from error
    return "\n".join(parts) + "\n"

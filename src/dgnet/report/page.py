"""RUN/report.html: one page that says how good a run is, what it learned and how far to trust it. It needs nothing beside itself.

Here are its numbers, in `templates/report.html` its words. Sections that do not apply to a model are one sentence that says why.
Pictures are those of `figures` and `analyse`, inside the page.
"""

from __future__ import annotations

import csv
import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet import __version__
from dgnet.data import Corpus
from dgnet.discovery import REACTION, formulas, material_curves, reaction_curve, summands, write_found
from dgnet.models import title_of
from dgnet.models.dgnet import DGNet
from dgnet.models.universal import Tuned
from dgnet.problems import base_problem
from dgnet.progress import Report
from dgnet.report import bands, field
from dgnet.report.figures import COLOURS
from dgnet.report.learned import coefficients, corrections, draw_material, draw_reaction, draw_terms
from dgnet.report.templates import percent, write_page
from dgnet.training import FOUND_VALUES, Run, failures
from dgnet.trust import TrainingRange, range_findings, read_trust, sentence, training_range

Tensor = torch.Tensor


def write(run: Run, result: dict[str, Any], states: dict[str, Tensor], data: Corpus, figures: Sequence[Path], out: Path,
          report: Report | None = None) -> Path:
    """The page of one evaluation (`evaluate`), with its figures."""
    def done(count: int) -> None:
        if report is not None:
            report("report", count, 4)

    stability = _stability(run, data)
    done(1)
    learned = _learned(run, data, run.folder / "page")  # pictures that are the page's own
    done(2)
    known = training_range(run)
    left = result["left_range"] if "left_range" in result else None if known is None else findings(run, states, data, known)
    done(3)
    heading, offsets, rows = run.case.title or run.case.name, [f"{v:g}" for v in run.case.offsets], result["scores"]
    own = rows[run.settings.model]
    write_page(out, "report.html", title=f"{heading}: {title_of(run.settings.model)}", heading=heading, kind=_subtitle(run),
               **_verdict(run, result), trajectories=_count(result["trajectories"], f"{result['split']} trajectory",
                                                            f"{result['split']} trajectories"),
               steps=run.case.steps, offsets=offsets if any(run.case.offsets) else [], figures=figures,
               field=field.content(run, result, states, data), scores=_scores(run, result), each=own["trajectories"],
               by_field=own["fields"] if len(run.case.pde.fields) > 1 else {},
               remarks=[*result.get("remarks", ()), *failures(result)], stability=stability, learned=learned,
               trials=read_trust(run.folder), range=None if known is None else _range(run, known, left),
               bands=bands.content(result.get("bands")), origin=_origin(run, result), history=run.folder / "history.png")
    done(4)
    return out


def findings(run: Run, states: dict[str, Tensor], data: Corpus, known: TrainingRange) -> list[dict[str, Any]]:
    """Where the model's own rollouts of these trajectories leave the range of its training data."""
    return range_findings(known, run.case.mesh, run.case.dt, states[run.settings.model], data.source_average)


# ---------------------------------------------------------------------- how good


def _verdict(run: Run, result: dict[str, Any]) -> dict[str, Any]:
    """Beside the better classical solver: mood, word, sentence and bars; what solvers with more points reach without training."""
    rows, rival = result["scores"], field.rival(result)
    own, best = rows[result["model"]]["rne_from_offset"], rows[rival]["rne_from_offset"]
    ratio = best / own if own > 0 else math.inf
    if not math.isfinite(own):
        mood, word, text = "bad", "Unstable", "Its rollouts are not finite."
    elif ratio >= 1.05:
        mood, word = "good", f"{_times(ratio)} smaller error"
        text = f"than the better classical solver ({title_of(rival)}) on the same mesh and time step."
    elif ratio > 0.95:
        mood, word, text = "even", "Same error", "as the classical solver on the same mesh and time step."
    else:
        mood, word = "bad", f"{_times(1 / ratio)} larger error"
        text = "than the classical solver on the same mesh and time step: use that solver, or train longer and on more data."
    words = {"classical_p2": "quadratic elements on the same mesh reach",
             "classical_refined": "linear ones on the mesh refined once", "universal": "universal weights",
             "universal_p2": "universal weights on quadratic elements"}
    top = max(own, best, 1e-300)
    bars = [(title_of(name), value, 100.0 if not math.isfinite(value) else max(1.0, 100 * min(1.0, value / top)),
             COLOURS.get(name, "#d1495b")) for name, value in ((run.settings.model, own), (rival, best))]
    unknowns = result.get("untold") or []
    return {"mood": mood, "word": word, "text": text, "bars": bars, "unknowns": unknowns,
            "with_values": _with_values(result["told"]["rne_from_offset"], own) if unknowns else "",
            "untrained": [(what, rows[name]["rne_from_offset"]) for name, what in words.items() if name in rows]}


def _with_values(error: float, own: float) -> str:
    """The classical solver with the values that the model found, beside the model's own error."""
    if not math.isfinite(error):
        return "With the values found, it blows up."
    ratio = error / own if own > 0 else math.inf
    beside = "the same" if 0.95 < ratio < 1.05 else (
        f"{_times(ratio)} larger than this one" if ratio >= 1 else f"{_times(1 / ratio)} smaller than this one")
    return f"With the values found, its error is {percent(error)}, {beside}."


def _scores(run: Run, result: dict[str, Any]) -> list[dict[str, Any]]:
    """Rows of the table; the smallest error is marked, figures of the paper have no time."""
    rows, seconds = result["scores"], result["seconds"]
    best = min(rows, key=lambda name: rows[name]["rne_from_offset"])
    found = [{**s, "name": title_of(name), "seconds": seconds[name], "best": name == best} for name, s in rows.items()]
    if result.get("told"):
        found.append({**result["told"], "name": FOUND_VALUES, "seconds": seconds["told"], "best": False})
    if result.get("paper"):
        paper, shifted = result["paper"], any(run.case.offsets)
        found.append({"name": "DGNet, paper (its own data)", "rne_from_offset": None if shifted else paper["rne"],
                      "rne": paper["rne"], "rne_final": None, "mse": paper["mse"], "seconds": None, "best": False})
    return found


def _stability(run: Run, data: Corpus) -> list[str]:
    """What is proven of the model's rollouts for any weights, in sentences."""
    model = run.model
    if isinstance(model, Tuned):
        return ["Stable by construction: without a source the energy cannot grow, for any weights."]
    if not isinstance(model, DGNet):
        return [f"{title_of(run.settings.model)} has no operator and so no spectrum. There is no proof that its rollouts stay "
                "bounded."]
    if not model.config.green:
        return ["This variant does not solve with its operator, so it has no spectrum."]
    flow = None if data.velocity is None else data.velocity[:1].cpu()
    problem = replace(data, velocity=flow).problem(base_problem(run.case, "cpu"))
    if model.curved(problem):
        return ["Capacity and diffusion change with the field, so there is no single spectrum. For any weights the capacity stays "
                "positive and diffusion takes energy away."]
    if model.config.plain:
        return ["The paper's operator and residual network have no limits: weights can make energy."]
    if model.config.residual:
        return ["The residual network adds a bounded amount in each step; there is no proof that the sum stays bounded."]
    if not model.config.structured:
        return ["There is no proof that the rollouts stay bounded."]
    reacting = problem.pde.reaction is not None or model.config.reaction == "learned"
    more = ["This does not include the reaction."] if model.config.reaction != "none" and reacting else []
    if problem.pde.velocity is None:
        return ["Stable by construction: without a source and a reaction the energy u·Mu cannot grow, for any weights.", *more]
    return ["The learned parts create no energy: mass and diffusion keep their signs for any weights. Inflow through the boundary "
            "and, in the Galerkin form, the divergence of the flow on the mesh can create energy.", *more]


# ---------------------------------------------------------------------- what was learned


def _learned(run: Run, data: Corpus, folder: Path) -> dict[str, Any]:
    """Coefficients, corrections, and what was found of reaction and material, with pictures and tables in a folder."""
    model = run.model
    count = sum(p.numel() for p in model.parameters())
    if isinstance(model, Tuned):
        return {"words": f"Universal weights were tuned to the training trajectories: {count:,} numbers that correct mass, "
                         "diffusion, convective boundaries and how nodes gather a source. They belong to no mesh."}
    if not isinstance(model, DGNet):
        return {"words": f"{count:,} weights of {title_of(run.settings.model)}: they map states to states and have no meaning one "
                         "by one."}
    found: list[dict[str, Any]] = []
    write_found(folder, model, run.case)

    def add(what: str, picture: str, files: Sequence[str] = (), lines: Sequence[str] = (), more: str = "") -> None:
        found.append({"what": what, "files": [folder / name for name in files], "lines": lines, "more": more,
                      "picture": folder / picture})

    if model.config.reaction == "learned" and model.fields == 1:
        draw_reaction(folder / "reaction.png", run, data)
        curve = reaction_curve(model)
        if curve is None:
            add("The reaction, over the states of these trajectories; a network has no band", "reaction.png")
        else:
            band = "" if np.isnan(curve.deviation).all() else (
                "The band is two standard deviations wide on either side: noise of the data and the mesh's own error, estimated "
                "when the reaction was fitted by itself. Where there is no grey column, no training state was: there the curve is "
                "a continuation.")
            add("The reaction, over the states of these trajectories", "reaction.png", [REACTION], more=band)
    curves, terms = material_curves(model), summands(model)
    if curves:
        draw_material(folder / "material.png", curves, run)
        add("The curves of the material", "material.png", [f"{one.name}.csv" for one in curves], [one.sentence for one in curves],
            "The band is two standard deviations on either side: noise, and what half the spacing would change. Grey columns: "
            "where the training states were.")
    if terms:
        draw_terms(folder / "reaction.png", terms)
        add("The reaction, with one standard deviation of each coefficient", "reaction.png", [REACTION], formulas(terms))
    return {"words": "", "coefficients": coefficients(run), "corrections": corrections(run, data), "findings": found,
            "weights": count}


# ---------------------------------------------------------------------- trust and origin


def _range(run: Run, known: TrainingRange, left: list[dict[str, Any]] | None) -> dict[str, Any]:
    """The range of the training data as a table, and a warning where rollouts leave it."""
    rows = []
    for i, name in enumerate(known.fields):
        s = known.states[i]
        row = [name, f"{s.low:.5g} … {s.high:.5g}", f"{s.mean:.4g} ± {s.std:.3g}", f"{known.gradients[i]:.3g}"]
        if known.sources:
            f, narrow = known.sources[i], known.extents[i][0]
            row += [f"{f.low:.3g} … {f.high:.3g}", f"{narrow:.3g}" if math.isfinite(narrow) else "–"]
        rows.append(row)
    heads = ["field", "range", "mean ± spread", "steepest gradient", *(["source", "narrowest source"] if known.sources else [])]
    warning = sentence(left or [], run.case.units)
    return {"trajectories": _count(known.trajectories, "training trajectory", "training trajectories"), "heads": heads,
            "rows": rows, "warning": None if warning is None else warning.replace("This leaves", "Rollouts of this page leave")}


def _origin(run: Run, result: dict[str, Any]) -> list[tuple[str, str]]:
    s, case = run.settings, run.case
    cells = f"{case.mesh.n_nodes:,} nodes, {case.mesh.n_cells:,} {'triangles' if case.mesh.dim == 2 else 'tetrahedra'}"
    device = next(run.model.parameters(), torch.zeros(())).device
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else (
        f"{platform.machine()} CPU, {torch.get_num_threads()} of {os.cpu_count()} threads")
    return [("run", run.folder.name), ("data", Path(s.data).name), ("truth", s.truth), ("mesh", cells),
            ("time", f"{case.steps} steps of {case.units.in_time(case.dt)}"), ("recipe", f"{s.recipe}, seed {s.seed}"),
            ("weights", f"{result['parameters']:,}"), ("training", _training_time(run)), ("evaluated", time.strftime("%Y-%m-%d")),
            ("on", machine), ("dgnet", __version__)]


def _training_time(run: Run) -> str:
    """Wall clock of the training, from the last row of its history; it may have run on another machine."""
    try:
        with (run.folder / "history.csv").open(newline="") as file:
            seconds = float(list(csv.DictReader(file))[-1]["seconds"])
    except (OSError, ValueError, LookupError):
        return "not known"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _subtitle(run: Run) -> str:
    s = run.settings
    where = "own problem" if s.project or s.size == "own" else f"{s.scenario}, {s.size} size, {s.truth} truth"
    return f"{title_of(s.model)} · {where}"


def _times(value: float) -> str:
    return f"{value:.2g}×" if value < 99.5 else f"{value:.0f}×"


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"

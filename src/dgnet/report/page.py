"""RUN/report.html: one page that says how good a run is, what it learned and how far to trust it. It needs nothing beside itself.

Sections that do not apply to a model are one sentence that says why. Pictures are those of `figures` and `analyse`, inlined.
"""

from __future__ import annotations

import base64
import csv
import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet import __version__
from dgnet.data import Corpus
from dgnet.discovery.found import REACTION, formulas, material_curves, reaction_curve, summands, write_found
from dgnet.files import write_text
from dgnet.models.dgnet import DGNet
from dgnet.models.registry import title_of
from dgnet.models.universal import Tuned
from dgnet.problems.case import base_problem
from dgnet.progress import Report
from dgnet.report import bands, field
from dgnet.report.figures import COLOURS, inlined
from dgnet.report.learned import coefficients, corrections, draw_material, draw_reaction, draw_terms
from dgnet.report.viewer import VIEWER
from dgnet.scoring.judge import rivals
from dgnet.training.evaluate import FOUND_VALUES, failures
from dgnet.training.run import Run
from dgnet.trust import TrainingRange, range_findings, read_trust, sentence, training_range

Tensor = torch.Tensor

def write(run: Run, result: dict[str, Any], states: dict[str, Tensor], data: Corpus, figures: Sequence[Path], out: Path,
          report: Report | None = None) -> Path:
    """The page of one evaluation (`evaluate`), with its figures."""
    folder = run.folder / "page"  # pictures that are the page's own

    def tell(done: int) -> None:
        if report is not None:
            report("report", done, 4)

    stability = _stability(run, data)
    tell(1)
    learned = _learned(run, data, folder)
    tell(2)
    known = training_range(run)
    left = result["left_range"] if "left_range" in result else None if known is None else findings(run, states, data, known)
    tell(3)
    parts = [_head(run, result), field.section(run, result, states, data), _scores(run, result), _time(figures),
             _trajectories(result, run, figures), _map(figures), stability, learned,
             _trust(run, known, left, read_trust(run.folder)),
             bands.section(result.get("bands"), next((p for p in figures if p.stem == "bands"), None)), _origin(run, result)]
    title = f"{_title(run)}: {title_of(run.settings.model)}"
    body, css = "\n".join(parts), (VIEWER / "report.css").read_text()
    text = (f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f"<title>{escape(title)}</title>\n<style>{css}</style></head>\n<body>\n{body}\n</body></html>\n")
    write_text(out, text)
    tell(4)
    return out


def findings(run: Run, states: dict[str, Tensor], data: Corpus, known: TrainingRange) -> list[dict[str, Any]]:
    """Where the model's own rollouts of these trajectories leave the range of its training data."""
    return range_findings(known, run.case.mesh, run.case.dt, states[run.settings.model], data.source_average)


# ---------------------------------------------------------------------- sections


def _head(run: Run, result: dict[str, Any]) -> str:
    own, best, rival = _three(result)
    ratio = best / own if own > 0 else math.inf
    if not math.isfinite(own):
        mood, word, text = "bad", "Unstable", "Its rollouts are not finite."
    elif ratio >= 1.05:
        mood, word = "good", f"{_short(ratio)}× smaller error"
        text = f"than the better classical solver ({escape(title_of(rival))}) on the same mesh and time step."
    elif ratio > 0.95:
        mood, word, text = "even", "Same error", "as the classical solver on the same mesh and time step."
    else:
        mood, word = "bad", f"{_short(1 / ratio)}× larger error"
        text = "than the classical solver on the same mesh and time step: use that solver, or train longer and on more data."
    text += _finer(result) + _untold(result, own)
    offset = [f"{v:g}" for v in run.case.offsets]
    from_ = f", measured from {', '.join(offset)}" if any(run.case.offsets) else ""
    count, steps = result["trajectories"], run.case.steps
    bars = "".join(_bar(title_of(name), value, max(own, best, 1e-300), COLOURS.get(name, "#d1495b"))
                   for name, value in ((run.settings.model, own), (rival, best)))
    return (f'<header><p class="kind">{escape(_subtitle(run))}</p><h1>{escape(_title(run))}</h1>'
            f'<div class="verdict {mood}"><div><p class="big">{word}</p><p>{text}</p></div>'
            f'<div class="bars">{bars}</div></div>'
            f"<p>Free rollouts of {_count(count, result['split'] + ' trajectory', result['split'] + ' trajectories')} over {steps} "
            f"steps: relative error (RNE{from_}) <b>{_percent(own)}</b> with {escape(_name(run))}, <b>{_percent(best)}</b> with "
            f"{escape(title_of(rival))}.</p></header>")


def _finer(result: dict[str, Any]) -> str:
    """What classical solvers reach that put more points on the same mesh, without training."""
    rows = result["scores"]
    words = {"classical_p2": "quadratic elements on the same mesh reach",
             "classical_refined": "linear ones on the mesh refined once", "universal": "universal weights"}
    found = [f"{what} {_percent(rows[name]['rne_from_offset'])}" for name, what in words.items() if name in rows]
    return f" Without training, {', '.join(found[:-1])}{' and ' if found[:-1] else ''}{found[-1]}." if found else ""


def _untold(result: dict[str, Any], own: float) -> str:
    """What the classical solver of the headline does not know, and its error with the values that the model found."""
    if not result.get("untold"):
        return ""
    text = f" That solver does not know {escape(' and '.join(result['untold']))}, which this model found in its training data."
    known = result["told"]["rne_from_offset"]
    if not math.isfinite(known):
        return text + " With the values found, it blows up."
    ratio = known / own if own > 0 else math.inf
    word = "the same" if 0.95 < ratio < 1.05 else (
        f"{_short(ratio)}× larger" if ratio >= 1 else f"{_short(1 / ratio)}× smaller")
    return f"{text} With the values found, its error is {_percent(known)}, {word}{'' if word == 'the same' else ' than this one'}."


def _scores(run: Run, result: dict[str, Any]) -> str:
    rows = result["scores"]
    best = min(rows, key=lambda name: rows[name]["rne_from_offset"])
    shifted = any(run.case.offsets)
    head = ["model", "RNE" + (" from offset" if shifted else ""), *(["RNE, absolute"] if shifted else []), "RNE, last step", "MSE",
            "time of all rollouts"]
    lines = []
    for name, s in rows.items():
        cells = [escape(title_of(name)), _figure(s["rne_from_offset"]), *([_figure(s["rne"])] if shifted else []),
                 _figure(s["rne_final"]), _figure(s["mse"]), f"{result['seconds'][name]:.2f} s"]
        if name == best:  # the smallest error; its time may be the longest
            cells[1] = f"<b>{cells[1]}</b>"
        lines.append("<tr>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>")
    if result.get("told"):
        s = result["told"]
        cells = [FOUND_VALUES, _figure(s["rne_from_offset"]), *([_figure(s["rne"])] if shifted else []), _figure(s["rne_final"]),
                 _figure(s["mse"]), f"{result['seconds']['told']:.2f} s"]
        lines.append("<tr>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>")
    if result.get("paper"):
        cells = ["DGNet, paper (its own data)", "–", *([_figure(result["paper"]["rne"])] if shifted else []), "–",
                 _figure(result["paper"]["mse"]), "–"]
        if not shifted:
            cells[1] = _figure(result["paper"]["rne"])
        lines.append('<tr class="quiet">' + "".join(f"<td>{c}</td>" for c in cells) + "</tr>")
    table = f"<table><tr>{''.join(f'<th>{h}</th>' for h in head)}</tr>{''.join(lines)}</table>"
    each = ""
    if len(run.case.pde.fields) > 1:
        own = rows[run.settings.model]["fields"]
        each = "<p>By field: " + ", ".join(f"{escape(k)} {_percent(v)}" for k, v in own.items()) + ".</p>"
    broken = "".join(f"<p>{escape(line)}</p>" for line in [*result.get("remarks", ()), *failures(result)])
    return f"<section><h2>Scores</h2>{table}{broken}{each}</section>"


def _time(figures: Sequence[Path]) -> str:
    return ("<section><h2>Error in time</h2><p>Of all trajectories together (line) and the range over single ones "
            f"(band).</p>{_image(figures, 'error-in-time')}</section>")


def _trajectories(result: dict[str, Any], run: Run, figures: Sequence[Path]) -> str:
    each = result["scores"][run.settings.model]["trajectories"]
    words = [f"best {_percent(min(each))}"] + ([f"worst {_percent(max(each))}"] if len(each) > 1 else [])
    shown = "".join(_image([path], path.stem) for path in figures if path.stem.split("-")[0] in ("best", "worst"))
    return f"<section><h2>Best and worst trajectory</h2><p>Relative error: {', '.join(words)}.</p>{shown}</section>"


def _map(figures: Sequence[Path]) -> str:
    shown = "".join(_image([path], path.stem) for path in figures if path.stem.startswith("error-map"))
    return ("<section><h2>Map of the error</h2><p>Root mean square over all trajectories and times at every node, one scale "
            f"for all solvers.</p>{shown}</section>")


def _stability(run: Run, data: Corpus) -> str:
    return f"<section><h2>Stability</h2><p>{' '.join(_proven(run, data))}</p></section>"


def _proven(run: Run, data: Corpus) -> list[str]:
    """What is proven of the model's rollouts for any weights, in sentences."""
    model = run.model
    if isinstance(model, Tuned):
        return ["Stable by construction: without a source the energy cannot grow, for any weights."]
    if not isinstance(model, DGNet):
        return [f"{escape(_name(run))} has no operator and so no spectrum. There is no proof that its rollouts stay bounded."]
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
        return ["Stable by construction: without a source and a reaction the energy ‖u‖<sub>M</sub> cannot grow, for any weights.",
                *more]
    return ["The learned parts create no energy: mass and diffusion keep their signs for any weights. Inflow through the boundary "
            "and, in the Galerkin form, the divergence of the flow on the mesh can create energy.", *more]


# ---------------------------------------------------------------------- what was learned


def _learned(run: Run, data: Corpus, folder: Path) -> str:
    head = "<section><h2>What was learned</h2>"
    model = run.model
    count = sum(p.numel() for p in model.parameters())
    if isinstance(model, Tuned):
        return (f"{head}<p>Universal weights were tuned to the training trajectories: {count:,} numbers that correct mass, "
                "diffusion, convective boundaries and how nodes gather a source. They belong to no mesh.</p></section>")
    if not isinstance(model, DGNet):
        return (f"{head}<p>{count:,} weights of {escape(_name(run))}: they map states to states and have no meaning one by "
                "one.</p></section>")
    found = coefficients(run)
    parts = [head]
    if found:
        rows = "".join(f"<tr><td>{escape(c.name)}</td><td><b>{c.factor:.4g} ×</b> given</td><td>{escape(c.value) or '–'}</td>"
                       f"<td>{c.meaning}</td><td>{escape(c.bar)}</td></tr>" for c in found)
        parts.append("<table><tr><th>coefficient</th><th>learned</th><th>value</th><th>meaning</th><th>factor, error bar</th></tr>"
                     f"{rows}</table>")
    else:
        parts.append("<p>No coefficient was calibrated.</p>")
    rows = "".join(f"<tr><td>{name}</td><td>{size}</td><td>{meaning}</td></tr>" for name, size, meaning in corrections(run, data))
    if rows:
        parts.append(f"<table><tr><th>correction</th><th>size</th><th>meaning</th></tr>{rows}</table>")
    write_found(folder, model, run.case)
    if model.config.reaction == "learned" and model.fields == 1:
        draw_reaction(folder / "reaction.png", run, data)
        parts.append(_reaction_words(run, folder) + _image([folder / "reaction.png"], "reaction"))
    curves = material_curves(model)
    if curves:
        draw_material(folder / "material.png", curves, run)
        links = ", ".join(_download(folder / f"{one.name}.csv") for one in curves)
        parts.append(f"<p>The curves of the material ({links}). The band is two standard deviations on either side: noise, and "
                     "what half the spacing would change. Grey columns: where the training states were.</p>"
                     + "".join(f"<p><b>{escape(one.sentence)}</b></p>" for one in curves)
                     + _image([folder / "material.png"], "curves of the material"))
    terms = summands(model)
    if terms:
        draw_terms(folder / "reaction.png", terms)
        parts.append(f"<p>The reaction, with one standard deviation of each coefficient ({_download(folder / REACTION)}):</p>"
                     + "".join(f"<p><b>{escape(line)}</b></p>" for line in formulas(terms))
                     + _image([folder / "reaction.png"], "reaction"))
    parts.append(f"<p>{count:,} weights in all; every correction starts at zero, where the model is the classical solver.</p>")
    return "".join(parts) + "</section>"


def _reaction_words(run: Run, folder: Path) -> str:
    """What the picture of the reaction shows."""
    curve = reaction_curve(run.model)
    if curve is None:
        return "<p>The reaction, over the states of these trajectories; a network has no band:</p>"
    band = "" if np.isnan(curve.deviation).all() else (
        " The band is two standard deviations wide on either side: noise of the data and the mesh's own error, estimated when the "
        "reaction was fitted by itself. Where there is no grey column, no training state was: there the curve is a continuation.")
    return f"<p>The reaction, over the states of these trajectories ({_download(folder / REACTION)}).{band}</p>"


def _download(path: Path) -> str:
    """A link that holds the file itself."""
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<a download="{path.name}" href="data:text/csv;base64,{data}">{path.name}</a>'


# ---------------------------------------------------------------------- trust


def _trust(run: Run, known: TrainingRange | None, left: list[dict[str, Any]] | None, trials: dict[str, Any] | None) -> str:
    parts = ["<section><h2>How far to trust it</h2>"]
    if trials is None:
        parts.append("<p>Not measured yet: <code>dgnet evaluate RUN --leave-one-out</code> trains again without each training "
                     "trajectory and measures the error on it.</p>")
    else:
        wins = f"below the classical solver's in {trials['below_classical']} of {trials['trajectories']}"
        parts.append(f"<p>For a new trajectory, expect an error of about <b>{_percent(trials['mean'])}</b> (worst "
                     f"of {trials['trajectories']} trials {_percent(trials['worst'])}; classical "
                     f"{_percent(trials['classical_mean'])}); {wins}. Each trial left one training trajectory out.</p>")
        rows = "".join(f"<tr><td>{f['trajectory']}</td><td>{_percent(f['rne'])}</td><td>{_percent(f['classical'])}</td>"
                       f"<td>{f['seconds']:.0f} s</td></tr>" for f in trials["folds"])
        parts.append(f"<table><tr><th>left out</th><th>RNE on it</th><th>classical</th><th>training</th></tr>{rows}</table>")
    if known is None:
        parts.append("<p>The range of the training data is not known: the data set is missing.</p></section>")
        return "".join(parts)
    seen = _count(known.trajectories, "training trajectory", "training trajectories")
    parts.append(f"<p>It was trained on {seen} in the range below. A rollout that leaves this range says so.</p>")
    rows = ""
    for i, name in enumerate(known.fields):
        s = known.states[i]
        source = ""
        if known.sources:
            f, (narrow, _) = known.sources[i], known.extents[i]
            width = f"{narrow:.3g}" if math.isfinite(narrow) else "–"
            source = f"<td>{f.low:.3g} … {f.high:.3g}</td><td>{width}</td>"
        rows += (f"<tr><td>{escape(name)}</td><td>{s.low:.5g} … {s.high:.5g}</td><td>{s.mean:.4g} ± {s.std:.3g}</td>"
                 f"<td>{known.gradients[i]:.3g}</td>{source}</tr>")
    more = "<th>source</th><th>narrowest source</th>" if known.sources else ""
    head = f"<tr><th>field</th><th>range</th><th>mean ± spread</th><th>steepest gradient</th>{more}</tr>"
    parts.append(f"<table>{head}{rows}</table>")
    warning = sentence(left or [], run.case.units)
    if warning is None:
        parts.append('<p class="note good">The rollouts of this page stay within this range.</p></section>')
    else:
        parts.append(f'<p class="note even">{escape(warning.replace("This leaves", "Rollouts of this page leave"))}</p></section>')
    return "".join(parts)


def _origin(run: Run, result: dict[str, Any]) -> str:
    s = run.settings
    mesh = run.case.mesh
    cells = f"{mesh.n_nodes:,} nodes, {mesh.n_cells:,} {'triangles' if mesh.dim == 2 else 'tetrahedra'}"
    rows = [("run", run.folder.name), ("data", Path(s.data).name), ("truth", s.truth), ("mesh", cells),
            ("time", f"{run.case.steps} steps of {run.case.units.in_time(run.case.dt)}"),
            ("recipe", f"{s.recipe}, seed {s.seed}"),
            ("weights", f"{result['parameters']:,}"), ("training", _training_time(run)), ("evaluated", time.strftime("%Y-%m-%d")),
            ("on", _machine(_device(run))), ("dgnet", __version__)]
    table = "".join(f"<tr><td>{k}</td><td>{escape(str(v))}</td></tr>" for k, v in rows)
    history = run.folder / "history.png"
    shown = _image([history], "history") if history.exists() else ""
    return f'<section><h2>Origin</h2><table class="plain">{table}</table>{shown}</section>'


def _training_time(run: Run) -> str:
    """Wall clock of the training, from the last row of its history; it may have run on another machine."""
    path = run.folder / "history.csv"
    try:
        with path.open(newline="") as file:
            seconds = float(list(csv.DictReader(file))[-1]["seconds"])
    except (OSError, ValueError, LookupError):
        return "not known"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _device(run: Run) -> torch.device:
    return next(run.model.parameters(), torch.zeros(())).device


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()} CPU, {torch.get_num_threads()} of {os.cpu_count()} threads"


# ---------------------------------------------------------------------- words and pieces


def _three(result: dict[str, Any]) -> tuple[float, float, str]:
    """Error of the model, of the better classical solver, and which that is."""
    rows = result["scores"]
    rival = min(rivals(), key=lambda n: rows[n]["rne_from_offset"])
    return rows[result["model"]]["rne_from_offset"], rows[rival]["rne_from_offset"], rival


def _bar(label: str, value: float, top: float, colour: str) -> str:
    width = 100.0 if not math.isfinite(value) else max(1.0, 100 * min(1.0, value / top))
    return (f'<div class="bar"><span>{escape(label)}</span><i style="width:{width:.1f}%;background:{colour}"></i>'
            f"<b>{_percent(value)}</b></div>")


def _image(paths: Sequence[Path], stem: str) -> str:
    """The PNG of this name, inlined; nothing where it does not exist."""
    return next((inlined(path) for path in paths if path.stem == stem), "")


def _title(run: Run) -> str:
    return run.case.title or run.case.name


def _subtitle(run: Run) -> str:
    s = run.settings
    where = "own problem" if s.project or s.size == "own" else f"{s.scenario}, {s.size} size, {s.truth} truth"
    return f"{title_of(s.model)} · {where}"


def _name(run: Run) -> str:
    return title_of(run.settings.model)


def _percent(value: float) -> str:
    if not math.isfinite(value):
        return "unbounded"
    return f"{100 * value:.2g}%" if value < 0.995 else f"{100 * value:.3g}%"


def _figure(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else "unbounded"


def _short(value: float) -> str:
    return f"{value:.2g}" if value < 99.5 else f"{value:.0f}"


def _count(n: int, one: str, many: str) -> str:
    return f"{n} {one if n == 1 else many}"

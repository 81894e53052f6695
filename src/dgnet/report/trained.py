"""Results of a training and of an evaluation: figures for JSON, sentences for people, files beside the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dgnet import trust
from dgnet.data import SPLITS
from dgnet.discovery import sentences
from dgnet.errors import InputError
from dgnet.files import write_json
from dgnet.models import TUNED
from dgnet.progress import Report
from dgnet.report import bands as bands_page
from dgnet.report import figures as figures_page
from dgnet.report import page
from dgnet.report.learned import coefficients
from dgnet.training import Progress, Run, error_bars, evaluate

_STARTS = {"dgnet": "the classical solver", "dgnet-paper": "the paper's solver alone", TUNED: "universal weights as they are"}
"""What a model is before any training."""


def training_result(what: str, run: Run, progress: Progress) -> tuple[dict[str, Any], list[str]]:
    """Errors of a training, the coefficients it found, and whether anything was learned; `what` was trained on."""
    found = coefficients(run)
    factors = run.dgnet.coefficients() if found else {}
    bars, terms = error_bars(run), sentences(run.model)
    result = {"validation": progress.best, "classical": progress.classical, "iterations": progress.iteration,
              "best_iteration": progress.best_iteration, "learned": progress.best_iteration > 0, "seconds": progress.seconds,
              "history": progress.history, "coefficients": factors,
              "error_bars": {name: asdict(bar) for name, bar in bars.items()}} | ({"found": terms} if terms else {})
    lines = [headline(what, progress, evaluate.unknown_terms(run))]
    if run.settings.model == TUNED:
        first = progress.history[0]["validation"]
        lines.append(f"  It started from universal weights: {first:.3e} before any training, {first / progress.classical:.2f} "
                     "times the classical solver's (--from-scratch trains dgnet without them)")
    for (name, factor), one in zip(factors.items(), found):
        value = f", that is {one.value}" if one.value else ""
        bar = f"; error bar: {bars[name]}" if name in bars else ""
        lines.append(f"  {name}: {factor:.4g} times the value in problem.toml{value}{bar}")
    lines += [f"  {line}" for line in terms]
    if not result["learned"]:
        why = f"none of {progress.updates} updates lowered the error" if progress.updates else "the time allowed no update"
        lines.append(f"nothing was learned: {why}, the result is {_STARTS.get(run.settings.model, 'an untrained network')}")
    return result, lines


def headline(what: str, progress: Progress, unknown: Sequence[str] = ()) -> str:
    """The errors beside those of the classical solver, which does not know what is `unknown`."""
    best, classical = (f"{error:.3e}" for error in (progress.best, progress.classical))
    verdict = "the same as" if best == classical else "below" if progress.best < progress.classical else "NOT below"
    rival = f" (which does not know {' and '.join(unknown)})" if unknown else ""
    return (f"{what}: validation error {best} after {progress.best_iteration} iterations, {verdict} the classical solver's "
            f"{classical}{rival}; {progress.seconds:.0f} s")


def evaluate_run(run: Run, *, data: Path | None = None, split: str = "test", device: str = "cpu", calibrate: Path | None = None,
                 figures: bool = True, leave_one_out: bool = False, minutes: float | None = None,
                 report: Report | None = None) -> tuple[dict[str, Any], list[Path]]:
    """Score a run, calibrate its bands, and write RUN/SPLIT.json, figures and the report page; returns figures and files.

    - `data`: instead of the run's own; `split`: test or train
    - `calibrate`: a data set whose test trajectories calibrate the bands; by default the scored ones, each tested by the others
    - `figures`: draw figures and write the page
    - `leave_one_out`: also train again without each training trajectory, for `minutes` in all
    """
    if split not in SPLITS:
        raise InputError(f"--split {split} is unknown (known: {', '.join(SPLITS)})")
    if calibrate is not None and calibrate.resolve() == (data or run.data).resolve():
        raise InputError(f"--calibrate {calibrate} holds the trajectories that are scored: bands would be tested on what made them")
    result, states, true = evaluate.evaluate(run, data or run.data, device, split)
    known, own = trust.training_range(run), states[run.settings.model]
    left = None if known is None else page.findings(run, states, true, known)
    tested = trust.bands_of(run, own, true, calibrate, device) if split == "test" else None
    result |= {"left_range": left, "warning": trust.sentence(left or [], run.case.units),
               "bands": None if tested is None else tested.summary()}
    if leave_one_out:
        def follow(at: int, count: int, progress: Progress, total: int) -> None:
            if report is not None:
                report(f"without trajectory {at + 1} of {count}", progress.iteration, total)

        result["leave_one_out"] = trust.leave_one_out(run, budget=None if minutes is None else 60 * minutes, device=device,
                                                      tell=follow)
    write_json(run.folder / f"{split}.json", result)
    if not figures:
        return result, []
    tail = "" if split == "test" else f"-{split}"
    written = figures_page.draw(run, result, states, true, run.folder / f"figures{tail}", report)
    if tested is not None:
        written.append(bands_page.draw(run.folder / "figures" / "bands.png", run, tested, own, true))
    return result, [*written, page.write(run, result, states, true, written, run.folder / f"report{tail}.html", report)]


def evaluation_text(result: Mapping[str, Any]) -> str:
    """The scores as Markdown, and what is to be said about them."""
    parts = [evaluate.table(dict(result))]
    if result["warning"] is not None:
        parts.append(result["warning"])
    if result["bands"] is not None:
        parts.append(" ".join(trust.sentences(result["bands"])))
    if "leave_one_out" in result:
        trials = result["leave_one_out"]
        parts.append(f"Leave-one-out on {trials['trajectories']} trajectories: mean RNE {trials['mean']:.3g}, worst "
                     f"{trials['worst']:.3g} (classical: mean {trials['classical_mean']:.3g})")
    return "\n\n".join(parts)

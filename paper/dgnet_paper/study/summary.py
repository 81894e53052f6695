"""The page of DGNet: its rows beside the classical solvers', scenario by scenario, from finished cells alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dgnet.scoring.judge import rivals
from dgnet_paper.scenarios import get
from dgnet_paper.study import tradeoff
from dgnet_paper.study.blocks import tagless
from dgnet_paper.study.experiment import Experiment
from dgnet_paper.study.results import Record, Shelf, Value, number, value
from dgnet_paper.study.rows import CLASSICAL, Row
from dgnet_paper.study.targets import ATTRIBUTES, ELEVEN, FACTORS

_HEAD = """# DGNet beside the classical solvers

Written by `dgnet-paper report --dgnet` from finished cells. Errors are RNE from offset over the whole rollout of
the test trajectories (T − T_amb for temperatures); *plain* is the paper's RNE, without taking the offset away. *error ratio* is the
error of DGNet / that of the better classical solver with linear elements on the same mesh and step; below 1 is better.
*quadratic* are quadratic elements on the same mesh, *refined* linear ones on the mesh refined once, both with more unknowns;
*universal* are universal weights, which have seen no data of the problem; – where they have not been run.
Unless a row says otherwise, the reaction, the coefficients, the flow
and the sources are known to the model; what is learned is the mass, the source stencil,
the cell diffusivities, with a flow streamline diffusion, in channels of paper size the swirl of the transport, for allen-cahn and
fisher-kpp a projection of the first state, and for allen-cahn a mass and diffusivities of their own in the first steps. An unknown
reaction is learned from the data, of one field as a table by least squares (early cells: as a network), of two as a network; ratios
compare with solvers that know it.
*updates* are steps of the optimiser (unknown for some early cells). *did not learn*: no validation was better than that of the
untrained weights; those were tested, and they give the classical solver's answers. Hardware with the checksum of the code that
computed the row, where it was recorded. Several seeds: mean ± standard deviation."""
_COLUMNS = ("scenario", "is told", "DGNet", "consistent", "lumped", "quadratic", "refined", "universal", "error ratio",
            "DGNet, plain", "paper, plain", "a fifth of it", "test", "training", "hardware")


def markdown(folders: Sequence[Path]) -> str:
    shelf = Shelf.open(folders)
    lines = [_HEAD]
    settings = sorted({(c.size, c.truth) for c in shelf.cells if c.kind == "train" and c.method == "dgnet"},
                      key=lambda pair: (pair[0] != "paper", pair[1]))
    for size, truth in settings:
        lines += ["", f"## `{size}` size, `{truth}` truth", "", f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
        for name in ELEVEN:
            rows = _rows(shelf, name, size, truth)
            command = f"dgnet-paper reproduce train_{name}_{size}_{truth}_dgnet_s0 --device cuda --budget 3"
            lines += rows or [f"| {name} | not run: `{command}` " + "|" * (len(_COLUMNS) - 1)]
    lines += _seen(shelf) + _robust(shelf) + _cost(shelf) + _long(shelf)
    return tagless("\n".join(lines)) + "\n"


def _rows(shelf: Shelf, name: str, size: str, truth: str) -> list[str]:
    """A row for all trajectories, then for fewer of them and for an unknown reaction."""
    found = {replace(c, seed=0) for c in shelf.cells
             if (c.kind, c.method, c.scenario, c.size, c.truth, c.factor) == ("train", "dgnet", name, size, truth, 1.0)}
    ordered = sorted(found, key=lambda c: (c.unknown_reaction, c.trajectories, c.few))
    return [_row(shelf, cell) for cell in ordered]


def _row(shelf: Shelf, cell: Experiment) -> str:
    records = shelf.seeds(cell)
    row = Row("dgnet", cell.unknown_reaction)
    own, plain = (value(records, row, key) for key in ("rne_from_offset", "rne"))
    assert own is not None and plain is not None
    rival = shelf.records.get(cell.needs[0].tag, {"scores": {}})  # may know rows that were added after the training
    scores = {**rival["scores"], **records[0]["scores"]}
    beside = {key: Value.of([scores[key]["rne_from_offset"]]) if key in scores else None for key in CLASSICAL}
    best = min(v.mean for key in rivals() if (v := beside[key]) is not None)
    ratio = "–" if best == float("inf") else f"{own.mean / best:.2f}"
    scenario = get(cell.scenario, cell.size)
    label = cell.scenario
    if cell.trajectories:
        label += f", {cell.trajectories} training trajector{'y' if cell.trajectories == 1 else 'ies'}"
    elif cell.few:
        label += f", {min(cell.few, scenario.train)} of {scenario.train} training trajectories"
    label += ", reaction unknown" if cell.unknown_reaction else ""
    figure = scenario.paper.get("DGNet") if cell.size == "paper" else None
    paper, fifth = ("–", "–") if figure is None else (number(figure.rne), number(figure.rne / 5))
    if figure is not None and cell.truth == "same-mesh":
        fifth = f"{fifth} {'reached' if plain.mean <= figure.rne / 5 else 'missed'}"
        if cell.unknown_reaction:
            fifth = f"whole: {'reached' if plain.mean <= figure.rne else 'missed'}"
    tests = records[0]["test_trajectories"]
    of = f"{tests} of {scenario.test}" if tests < scenario.test else str(tests)
    tested = own.text() if own.learned else f"did not learn ({own.text()})"
    slots = (label, row.told, tested, *map(_text, beside.values()), ratio, plain.text(), paper, fifth, of, _training(records),
             "; ".join(dict.fromkeys(map(_hardware, records))))
    return f"| {' | '.join(slots)} |"


def _text(value: Value | None) -> str:
    return "–" if value is None else value.text()


def _training(records: Sequence[Record]) -> str:
    seconds = sum(r["seconds"]["train"] for r in records) / len(records)
    counts = [r["updates"] for r in records if r.get("updates") is not None]
    return f"{seconds:.0f} s, {round(sum(counts) / len(counts)) if counts else 'unknown'} updates"


def _hardware(record: Record) -> str:
    shared = record.get("sharing", 1)
    code = record.get("code")
    return record["hardware"] + (f", shared by {shared}" if shared > 1 else "") + (f", code {code}" if code else "")


def _seen(shelf: Shelf) -> list[str]:
    """Held-out training trajectories have the kinds of sources of training, test trajectories have others."""
    rows = []
    for cell, record in shelf.cells.items():
        if cell.kind == "train" and cell.method == "dgnet" and cell.scenario == "laser-heat" and not cell.trajectories:
            seen, unseen = record["validation"], record["scores"]["dgnet"]["rne_from_offset"]
            rows.append(f"| laser-heat ({cell.size}, {cell.truth}), seed {cell.seed} | {number(seen)} | {number(unseen)} "
                        f"| {unseen / seen:.2f} |")
    if not rows:
        return []
    return ["", "## Kinds of paths never seen in training", "",
            "| run | seen kinds (held-out trajectories) | unseen kinds (test) | ratio |", "|---|---|---|---|", *sorted(rows)]


def _robust(shelf: Shelf) -> list[str]:
    lines: list[str] = []
    for size in ("paper", "small"):
        base = Experiment("train", "laser-heat-3d", size, "converged", "dgnet")
        if base.tag not in shelf.records or not any(c.kind == "robust" and c.size == size for c in shelf.cells):
            continue
        one = shelf.records[base.tag]["scores"]
        lines += ["", f"## Other sources than in training: laser-heat-3d, `{size}` size", "",
                  "Trained at 1×; test sources scaled. RNE from the offset of DGNet (of the better classical solver).", "",
                  "| factor on | " + " | ".join(f"{f:g}×" for f in FACTORS) + " |", "|" + "---|" * (len(FACTORS) + 1)]
        for what, axis in ATTRIBUTES.items():
            slots = []
            for f in FACTORS:
                scale = (f if axis == 0 else 1.0, f if axis == 1 else 1.0, f if axis == 2 else 1.0)
                tag = replace(base, kind="robust", scale=scale).tag
                scores = one if f == 1.0 else shelf.records[tag]["scores"] if tag in shelf.records else None
                slots.append("not run" if scores is None else f"{number(scores['dgnet']['rne_from_offset'])} "
                             f"({number(min(scores[row]['rne_from_offset'] for row in rivals()))})")
            lines.append(f"| {what} | " + " | ".join(slots) + " |")
    return lines


def _cost(shelf: Shelf) -> list[str]:
    rows = []
    for cell, record in shelf.cells.items():
        if cell.kind != "tradeoff" or cell.method != "dgnet":
            continue
        r = record["result"]
        own, best = r["rows"][0], tradeoff.cheapest(r)
        rival = ["none that was run", "–"] if best is None else [
            f"{tradeoff.named(best)}: {number(best['error'])}", f"{tradeoff.whole(best) / tradeoff.whole(own):.3g}×"]
        slots = [f"{cell.scenario} ({cell.size}, {cell.truth})", number(own["error"]), f"{tradeoff.whole(own):.3g} s", *rival]
        rows.append(f"| {' | '.join(slots)} | {record['hardware']}, {r['trajectories']} trajectories at once |")
    if not rows:
        return []
    return ["", "## Cost against accuracy", "",
            "The cheapest setting of the classical solver (elements, mesh, step) that reaches DGNet's error on the same device in "
            "the same run, single precision and captured like DGNet, and its cost against DGNet's: set-up, averages of the sources "
            "and all steps. All settings that were tried are in paper.md.", "",
            "| run | DGNet's error | its cost | classical setting that reaches it | its cost against DGNet's | measured on |",
            "|" + "---|" * 6, *sorted(rows)]


def _long(shelf: Shelf) -> list[str]:
    rows = [f"| {c.scenario} ({c.size}, {c.truth}) | {r['steps']:,} | {number(r['largest_within'])} "
            f"| {number(r['largest_beyond'])} | {number(r['last'])} | {'yes' if r['finite'] else 'NO'} |"
            for c, r in shelf.cells.items() if c.kind == "long" and c.method == "dgnet"]
    if not rows:
        return []
    return ["", "## Ten times longer than the data", "",
            "A test trajectory's start, sources and flow, then nine more horizons without sources (the flow stays at its last "
            "instant). Largest deviation from the offset at any node.", "",
            "| run | steps | within the data's horizon | beyond it | at the end | finite |", "|---|---|---|---|---|---|",
            *sorted(rows)]

"""The page of DGNet: its rows beside the classical solvers', scenario by scenario, from finished cells alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dgnet.scoring.judge import rivals
from dgnet_paper.scenarios import get
from dgnet_paper.study import tradeoff
from dgnet_paper.study.blocks import Block, Head, Table, Text, to_markdown
from dgnet_paper.study.experiment import Experiment, Record
from dgnet_paper.study.results import Shelf, Value, number, value
from dgnet_paper.study.rows import CLASSICAL, Row
from dgnet_paper.study.targets import ELEVEN, FACTORS, scales

_OPENING = """Written by `dgnet-paper report --dgnet` from finished cells. Errors are RNE from offset over the whole rollout of
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
    trained = {c: r for c, r in shelf.of_kind("train").items() if c.method == "dgnet"}
    blocks: list[Block] = [Text(_OPENING)]
    for size, truth in sorted({(c.size, c.truth) for c in trained}, key=lambda pair: (pair[0] != "paper", pair[1])):
        rows = []
        for name in ELEVEN:
            cells = {replace(c, seed=0) for c in trained if (c.scenario, c.size, c.truth, c.factor) == (name, size, truth, 1.0)}
            ordered = sorted(cells, key=lambda c: (c.unknown_reaction, c.trajectories, c.few))
            command = f"dgnet-paper reproduce train_{name}_{size}_{truth}_dgnet_s0 --device cuda --budget 3"
            rows += [_row(shelf, cell) for cell in ordered] or [[name, f"not run: `{command}`", *[""] * (len(_COLUMNS) - 2)]]
        blocks += [Head(f"`{size}` size, `{truth}` truth"), Table(_COLUMNS, rows)]
    blocks += [*_kinds_of_paths(shelf), *_other_sources(shelf), *_costs(shelf), *_long_rollouts(shelf)]
    return to_markdown("DGNet beside the classical solvers", blocks)


def _row(shelf: Shelf, cell: Experiment) -> list[str]:
    """DGNet's figures in a cell over all seeds, those of the classical solvers and of the paper."""
    records, row = shelf.seeds(cell), Row("dgnet", cell.unknown_reaction)
    own, plain = (value(records, row, key) for key in ("rne_from_offset", "rne"))
    assert own is not None and plain is not None
    rival = shelf.records.get(cell.needs[0].tag, {"scores": {}})  # may know rows that were added after the training
    scores = {**rival["scores"], **records[0]["scores"]}
    beside = {key: Value.of([scores[key]["rne_from_offset"]]) if key in scores else None for key in CLASSICAL}
    best = min(v.mean for key in rivals() if (v := beside[key]) is not None)
    scenario, label = get(cell.scenario, cell.size), cell.scenario
    if cell.trajectories:
        label += f", {cell.trajectories} training trajector{'y' if cell.trajectories == 1 else 'ies'}"
    elif cell.few:
        label += f", {min(cell.few, scenario.train)} of {scenario.train} training trajectories"
    label += ", reaction unknown" if cell.unknown_reaction else ""
    tests = records[0]["test_trajectories"]
    return [label, row.told, own.text() if own.learned else f"did not learn ({own.text()})",
            *("–" if v is None else v.text() for v in beside.values()), "–" if best == float("inf") else f"{own.mean / best:.2f}",
            plain.text(), *_published(cell, plain.mean), f"{tests} of {scenario.test}" if tests < scenario.test else str(tests),
            _training(records), "; ".join(dict.fromkeys(map(_hardware, records)))]


def _published(cell: Experiment, plain: float) -> tuple[str, str]:
    """The paper's figure and a fifth of it, and on truth of the paper's kind whether that is reached."""
    figure = get(cell.scenario, cell.size).paper.get("DGNet") if cell.size == "paper" else None
    if figure is None:
        return "–", "–"
    fifth = number(figure.rne / 5)
    if cell.truth == "same-mesh":
        fifth = f"{fifth} {'reached' if plain <= figure.rne / 5 else 'missed'}"
        if cell.unknown_reaction:
            fifth = f"whole: {'reached' if plain <= figure.rne else 'missed'}"
    return number(figure.rne), fifth


def _training(records: Sequence[Record]) -> str:
    seconds = sum(r["seconds"]["train"] for r in records) / len(records)
    counts = [r["updates"] for r in records if r.get("updates") is not None]
    return f"{seconds:.0f} s, {round(sum(counts) / len(counts)) if counts else 'unknown'} updates"


def _hardware(record: Record) -> str:
    shared, code = record.get("sharing", 1), record.get("code")
    return record["hardware"] + (f", shared by {shared}" if shared > 1 else "") + (f", code {code}" if code else "")


def _kinds_of_paths(shelf: Shelf) -> list[Block]:
    """Held-out training trajectories have the kinds of sources of training, test trajectories have others."""
    rows = []
    for cell, record in shelf.of_kind("train").items():
        if cell.method == "dgnet" and cell.scenario == "laser-heat" and not cell.trajectories:
            same, other = record["validation"], record["scores"]["dgnet"]["rne_from_offset"]
            rows.append([f"laser-heat ({cell.size}, {cell.truth}), seed {cell.seed}", number(same), number(other),
                         f"{other / same:.2f}"])
    head = ["run", "seen kinds (held-out trajectories)", "unseen kinds (test)", "ratio"]
    return [Head("Kinds of paths never seen in training"), Table(head, sorted(rows))] if rows else []


def _other_sources(shelf: Shelf) -> list[Block]:
    blocks: list[Block] = []
    for size in ("paper", "small"):
        base = Experiment("train", "laser-heat-3d", size, "converged", "dgnet")
        if base.tag not in shelf.records or not any(c.size == size for c in shelf.of_kind("robust")):
            continue
        rows = []
        for what, line in scales().items():
            tags = [base.tag if f == 1.0 else replace(base, kind="robust", scale=scale).tag for f, scale in zip(FACTORS, line)]
            scores = [shelf.records[tag]["scores"] if tag in shelf.records else None for tag in tags]
            rows.append([what, *("not run" if s is None else f"{number(s['dgnet']['rne_from_offset'])} "
                                 f"({number(min(s[row]['rne_from_offset'] for row in rivals()))})" for s in scores)])
        blocks += [Head(f"Other sources than in training: laser-heat-3d, `{size}` size"),
                   Text("Trained at 1×; test sources scaled. RNE from the offset of DGNet (of the better classical solver)."),
                   Table(["factor on", *(f"{f:g}×" for f in FACTORS)], rows)]
    return blocks


def _costs(shelf: Shelf) -> list[Block]:
    rows = []
    for cell, record in shelf.of_kind("tradeoff").items():
        if cell.method != "dgnet":
            continue
        result = record["result"]
        own, best = result["rows"][0], tradeoff.cheapest(result)
        rival = ["none that was run", "–"] if best is None else [
            f"{tradeoff.named(best)}: {number(best['error'])}", f"{tradeoff.whole(best) / tradeoff.whole(own):.3g}×"]
        rows.append([f"{cell.scenario} ({cell.size}, {cell.truth})", number(own["error"]), f"{tradeoff.whole(own):.3g} s", *rival,
                     f"{record['hardware']}, {result['trajectories']} trajectories at once"])
    head = ["run", "DGNet's error", "its cost", "classical setting that reaches it", "its cost against DGNet's", "measured on"]
    return [Head("Cost against accuracy"), Text(
        "The cheapest setting of the classical solver (elements, mesh, step) that reaches DGNet's error on the same device in "
        "the same run, single precision and captured like DGNet, and its cost against DGNet's: set-up, averages of the sources "
        "and all steps. All settings that were tried are in paper.md."), Table(head, sorted(rows))] if rows else []


def _long_rollouts(shelf: Shelf) -> list[Block]:
    rows = [[f"{c.scenario} ({c.size}, {c.truth})", f"{r['steps']:,}", number(r["largest_within"]), number(r["largest_beyond"]),
             number(r["last"]), "yes" if r["finite"] else "NO"] for c, r in shelf.of_kind("long").items() if c.method == "dgnet"]
    head = ["run", "steps", "within the data's horizon", "beyond it", "at the end", "finite"]
    return [Head("Ten times longer than the data"), Text(
        "A test trajectory's start, sources and flow, then nine more horizons without sources (the flow stays at its last "
        "instant). Largest deviation from the offset at any node."), Table(head, sorted(rows))] if rows else []

"""Tables of what cells measured with a clock: time and memory of rollouts, and error against cost."""

from __future__ import annotations

from functools import partial

from dgnet_paper.study import drawing
from dgnet_paper.study import tradeoff as ladders
from dgnet_paper.study.blocks import Block, Head, Slot, Table, Text
from dgnet_paper.study.experiment import Experiment
from dgnet_paper.study.published import INFERENCE, THROUGHPUT
from dgnet_paper.study.results import Record, Shelf, number
from dgnet_paper.study.rows import label
from dgnet_paper.study.tables import Pictures


def clocks(shelf: Shelf, pictures: Pictures) -> list[Block]:
    """All that was measured, scenario by scenario."""
    blocks: list[Block] = []
    speed = {c: r for c, r in shelf.cells.items() if c.kind == "throughput"}
    if speed:
        blocks.append(Head("Time and memory of a rollout (Appendix D)"))
        blocks.append(Text("One trajectory. The paper's figures are from one RTX 4090; beside the baselines stands its time of "
                           "a whole trajectory divided by the number of steps."))
    for cell, record in speed.items():
        blocks.append(throughput(cell, record))
    for cell, record in shelf.cells.items():
        if cell.kind == "scaling":
            trial = ", a trial of few steps" if cell.few else ""
            blocks.append(Head(f"Time and memory against nodes ({record['hardware']}{trial}{_shared(record)})"))
            rows = [[label(r["model"]), f"{r['nodes']:,}", *(["not run", "", ""] if "not_run" in r else
                     [number(r["prepare_s"]), number(r["ms_per_step"]), f"{(r['peak_bytes'] or 0) / 1e6:,.0f}"])]
                     for r in record["result"]["rows"]]
            blocks.append(Table(["", "nodes", "prepare, s", "ms/step", "peak memory, MB"], rows))
            blocks += pictures.drawn(partial(drawing.scaling, record=record), f"scaling-{cell.size}-{cell.few}",
                                     "Time of a step and memory against nodes, one trajectory.")
    for cell, record in shelf.cells.items():
        if cell.kind == "tradeoff":
            blocks += tradeoff(cell, record, pictures)
    return blocks


def throughput(cell: Experiment, record: Record) -> Table:
    """Every model on the mesh of one scenario."""
    lines: list[list[Slot | str]] = []
    paper = THROUGHPUT.get(cell.scenario) if cell.size == "paper" else None
    steps = record["about"]["steps"]
    for r in record["result"]["rows"]:
        published = r["model"] in ("dgnet-paper", "dgnet_paper")
        key = "dgnet" if published else r["model"]
        beside = ""
        if cell.size == "paper" and published and paper:
            beside = f"paper {paper[2]:.3g}"
        elif cell.size == "paper" and key in INFERENCE.get(cell.scenario, {}) and r["model"] != "dgnet":
            beside = f"paper {1e3 * INFERENCE[cell.scenario][key] / steps:.3g}"
        title = label("dgnet-bounded" if r["model"] == "dgnet_paper" else r["model"])  # as older cells call it
        if "not_run" in r:
            lines.append([title, Slot(f"not run: {r['not_run']}", faint=True), *[""] * 5])
            continue
        lines.append([title, f"{r['parameters']:,}", number(r["prepare_s"]), Slot(number(r["ms_per_step"]), beside=beside),
                      f"{r['running_steps_per_s']:,.0f}", f"{r['steps_per_s']:,.0f}",
                      "–" if r["peak_bytes"] is None else f"{r['peak_bytes'] / 1e6:,.0f}"])
    title = (f"{cell.scenario} ({cell.size}, {record['about']['nodes']:,} nodes), {record['hardware']}"
             + (", a trial of few steps" if cell.few else "") + _shared(record) + f", code {record.get('code') or 'not recorded'}")
    return Table([title, "parameters", "prepare, s", "ms/step", "steps/s, running", "steps/s, with preparation",
                  "peak memory, MB"], lines)


def tradeoff(cell: Experiment, record: Record, pictures: Pictures) -> list[Block]:
    """All settings that were tried, and the cheapest one that reaches the model's error."""
    found = record["result"]
    title = f"Error against cost: {cell.scenario} ({cell.size} size, {cell.truth} truth), {record['hardware']}"
    rows: list[list[Slot | str]] = []
    for r in found["rows"]:
        rows.append([label(ladders.named(r)), *(
            [Slot(f"not run: {r['not_run']}", faint=True), "", "", "", ""] if "not_run" in r else
            [number(r["error"]), number(ladders.whole(r)), *(number(r[key]) for key in ("setup_s", "source_s", "rollout_s"))])])
    head = ["", "RNE from offset", "whole, s", "set-up, s", "sources, s", "rollout, s"]
    return [Head(title), Table(head, rows), Text(ladders.verdict(found)),
            *pictures.drawn(partial(drawing.tradeoff, record=record), f"tradeoff-{cell.scenario}-{cell.method}-{cell.size}",
                            f"{cell.scenario}: error against the cost of all test trajectories at once.")]


def _shared(record: Record) -> str:
    return f", shared by {record['sharing']} processes" if record["sharing"] > 1 else ""

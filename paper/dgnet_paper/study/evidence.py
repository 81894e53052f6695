"""The page of the paper's evidence: tables and pictures from finished cells, the paper's figures beside them, what was not run."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dgnet.files import write_text
from dgnet.progress import Report
from dgnet_paper.study import drawing, stored, tradeoff
from dgnet_paper.study.blocks import Block, Head, Lines, Slot, Table, Text, to_html, to_markdown
from dgnet_paper.study.experiment import Experiment, Record
from dgnet_paper.study.published import INFERENCE, THROUGHPUT
from dgnet_paper.study.results import Setting, Shelf, number
from dgnet_paper.study.rows import label
from dgnet_paper.study.tables import Pictures, Section, choice
from dgnet_paper.study.targets import ACCURACY, TARGETS, cells

TITLE = "The paper's evidence, regenerated"
_SAME_MESH = ("The truth is computed on the models' own mesh; the paper does not say on which mesh its data were "
              "computed. A classical solver with the same mass and a small step would be exact.")
_CONVERGED = ("The truth is converged in space and time (see the scenario cards); the paper's data may have been "
              "computed on the models' own mesh, so that its figures are not strictly comparable.")


def write(folders: Sequence[Path], out: Path, markdown: Path | None = None, report: Report | None = None) -> list[Path]:
    """One HTML file, and with `markdown` a Markdown page with a folder of pictures beside it; returns what was written."""
    with tempfile.TemporaryDirectory() as scratch:
        blocks = build(Shelf.open(folders), Path(scratch), folders[0], report)
        write_text(out, to_html(TITLE, blocks))
        written = [out]
        if markdown is not None:
            page = markdown if markdown.suffix == ".md" else markdown / "paper.md"
            page.parent.mkdir(parents=True, exist_ok=True)
            write_text(page, to_markdown(TITLE, blocks, page.with_suffix(""), page.stem))
            written.append(page)
    return written


def build(shelf: Shelf, scratch: Path, out: Path, report: Report | None = None) -> list[Block]:
    """All sections; pictures are drawn into `scratch`, commands write to `out`."""
    pictures, settings = Pictures(scratch), shelf.settings()
    place = "DIR" if out.is_absolute() else str(out)  # a page may travel, the folder of this machine does not
    if stored.packed(out):
        place = "out/study"  # a packed study is only read
    blocks: list[Block] = [opening(shelf)]
    for k, s in enumerate(settings):
        blocks += setting(shelf, s, pictures, place)
        if report is not None:
            report("sections", k + 1, len(settings) + 1)
    return [*blocks, *clocks(shelf, pictures), *hardware(shelf), *absent(shelf, settings, place)]


def opening(shelf: Shelf) -> Text:
    trained = shelf.of_kind("train").values()
    minutes = sum(r["seconds"].get("train", 0.0) for r in trained) / 60
    return Text(f"{len(shelf.records)} cells, {len(trained)} of them trainings ({minutes:.0f} minutes of training in all), "
                "written from the stored cells alone by `dgnet-paper report`. Errors are those of free rollouts of test "
                "trajectories from their first state; classical rows are Crank–Nicolson finite elements on the same mesh and step, "
                "without a learned weight. The best of our figures is **bold**; the paper's figure, on its own data, stands "
                "beside ours in small print. Several seeds are given as mean ± standard deviation; seeds from an older version of "
                "the code are left out. *did not learn*: no validation was better than that of the untrained weights, which are "
                "what was tested. Letters in brackets mark figures from other hardware or another version of the code than most "
                "of the table; early cells did not record the code.")


def setting(shelf: Shelf, s: Setting, pictures: Pictures, out: str) -> list[Block]:
    """One size and truth."""
    blocks: list[Block] = [Head(s.title[0].upper() + s.title[1:]), Text(_SAME_MESH if s.truth == "same-mesh" else _CONVERGED)]
    if s.size == "small":
        blocks.append(Text("The paper has no figures for this size."))
    present = shelf.scenarios(s)
    rings = " Rings: the paper's figures." if s.size == "paper" else ""
    blocks += pictures.drawn(partial(drawing.overview, shelf=shelf, s=s, scenarios=present), f"overview-{s.slug}",
                             f"RNE of every model that was run; crosses did not learn, arrows are above 100.{rings}")
    section = Section(shelf, s, pictures, partial(command, s, out))
    for name in ACCURACY:
        blocks += section.accuracy(TARGETS[name])
    blocks += section.ablation() + section.robustness() + section.efficiency() + section.failure() + section.operators()
    return blocks + section.details(present)


def command(s: Setting, out: str, what: str) -> str:
    """Runs a target in this setting, or one cell."""
    if "_" in what:
        return f"dgnet-paper reproduce {what} --out {out}"
    trial = (f" --few {s.few}" if s.few else "") + (f" --factor {s.factor:g}" if s.factor != 1.0 else "")
    return f"dgnet-paper reproduce {what} --size {s.size} --truth {s.truth}{trial} --out {out}"


# ---------------------------------------------------------------------- clocks


def clocks(shelf: Shelf, pictures: Pictures) -> list[Block]:
    """Time and memory of rollouts, and error against cost, scenario by scenario."""
    blocks: list[Block] = []
    speed = shelf.of_kind("throughput")
    if speed:
        blocks += [Head("Time and memory of a rollout (Appendix D)"),
                   Text("One trajectory. The paper's figures are from one RTX 4090; beside the baselines stands its time of "
                        "a whole trajectory divided by the number of steps."), *(throughput(*pair) for pair in speed.items())]
    for cell, record in shelf.of_kind("scaling").items():
        rows = [[label(r["model"]), f"{r['nodes']:,}", *(["not run", "", ""] if "not_run" in r else
                 [number(r["prepare_s"]), number(r["ms_per_step"]), f"{(r['peak_bytes'] or 0) / 1e6:,.0f}"])]
                for r in record["result"]["rows"]]
        blocks += [Head(f"Time and memory against nodes ({_machine(cell, record)})"),
                   Table(["", "nodes", "prepare, s", "ms/step", "peak memory, MB"], rows),
                   *pictures.drawn(partial(drawing.scaling, record=record), f"scaling-{cell.size}-{cell.few}",
                                   "Time of a step and memory against nodes, one trajectory.")]
    for cell, record in shelf.of_kind("tradeoff").items():
        blocks += costs(cell, record, pictures)
    return blocks


def throughput(cell: Experiment, record: Record) -> Table:
    """Every model on the mesh of one scenario; the paper's figures beside those of its size."""
    lines: list[list[Slot | str]] = []
    beside = {}
    if cell.size == "paper" and cell.scenario in THROUGHPUT:
        beside = {m: 1e3 * seconds / record["about"]["steps"] for m, seconds in INFERENCE[cell.scenario].items() if m != "dgnet"}
        beside |= dict.fromkeys(("dgnet-paper", "dgnet-bounded"), THROUGHPUT[cell.scenario][2])
    for r in record["result"]["rows"]:
        title = label(r["model"])
        if "not_run" in r:
            lines.append([title, Slot(f"not run: {r['not_run']}", faint=True), *[""] * 5])
            continue
        paper = f"paper {beside[r['model']]:.3g}" if r["model"] in beside else ""
        lines.append([title, f"{r['parameters']:,}", number(r["prepare_s"]), Slot(number(r["ms_per_step"]), beside=paper),
                      f"{r['running_steps_per_s']:,.0f}", f"{r['steps_per_s']:,.0f}",
                      "–" if r["peak_bytes"] is None else f"{r['peak_bytes'] / 1e6:,.0f}"])
    title = (f"{cell.scenario} ({cell.size}, {record['about']['nodes']:,} nodes), {_machine(cell, record)}, "
             f"code {record.get('code') or 'not recorded'}")
    head = [title, "parameters", "prepare, s", "ms/step", "steps/s, running", "steps/s, with preparation", "peak memory, MB"]
    return Table(head, lines)


def costs(cell: Experiment, record: Record, pictures: Pictures) -> list[Block]:
    """All settings that were tried, and the cheapest one that reaches the model's error."""
    found = record["result"]
    rows: list[list[Slot | str]] = []
    for r in found["rows"]:
        numbers = () if "not_run" in r else (r["error"], tradeoff.whole(r),
                                             *(r[key] for key in ("setup_s", "source_s", "rollout_s")))
        rows.append([label(tradeoff.named(r)), *(map(number, numbers) if numbers else
                                                 [Slot(f"not run: {r['not_run']}", faint=True), "", "", "", ""])])
    return [Head(f"Error against cost: {cell.scenario} ({cell.size} size, {cell.truth} truth), {record['hardware']}"),
            Table(["", "RNE from offset", "whole, s", "set-up, s", "sources, s", "rollout, s"], rows),
            Text(tradeoff.verdict(found)),
            *pictures.drawn(partial(drawing.tradeoff, record=record), f"tradeoff-{cell.scenario}-{cell.method}-{cell.size}",
                            f"{cell.scenario}: error against the cost of all test trajectories at once.")]


def _machine(cell: Experiment, record: Record) -> str:
    shared = f", shared by {record['sharing']} processes" if record["sharing"] > 1 else ""
    return record["hardware"] + (", a trial of few steps" if cell.few else "") + shared


# ---------------------------------------------------------------------- what was run, and what was not


def hardware(shelf: Shelf) -> list[Block]:
    """What was run, on what, with which code, for how long."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for r in shelf.records.values():
        budget = r.get("budget")
        limit = "–" if r["cell"]["kind"] != "train" else "none" if budget is None else f"{budget / 60:g} min"
        key = (r["hardware"], r["sharing"], r["version"], r.get("code") or "not recorded", r.get("commit") or "unknown", limit)
        groups.setdefault(key, []).append(r)
    lines = []
    for key, records in sorted(groups.items(), key=str):
        minutes = [sum(r["seconds"].get(k, 0.0) for r in records) / 60 for k in ("generate", "train", "evaluate", "total")]
        dates = sorted(r["date"][:10] for r in records)
        lines.append([*map(str, key), str(len(records)), *(f"{m:.1f}" for m in minutes),
                      dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"])
    head = ["hardware", "processes sharing it", "version", "code", "commit", "training budget per cell", "cells",
            "data, min", "training, min", "evaluation, min", "all, min", "when"]
    return [Head("What was run, on what, for how long"), Table(head, lines)] if lines else []


def absent(shelf: Shelf, settings: Sequence[Setting], out: str) -> list[Block]:
    """Every target of which cells are missing in some setting, and cells that failed."""
    blocks, commands = list[Block](), []
    for s in [s for s in settings if not s.trial] or settings[:1]:
        for target in TARGETS.values():
            wanted = [c for c in cells(target.name, choice(s)) if c.kind == target.kind]
            missing = [c for c in wanted if c.tag not in shelf.records]
            if missing:
                state = "not run" if len(missing) == len(wanted) else f"{len(missing)} of {len(wanted)} cells not run"
                commands.append(f"{command(s, out, target.name)}  # {state}")
    if commands:
        blocks += [Head("Not run"),
                   Text("Each command runs what is missing of a target and skips what is finished; add `--device cuda`, "
                        "`--budget MINUTES` and `--plan` as needed. The cells of a packed study are copied first: "
                        f"`dgnet-paper reproduce merge STORE --out {out}`."),
                   Lines(f"not run, whole or in part: {len(commands)} targets", list(dict.fromkeys(commands)))]
    if shelf.failed:
        blocks.append(Lines(f"failed: {len(shelf.failed)} cells", [f"{tag}  # {why}" for tag, why in shelf.failed.items()]))
    return blocks

"""The page of the paper's evidence: tables and pictures from finished cells, the paper's figures beside them, what was not run."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dgnet.files import write_text
from dgnet.progress import Report
from dgnet_paper.study import archive, drawing
from dgnet_paper.study.blocks import Block, Head, Lines, Table, Text, to_html, to_markdown
from dgnet_paper.study.clocks import clocks
from dgnet_paper.study.results import Record, Setting, Shelf
from dgnet_paper.study.tables import Pictures, Section, choice
from dgnet_paper.study.targets import ACCURACY, TARGETS, cells

TITLE = "The paper's evidence, regenerated"


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
    if (out / archive.CELLS).exists():
        place = "out/study"  # a packed study is only read
    blocks: list[Block] = [opening(shelf)]
    for k, s in enumerate(settings):
        blocks += setting(shelf, s, pictures, place)
        if report is not None:
            report("sections", k + 1, len(settings) + 1)
    return blocks + clocks(shelf, pictures) + hardware(shelf) + absent(shelf, settings, place)


def opening(shelf: Shelf) -> Text:
    records = list(shelf.records.values())
    trained = [r for r in records if r["cell"]["kind"] == "train"]
    minutes = sum(r["seconds"].get("train", 0.0) for r in trained) / 60
    return Text(f"{len(records)} cells, {len(trained)} of them trainings ({minutes:.0f} minutes of training in all), written from "
                "the stored cells alone by `dgnet-paper report`. Errors are those of free rollouts of test trajectories from their "
                "first state; classical rows are Crank–Nicolson finite elements on the same mesh and step, without a learned "
                "weight. The best of our figures is **bold**; the paper's figure, on its own data, stands beside ours in small "
                "print. Several seeds are given as mean ± standard deviation; seeds from an older version of the code are left "
                "out. *did not learn*: no validation was better than that of the "
                "untrained weights, which are what was tested. Letters in brackets mark figures from other hardware or another "
                "version of the code than most of the table; early cells did not record the code.")


def setting(shelf: Shelf, s: Setting, pictures: Pictures, out: str) -> list[Block]:
    """One size and truth."""
    blocks: list[Block] = [Head(s.title[0].upper() + s.title[1:])]
    if s.truth == "same-mesh":
        blocks.append(Text("The truth is computed on the models' own mesh; the paper does not say on which mesh its data were "
                           "computed. A classical solver with the same mass and a small step would be exact."))
    else:
        blocks.append(Text("The truth is converged in space and time (see the scenario cards); the paper's data may have been "
                           "computed on the models' own mesh, so that its figures are not strictly comparable."))
    if s.size == "small":
        blocks.append(Text("The paper has no figures for this size."))
    present = shelf.scenarios(s)
    rings = " Rings: the paper's figures." if s.size == "paper" else ""
    blocks += pictures.drawn(lambda p: drawing.overview(p, shelf, s, present), f"overview-{s.slug}",
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


def hardware(shelf: Shelf) -> list[Block]:
    """What was run, on what, with which code, for how long."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for r in shelf.records.values():
        key = (r["hardware"], r["sharing"], r["version"], r.get("code") or "not recorded", r.get("commit") or "unknown",
               r.get("budget") if r["cell"]["kind"] == "train" else "")
        groups.setdefault(key, []).append(r)
    if not groups:
        return []
    lines = []
    for (machine, sharing, version, code, commit, budget), records in sorted(groups.items(), key=str):
        seconds = {k: sum(r["seconds"].get(k, 0.0) for r in records) for k in ("generate", "train", "evaluate", "total")}
        limit = "–" if budget == "" else "none" if budget is None else f"{budget / 60:g} min"
        dates = sorted(r["date"][:10] for r in records)
        lines.append([machine, str(sharing), str(version), code, commit, limit, str(len(records)),
                      *(f"{seconds[k] / 60:.1f}" for k in seconds),
                      dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"])
    return [Head("What was run, on what, for how long"),
            Table(["hardware", "processes sharing it", "version", "code", "commit", "training budget per cell", "cells",
                   "data, min", "training, min", "evaluation, min", "all, min", "when"], lines)]


def absent(shelf: Shelf, settings: Sequence[Setting], out: str) -> list[Block]:
    """Every target that has not been touched at all in some setting, and cells that failed."""
    blocks: list[Block] = []
    commands = []
    for s in [s for s in settings if not s.trial] or settings[:1]:
        for target in TARGETS.values():
            wanted = [c for c in cells(target.name, choice(s)) if c.kind == target.kind]
            missing = [c for c in wanted if c.tag not in shelf.records]
            if missing:
                state = "not run" if len(missing) == len(wanted) else f"{len(missing)} of {len(wanted)} cells not run"
                commands.append(f"{command(s, out, target.name)}  # {state}")
    if commands:
        blocks.append(Head("Not run"))
        blocks.append(Text("Each command runs what is missing of a target and skips what is finished; add `--device cuda`, "
                           "`--budget MINUTES` and `--plan` as needed. The cells of a packed study are copied first: "
                           f"`dgnet-paper reproduce merge STORE --out {out}`."))
        blocks.append(Lines(f"not run, whole or in part: {len(commands)} targets", list(dict.fromkeys(commands))))
    if shelf.failed:
        blocks.append(Lines(f"failed: {len(shelf.failed)} cells", [f"{tag}  # {why}" for tag, why in shelf.failed.items()]))
    return blocks

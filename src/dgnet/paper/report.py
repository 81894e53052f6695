"""The report: tables and pictures from finished cells, the paper's figures beside them, what was not run said so."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dgnet.bench import tradeoff as ladders
from dgnet.files import write_text
from dgnet.paper import archive, drawing
from dgnet.paper.blocks import Block, Head, Lines, Picture, Slot, Table, Text, to_html, to_markdown
from dgnet.paper.cell import FAMILIES, METHODS, Cell, is_variant
from dgnet.paper.engine import expand
from dgnet.paper.published import INFERENCE, ROBUSTNESS, THROUGHPUT
from dgnet.paper.results import CLASSICAL, Record, Setting, Shelf, Value, number, training
from dgnet.paper.targets import ATTRIBUTES, COUNTS, FACTORS, TARGETS, Choice, Target, cells
from dgnet.progress import Report
from dgnet.scenarios import get

TITLE = "The paper's evidence, regenerated"
ACCURACY = ("table-main", "table-recent", "table-3d", "table-wavy", "table-light")
NOT_RUN = Slot("not run", faint=True)


def write(folders: Sequence[Path], out: Path, markdown: Path | None = None, report: Report | None = None,
          ) -> list[Path]:
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
    """All sections; pictures are drawn into `scratch`."""
    maker = _Maker(shelf, scratch, out)
    blocks: list[Block] = [*maker.opening()]
    settings = shelf.settings()
    for k, s in enumerate(settings):
        blocks += maker.setting(s)
        if report is not None:
            report("sections", k + 1, len(settings) + 1)
    blocks += maker.clocks()
    blocks += maker.hardware()
    blocks += maker.absent(settings)
    return blocks


class _Maker:
    def __init__(self, shelf: Shelf, scratch: Path, out: Path) -> None:
        self.shelf, self.scratch = shelf, scratch
        self.out = "DIR" if out.is_absolute() else str(out)  # a page may travel, the folder of this machine does not
        self.count = 0

    # ------------------------------------------------------------------ sections

    def opening(self) -> list[Block]:
        records = list(self.shelf.records.values())
        trained = [r for r in records if r["cell"]["kind"] == "train"]
        minutes = sum(r["seconds"].get("train", 0.0) for r in trained) / 60
        text = (f"{len(records)} cells, {len(trained)} of them trainings ({minutes:.0f} minutes of training in all), written from "
                "the stored cells alone by `dgnet report`. Errors are those of free rollouts of test trajectories from their first "
                "state; classical rows are Crank–Nicolson finite elements on the same mesh and step, without a learned weight. The "
                "best of our figures is **bold**; the paper's figure, on its own data, stands beside ours in small print. Several "
                "seeds are given as mean ± standard deviation.")
        return [Text(text)]

    def setting(self, s: Setting) -> list[Block]:
        blocks: list[Block] = [Head(s.title[0].upper() + s.title[1:])]
        if s.truth == "same-mesh":
            blocks.append(Text("The truth is computed on the models' own mesh, as in the paper: a classical solver with the same "
                               "mass and a small step would be exact."))
        else:
            blocks.append(Text("The truth is converged in space and time (see the scenario cards); the paper's was computed on the "
                               "models' own mesh, so that its figures are not strictly comparable."))
        if s.size == "small":
            blocks.append(Text("The paper has no figures for this size."))
        present = self.shelf.scenarios(s)
        rows = list(dict.fromkeys([*CLASSICAL, *(m for name in present for m, u in self.shelf.methods(name, s)
                                                 if not u and not is_variant(m))]))
        blocks += self.picture(lambda p: drawing.overview(p, self.shelf, s, present, rows), f"overview-{s.size}-{s.truth}",
                               "RNE of every model that was run." + (" Rings: the paper's figures." if s.size == "paper" else ""))
        for name in ACCURACY:
            blocks += self.accuracy(TARGETS[name], s)
        blocks += self.ablation(s)
        blocks += self.robustness(s)
        blocks += self.efficiency(s)
        blocks += self.failure(s)
        blocks += self.operators(s)
        blocks += self.details(s, present)
        return blocks

    def accuracy(self, target: Target, s: Setting) -> list[Block]:
        shelf = self.shelf
        if not any(shelf.methods(name, s) for name in target.scenarios):
            return []
        columns: list[tuple[str, bool]] = [(row, False) for row in (*CLASSICAL, *target.methods)]
        if target.name != "table-recent":  # models beyond the paper's columns, where they were run
            known = {m for t in TARGETS.values() for m in t.methods}
            for name in target.scenarios:
                columns += [(m, u) for m, u in shelf.methods(name, s)
                            if (m, u) not in columns and (u or m not in known) and not is_variant(m)]
        blocks: list[Block] = [Head(f"{target.title} ({target.where})", 3)]
        for key, title in (("rne", "RNE"), ("mse", "MSE")):
            lines = []
            for name in target.scenarios:
                published = get(name, s.size).paper if s.size == "paper" else {}
                values = [shelf.value(name, row, s, key, unknown) for row, unknown in columns]
                best = min((v.mean for v in values if v is not None), default=math.inf)
                line: list[Slot | str] = [name]
                for (row, unknown), value in zip(columns, values):
                    figure = None if row in CLASSICAL or unknown else published.get(METHODS[row].published)
                    beside = "" if figure is None else f"paper {number(getattr(figure, key))}"
                    line.append(self.slot(value, best, beside))
                lines.append(line)
            heads = [drawing.label(row) + (", reaction unknown" if unknown else "") for row, unknown in columns]
            blocks.append(Table([title, *heads], lines))
        blocks += self.missing(target, s)
        return blocks

    def ablation(self, s: Setting) -> list[Block]:
        target = TARGETS["ablation"]
        blocks = [block for family in FAMILIES for block in self.variants(family, s)]
        return blocks and [Head(f"{target.title} ({target.where})", 3), *blocks, *self.missing(target, s)]

    def variants(self, family: str, s: Setting) -> list[Block]:
        """The ablation of one model."""
        target, methods = TARGETS["ablation"], (*(f"{family}-{letter}" for letter in "ABCD"), family)
        if not any(self.shelf.value(name, row, s) for name in target.scenarios for row in methods[:-1]):
            return []
        blocks: list[Block] = [Text(f"Of {FAMILIES[family]}.")]
        lines: list[list[Slot | str]] = []
        for name in target.scenarios:
            values = {row: self.shelf.value(name, row, s, "rne_from_offset") for row in (*methods, "classical_lumped")}
            best = min((v.mean for v in values.values() if v is not None), default=math.inf)
            lines.append([name, *(self.slot(v, best) for v in values.values())])
        heads = [METHODS[m].title if m != family else "full" for m in methods]
        blocks.append(Table(["RNE from offset", *heads, drawing.label("classical_lumped")], lines))
        for name in target.scenarios:
            sentence = _verdict(name, {m: self.shelf.value(name, m, s, "rne_from_offset") for m in methods})
            blocks += [Text(sentence)] if sentence else []
        return blocks + self.picture(lambda p: drawing.ablation(p, self.shelf, s, target.scenarios, methods),
                                     f"ablation-{s.size}-{s.truth}", "The model without one of its parts; dashed: the classical "
                                     "solver with a lumped mass.")

    def robustness(self, s: Setting) -> list[Block]:
        target = TARGETS["table-robustness"]
        name = target.scenarios[0]
        found = [c for c in self.shelf.cells if c.kind == "robust" and Setting(c.size, c.truth, c.few, c.factor) == s]
        if not found:
            return []
        methods = list(dict.fromkeys([*target.methods, *(c.method for c in found)]))
        blocks: list[Block] = [Head(f"{target.title} ({target.where})", 3),
                               Text("Trained once on the usual sources, then tested on others. The paper gives its MSE; its 1× "
                                    "column repeats the figure of the two-dimensional laser.")]
        for key, title in (("rne_from_offset", "RNE from offset"), ("mse", "MSE")):
            lines = []
            for attribute, axis in ATTRIBUTES.items():
                for row in ("classical_consistent", *methods):
                    line: list[Slot | str] = [f"{attribute}: {drawing.label(row)}"]
                    for k, factor in enumerate(FACTORS):
                        scale = tuple(factor if i == axis else 1.0 for i in range(3))
                        value = self.scaled(name, row, s, scale, key)  # type: ignore[arg-type]
                        beside = f"paper {number(ROBUSTNESS[attribute][k])}" if (key, row) == ("mse", "dgnet-paper") and \
                            s.size == "paper" else ""
                        line.append(self.slot(value, -1.0, beside))
                    lines.append(line)
            blocks.append(Table([title, *(f"{f:g}×" for f in FACTORS)], lines))
        return blocks + self.missing(target, s)

    def scaled(self, name: str, row: str, s: Setting, scale: tuple[float, float, float], key: str) -> Value | None:
        if scale == (1.0, 1.0, 1.0):
            return self.shelf.value(name, row, s, key)
        if row in CLASSICAL:
            record = self.shelf.classical(name, s, scale)
            return None if record is None else Value.of([record["scores"][row][key]])
        cell = replace(training(name, row, s), kind="robust", scale=scale)
        return Value.of(r["scores"][row][key] for r in self.shelf.seeds(cell))

    def efficiency(self, s: Setting) -> list[Block]:
        target = TARGETS["data-efficiency"]
        few = [c for c in self.shelf.cells
               if c.kind == "train" and c.trajectories and Setting(c.size, c.truth, c.few, c.factor) == s]
        if not few:
            return []
        blocks: list[Block] = [Head(f"{target.title} ({target.where})", 3)]
        for name in dict.fromkeys([*target.scenarios, *(c.scenario for c in few)]):
            own = [c for c in few if c.scenario == name]
            if not own:
                continue
            top = get(name, s.size).train
            top = min(top, s.few) if s.few else top
            counts = sorted({min(n, top) for n in COUNTS} | {c.trajectories for c in own})
            lines: list[list[Slot | str]] = []
            for row in dict.fromkeys([*target.methods, *(c.method for c in own)]):
                values = [self.shelf.value(name, row, s, "rne_from_offset", trajectories=0 if n == top else n) for n in counts]
                lines.append([drawing.label(row), *(self.slot(v) for v in values)])
            for row in CLASSICAL:
                value = self.shelf.value(name, row, s, "rne_from_offset")
                lines.append([drawing.label(row), *(self.slot(value) for _ in counts)])
            blocks.append(Table([f"{name}: RNE from offset", *(str(n) for n in counts)], lines))
            blocks += self.picture(partial(drawing.efficiency, shelf=self.shelf, s=s, scenario=name),
                                   f"efficiency-{name}-{s.size}-{s.truth}",
                                   f"{name}: error against the number of training trajectories.")
        return blocks + self.missing(target, s)

    def failure(self, s: Setting) -> list[Block]:
        target = TARGETS["failure"]
        name = target.scenarios[0]
        base = self.shelf.classical(name, s)
        if base is None:
            return []
        phase = get(name, s.size).phase_change
        assert phase is not None
        blocks: list[Block] = [
            Head(f"{target.title} ({target.where})", 3),
            Text("Melting takes up heat without getting hotter. A model that superposes responses heats on: its temperatures "
                 f"overshoot where the truth is in transition or above it (T > {phase.temperature - phase.width:g} K).")]
        lines = []
        for row in (*CLASSICAL, *dict.fromkeys([*target.methods, *(m for m, _ in self.shelf.methods(name, s))])):
            records = [base] if row in CLASSICAL else self.shelf.trained(name, row, s)
            line: list[Slot | str] = [drawing.label(row)]
            for key in ("rne_from_offset", "rne_final", "share_of_error", "share_of_states", "mean_overheating", "highest",
                        "highest_true"):
                rows = [r["scores"][row] for r in records]
                line.append(self.slot(Value.of(r[key] if key in r else r["melting"][key] for r in rows)))
            lines.append(line)
        blocks.append(Table([name, "RNE from offset", "RNE, last step", "share of the squared error there", "share of states there",
                             "mean error there, K", "hottest, K", "hottest in truth, K"], lines))
        return blocks + self.missing(target, s)

    def operators(self, s: Setting) -> list[Block]:
        found = {c: r for c, r in self.shelf.cells.items() if c.kind == "operator" and c.seed == 0
                 and Setting(c.size, c.truth, c.few, c.factor) == s}
        if not found:
            return []
        blocks: list[Block] = [Head("The learned operator and its spectrum (Appendix D)", 3)]
        lines = []
        for cell, record in found.items():
            for field, numbers in record["numbers"]["fields"].items():
                one = f"{cell.scenario}, {field}" if len(record["numbers"]["fields"]) > 1 else cell.scenario
                learned, size = numbers["learned"], numbers["size"]
                lines.append([f"{one}: {drawing.label(cell.method)}", number(numbers["physics"]["rightmost"]),
                              number(learned["rightmost"]), "yes" if learned["stable"] else "NO",
                              number(learned["step_norm_mass"]), number(size["frobenius_ratio"]),
                              number(record["numbers"]["action"]["physics_to_reference"]),
                              number(record["numbers"]["action"]["learned_to_reference"])])
        blocks.append(Table(["", "max Re λ of L_physics", "max Re λ of L", "stable", "norm of a step", "size of L_neural against "
                             "L_physics", "L_physics u against the reference", "L u against the reference"], lines))
        captions = {"spectrum.png": "eigenvalues of L_physics and L with the line of stability",
                    "action.png": "the operator on a true field, beside what the truth says of it",
                    "matrices.png": "entries of L_physics, L_neural and L"}
        for cell, record in found.items():
            for file, caption in captions.items():
                path = archive.picture(record, file)
                if path.exists():
                    blocks += self.keep(path, f"{Path(file).stem}-{cell.scenario}-{cell.method}-{s.size}-{s.truth}",
                                        f"{cell.scenario}, {drawing.label(cell.method)}: {caption}.")
        return blocks

    def details(self, s: Setting, present: Sequence[str]) -> list[Block]:
        blocks: list[Block] = [Head("Scenario by scenario", 3)]
        for name in present:
            lines = []
            base = self.shelf.classical(name, s)
            if base is not None:
                lines += [self.detail(drawing.label(row), [base], row) for row in CLASSICAL]
            for row, unknown in self.shelf.methods(name, s):
                title = drawing.label(row) + (", reaction unknown" if unknown else "")
                lines.append(self.detail(title, self.shelf.trained(name, row, s, unknown), row))
            if not lines:
                continue
            blocks.append(Table([name, "RNE", "RNE from offset", "RNE, last step", "log10 MSE", "until RNE > 0.1", "seeds",
                                 "parameters", "iterations", "training", "memory in training", "trajectory-steps/s"], lines))
            blocks += self.picture(partial(drawing.fields, shelf=self.shelf, s=s, scenario=name),
                                   f"fields-{name}-{s.size}-{s.truth}",
                                   f"{name}: truth beside the models, first test trajectory, half-way and at the end.")
            blocks += self.picture(partial(drawing.curves, shelf=self.shelf, s=s, scenario=name),
                                   f"curves-{name}-{s.size}-{s.truth}", f"{name}: error in time over all test trajectories.")
        return blocks if len(blocks) > 1 else []

    def detail(self, title: str, records: Sequence[Record], row: str) -> list[Slot | str]:
        scores = [r["scores"][row] for r in records]
        until = [sc["until"] for sc in scores]
        share = [sc["until_share"] for sc in scores]
        if any(u is None for u in until):
            lasts = "never" if all(u is None for u in until) else "never for some seeds"
        else:
            lasts = f"{number(sum(until) / len(until))} ({100 * sum(share) / len(share):.0f}%)"
        own = [r for r in records if r["cell"]["kind"] == "train"]
        memory = [r["memory"]["train"] for r in own if r["memory"]["train"]]
        keys = ("rne", "rne_from_offset", "rne_final", "log10_mse")
        return [title, *(self.slot(Value.of(sc[key] for sc in scores)) for key in keys), lasts,
                str(len(own)) if own else "–", f"{own[0]['parameters']:,}" if own else "–",
                _counted(own),
                f"{_mean(r['seconds']['train'] for r in own):,.0f} s" if own else "–",
                f"{max(memory) / 1e9:.2g} GB" if memory else "–",
                f"{_mean(sc['steps_per_second'] or 0.0 for sc in scores):,.0f}"]

    # ------------------------------------------------------------------ clocks, hardware, what is missing

    def clocks(self) -> list[Block]:
        cells_ = self.shelf.cells
        blocks: list[Block] = []
        speed = {c: r for c, r in cells_.items() if c.kind == "throughput"}
        if speed:
            blocks.append(Head("Time and memory of a rollout (Appendix D)"))
            blocks.append(Text("One trajectory. The paper's figures are from one RTX 4090; beside the baselines stands its time of "
                               "a whole trajectory divided by the number of steps."))
        for cell, record in speed.items():
            lines: list[list[Slot | str]] = []
            paper = THROUGHPUT.get(cell.scenario) if cell.size == "paper" else None
            steps = record["about"]["steps"]
            for r in record["result"]["rows"]:
                key = "dgnet" if r["model"] in ("dgnet-paper", "dgnet_paper") else r["model"]
                beside = ""
                if cell.size == "paper" and r["model"] in ("dgnet-paper", "dgnet_paper") and paper:
                    beside = f"paper {paper[2]:.3g}"
                elif cell.size == "paper" and key in INFERENCE.get(cell.scenario, {}) and r["model"] != "dgnet":
                    beside = f"paper {1e3 * INFERENCE[cell.scenario][key] / steps:.3g}"
                title = drawing.label("dgnet-bounded" if r["model"] == "dgnet_paper" else r["model"])  # as older cells call it
                if "not_run" in r:
                    lines.append([title, Slot(f"not run: {r['not_run']}", faint=True), *[""] * 5])
                    continue
                lines.append([title, f"{r['parameters']:,}", number(r["prepare_s"]),
                              Slot(number(r["ms_per_step"]), beside=beside), f"{r['running_steps_per_s']:,.0f}",
                              f"{r['steps_per_s']:,.0f}",
                              "–" if r["peak_bytes"] is None else f"{r['peak_bytes'] / 1e6:,.0f}"])
            title = (f"{cell.scenario} ({cell.size}, {record['about']['nodes']:,} nodes), {record['hardware']}"
                     + (", a trial of few steps" if cell.few else "") + _shared(record))
            blocks.append(Table([title, "parameters", "prepare, s", "ms/step", "steps/s, running", "steps/s, with preparation",
                                 "peak memory, MB"], lines))
        for cell, record in cells_.items():
            if cell.kind == "scaling":
                trial = ", a trial of few steps" if cell.few else ""
                blocks.append(Head(f"Time and memory against nodes ({record['hardware']}{trial}{_shared(record)})"))
                rows = [[drawing.label(r["model"]), f"{r['nodes']:,}", *(["not run", "", ""] if "not_run" in r else
                         [number(r["prepare_s"]), number(r["ms_per_step"]), f"{(r['peak_bytes'] or 0) / 1e6:,.0f}"])]
                         for r in record["result"]["rows"]]
                blocks.append(Table(["", "nodes", "prepare, s", "ms/step", "peak memory, MB"], rows))
                blocks += self.picture(partial(drawing.scaling, record=record), f"scaling-{cell.size}-{cell.few}",
                                       "Time of a step and memory against nodes, one trajectory.")
        for cell, record in cells_.items():
            if cell.kind == "tradeoff":
                blocks += self.tradeoff(cell, record)
        return blocks

    def tradeoff(self, cell: Cell, record: Record) -> list[Block]:
        found = record["result"]
        title = f"Error against cost: {cell.scenario} ({cell.size} size, {cell.truth} truth), {record['hardware']}"
        rows: list[list[Slot | str]] = []
        for r in found["rows"]:
            rows.append([drawing.label(ladders.named(r)), *(
                [Slot(f"not run: {r['not_run']}", faint=True), "", "", "", ""] if "not_run" in r else
                [number(r["error"]), number(ladders.whole(r)), *(number(r[key]) for key in ("setup_s", "source_s", "rollout_s"))])])
        head = ["", "RNE from offset", "whole, s", "set-up, s", "sources, s", "rollout, s"]
        return [Head(title), Table(head, rows), Text(ladders.verdict(found)),
                *self.picture(partial(drawing.tradeoff, record=record), f"tradeoff-{cell.scenario}-{cell.method}-{cell.size}",
                              f"{cell.scenario}: error against the cost of all test trajectories at once.")]

    def hardware(self) -> list[Block]:
        groups: dict[tuple[Any, ...], list[Record]] = {}
        for r in self.shelf.records.values():
            key = (r["hardware"], r["sharing"], r["version"], r.get("budget") if r["cell"]["kind"] == "train" else "")
            groups.setdefault(key, []).append(r)
        if not groups:
            return []
        lines = []
        for (machine, sharing, version, budget), records in sorted(groups.items(), key=str):
            seconds = {k: sum(r["seconds"].get(k, 0.0) for r in records) for k in ("generate", "train", "evaluate", "total")}
            limit = "–" if budget == "" else "none" if budget is None else f"{budget / 60:g} min"
            dates = sorted(r["date"][:10] for r in records)
            lines.append([machine, str(sharing), str(version), limit, str(len(records)),
                          *(f"{seconds[k] / 60:.1f}" for k in seconds),
                          dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"])
        return [Head("What was run, on what, for how long"),
                Table(["hardware", "processes sharing it", "version", "training budget per cell", "cells", "data, min",
                       "training, min", "evaluation, min", "all, min", "when"], lines)]

    def absent(self, settings: Sequence[Setting]) -> list[Block]:
        """Every target that has not been touched at all in some setting, and cells that failed."""
        blocks: list[Block] = []
        commands = []
        for s in [s for s in settings if not s.trial] or settings[:1]:
            for target in TARGETS.values():
                wanted = [c for c in cells(target.name, _choice(s)) if c.kind == target.kind]
                missing = [c for c in wanted if c.tag not in self.shelf.records]
                if missing:
                    state = "not run" if len(missing) == len(wanted) else f"{len(missing)} of {len(wanted)} cells not run"
                    commands.append(f"{self.command(target.name, s)}  # {state}")
        if commands:
            blocks.append(Head("Not run"))
            blocks.append(Text("Each command runs what is missing of a target and skips what is finished; add `--device cuda`, "
                               "`--budget MINUTES` and `--plan` as needed."))
            blocks.append(Lines(f"not run, whole or in part: {len(commands)} targets", list(dict.fromkeys(commands))))
        if self.shelf.failed:
            blocks.append(Lines(f"failed: {len(self.shelf.failed)} cells",
                                [f"{tag}  # {why}" for tag, why in self.shelf.failed.items()]))
        return blocks

    # ------------------------------------------------------------------ pieces

    def slot(self, value: Value | None, best: float = -1.0, beside: str = "") -> Slot:
        if value is None:
            return replace(NOT_RUN, beside=beside)
        return Slot(value.text(), strong=math.isfinite(value.mean) and value.mean == best, beside=beside)

    def missing(self, target: Target, s: Setting) -> list[Block]:
        """Commands of a target's cells that are not there."""
        wanted = [c for c in expand(cells(target.name, _choice(s))) if c.tag not in self.shelf.records]
        if not wanted:
            return []
        lines = [f"dgnet reproduce {c.tag} --out {self.out}" + self.why(c) for c in wanted]
        return [Lines(f"not run: {len(wanted)} cells; all of them: `{self.command(target.name, s)}`", lines)]

    def why(self, cell: Cell) -> str:
        return f"  # failed: {self.shelf.failed[cell.tag]}" if cell.tag in self.shelf.failed else ""

    def command(self, target: str, s: Setting) -> str:
        trial = (f" --few {s.few}" if s.few else "") + (f" --factor {s.factor:g}" if s.factor != 1.0 else "")
        return f"dgnet reproduce {target} --size {s.size} --truth {s.truth}{trial} --out {self.out}"

    def picture(self, draw: Callable[[Path], bool], name: str, caption: str) -> list[Block]:
        path = self.fresh(name)
        return [Picture(path, caption)] if draw(path) else []

    def keep(self, source: Path, name: str, caption: str) -> list[Block]:
        path = self.fresh(name)
        path.write_bytes(source.read_bytes())
        return [Picture(path, caption)]

    def fresh(self, name: str) -> Path:
        path = self.scratch / f"{name}.png"
        if path.exists():
            self.count += 1
            path = self.scratch / f"{name}-{self.count}.png"
        return path


def _choice(s: Setting) -> Choice:
    return Choice(size=s.size, truth=s.truth, few=s.few, factor=s.factor)


def _verdict(name: str, values: dict[str, Value | None]) -> str:
    """The order of the variants in words, and whether the paper's claim about it holds."""
    run = {m: v.mean for m, v in values.items() if v is not None}
    if len(run) < 2:
        return ""
    order = sorted(run, key=lambda m: run[m])
    words = ", ".join(f"{'full' if m in FAMILIES else m[-1]} ({values[m].text()})" for m in order)  # type: ignore[union-attr]
    text = f"{name}, from best to worst: {words}."
    if len(run) == len(values):
        by_letter = {m[-1]: v for m, v in run.items() if m not in FAMILIES}
        worst = "confirmed" if order[-1].endswith("-D") else "refuted"
        prior = "confirmed" if by_letter["A"] > by_letter["B"] else "refuted"
        text += (f" That removing Green hurts most is {worst}; that removing L_physics hurts more than removing L_neural is "
                 f"{prior}.")
    else:
        text += " The order is not judged, since not all variants were run."
    return text


def _shared(record: Record) -> str:
    return f", shared by {record['sharing']} processes" if record["sharing"] > 1 else ""


def _counted(own: Sequence[Record]) -> str:
    """Updates of the optimiser; some early cells did not count them."""
    counts = [r["iterations"] for r in own if r["iterations"] is not None]
    return f"{_mean(counts):,.0f}" if counts else "–"


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0

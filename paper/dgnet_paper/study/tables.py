"""Tables of one setting (size and truth) from finished cells. Rows and what they are told come from `rows`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from dgnet_paper.scenarios import get
from dgnet_paper.study import archive, drawing
from dgnet_paper.study.blocks import Block, Head, Lines, Picture, Slot, Table, Text
from dgnet_paper.study.experiment import FAMILIES, METHODS, Experiment, is_variant
from dgnet_paper.study.origin import Marks, improving, trained_on
from dgnet_paper.study.planning import expand
from dgnet_paper.study.published import ROBUSTNESS
from dgnet_paper.study.results import Record, Scale, Setting, Shelf, Value, number, value
from dgnet_paper.study.rows import TOLD, Row, label, ordered, reacts, solvers
from dgnet_paper.study.targets import ATTRIBUTES, COUNTS, FACTORS, TARGETS, Choice, Target, cells

NOT_RUN = Slot("not run", faint=True)
Grid = list[list[Slot | str]]
_DETAILS = {  # pictures of a scenario
    "learning": (drawing.learning, "validation error during training, as a multiple of what the classical solver with the model's "
                                   "mass makes on the same states; dots: the weights that were kept"),
    "fields": (drawing.fields, "truth beside the models, first test trajectory, half-way and at the end"),
    "curves": (drawing.curves, "error in time over all test trajectories"),
}


class Pictures:
    """Pictures of a page, drawn into a folder of scratch."""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.count = scratch, 0

    def drawn(self, draw: Callable[[Path], bool], name: str, caption: str) -> list[Block]:
        """What `draw` draws; nothing where it finds nothing to draw."""
        path = self.fresh(name)
        return [Picture(path, caption)] if draw(path) else []

    def kept(self, source: Path, name: str, caption: str) -> list[Block]:
        """A copy of a picture."""
        path = self.fresh(name)
        path.write_bytes(source.read_bytes())
        return [Picture(path, caption)]

    def fresh(self, name: str) -> Path:
        path = self.scratch / f"{name}.png"
        if path.exists():
            self.count += 1
            path = self.scratch / f"{name}-{self.count}.png"
        return path


def slot(found: Value | None, best: float = -1.0, beside: str = "", mark: str = "") -> Slot:
    """A figure; `mark` is where it comes from. Untrained weights say so before they show a number."""
    if found is None:
        return replace(NOT_RUN, beside=beside)
    if not found.learned:
        return Slot("did not learn", faint=True, beside=_joined(f"untrained {found.text()}", mark, beside))
    some = f"{found.unlearned} of {found.seeds} seeds did not learn" if found.unlearned else ""
    strong = math.isfinite(found.mean) and found.mean == best
    return Slot(found.text(), strong=strong, beside=_joined(some, mark, beside))


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


class Section:
    """The tables of one setting."""

    def __init__(self, shelf: Shelf, s: Setting, pictures: Pictures, command: Callable[[str], str]) -> None:
        self.shelf, self.s, self.pictures, self.command = shelf, s, pictures, command

    def accuracy(self, target: Target) -> list[Block]:
        """A row for each model, a column for each scenario; first RNE, then MSE."""
        shelf, s = self.shelf, self.s
        own = [row for name in target.scenarios for row in shelf.rows(name, s)]
        if not own:
            return []
        known = {m for t in TARGETS.values() for m in t.methods}
        wanted = [*solvers(s.truth), *map(Row, target.methods), *(Row(m, True) for m in self.unknown(target))]
        beyond = [row for row in own if (row.unknown or row.key not in known) and not is_variant(row.key)]
        # models beyond the paper's columns, where they were run; of the second table only those of the paper's DGNet
        wanted += [row for row in beyond if target.name != "table-recent" or row.key in FAMILIES]
        rows = ordered(wanted)
        held = {(name, row): shelf.found(name, row, s) for name in target.scenarios for row in rows}
        marks = Marks(r for records in held.values() for r in records)
        blocks: list[Block] = [Head(f"{target.title} ({target.where})", 3)]
        for key, title in (("rne", "RNE"), ("mse", "MSE")):
            columns = []
            for name in target.scenarios:
                published = get(name, s.size).paper if s.size == "paper" else {}
                values = {row: value(held[name, row], row, key) for row in rows}
                best = min((v.mean for v in values.values() if v is not None and v.learned), default=math.inf)
                column = []
                for row, found in values.items():
                    figure = published.get(row.published)
                    beside = "" if figure is None else f"paper {number(getattr(figure, key))}"
                    column.append(self.applies(name, row) or slot(found, best, beside, marks.of(held[name, row])))
                columns.append(column)
            lines: Grid = [[row.title, row.told, *(column[k] for column in columns)] for k, row in enumerate(rows)]
            blocks.append(Table([title, "is told", *target.scenarios], lines))
        return blocks + marks.legend() + [Text(TOLD)] + self.missing(target)

    def unknown(self, target: Target) -> tuple[str, ...]:
        """Methods that also stand in the table with the reaction unknown."""
        return target.also_unknown if any(reacts(name, self.s.size) for name in target.scenarios) else ()

    def applies(self, scenario: str, row: Row) -> Slot | None:
        """A dash where a row makes no sense: there is no reaction that could be unknown, or universal weights do not act on it."""
        reaction = reacts(scenario, self.s.size)
        if row.unknown and not reaction:
            return Slot("–", beside="no reaction")
        acts = not reaction and get(scenario, self.s.size).flow is None
        return None if acts or row.key != "universal" else Slot("–", beside="does not act")

    def ablation(self) -> list[Block]:
        target = TARGETS["ablation"]
        blocks = [block for family in FAMILIES for block in self.variants(family)]
        return blocks and [Head(f"{target.title} ({target.where})", 3), *blocks, *self.missing(target)]

    def variants(self, family: str) -> list[Block]:
        """The ablation of one model."""
        target, shelf, s = TARGETS["ablation"], self.shelf, self.s
        letters = [f"{family}-{letter}" for letter in "ABCD"]
        methods = (*letters, family)
        if not any(shelf.value(name, Row(m), s) for name in target.scenarios for m in letters):
            return []
        rows = [*map(Row, methods), Row("classical_lumped")]
        held = {(name, row): shelf.found(name, row, s) for name in target.scenarios for row in rows}
        marks = Marks(r for records in held.values() for r in records)
        blocks: list[Block] = [Text(f"Of {FAMILIES[family]}.")]
        values = {place: value(records, place[1], "rne_from_offset") for place, records in held.items()}
        best = {name: min((v.mean for row in rows if (v := values[name, row]) is not None and v.learned), default=math.inf)
                for name in target.scenarios}
        titles = {row: METHODS[row.key].title if row.key in letters else row.title for row in rows} | {Row(family): "full"}
        lines: Grid = [[titles[row], row.told,
                        *(slot(values[name, row], best[name], mark=marks.of(held[name, row])) for name in target.scenarios)]
                       for row in rows]
        blocks.append(Table(["RNE from offset", "is told", *target.scenarios], lines))
        for name in target.scenarios:
            sentence = verdict(name, {m: values[name, Row(m)] for m in methods})
            blocks += [Text(sentence)] if sentence else []
        blocks += marks.legend()
        return blocks + self.pictures.drawn(lambda p: drawing.ablation(p, shelf, s, target.scenarios, methods),
                                            f"ablation-{self.s.slug}", "The model without one of its parts; dashed: the classical "
                                            "solver with a lumped mass.")

    def robustness(self) -> list[Block]:
        target, shelf, s = TARGETS["table-robustness"], self.shelf, self.s
        name = target.scenarios[0]
        found = [c for c in shelf.cells if c.kind == "robust" and Setting(c.size, c.truth, c.few, c.factor) == s]
        if not found:
            return []
        rows = [Row("classical_consistent"), *map(Row, dict.fromkeys([*target.methods, *(c.method for c in found)]))]
        scales: dict[tuple[str, float], Scale] = {
            (what, f): (f if axis == 0 else 1.0, f if axis == 1 else 1.0, f if axis == 2 else 1.0)
            for what, axis in ATTRIBUTES.items() for f in FACTORS}
        held = {(scale, row): shelf.found(name, row, s, scale=scale) for scale in scales.values() for row in rows}
        marks = Marks(r for records in held.values() for r in records)
        blocks: list[Block] = [Head(f"{target.title} ({target.where})", 3),
                               Text("Trained once on the usual sources, then tested on others. The paper gives its MSE; its 1× "
                                    "column repeats the figure of the two-dimensional laser.")]
        for key, title in (("rne_from_offset", "RNE from offset"), ("mse", "MSE")):
            lines = []
            for what in ATTRIBUTES:
                for row in rows:
                    line: list[Slot | str] = [f"{what}: {row.title}", row.told]
                    for k, factor in enumerate(FACTORS):
                        records = held[scales[what, factor], row]
                        published = key == "mse" and row.key == "dgnet-paper" and s.size == "paper"
                        beside = f"paper {number(ROBUSTNESS[what][k])}" if published else ""
                        line.append(slot(value(records, row, key), -1.0, beside, marks.of(records)))
                    lines.append(line)
            blocks.append(Table([title, "is told", *(f"{f:g}×" for f in FACTORS)], lines))
        return blocks + marks.legend() + self.missing(target)

    def efficiency(self) -> list[Block]:
        target, shelf, s = TARGETS["data-efficiency"], self.shelf, self.s
        few = [c for c in shelf.cells if c.kind == "train" and c.trajectories and Setting(c.size, c.truth, c.few, c.factor) == s]
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
            rows = [*map(Row, dict.fromkeys([*target.methods, *(c.method for c in own)])), *solvers(s.truth)]
            held = {(row, n): shelf.found(name, row, s, 0 if n == top else n) for row in rows for n in counts}
            marks = Marks(r for records in held.values() for r in records)
            lines: Grid = [[row.title, row.told, *(slot(value(held[row, n], row, "rne_from_offset"), mark=marks.of(held[row, n]))
                                                     for n in counts)] for row in rows]
            blocks.append(Table([f"{name}: RNE from offset", "is told", *(str(n) for n in counts)], lines))
            blocks += marks.legend() + updates({row: [held[row, n] for n in counts] for row in rows if not row.classical})
            blocks += self.pictures.drawn(partial(drawing.efficiency, shelf=shelf, s=s, scenario=name),
                                          f"efficiency-{name}-{self.s.slug}",
                                          f"{name}: error against the number of training trajectories.")
        return blocks + self.missing(target)

    def failure(self) -> list[Block]:
        target, shelf, s = TARGETS["failure"], self.shelf, self.s
        name = target.scenarios[0]
        if not shelf.found(name, Row("classical_consistent"), s):
            return []
        phase = get(name, s.size).phase_change
        assert phase is not None
        blocks: list[Block] = [
            Head(f"{target.title} ({target.where})", 3),
            Text("Melting takes up heat without getting hotter. A model that superposes responses heats on: its temperatures "
                 f"overshoot where the truth is in transition or above it (T > {phase.temperature - phase.width:g} K).")]
        rows = ordered([*solvers(s.truth), *map(Row, target.methods), *shelf.rows(name, s)])
        held = {row: shelf.found(name, row, s) for row in rows}
        marks, lines = Marks(r for records in held.values() for r in records), []
        for row, records in held.items():
            line: list[Slot | str] = [row.title, row.told]
            for key in ("rne_from_offset", "rne_final", "share_of_error", "share_of_states", "mean_overheating", "highest",
                        "highest_true"):
                scores = [r["scores"][row.key] for r in records]
                unlearned = 0 if (plain := value(records, row, "rne_from_offset")) is None else plain.unlearned
                line.append(slot(Value.of((sc[key] if key in sc else sc["melting"][key] for sc in scores), unlearned),
                                 mark=marks.of(records)))
            lines.append(line)
        blocks.append(Table([name, "is told", "RNE from offset", "RNE, last step", "share of the squared error there",
                             "share of states there", "mean error there, K", "hottest, K", "hottest in truth, K"], lines))
        return blocks + marks.legend() + self.missing(target)

    def operators(self) -> list[Block]:
        s = self.s
        found = {c: r for c, r in self.shelf.cells.items() if c.kind == "operator" and c.seed == 0
                 and Setting(c.size, c.truth, c.few, c.factor) == s}
        if not found:
            return []
        marks = Marks(found.values())
        blocks: list[Block] = [Head("The learned operator and its spectrum (Appendix D)", 3)]
        lines = []
        for cell, record in found.items():
            for field, numbers in record["numbers"]["fields"].items():
                one = f"{cell.scenario}, {field}" if len(record["numbers"]["fields"]) > 1 else cell.scenario
                learned, size = numbers["learned"], numbers["size"]
                lines.append([f"{one}: {label(cell.method)} {marks.of([record])}".strip(), number(numbers["physics"]["rightmost"]),
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
                    blocks += self.pictures.kept(path, f"{Path(file).stem}-{cell.scenario}-{cell.method}-{self.s.slug}",
                                                 f"{cell.scenario}, {label(cell.method)}: {caption}.")
        return blocks + marks.legend()

    def details(self, present: Sequence[str]) -> list[Block]:
        """Every row of a scenario with its training: what it was given, how often it was updated, whether it was finished."""
        shelf, s = self.shelf, self.s
        blocks: list[Block] = [
            Head("Scenario by scenario", 3),
            Text("*trained on*: trajectories that gave gradients, of those given; the others chose the weights. *training*: wall "
                 "clock, with validations, of the *budget* that was allowed. *rate*: the learning rate over that of the method's "
                 "own recipe. *window*: steps of a rollout in training, stage by stage. *still improving*: "
                 "the last fifth of the training lowered the validation error by more than 2%, so that more time would help; "
                 "*unknown* where it was validated fewer than five times. *shared by*: processes on the device.")]
        for name in present:
            rows = ordered([*solvers(s.truth), *shelf.rows(name, s)])
            held = {row: records for row in rows if (records := shelf.found(name, row, s))}
            if not held:
                continue
            marks = Marks(r for records in held.values() for r in records)
            blocks.append(Table([name, "is told", "RNE", "RNE from offset", "RNE, last step", "log10 MSE", "until RNE > 0.1",
                                 "seeds", "parameters", "trained on", "rate", "window", "updates", "validations", "training",
                                 "budget", "still improving", "shared by", "memory in training", "trajectory-steps/s"],
                                [detail(row, records, marks) for row, records in held.items()]))
            blocks += marks.legend() + unfinished(held) + uneven(held)
            for kind, (draw, caption) in _DETAILS.items():
                blocks += self.pictures.drawn(partial(draw, shelf=shelf, s=s, scenario=name), f"{kind}-{name}-{self.s.slug}",
                                              f"{name}: {caption}.")
        return blocks if len(blocks) > 2 else []

    def missing(self, target: Target) -> list[Block]:
        """Commands of a target's cells that are not there."""
        wanted = [c for c in expand(cells(target.name, choice(self.s))) if c.tag not in self.shelf.records]
        if not wanted:
            return []
        lines = [f"{self.command(c.tag)}{self.why(c)}" for c in wanted]
        return [Lines(f"not run: {len(wanted)} cells; all of them: `{self.command(target.name)}`", lines)]

    def why(self, cell: Experiment) -> str:
        return f"  # failed: {self.shelf.failed[cell.tag]}" if cell.tag in self.shelf.failed else ""


def detail(row: Row, records: Sequence[Record], marks: Marks) -> list[Slot | str]:
    """A row of the details: scores, and how the training went."""
    scores = [r["scores"][row.key] for r in records]
    until, share = [sc["until"] for sc in scores], [sc["until_share"] for sc in scores]
    if any(u is None for u in until):
        lasts = "never" if all(u is None for u in until) else "never for some seeds"
    else:
        lasts = f"{number(sum(until) / len(until))} ({100 * sum(share) / len(share):.0f}%)"
    own = [r for r in records if r["cell"]["kind"] == "train"]
    memory = [r["memory"]["train"] for r in own if r["memory"]["train"]]
    counts = [r["updates"] for r in own if r["updates"] is not None]
    looks = [len(r.get("history", [])) - 1 for r in own if r.get("history")]
    going = {improving(r.get("history", [])) for r in own}
    keys = ("rne", "rne_from_offset", "rne_final", "log10_mse")
    mark = marks.of(records)
    trained: list[Slot | str] = ["–"] * 11
    if own:
        trained = [str(len(own)), f"{own[0]['parameters']:,}", _each(trained_on(r) for r in own),
                   _each(f"{r['rate']['factor']:g}" if "rate" in r else "1" for r in own), _each(map(windows, own)),
                   f"{_mean(counts):,.0f}" if counts else "unknown", _each(map(str, looks)) or "unknown",
                   f"{_mean(r['seconds']['train'] for r in own):,.0f} s",
                   _each("none" if r["budget"] is None else f"{r['budget']:.0f} s" for r in own),
                   _each({True: "yes", False: "no", None: "unknown"}[g] for g in going), _each(str(r["sharing"]) for r in own)]
    figures = (slot(value(records, row, key), mark=mark if key == "rne" else "") for key in keys)
    return [row.title, row.told, *figures, lasts, *trained,
            f"{max(memory) / 1e9:.2g} GB" if memory else "–", f"{_mean(sc['steps_per_second'] or 0.0 for sc in scores):,.0f}"]


def windows(record: Record) -> str:
    """Steps of the windows that a model was trained on, in the order of its stages; what is fitted at once has none."""
    stages = [s for k, s in enumerate(record.get("recipe", {}).get("stages", [])) if k not in record.get("left_out", [])]
    return ", ".join(str(s["length"]) for s in stages if s["method"] == "adam") or "–"


def unfinished(held: Mapping[Row, Sequence[Record]]) -> list[Block]:
    """A sentence about the models that more training might have made better."""
    going = [row.title for row, records in held.items() if any(improving(r.get("history", [])) for r in records)]
    if not going:
        return []
    return [Text(f"Still improving when the time was over: {', '.join(going)}. More training may lower these errors.")]


def uneven(held: Mapping[Row, Sequence[Record]]) -> list[Block]:
    """A sentence about seeds of which one had less than half of the updates of another: their spread is one of time, too."""
    told = []
    for row, records in held.items():
        counts = [r["updates"] for r in records if r.get("updates") is not None]
        if counts and 2 * min(counts) < max(counts):
            told.append(f"{row.title} {min(counts):,} to {max(counts):,}")
    return [Text(f"Seeds that were updated unequally often within the same budget: {', '.join(told)} updates.")] if told else []


def updates(held: Mapping[Row, Sequence[Sequence[Record]]]) -> list[Block]:
    """How often the models of a row were updated, in the order of the columns: a model that was trained less is no rival."""
    told = []
    for row, columns in held.items():
        counts = [[r["updates"] for r in records if r.get("updates") is not None] for records in columns]
        if any(counts):
            told.append(f"{row.title} {', '.join(f'{_mean(each):,.0f}' if each else '–' for each in counts)}")
    return [Text(f"Updates within the budget, in the order of the columns: {'; '.join(told)}.")] if told else []


def verdict(name: str, values: Mapping[str, Value | None]) -> str:
    """The order of the variants in words, and whether the paper's claim about it holds; not from models that did not learn."""
    run = {m: v for m, v in values.items() if v is not None}
    if len(run) < 2:
        return ""
    short = {m: "full" if m in FAMILIES else m[-1] for m in run}
    idle = [short[m] for m, v in run.items() if v.unlearned]
    if idle:
        return f"{name}: the order of the variants is not judged, since {' and '.join(idle)} did not learn."
    order = sorted(run, key=lambda m: run[m].mean)
    text = f"{name}, from best to worst: {', '.join(f'{short[m]} ({run[m].text()})' for m in order)}."
    if len(run) == len(values):
        error = {short[m]: v.mean for m, v in run.items()}
        worst = "confirmed" if short[order[-1]] == "D" else "refuted"
        prior = "confirmed" if error["A"] > error["B"] else "refuted"
        text += (f" That removing Green hurts most is {worst}; that removing L_physics hurts more than removing L_neural is "
                 f"{prior}.")
    else:
        text += " The order is not judged, since not all variants were run."
    return text


def choice(s: Setting) -> Choice:
    """The cells of a setting."""
    return Choice(size=s.size, truth=s.truth, few=s.few, factor=s.factor)


def _each(texts: Iterable[str]) -> str:
    """Different texts, each once."""
    return ", ".join(dict.fromkeys(texts))


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0

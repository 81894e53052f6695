"""Tables of one setting (size and truth) from finished cells. Rows and what their models know come from `rows`."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from dgnet_paper.scenarios import get
from dgnet_paper.study import drawing, stored
from dgnet_paper.study.blocks import Block, Head, Lines, Picture, Slot, Table, Text
from dgnet_paper.study.engine import expand
from dgnet_paper.study.experiment import FAMILIES, METHODS, Experiment, is_variant
from dgnet_paper.study.origin import Marks, improving, trained_on
from dgnet_paper.study.published import ROBUSTNESS
from dgnet_paper.study.results import Record, Setting, Shelf, Value, number, value
from dgnet_paper.study.rows import TOLD, Row, label, ordered, reacts, solvers
from dgnet_paper.study.targets import COUNTS, FACTORS, TARGETS, Choice, Target, cells, scales

NOT_RUN = Slot("not run", faint=True)
_DETAILS = {  # pictures of a scenario
    "learning": (drawing.learning, "validation error during training, as a multiple of what the classical solver with the model's "
                                   "mass makes on the same states; dots: the weights that were kept"),
    "fields": (drawing.fields, "truth beside the models, first test trajectory, half-way and at the end"),
    "curves": (drawing.curves, "error in time over all test trajectories"),
}
_DETAILED = ("is told", "RNE", "RNE from offset", "RNE, last step", "log10 MSE", "until RNE > 0.1", "seeds", "parameters",
             "trained on",
             "rate", "window", "updates", "validations", "training", "budget", "still improving", "shared by", "memory in training",
             "trajectory-steps/s")
_DETAILS_TEXT = (
    "*trained on*: trajectories that gave gradients, of those given; the others chose the weights. *training*: wall "
    "clock, with validations, of the *budget* that was allowed. *rate*: the learning rate over that of the method's "
    "own recipe. *window*: steps of a rollout in training, stage by stage. *still improving*: "
    "the last fifth of the training lowered the validation error by more than 2%, so that more time would help; "
    "*unknown* where it was validated fewer than five times. *shared by*: processes on the device.")


class Pictures:
    """Pictures of a page, drawn into a folder of scratch."""

    def __init__(self, scratch: Path) -> None:
        self.scratch, self.count = scratch, 0

    def drawn(self, draw: Callable[[Path], bool], name: str, caption: str) -> list[Block]:
        """What `draw` draws; nothing where it finds nothing to draw."""
        path = self.scratch / f"{name}.png"
        if path.exists():
            self.count += 1
            path = self.scratch / f"{name}-{self.count}.png"
        return [Picture(path, caption)] if draw(path) else []


def copy_of(source: Path) -> Callable[[Path], bool]:
    """Draws a picture that is there already."""
    return lambda path: source.exists() and path.write_bytes(source.read_bytes()) > 0


# ---------------------------------------------------------------------- figures


def slot(found: Value | None, best: float = -1.0, beside: str = "", mark: str = "") -> Slot:
    """A figure; `mark` is where it comes from. Untrained weights say so before they show a number."""
    if found is None:
        return replace(NOT_RUN, beside=beside)
    if not found.learned:
        return Slot("did not learn", faint=True, beside=_joined(f"untrained {found.text()}", mark, beside))
    some = f"{found.unlearned} of {found.seeds} seeds did not learn" if found.unlearned else ""
    return Slot(found.text(), strong=math.isfinite(found.mean) and found.mean == best, beside=_joined(some, mark, beside))


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


@dataclass(frozen=True)
class Figures:
    """The records behind a table, by column and row, with marks of where they come from."""

    rows: Sequence[Row]
    held: Mapping[tuple[Hashable, Row], list[Record]]
    marks: Marks

    @classmethod
    def of(cls, rows: Sequence[Row], columns: Iterable[Hashable], find: Callable[[Hashable, Row], list[Record]]) -> Figures:
        held = {(column, row): find(column, row) for column in columns for row in rows}
        return cls(rows, held, Marks(r for records in held.values() for r in records))

    def value(self, column: Hashable, row: Row, key: str) -> Value | None:
        return value(self.held[column, row], row, key)

    def best(self, column: Hashable, key: str) -> float:
        """The smallest mean of a column, of the models that learned."""
        found = (self.value(column, row, key) for row in self.rows)
        return min((v.mean for v in found if v is not None and v.learned), default=math.inf)

    def slot(self, column: Hashable, row: Row, key: str, best: float = -1.0, beside: str = "") -> Slot:
        return slot(self.value(column, row, key), best, beside, self.marks.of(self.held[column, row]))


class Section:
    """The tables of one setting."""

    def __init__(self, shelf: Shelf, s: Setting, pictures: Pictures, command: Callable[[str], str]) -> None:
        self.shelf, self.s, self.pictures, self.command = shelf, s, pictures, command

    def figures(self, rows: Sequence[Row], scenarios: Sequence[str]) -> Figures:
        return Figures.of(rows, scenarios, lambda name, row: self.shelf.found(str(name), row, self.s))

    def head(self, target: Target) -> Head:
        return Head(f"{target.title} ({target.where})", 3)

    def accuracy(self, target: Target) -> list[Block]:
        """A row for each model, a column for each scenario; first RNE, then MSE."""
        present = [row for name in target.scenarios for row in self.shelf.rows(name, self.s)]
        if not present:
            return []
        known = {m for t in TARGETS.values() for m in t.methods}
        wanted = [*solvers(self.s.truth), *map(Row, target.methods), *(Row(m, True) for m in self.unknown(target))]
        beyond = [row for row in present if (row.unknown or row.key not in known) and not is_variant(row.key)]
        # models beyond the paper's columns, where they were run; of the second table only those of the paper's DGNet
        wanted += [row for row in beyond if target.name != "table-recent" or row.key in FAMILIES]
        rows = ordered(wanted)
        figures = self.figures(rows, target.scenarios)
        blocks: list[Block] = [self.head(target)]
        for key, title in (("rne", "RNE"), ("mse", "MSE")):
            best = {name: figures.best(name, key) for name in target.scenarios}
            lines = [[row.title, row.told, *(self.applies(name, row)
                                             or figures.slot(name, row, key, best[name], self.beside(name, row, key))
                                             for name in target.scenarios)] for row in rows]
            blocks.append(Table([title, "is told", *target.scenarios], lines))
        return [*blocks, *figures.marks.legend(), Text(TOLD), *self.missing(target)]

    def beside(self, scenario: str, row: Row, key: str) -> str:
        """The paper's figure."""
        published = get(scenario, self.s.size).paper.get(row.published) if self.s.size == "paper" else None
        return "" if published is None else f"paper {number(getattr(published, key))}"

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
        return blocks and [self.head(target), *blocks, *self.missing(target)]

    def variants(self, family: str) -> list[Block]:
        """The ablation of one model."""
        names, letters = TARGETS["ablation"].scenarios, [f"{family}-{letter}" for letter in "ABCD"]
        if not any(self.shelf.value(name, Row(m), self.s) for name in names for m in letters):
            return []
        methods, key = (*letters, family), "rne_from_offset"
        figures = self.figures([*map(Row, methods), Row("classical_lumped")], names)
        best = {name: figures.best(name, key) for name in names}
        titles = {m: METHODS[m].title for m in letters} | {family: "full"}
        lines = [[titles.get(row.key, row.title), row.told, *(figures.slot(name, row, key, best[name]) for name in names)]
                 for row in figures.rows]
        verdicts = (verdict(name, {m: figures.value(name, Row(m), key) for m in methods}) for name in names)
        drawn = self.pictures.drawn(partial(drawing.ablation, shelf=self.shelf, s=self.s, scenarios=names, rows=methods),
                                    f"ablation-{self.s.slug}",
                                    "The model without one of its parts; dashed: the classical solver with a lumped mass.")
        return [Text(f"Of {FAMILIES[family]}."), Table(["RNE from offset", "is told", *names], lines),
                *(Text(words) for words in verdicts if words), *figures.marks.legend(), *drawn]

    def robustness(self) -> list[Block]:
        target, name = TARGETS["table-robustness"], TARGETS["table-robustness"].scenarios[0]
        present = self.shelf.of_kind("robust", self.s)
        if not present:
            return []
        rows = [Row("classical_consistent"), *map(Row, dict.fromkeys([*target.methods, *(c.method for c in present)]))]
        columns = scales()

        def find(scale: Hashable, row: Row) -> list[Record]:
            assert isinstance(scale, tuple)
            return self.shelf.found(name, row, self.s, scale=scale)

        figures = Figures.of(rows, [scale for line in columns.values() for scale in line], find)
        opening = ("Trained once on the usual sources, then tested on others. The paper gives its MSE; its 1× column repeats the "
                   "figure of the two-dimensional laser.")
        blocks: list[Block] = [self.head(target), Text(opening)]
        for key, title in (("rne_from_offset", "RNE from offset"), ("mse", "MSE")):
            def line(what: str, row: Row, key: str = key) -> list[Slot | str]:
                published = key == "mse" and row.key == "dgnet-paper" and self.s.size == "paper"
                beside = [f"paper {number(v)}" if published else "" for v in ROBUSTNESS[what]]
                return [f"{what}: {row.title}", row.told, *(figures.slot(scale, row, key, beside=beside[k])
                                                           for k, scale in enumerate(columns[what]))]

            blocks.append(Table([title, "is told", *(f"{f:g}×" for f in FACTORS)],
                                [line(what, row) for what in columns for row in rows]))
        return [*blocks, *figures.marks.legend(), *self.missing(target)]

    def efficiency(self) -> list[Block]:
        target, shelf, s = TARGETS["data-efficiency"], self.shelf, self.s
        few = [c for c in shelf.of_kind("train", s) if c.trajectories]
        if not few:
            return []
        blocks: list[Block] = [self.head(target)]
        for name in dict.fromkeys([*target.scenarios, *(c.scenario for c in few)]):
            present = [c for c in few if c.scenario == name]
            if not present:
                continue
            top = get(name, s.size).train
            top = min(top, s.few) if s.few else top
            counts = sorted({min(n, top) for n in COUNTS} | {c.trajectories for c in present})
            rows = [*map(Row, dict.fromkeys([*target.methods, *(c.method for c in present)])), *solvers(s.truth)]
            found = {(n, row): shelf.found(name, row, s, 0 if n == top else n) for n in counts for row in rows}
            figures = Figures.of(rows, counts, lambda n, row, found=found: found[n, row])  # type: ignore[misc]
            lines = [[row.title, row.told, *(figures.slot(n, row, "rne_from_offset") for n in counts)] for row in rows]
            blocks.append(Table([f"{name}: RNE from offset", "is told", *(str(n) for n in counts)], lines))
            blocks += figures.marks.legend() + updates({row: [found[n, row] for n in counts] for row in rows if not row.classical})
            blocks += self.pictures.drawn(partial(drawing.efficiency, shelf=shelf, s=s, scenario=name),
                                          f"efficiency-{name}-{s.slug}",
                                          f"{name}: error against the number of training trajectories.")
        return blocks + self.missing(target)

    def failure(self) -> list[Block]:
        target, name = TARGETS["failure"], TARGETS["failure"].scenarios[0]
        if not self.shelf.found(name, Row("classical_consistent"), self.s):
            return []
        phase = get(name, self.s.size).phase_change
        assert phase is not None
        rows = ordered([*solvers(self.s.truth), *map(Row, target.methods), *self.shelf.rows(name, self.s)])
        figures, lines = self.figures(rows, [name]), []
        for row in rows:
            records = figures.held[name, row]
            plain = figures.value(name, row, "rne_from_offset")
            line: list[Slot | str] = [row.title, row.told]
            for key in ("rne_from_offset", "rne_final", "share_of_error", "share_of_states", "mean_overheating", "highest",
                        "highest_true"):
                scores = [r["scores"][row.key] for r in records]
                found = Value.of((sc[key] if key in sc else sc["melting"][key] for sc in scores), plain.unlearned if plain else 0)
                line.append(slot(found, mark=figures.marks.of(records)))
            lines.append(line)
        return [self.head(target),
                Text("Melting takes up heat without getting hotter. A model that superposes responses heats on: its temperatures "
                     f"overshoot where the truth is in transition or above it (T > {phase.temperature - phase.width:g} K)."),
                Table([name, "is told", "RNE from offset", "RNE, last step", "share of the squared error there",
                       "share of states there",
                       "mean error there, K", "hottest, K", "hottest in truth, K"], lines),
                *figures.marks.legend(), *self.missing(target)]

    def operators(self) -> list[Block]:
        found = {c: r for c, r in self.shelf.of_kind("operator", self.s).items() if c.seed == 0}
        if not found:
            return []
        marks, lines, drawn = Marks(found.values()), [], list[Block]()
        captions = {"spectrum.png": "eigenvalues of L_physics and L with the line of stability",
                    "action.png": "the operator on a true field, beside what the truth says of it",
                    "matrices.png": "entries of L_physics, L_neural and L"}
        for cell, record in found.items():
            numbers = record["numbers"]
            for field, n in numbers["fields"].items():
                one = f"{cell.scenario}, {field}" if len(numbers["fields"]) > 1 else cell.scenario
                lines.append([f"{one}: {label(cell.method)} {marks.of([record])}".strip(), number(n["physics"]["rightmost"]),
                              number(n["learned"]["rightmost"]), "yes" if n["learned"]["stable"] else "NO",
                              number(n["learned"]["step_norm_mass"]), number(n["size"]["frobenius_ratio"]),
                              number(numbers["action"]["physics_to_reference"]), number(numbers["action"]["learned_to_reference"])])
            for file, caption in captions.items():
                drawn += self.pictures.drawn(copy_of(stored.picture(record, file)),
                                             f"{Path(file).stem}-{cell.scenario}-{cell.method}-{self.s.slug}",
                                             f"{cell.scenario}, {label(cell.method)}: {caption}.")
        head = ["", "max Re λ of L_physics", "max Re λ of L", "stable", "norm of a step", "size of L_neural against L_physics",
                "L_physics u against the reference", "L u against the reference"]
        return [Head("The learned operator and its spectrum (Appendix D)", 3), Table(head, lines), *drawn, *marks.legend()]

    def details(self, present: Sequence[str]) -> list[Block]:
        """Every row of a scenario with its training: its data, how often it was updated, whether it was finished."""
        blocks: list[Block] = [Head("Scenario by scenario", 3), Text(_DETAILS_TEXT)]
        for name in present:
            rows = ordered([*solvers(self.s.truth), *self.shelf.rows(name, self.s)])
            held = {row: records for row in rows if (records := self.shelf.found(name, row, self.s))}
            if not held:
                continue
            marks = Marks(r for records in held.values() for r in records)
            blocks.append(Table([name, *_DETAILED], [detail(row, records, marks) for row, records in held.items()]))
            blocks += marks.legend() + remarks(held)
            for kind, (draw, caption) in _DETAILS.items():
                blocks += self.pictures.drawn(partial(draw, shelf=self.shelf, s=self.s, scenario=name),
                                              f"{kind}-{name}-{self.s.slug}",
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


# ---------------------------------------------------------------------- how a training went


def detail(row: Row, records: Sequence[Record], marks: Marks) -> list[Slot | str]:
    """A row of the details: scores, and how the training went."""
    scores = [r["scores"][row.key] for r in records]
    until, share = [sc["until"] for sc in scores], [sc["until_share"] for sc in scores]
    if any(u is None for u in until):
        lasts = "never" if all(u is None for u in until) else "never for some seeds"
    else:
        lasts = f"{number(sum(until) / len(until))} ({100 * sum(share) / len(share):.0f}%)"
    trained = [r for r in records if r["cell"]["kind"] == "train"]
    memory = [r["memory"]["train"] for r in trained if r["memory"]["train"]]
    figures = (slot(value(records, row, key), mark=marks.of(records) if key == "rne" else "")
               for key in ("rne", "rne_from_offset", "rne_final", "log10_mse"))
    return [row.title, row.told, *figures, lasts, *_training(trained), f"{max(memory) / 1e9:.2g} GB" if memory else "–",
            f"{_mean(sc['steps_per_second'] or 0.0 for sc in scores):,.0f}"]


def _training(records: Sequence[Record]) -> list[str]:
    """The columns from seeds to processes."""
    if not records:
        return ["–"] * 11
    counts = [r["updates"] for r in records if r["updates"] is not None]
    looks = [len(r["history"]) - 1 for r in records if r.get("history")]
    improved = {True: "yes", False: "no", None: "unknown"}
    return [str(len(records)), f"{records[0]['parameters']:,}", _each(trained_on(r) for r in records),
            _each(f"{r['rate']['factor']:g}" if "rate" in r else "1" for r in records), _each(map(windows, records)),
            f"{_mean(counts):,.0f}" if counts else "unknown", _each(map(str, looks)) or "unknown",
            f"{_mean(r['seconds']['train'] for r in records):,.0f} s",
            _each("none" if r["budget"] is None else f"{r['budget']:.0f} s" for r in records),
            _each(improved[one] for one in {improving(r.get("history", [])) for r in records}),
            _each(str(r["sharing"]) for r in records)]


def windows(record: Record) -> str:
    """Steps of the windows that a model was trained on, in the order of its stages; what is fitted at once has none."""
    stages = [s for k, s in enumerate(record.get("recipe", {}).get("stages", [])) if k not in record.get("left_out", [])]
    return ", ".join(str(s["length"]) for s in stages if s["method"] == "adam") or "–"


def remarks(held: Mapping[Row, Sequence[Record]]) -> list[Block]:
    """Sentences about models that more training might have made better, and about seeds of which one had less than half of the
    updates of another: their spread is one of time, too."""
    found: list[Block] = []
    late = [row.title for row, records in held.items() if any(improving(r.get("history", [])) for r in records)]
    if late:
        found.append(Text(f"Still improving when the time was over: {', '.join(late)}. More training may lower these errors."))
    counts = {row: [r["updates"] for r in records if r.get("updates") is not None] for row, records in held.items()}
    uneven = [f"{row.title} {min(c):,} to {max(c):,}" for row, c in counts.items() if c and 2 * min(c) < max(c)]
    if uneven:
        found.append(Text(f"Seeds that were updated unequally often within the same budget: {', '.join(uneven)} updates."))
    return found


def updates(held: Mapping[Row, Sequence[Sequence[Record]]]) -> list[Block]:
    """How often the models of a row were updated, in the order of the columns: a model that was trained less is no rival."""
    parts = []
    for row, columns in held.items():
        counts = [[r["updates"] for r in records if r.get("updates") is not None] for records in columns]
        if any(counts):
            parts.append(f"{row.title} {', '.join(f'{_mean(each):,.0f}' if each else '–' for each in counts)}")
    return [Text(f"Updates within the budget, in the order of the columns: {'; '.join(parts)}.")] if parts else []


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
    if len(run) < len(values):
        return text + " The order is not judged, since not all variants were run."
    error = {short[m]: v.mean for m, v in run.items()}
    worst, prior = ("confirmed" if right else "refuted" for right in (short[order[-1]] == "D", error["A"] > error["B"]))
    return text + (f" That removing Green hurts most is {worst}; that removing L_physics hurts more than removing L_neural is "
                   f"{prior}.")


def choice(s: Setting) -> Choice:
    """The cells of a setting."""
    return Choice(size=s.size, truth=s.truth, few=s.few, factor=s.factor)


def _each(texts: Iterable[str]) -> str:
    """Different texts, each once."""
    return ", ".join(dict.fromkeys(texts))


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.0

"""The cheapest solver that reaches an asked error, found by comparing solutions of different order, mesh and step.

The error of a solution A is estimated by |A - B| with a reference B that is better in space and in time, root mean square over the
part and the stored times. How far B itself is off is bounded by a multiple of |P - B| with a cheaper partner P:

    estimate(A) = |A - B|                               A has the error to which |A - B| + or - that of B belongs
    upper(A)    = WIDER (|A - B|^2 + (most |P - B|)^2)^1/2
    estimate(B) = usual |P - B|,  upper(B) = most |P - B|        where nothing better judges B

(where A and B are of one classical scheme, whose errors point the same way, terms are added instead of their squares). `usual` and
`most` were measured on random heat problems; `benchmarks/choose.py` shows what comes of them on parts that were not among these. A
is chosen when its upper estimate is below what is asked. There are two or three references, each dearer than the one before; the
search ends with the first by which a candidate, from the cheapest on, is good enough. Costs are counted, not timed: a problem
has the same choice everywhere. Universal weights are tried where they act on the whole mesh, otherwise classical solvers alone, and
linear elements alone where materials change with the field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from dgnet.arguments import Count, Device, checked
from dgnet.errors import InputError, RangeError, SolveError
from dgnet.mesh import Mesh
from dgnet.models import Model, Refined, rollout
from dgnet.models.universal import Universal
from dgnet.prediction.source_files import halved, source_from
from dgnet.prediction.to_files import predict_to_files
from dgnet.problems import Problem, SpotTable
from dgnet.problems.case import base_problem
from dgnet.problems.sight import doubts as find_doubts
from dgnet.problems.sources import converged_average
from dgnet.progress import Report
from dgnet.stepping.auto import CONJUGATE, DIRECT
from dgnet.training.identity import digest
from dgnet.training.simulator import MODELS, STEPS, Simulator, model_named, simulator

Tensor = torch.Tensor
Take = Callable[[int, np.ndarray], None]

MOST = 1 << 28
"""Unknowns times steps of a solution that is compared: no dearer one is tried."""
WHOLE = 0.9
"""Share of the nodes around which universal weights must act in full to be tried."""
WIDER = 1.15
"""Of the upper estimates: 19 of 20 random problems stay below them."""
_MEMORY = 1 << 22  # numbers of a solution that are compared; of longer ones every second, third.. state
_TOO_FAR = 8.0  # times the asked error: neither half the spacing nor half the step makes up for that
_FLAT = 1e-6  # range of a field over its size, below which it stays as it is
_MISSED = {"missed", "spots", "source", "thin", "region"}  # doubts about what all candidates get wrong alike
_ENTRIES = {2: (7, 11), 3: (15, 28)}  # in a row of a matrix of linear and of quadratic elements
_ITERATIONS = 10  # of conjugate gradients, counted for a solve
_OVERHEAD, _AROUND = 60.0, 3.0  # microseconds of a step, and those of a step for each of a solve: loads and products
_NETWORK = {"universal": (5e3, 26.0, 1.8), "universal-quadratic": (8e3, 50.0, 1.1)}  # set-up; for each node; steps over plain ones
_CODES = {"l": "classical", "u": "universal", "q": "quadratic", "uq": "universal-quadratic"}
_STEPS = {1: "the given step", 2: "half the step", 4: "a quarter of the step"}


class Candidate(NamedTuple):
    """A model by its name without data, on the mesh as it is or refined once, with `parts` steps in a step of the problem."""

    name: str
    fine: bool
    parts: int

    @classmethod
    def of(cls, code: str) -> Candidate:
        """From l, u, q or uq for the model, r for the refined mesh, and the steps in a step."""
        return cls(_CODES[code[:-1].removesuffix("r")], "r" in code, int(code[-1]))

    def __str__(self) -> str:
        return f"{self.name}{', mesh refined once' * self.fine}, {_STEPS[self.parts]}"

    @property
    def model(self) -> Model[Any]:
        return Refined(model_named(self.name)) if self.fine else model_named(self.name)

    @property
    def quadratic(self) -> bool:
        return self.name.endswith("quadratic")

    @property
    def coarser(self) -> list[Candidate]:
        """The same with twice the step, and with twice the spacing."""
        half = [self._replace(parts=self.parts // 2)] if self.parts > 1 else []
        return [*half, self._replace(fine=False)] if self.fine else half

    def unknowns(self, mesh: Mesh, steps: int = 1) -> int:
        """Those of all steps."""
        nodes, edges = mesh.n_nodes, len(mesh.edges)
        if self.fine:
            nodes, edges = nodes + edges, 2**mesh.dim * edges
        return (nodes + edges * self.quadratic) * self.parts * steps

    def work(self, mesh: Mesh, steps: int) -> float:
        """Counted seconds of set-up and all steps on one core."""
        n, solves = self.unknowns(mesh) // self.parts, steps * self.parts
        products = solves * CONJUGATE[mesh.dim, 8].cost(n * _ENTRIES[mesh.dim][self.quadratic], _ITERATIONS)
        solved = min(DIRECT["lu", mesh.dim].cost(n, 1, solves, self.quadratic), products)
        fixed, each, more = _NETWORK.get(self.name, (0.0, 0.0, 1.0))
        nodes = Candidate("classical", self.fine, 1).unknowns(mesh)
        return 1e-6 * (fixed + each * nodes + more * (solves * _OVERHEAD + _AROUND * solved))


class Stage(NamedTuple):
    """A reference, its partner, the usual and the largest error of the reference over their difference, and whom it judges."""

    reference: Candidate
    partner: Candidate
    usual: float
    most: float
    menu: tuple[Candidate, ...]

    @classmethod
    def of(cls, reference: str, partner: str, usual: float, most: float, menu: str) -> Stage:
        return cls(Candidate.of(reference), Candidate.of(partner), usual, most, tuple(map(Candidate.of, menu.split())))


WITH_UNIVERSAL: tuple[Stage, ...] = (
    Stage.of("q2", "l1", 0.15, 0.36, "l1 u1 l2 u2"),
    Stage.of("uq2", "q1", 0.24, 0.70, "l1 u1 l2 u2 lr1 ur1 q1 uq1 q2"),
    Stage.of("uqr4", "uq2", 0.40, 0.95, "l1 u1 l2 u2 lr1 ur1 q1 uq1 q2 lr2 ur2 uq2 q4 qr1 uq4 uqr1 qr2 uqr2"))
CLASSICAL: tuple[Stage, ...] = (
    Stage.of("q2", "l1", 0.15, 0.36, "l1 l2"),
    Stage.of("qr4", "q2", 0.22, 0.56, "l1 l2 lr1 q1 q2 lr2 q4 qr1 qr2"))
CURVED: tuple[Stage, ...] = (  # materials that change with the field are solved with linear elements
    Stage.of("lr2", "l1", 0.40, 0.77, "l1 l2"),
    Stage.of("lr4", "l2", 0.43, 0.77, "l1 l2 l4 lr1 lr2"))


class Asked(NamedTuple):
    """The error that is asked for: a share of the range of each field, or a number in the unit of the only one."""

    value: float
    share: bool
    text: str

    @classmethod
    def of(cls, error: float | str, fields: int) -> Asked:
        text = str(error).strip()
        share = text.endswith("%")
        try:
            value = float(text.removesuffix("%")) / (100 if share else 1)
        except ValueError:
            raise InputError(f"the error must be a share as 1% or a number in the unit of the field, got '{error}'") from None
        if not (isfinite(value) and value > 0 and (not share or value < 1)):
            raise InputError(f"the error must be positive{' and below 100%' * share}, got {text}")
        if not share and fields > 1:
            raise InputError(f"an error of {text} is in the unit of one field, but there are {fields}: give a share, as 1%")
        return cls(value, share, text)


class Trial(NamedTuple):
    """A candidate that was tried: counted seconds, the estimate of its error and the upper one, as that which is asked for.
    A reference has none before a better one has judged it; `failed` says why a candidate has no solution."""

    candidate: Candidate
    work: float
    estimate: float | None
    upper: float | None
    failed: str


@dataclass(frozen=True)
class Choice:
    """What was chosen, and from what.

    - `candidate`: the chosen one: `name` of the model, `fine` for the mesh refined once, `parts` steps in a step
    - `asked`: the error that was asked for
    - `estimate`, `upper`: its error, root mean square over part and time, and what it stays below in 19 of 20 random problems; the
      worst of fields and probes, as a share of the field's range or in the field's unit, as asked
    - `probes`: the estimate at each probe, over time
    - `trials`: all that were tried, from the cheapest on
    - `notes`: what the estimate does not hold for, in sentences
    """

    candidate: Candidate
    asked: Asked
    estimate: float
    upper: float
    probes: tuple[float, ...]
    trials: tuple[Trial, ...]
    notes: tuple[str, ...] = ()

    @property
    def reached(self) -> bool:
        return self.upper <= self.asked.value

    @property
    def sentences(self) -> list[str]:
        """For people."""
        of = " of the range" if self.asked.share else ""

        def said(value: float | None) -> str:
            return "-" if value is None else f"{100 * value:.2g}%" if self.asked.share else f"{value:.3g}"

        lines = [f"Chosen: {self.candidate}; estimated error {said(self.estimate)}{of}, most likely below {said(self.upper)} "
                 f"(asked: {self.asked.text})."]
        if not self.reached:
            lines.append(f"Nothing within reach is likely to keep {self.asked.text}: this is the best that was found.")
        lines += [f"At probe {k}: {said(value)}{of}." for k, value in enumerate(self.probes, 1)]
        tried = (f"{t.candidate} ({t.failed or said(t.estimate)}, {t.work:.2g})" for t in self.trials)
        return [*lines, f"Tried (estimate, counted seconds): {'; '.join(tried)}.", *self.notes]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        def plain(c: Candidate) -> dict[str, Any]:
            return {"model": c.name, "refined": c.fine, "parts": c.parts}

        return {**plain(self.candidate), "asked": self.asked.text, "estimate": self.estimate, "upper": self.upper,
                "probes": list(self.probes), "reached": self.reached, "sentences": self.sentences,
                "tried": [plain(t.candidate) | t._asdict() | {"candidate": str(t.candidate)} for t in self.trials]}


class _Judged(NamedTuple):
    """The estimate and the upper one of a candidate's errors in fields and probes [1 + P, F]."""

    usual: np.ndarray
    most: np.ndarray


class _Search:
    """Solutions of candidates as they are needed. `solve` gives states [T, N, F] at common times, the start first."""

    def __init__(self, problem: Problem, steps: int, asked: Asked, probes: Sequence[Sequence[float]],
                 solve: Callable[[Candidate], np.ndarray], report: Report | None = None) -> None:
        self.mesh = mesh = problem.mesh
        self.steps, self.asked, self.report, self.solve = steps, asked, report, solve
        shares = np.bincount(mesh.cells.ravel(), np.repeat(mesh.volumes, mesh.dim + 1), mesh.n_nodes)
        self.weights, self.probes = shares / shares.sum(), np.array([list(p) for p in probes], dtype=np.float64)
        if len(probes):
            mesh.interpolate(np.zeros(mesh.n_nodes), self.probes)  # refuses points that are none
        self.states: dict[Candidate, np.ndarray] = {}
        self.failed: dict[Candidate, str] = {}
        self.judged: dict[Candidate, _Judged] = {}
        whole = Universal(degree=2).coverage(problem) >= WHOLE and Universal().acts(problem)
        self.stages = CURVED if problem.pde.curved else WITH_UNIVERSAL if whole else CLASSICAL

    def solved(self, candidate: Candidate) -> bool:
        """Whether there is a solution; the first call makes it."""
        if candidate not in self.states and candidate not in self.failed:
            try:
                self.states[candidate] = self.solve(candidate)
            except (SolveError, RangeError) as error:
                self.failed[candidate] = str(error)
        return candidate in self.states

    def unit(self, v: np.ndarray) -> np.ndarray:
        """What errors are counted in [F]: 1, or the range of each field; of one that stays as it is, its size."""
        span, size = np.ptp(v, axis=(0, 1)).astype(np.float64), np.abs(v).max((0, 1))
        return np.where(span > _FLAT * size, span, np.maximum(size, 1e-300)) if self.asked.share else np.ones(v.shape[2])

    def apart(self, a: Candidate, b: Candidate) -> np.ndarray:
        """The difference of two solutions in fields, then in probes [1 + P, F]."""
        gap = self.states[a][1:].astype(np.float64) - self.states[b][1:]
        rows = [np.sqrt(np.einsum("n,tnf->f", self.weights, np.square(gap)) / len(gap))]
        if len(self.probes):
            rows += list(np.sqrt(np.square(self.mesh.interpolate(gap, self.probes)).mean(0)))
        return np.stack(rows) / self.unit(self.states[b])

    def cheapest(self, candidates: Iterable[Candidate]) -> list[Candidate]:
        return sorted(candidates, key=lambda c: (c.work(self.mesh, self.steps), c))

    def good(self, a: Candidate, usual: np.ndarray, most: np.ndarray) -> bool:
        """Whether these errors of a candidate are below what is asked."""
        self.judged[a] = _Judged(usual, most)
        return float(most.max()) <= self.asked.value

    def choose(self) -> Choice:
        within = [s for s in self.stages if s is self.stages[0] or s.reference.unknowns(self.mesh, self.steps) <= MOST]
        for number, stage in enumerate(within, 1):
            if self.report is not None:
                self.report("choosing a solver", number, len(within))
            if not (self.solved(stage.partner) and self.solved(stage.reference)):
                continue
            gap = self.apart(stage.partner, stage.reference)
            if float(stage.most * gap.max()) > self.asked.value and number < len(within):
                continue  # not even the reference is good enough
            for a in self.cheapest(stage.menu):
                hopeless = any(c in self.judged and self.judged[c].usual.max() > _TOO_FAR * self.asked.value for c in a.coarser)
                if not hopeless and self.solved(a) and self.good(a, *self.errors(a, stage, gap)):
                    return self.choice(a)
            if number == len(within):
                self.good(stage.reference, stage.usual * gap, stage.most * gap)
        if not self.judged:
            raise SolveError(next(iter(self.failed.values())))
        return self.choice(min(self.cheapest(self.judged), key=lambda c: float(self.judged[c].most.max())))

    def errors(self, a: Candidate, stage: Stage, gap: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The estimate and the upper one, by the reference of a stage, which itself may be off by some of `gap`."""
        b, apart = stage.reference, self.apart(a, stage.reference)
        if a.name == b.name and not a.name.startswith("universal"):  # errors of one scheme point the same way
            return apart + stage.usual * gap, apart + stage.most * gap
        same = a._replace(parts=b.parts) == b  # with the error of b in space
        return np.hypot(apart, stage.usual * gap) if same else apart, WIDER * np.hypot(apart, stage.most * gap)

    def choice(self, a: Candidate) -> Choice:
        def trial(c: Candidate) -> Trial:
            usual, most = (float(e.max()) for e in self.judged[c]) if c in self.judged else (None, None)
            return Trial(c, c.work(self.mesh, self.steps), usual, most, self.failed.get(c, ""))

        usual, most = self.judged[a]
        return Choice(a, self.asked, float(usual.max()), float(most.max()), tuple(usual[1:].max(1).tolist()),
                      tuple(map(trial, self.cheapest({*self.states, *self.failed}))))


def _kept(steps: int, numbers: int, make: Callable[[Take], object]) -> np.ndarray:
    """States [T, N, F] that are compared, of a rollout that hands them to a sink."""
    every, states = min(steps, max(1, -(-steps * numbers // _MEMORY))), list[np.ndarray]()
    make(lambda k, u: None if k % every else states.append(np.array(u)))
    return np.stack(states)


def _notes(problem: Problem, doubts: set[str]) -> tuple[str, ...]:
    """What an estimate does not hold for, given the kinds of the doubts about a problem."""
    found = ["The estimate does not hold what the warnings say: all candidates miss it alike."] if _MISSED & doubts else []
    pde = problem.pde
    if pde.velocity is not None or pde.reaction is not None or pde.curved or problem.mesh.dim != 2 or problem.n_fields > 1:
        found.append("The bounds of the estimate were measured on heat in flat parts; this problem is of another kind.")
    return tuple(found)


def chosen(run: Simulator, error: float | str, *, probes: Sequence[Sequence[float]] = (), report: Report | None = None,
           source: Path | str | None = None, steps: int | None = None, device: Device = "cpu",
           **options: Any) -> tuple[Simulator, Choice]:
    """The simulator of the same case with the cheapest model and step that reach an error, and how that was found; `options` are
    those of `predict_to_files` that say what is solved."""
    case, problem, doubts = run.case, base_problem(run.case, "cpu"), set[str]()
    asked = Asked.of(error, len(case.pde.fields))
    drive = None if source is None else source_from(str(source), run, device)
    count = steps or (drive.steps if drive is not None else None) or case.steps

    def of(candidate: Candidate) -> Simulator:
        identity = digest({"problem": run.identity, "candidate": list(candidate)})
        return replace(run, model=candidate.model, parts=candidate.parts, notes=(), identity=identity)

    def solve(candidate: Candidate) -> np.ndarray:
        def make(take: Take) -> None:
            result = predict_to_files(of(candidate), source=source, steps=steps, device=device, sink=take, **options)
            doubts.update(doubt["kind"] for doubt in result["doubts"])

        return _kept(count, case.mesh.n_nodes * len(case.pde.fields), make)

    choice = _Search(problem, count, asked, probes, solve, report).choose()
    name, fine, parts = choice.candidate
    facts: dict[str, str | int | float] = {"asked_error": asked.text, "estimated_error": choice.estimate, "refined": int(fine),
                                           "parts": parts, "upper_error": choice.upper, "model": name}
    return replace(of(choice.candidate), facts=facts), replace(choice, notes=_notes(problem, doubts))


class Simulated(NamedTuple):
    """States [1, steps + 1, N, F] of a simulation; where an error was asked for, the `Choice` that was made."""

    states: Tensor
    choice: Choice | None


class _Averages:
    """Step averages of a function: those at fewer points and over longer steps come from what was averaged before."""

    def __init__(self, source: Any) -> None:
        self.source, self.points, self.rows = source, torch.empty(0, 0), torch.empty(0, 0)

    def __call__(self, x: Tensor, steps: int, dt: float) -> Tensor:
        parts = self.rows.shape[1] // steps
        if not (parts and torch.equal(self.points[:len(x)], x)):
            self.points = x
            self.rows = converged_average(self.source, x, dt * torch.arange(steps, dtype=torch.float64), dt)[0]
            return self.rows
        return self.rows[:, :, :len(x)].unflatten(1, (steps, parts)).mean(2)


@checked
def simulate(problem: Problem | Path, *, error: float | str | None = None, model: str | None = None,
             source: Callable[..., Tensor] | SpotTable | Tensor | Path | None = None,
             initial: Callable[..., Tensor] | Tensor | Path | None = None, steps: Count | None = None,
             probes: Sequence[Sequence[float]] = ()) -> Simulated:
    """Simulate a problem without data; with an asked error, by the cheapest solver that reaches it.

    - `problem`: a `Problem`, or the folder of a problem file
    - `error`: that is asked for, root mean square over the part and the time: "1%" of the range of each field, or a number in the
      unit of the only one. Classical solvers and universal weights of both degrees, the mesh refined once, half and quarter steps
      are compared (`dgnet.prediction.choose`)
    - `model`: without `error`: universal (unless given), universal-quadratic, classical or quadratic
    - `source`: a function f(x, t) as `step_average` takes it, a table of spots, or averages over the steps [1, steps, N, F]; of a
      folder also a file
    - `initial`: the start [1, N, F], or a function of points [P, d] that gives [1, P, F]; of a folder a .npy file, or nothing
    - `steps`: how many; by default as many as a source has, or 100
    - `probes`: points [P, d] at which the error is asked for, too

        >>> import dgnet as dg, torch
        >>> plate = dg.Problem(dg.box((8, 8)), dg.PDE(diffusion=1.0), [dg.Robin("boundary", 1.0, 0.0)], dt=0.01)
        >>> found = dg.simulate(plate, error="2%", initial=torch.ones(1, 81, 1), steps=5)
        >>> found.states.shape, found.choice.candidate.name, found.choice.reached
        (torch.Size([1, 6, 81, 1]), 'classical', True)
    """
    if error is None and len(probes):
        raise InputError("probes belong to an error that is asked for")
    if error is not None and model is not None:
        raise InputError(f"an asked error chooses the model: leave out '{model}'")
    model = model or MODELS[0]
    if not isinstance(problem, Problem):
        if not isinstance(source, Path | None) or not isinstance(initial, Path | None):
            raise InputError("a simulation of a folder takes its source and start from files")
        options: dict[str, Any] = {"source": source, "initial": initial, "steps": steps}
        run, choice, found = simulator(problem, model), None, list[np.ndarray]()
        if error is not None:
            run, choice = chosen(run, error, probes=probes, **options)
        predict_to_files(run, sink=lambda k, u: found.append(u.copy()), **options)
        return Simulated(torch.from_numpy(np.stack(found))[None], choice)
    if initial is None or isinstance(initial, Path) or isinstance(source, Path):
        raise InputError("a simulation of a `Problem` needs its start as numbers or a function, and no files")
    count, numbers = steps or (source.shape[1] if isinstance(source, Tensor) and source.dim() == 4 else STEPS), problem.mesh.n_nodes
    averages, device = _Averages(source), problem.geometry.device

    def make(model: Model[Any], parts: int, take: Take) -> None:
        p, n = replace(problem, dt=problem.dt / parts), count * parts
        x = torch.tensor(model.points(p), dtype=torch.float64, device=device)
        if source is None or isinstance(source, Tensor):
            rows = None if source is None else halved(source.to(device), parts)
        else:
            rows = model.taking(source, p).average(x, 0, n, p.dt) if isinstance(source, SpotTable) else averages(x, n, p.dt)
        start = initial(x) if callable(initial) else initial.to(device)
        if start.dim() != 3 or len(start) != 1:
            raise InputError(f"the start must be that of one trajectory, [1, nodes, fields], got {list(start.shape)}")
        take(0, start[0, :numbers].cpu().numpy())
        with torch.no_grad():
            rollout(model, p, start, rows, n, sink=lambda k, u: None if k % parts else take(k // parts, u[0].cpu().numpy()))

    if error is None:
        return Simulated(torch.from_numpy(_kept(count, 0, lambda take: make(model_named(model), 1, take)))[None], None)

    def solve(c: Candidate) -> np.ndarray:
        return _kept(count, numbers * problem.n_fields, lambda take: make(c.model, c.parts, take))

    search = _Search(problem, count, Asked.of(error, problem.n_fields), probes, solve)
    choice = search.choose()
    spots, function = source if isinstance(source, SpotTable) else None, source if callable(source) else None
    start = initial(torch.tensor(problem.mesh.points, device=device)) if callable(initial) else initial
    doubts = find_doubts(problem, start[0], spots=spots, source=function if spots is None else None, steps=count)
    states, c = search.states[choice.candidate], choice.candidate
    if len(states) != count + 1:
        states = _kept(count, 0, lambda take: make(c.model, c.parts, take))
    return Simulated(torch.from_numpy(states)[None], replace(choice, notes=_notes(problem, {d.kind for d in doubts})))

"""The paper's tables and figures as lists of cells."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dgnet.errors import InputError
from dgnet.files import did_you_mean
from dgnet.models.registry import DGNETS
from dgnet_paper.scenarios import get, paper_names
from dgnet_paper.study.experiment import CLOCKED, FAMILIES, METHODS, SQUARES, Experiment, is_variant, method
from dgnet_paper.study.rows import reacts

FIVE = ("deeponet", "mgn", "mp-pde", "beno", "phympgn")
REDUCED = ("pod", "opinf")  # not in the paper's tables
OURS = ("dgnet-paper", "dgnet")
RIVALS = (*FIVE, *REDUCED, *OURS)
SEVEN = ("allen-cahn", "fisher-kpp", "fitzhugh-nagumo", "cylinder", "sediments", "obstacles", "laser-heat")
ELEVEN = tuple(paper_names())
PICTURED = ("fitzhugh-nagumo", "laser-heat")
ABLATED = ("obstacles", "fitzhugh-nagumo", "laser-heat")
FACTORS = (0.5, 1.0, 2.0, 3.0)
ATTRIBUTES = {"spot size": 0, "power": 1, "number of sources": 2}
COUNTS = (1, 2, 5, 10, 20)
ACCURACY = ("table-main", "table-recent", "table-3d", "table-wavy", "table-light")
"""Tables of errors, in which DGNet also stands with the reaction unknown: the baselines are never told it."""


@dataclass(frozen=True)
class Target:
    """`kind` is that of its own cells; `scenarios` and `methods` what it holds unless told otherwise."""

    name: str
    title: str
    where: str  # in the paper
    scenarios: tuple[str, ...]
    methods: tuple[str, ...]
    kind: str = "train"

    @property
    def also_unknown(self) -> tuple[str, ...]:
        """Methods that are also trained without being told the reaction, where the equation has one."""
        return tuple(m for m in self.methods if m == "dgnet" and self.name in ACCURACY)


TARGETS = {t.name: t for t in (
    Target("table-main", "Seven scenarios", "Table 2", SEVEN, RIVALS),
    Target("table-recent", "Recent baselines", "Appendix F, recent baselines", ABLATED,
           ("singer", "amg", "transolver", *REDUCED, *OURS)),
    Target("table-3d", "Lasers on a 3D bracket", "Appendix F, 3D scenes", ("laser-heat-3d",), RIVALS),
    Target("table-wavy", "Wavy channel, Re = 300", "Appendix F, higher Reynolds numbers", ("wavy-channel",), RIVALS),
    Target("table-light", "Light-driven reaction, 30,000 nodes", "Appendix F, large scale", ("light-reaction",), RIVALS),
    Target("table-robustness", "Other sources than in training", "Appendix F, source generalisation", ("laser-heat-3d",), OURS,
           "robust"),
    Target("ablation", "What each part is worth", "Section 4.3, Appendix D", ABLATED,
           ("dgnet-paper-A", "dgnet-paper-B", "dgnet-paper-C", "dgnet-paper-D", "dgnet-paper")),
    Target("throughput", "Time and memory of a rollout", "Appendix D, throughput", SEVEN, ("every",), "throughput"),
    Target("scaling", "Time and memory against nodes", "Appendix D, scalability", (SQUARES,), ("every",), "scaling"),
    Target("tradeoff", "Error against cost", "Appendix D, speed and accuracy", ELEVEN, ("dgnet",), "tradeoff"),
    Target("spectrum", "Eigenvalues of L_physics and L", "Appendix D, spectra", PICTURED, OURS, "operator"),
    Target("operator", "The learned operator", "Appendix D, learned operator", PICTURED, OURS, "operator"),
    Target("fields", "Truth beside every model", "Figures of Section 4", SEVEN, (*FIVE, *OURS)),
    Target("failure", "Where superposition ends: a phase transition", "Appendix F, failure mode", ("phase-transition",), OURS),
    Target("dgnet", "DGNet beside the classical solvers", "not in the paper", ELEVEN, ("dgnet",)),
    Target("long", "Ten times longer than the data", "not in the paper", ELEVEN, ("dgnet",), "long"),
    Target("data-efficiency", "Error against training trajectories", "not in the paper", ("allen-cahn", "cylinder", "laser-heat"),
           ("mgn", "phympgn", *OURS)),
)}


def scales() -> dict[str, list[tuple[float, float, float]]]:
    """Factors on size, power and number of the sources, one attribute changed at a time."""
    return {what: [(f if axis == 0 else 1.0, f if axis == 1 else 1.0, f if axis == 2 else 1.0) for f in FACTORS]
            for what, axis in ATTRIBUTES.items()}


@dataclass(frozen=True)
class Choice:
    """What the command line may narrow down."""

    scenarios: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    size: str = "small"
    truth: str = "converged"
    seeds: int = 1
    trajectories: int = 0
    unknown_reaction: bool = False
    few: int = 0
    factor: float = 1.0


def targets(name: str) -> list[Target]:
    if name == "all":
        return list(TARGETS.values())
    if name not in TARGETS:
        raise InputError(f"there is no target '{name}'" + did_you_mean(name, [*TARGETS, "all"], "known, beside the names of cells"))
    return [TARGETS[name]]


def cells(name: str, choice: Choice) -> list[Experiment]:
    """The cells of a target, one seed of everything before the next; a cell's own name stands for itself."""
    if "_" in name:
        return [Experiment.parse(name)]
    if choice.seeds < 1:
        raise InputError(f"the number of seeds must be positive, got {choice.seeds}")
    for scenario in choice.scenarios:
        get(scenario, choice.size)
    for row in choice.methods:
        method(row)
    out: dict[Experiment, None] = {}
    for seed in range(choice.seeds):
        for target in targets(name):
            if name == "all" and target.kind == "tradeoff" and choice.truth == "same-mesh":
                continue  # against truth of the data's own mesh, a finer classical setting would count as an error
            for cell in _cells(target, choice, seed, name != "all"):
                out.setdefault(cell)
    if choice.unknown_reaction and not any(cell.unknown_reaction for cell in out):
        raise InputError(f"--unknown-reaction does not apply here: no cell of '{name}' with these models learns a reaction")
    if not out:
        raise InputError(f"nothing of '{name}' is left with these scenarios and models")
    return list(out)


def methods_of(target: Target, choice: Choice) -> list[str]:
    """Methods of a target, or those asked for by name; an ablation holds nothing but its variants."""
    if not choice.methods or target.methods == ("every",):
        return list(target.methods)
    if target.name == "ablation":
        return [m for m in METHODS if m in choice.methods and (is_variant(m) or m in FAMILIES)]
    return [m for m in METHODS if m in choice.methods and m not in ("classical", "every") and not is_variant(m)]


def scenarios_of(target: Target, choice: Choice, alone: bool) -> list[str]:
    """Scenarios of a target that were asked for; a target that is run `alone` takes others by name, too."""
    if not choice.scenarios:
        return list(target.scenarios)
    if alone and len(target.scenarios) > 1:
        return list(choice.scenarios)
    return [s for s in target.scenarios if s in choice.scenarios]


def _cells(target: Target, choice: Choice, seed: int, alone: bool) -> list[Experiment]:
    out: list[Experiment] = []
    for scenario in scenarios_of(target, choice, alone):
        if target.methods == ("every",):  # speed depends neither on the truth nor on what was learned
            out += [Experiment(target.kind, scenario, choice.size, method="every", few=choice.few)] if seed == 0 else []
            continue
        base = Experiment("classical", scenario, choice.size, choice.truth, few=choice.few)
        out.append(base)
        for name in methods_of(target, choice):
            unknown = choice.unknown_reaction and method(name).model in DGNETS  # baselines are never told
            own = replace(base, kind=target.kind, method=name, seed=seed, trajectories=choice.trajectories,
                          unknown_reaction=unknown, factor=choice.factor)
            out += _variants(target, own)
            if name in target.also_unknown and not unknown and reacts(scenario, choice.size):
                out.append(replace(own, unknown_reaction=True))
    return out


def _variants(target: Target, own: Experiment) -> list[Experiment]:
    if target.kind == "robust":
        scaled = [replace(own, scale=scale) for line in scales().values() for scale in line]
        return [own.trained, *(cell for cell in scaled if cell.scaled)]
    if target.name == "data-efficiency":
        top = get(own.scenario, own.size).train
        top = min(top, own.few) if own.few else top
        return [replace(own, trajectories=0 if n == top else n) for n in sorted({min(n, top) for n in COUNTS})]
    if target.kind == "operator" and not own.method.startswith("dgnet"):
        return []  # only DGNet has an operator to show
    if target.kind in CLOCKED and own.seed > 0:
        return []
    return [own]

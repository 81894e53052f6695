"""A case and a model that steps it, trained or not: what rollouts, questions, exports and the studio are built on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from dgnet.errors import InputError
from dgnet.models import Classical, Model
from dgnet.models.universal import Universal, load_weights
from dgnet.models.universal.model import untrained
from dgnet.problems.case import Case, base_problem
from dgnet.projects.project import Project, described
from dgnet.training.identity import digest, fingerprint

STEPS = 100  # unless a number is asked for, or a source has its own
MODELS = ("universal", "universal-quadratic", "classical", "quadratic")


@dataclass(frozen=True, eq=False, kw_only=True)
class Simulator:
    """A case and a model that steps it. A `Run` is a simulator with settings and data of its training.

    - `case`: mesh, equation, conditions and time step
    - `model`: what makes the steps
    - `folder`: of the problem or of the run
    - `project`: the problem file behind the case, whose physics.py may have functions
    - `identity`: checksum of the problem, and of a model that is not in a run's folder
    - `notes`: sentences that every output repeats
    - `parts`: steps of the model in a step of the case, between the times that are stored
    - `facts`: what the files of a rollout say beside the names
    """

    case: Case
    model: Model[Any]
    folder: Path
    project: Project | None = None
    identity: str = ""
    notes: tuple[str, ...] = ()
    parts: int = 1
    facts: Mapping[str, str | int | float] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the model in files and tables."""
        return self.model.name


def model_named(name: str, weights: Path | None = None) -> Model[Any]:
    """One of `MODELS`, with universal weights from a file instead of the shipped ones."""
    if name not in MODELS:
        raise InputError(f"unknown model '{name}' (known without data: {', '.join(MODELS)})")
    if weights is not None:
        if not name.startswith("universal"):
            raise InputError(f"--weights does not apply here: the model is {name}")
        net = load_weights(weights)
        return Universal({net.dim: net}, degree=getattr(net, "degree", 1))
    degree = 2 if name.endswith("quadratic") else 1
    return Universal(degree=degree) if name.startswith("universal") else Classical(degree=degree)


def simulator(folder: Path, name: str = "universal", weights: Path | None = None) -> Simulator:
    """The problem of a folder with problem.toml and a model that needs no data, one of `MODELS`."""
    model = model_named(name, weights)
    project = described(folder, "", folder / "none", STEPS)
    unknowns = project.unknowns
    if unknowns:
        names = unknowns.curves or unknowns.factors
        what = "the reaction is" if unknowns.reaction else f"{' and '.join(names)} must be"
        raise InputError(f"{folder}: {what} found from data, so it cannot be simulated without: use `dgnet train`")
    of_model = {"model": name, "weights": "" if weights is None else sha256(weights.read_bytes()).hexdigest()}
    return Simulator(case=project.case, model=model, folder=folder, project=project,
                     identity=digest(fingerprint(project.case, project.code) | of_model),
                     notes=_coverage(model, project.case) if isinstance(model, Universal) else ())


def _coverage(model: Universal, case: Case) -> tuple[str, ...]:
    """Where universal weights act on a problem, in sentences."""
    problem = base_problem(case, "cpu")
    share, why = model.coverage(problem), untrained(problem)
    if why is None and model.net(problem.mesh.dim, problem.pde.velocity is not None) is None:
        why = f"there are no weights for {problem.mesh.dim}D yet"
    if why is not None:
        return (f"Universal weights do not apply ({why}): this is the classical solver.",)
    acts = f"Universal weights act in full around {share:.1%} of the nodes; elsewhere they fade to the classical solver."
    jumps = model.jumps(problem) if share < 1 else None
    if jumps is None:
        return (acts,)
    at = ", ".join(f"{x:.4g}" for x in jumps.place)
    return acts, (f"Around {jumps.share:.1%} of the nodes the diffusivity jumps by more than the factor {jumps.trained:.3g} "
                  f"of the training, by {jumps.ratio:.3g} at ({at}): universal weights fade there, and --model quadratic is "
                  "usually several times as accurate.")

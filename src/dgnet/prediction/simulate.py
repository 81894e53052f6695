"""`dgnet simulate`: a problem file without data, solved by a model that needs none."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from dgnet.errors import InputError
from dgnet.models import Classical, Model
from dgnet.models.base import LearnedModel
from dgnet.models.universal import Universal, UniversalNet
from dgnet.models.universal.model import untrained
from dgnet.problems.case import base_problem
from dgnet.projects.project import described
from dgnet.training.identity import digest, fingerprint
from dgnet.training.run import UNTRAINED, Run, Settings

STEPS = 100  # unless a number is asked for, or a source has its own
MODELS = ("universal", "classical", "quadratic")


def model_named(name: str, weights: Path | None = None) -> Model[Any]:
    """One of `MODELS`, with universal weights of one's own where they are given."""
    if name not in MODELS:
        raise InputError(f"unknown model '{name}' (known without data: {', '.join(MODELS)})")
    if weights is not None:
        if name != "universal":
            raise InputError(f"--weights does not apply here: the model is {name}")
        net = UniversalNet.load(weights)
        return Universal({net.dim: net})
    return Universal() if name == "universal" else Classical(degree=2 if name == "quadratic" else 1)


def without_training(folder: Path, name: str = "universal", weights: Path | None = None) -> Run:
    """A run that nobody trained: the problem of a folder with problem.toml, and a model that needs no data."""
    model = model_named(name, weights)
    project = described(folder, "", folder / "none", STEPS)
    if project.unknown_reaction or project.unknown_curves or project.calibrate:
        names = project.unknown_curves or project.calibrate
        what = "the reaction is" if project.unknown_reaction else f"{' and '.join(names)} must be"
        raise InputError(f"{folder}: {what} found from data, so it cannot be simulated without: use `dgnet train`")
    notes = []
    if isinstance(model, Universal):
        problem = base_problem(project.case, "cpu")
        share, why = model.coverage(problem), untrained(problem)
        if why is None and model.net(problem.mesh.dim, problem.pde.velocity is not None) is None:
            why = f"there are no weights for {problem.mesh.dim}D yet"
        notes = [f"Universal weights do not apply ({why}): this is the classical solver." if why is not None else
                 f"Universal weights act in full around {share:.1%} of the nodes; elsewhere they fade to the classical solver."]
        jumps = model.jumps(problem) if why is None and share < 1 else None
        if jumps is not None:
            at = ", ".join(f"{x:.4g}" for x in jumps.place)
            notes.append(f"Around {jumps.share:.1%} of the nodes the diffusivity jumps by more than the factor {jumps.trained:.3g} "
                         f"of the training, by {jumps.ratio:.3g} at ({at}): universal weights fade there, and --model quadratic is "
                         "usually several times as accurate.")
    settings = Settings(project.case.name, project.case.size, "none", "none", name, UNTRAINED)
    untouched = cast(LearnedModel[Any], model)  # it has no weights of its own to train; rollouts ask for what every model has
    told = {"model": name, "weights": "" if weights is None else sha256(weights.read_bytes()).hexdigest()}
    identity = digest(fingerprint(project.case, project.code) | told)
    return Run(folder, settings, project.case, untouched, project, identity, tuple(notes))


def opened_or_classical(folder: Path, problem: Path | None = None, allow_different: bool = False, model: str = "classical") -> Run:
    """The run in a folder; where it holds a problem and no run, that problem with a model that needs no data."""
    if (folder / "run.toml").exists() or not (folder / "problem.toml").exists():
        return Run.open(folder, problem=problem, allow_different=allow_different)
    return without_training(folder, model)

"""dgnet: discrete Green networks for time-dependent PDEs on unstructured meshes.

`import dgnet as dg` offers what most programs need, by the names below; docs/api/index.md lists them. A name is imported when it is
first used, so that `import dgnet` itself takes no time. Everything else is in the folders and may move.
"""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:  # the same names for editors and type checkers; a test compares them with the table
    from dgnet.data import Corpus, Dataset
    from dgnet.designs import design
    from dgnet.errors import InputError, SolveError
    from dgnet.following import follow
    from dgnet.inverse import kernels, place, recover
    from dgnet.mesh import Mesh, box, shipped
    from dgnet.mesh import load as load_mesh
    from dgnet.mesh import save as save_mesh
    from dgnet.models import Classical, Pause, rollout
    from dgnet.models.dgnet import DGNet, DGNetConfig
    from dgnet.models.universal import Universal
    from dgnet.prediction.to_files import predict_to_files as rollout_run
    from dgnet.problems import (
        PDE,
        ByRegion,
        Curve,
        Dirichlet,
        FunctionSource,
        Neumann,
        Periodic,
        PhaseChange,
        Problem,
        Robin,
        Scaled,
        SpotTable,
        TimeTable,
        step_average,
    )
    from dgnet.problems.sight import doubts
    from dgnet.projects.project import load as load_project
    from dgnet.projects.project import project, trajectory
    from dgnet.scoring.judge import judge, predict
    from dgnet.scoring.metrics import score
    from dgnet.stepping import GreenSolver, steady
    from dgnet.training import Recipe, Stage, fit, uncertainty
    from dgnet.training.evaluate import evaluate
    from dgnet.training.own import train_project as train
    from dgnet.training.run import Run

    load_run = Run.open

_HOMES = {
    "dgnet.data": "Corpus Dataset",
    "dgnet.errors": "InputError SolveError",
    "dgnet.training.evaluate": "evaluate",
    "dgnet.stepping": "GreenSolver steady",
    "dgnet.mesh": "Mesh box shipped load_mesh=load save_mesh=save",
    "dgnet.models": "Classical Pause rollout",
    "dgnet.models.dgnet": "DGNet DGNetConfig",
    "dgnet.models.universal": "Universal",
    "dgnet.prediction.to_files": "rollout_run=predict_to_files",
    "dgnet.problems": "PDE ByRegion Curve Dirichlet FunctionSource Neumann Periodic PhaseChange Robin Scaled SpotTable TimeTable "
                      "step_average Problem",
    "dgnet.problems.sight": "doubts",
    "dgnet.projects.project": "load_project=load project trajectory",
    "dgnet.scoring.judge": "judge predict",
    "dgnet.scoring.metrics": "score",
    "dgnet.designs": "design",
    "dgnet.following": "follow",
    "dgnet.inverse": "kernels place recover",
    "dgnet.training": "Recipe Stage fit uncertainty",
    "dgnet.training.own": "train=train_project",
    "dgnet.training.run": "Run load_run=Run.open",
}
_NAMES = {entry.split("=")[0]: (home, entry.split("=")[-1]) for home, row in _HOMES.items() for entry in row.split()}

__all__ = [
    "PDE", "ByRegion", "Classical", "Corpus", "Curve", "DGNet", "DGNetConfig", "Dataset", "Dirichlet", "FunctionSource",
    "GreenSolver", "InputError", "Mesh", "Neumann", "Pause", "Periodic", "PhaseChange", "Problem", "Recipe", "Robin", "Run",
    "Scaled", "SolveError", "SpotTable", "Stage", "TimeTable", "Universal", "box", "design", "doubts", "evaluate", "fit", "follow",
    "judge", "kernels", "load_mesh", "load_project", "load_run", "place", "predict", "project", "recover",
    "rollout", "rollout_run", "save_mesh", "score", "shipped", "steady", "step_average", "train", "trajectory", "uncertainty",
]


def __getattr__(name: str) -> object:
    if name not in _NAMES:
        raise AttributeError(f"module 'dgnet' has no attribute '{name}'")
    home, path = _NAMES[name]
    value: object = attrgetter(path)(import_module(home))
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

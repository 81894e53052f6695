"""Training on a user's own problem."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dgnet.arguments import Device, checked
from dgnet.data import Dataset
from dgnet.errors import InputError
from dgnet.models.registry import TUNED
from dgnet.models.universal import Universal
from dgnet.problems.case import base_problem
from dgnet.progress import Report
from dgnet.projects import TRUTH, Project, load
from dgnet.training.checkpoints import Progress
from dgnet.training.plan import plan_for_data
from dgnet.training.processes import join_processes, wait_for_all
from dgnet.training.run import Run, check_choice, train

_COVERED = 0.9  # share of the nodes around which universal weights must hold to be the start of a training


def first_choice(project: Project) -> str:
    """The model that a training takes unless one is named: universal weights where they hold, tuned to the data, else dgnet.

    A flow, a coefficient or reaction to be found, and settings of dgnet in the problem file ([model], or windows and iterations in
    [training]), ask for dgnet; settings of tuned weights ([model.universal-tuned]) for these.
    """
    t = project.training
    if TUNED in project.model and not project.unknowns:
        return TUNED
    if project.unknowns or project.case.moving or project.model or t.windows or t.iterations:
        return "dgnet"
    covered = Universal().coverage(base_problem(project.case, "cpu"))
    return TUNED if covered >= _COVERED else "dgnet"


def project_to_train(folder: Path, out: Path, device: str = "cpu", trajectories: int | None = None,
                     report: Report | None = None) -> Project:
    """The problem of a folder, its data imported, for a run in another folder. Under torchrun one process imports them."""
    if out.resolve() == folder.resolve():
        raise InputError(f"--out {out} is the problem folder itself; a run needs its own folder")
    if join_processes(device):
        load(folder, report)
    wait_for_all()
    project = load(folder)
    with Dataset(project.data) as data:
        count = len(data.of("train"))
    if (trajectories or 0) > count:
        raise InputError(f"--trajectories {trajectories}: {folder} has {count} training trajectories")
    return project


@checked
def train_project(project: Project, folder: Path | str, *, model: str | None = None, seed: int = 0, device: Device = "cpu",
                  minutes: float | None = None, trajectories: int | None = None,
                  report: Callable[[Progress, int], None] | None = None) -> tuple[Run, Progress]:
    """Train a model on a problem of your own (`dgnet.train`) and keep it as a run, a folder that can be moved.

    If interrupted, the same call resumes.

    - `project`: from `project` or `load_project`
    - `folder`: of the run
    - `model`: any that `dgnet models` lists; by default universal weights where they hold for the problem, tuned to its data, and
      dgnet elsewhere (`first_choice`)
    - `seed`: of weights and windows
    - `device`: cpu or cuda
    - `minutes`: of wall clock; those of the table [training] by default (5)
    - `trajectories`: use only this many for training; None for all
    - `report`: called with the progress and the number of iterations after each of them

    Returns the run and how the training went.

        >>> import dgnet as dg, torch
        >>> mesh, pde = dg.box((4, 4)), dg.PDE(diffusion=0.1)
        >>> start = torch.rand(3, mesh.n_nodes, 1, dtype=torch.float64)
        >>> states = dg.rollout(dg.Classical(), dg.Problem(mesh, pde, [], dt=0.1), start, steps=8)  # your simulations here
        >>> runs = [dg.trajectory(s, mesh, 0.1, split=k) for s, k in zip(states.numpy(), ("train", "train", "test"))]
        >>> own = dg.project("cooling", mesh, pde, [], 0.1, runs, "cooling.h5")
        >>> run, progress = dg.train(own, "run", minutes=0.002)
        >>> progress.best <= progress.history[0]["validation"]  # the untrained model is a candidate, too
        True
    """
    model = first_choice(project) if model is None else model
    check_choice(model)
    with Dataset(project.data) as data:
        plan = plan_for_data(project, data, trajectories, model=model)
    return train(project.case, TRUTH, project.data, Path(folder), plan, seed=seed, device=device,
                 budget=60 * (project.training.minutes if minutes is None else minutes), trajectories=trajectories,
                 project=project, report=report)

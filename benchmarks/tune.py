"""`python -m benchmarks tune`: universal weights tuned to a few simulations of a part, beside DGNet from the classical solver on.

Three flat parts with other shapes, conditions and materials. Each has ten training and two test trajectories: moving heat spots,
simulated by the reference (quadratic elements on half the spacing, a quarter of the step). Both models get the same trajectories,
the same minutes and the same rule for validation; what is printed is the error on the test trajectories over that of the better
classical solver with linear elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgnet import __version__
from dgnet.mesh import ALL, Mesh
from dgnet.models.registry import TUNED
from dgnet.problems import PDE, Condition, Dirichlet, Robin
from dgnet.problems.spot_table import SpotTable
from dgnet.progress import Report
from dgnet.projects import Project, load, project, template, trajectory
from dgnet.projects.shapes import disc, plate
from dgnet.training.evaluate import scores
from dgnet.training.own import train_project
from dgnet_paper.reference.transport import solve
from dgnet_paper.study.timing import hardware

COUNTS = (1, 3, 10)
TODAY = 5  # trajectories of the recipe that one trajectory is compared with
_AMBIENT, _SEED = template.AMBIENT, 7


def _simulated(name: str, folder: Path, mesh: Mesh, pde: PDE, conditions: Sequence[Condition]) -> Project:
    """A project with the spots of `dgnet new` on another part."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, tables = np.random.default_rng(_SEED), []
    count, tests = max(COUNTS), 2
    for k in range(count + tests):
        path = folder / f"{name}-{k}.csv"
        path.write_text(template.spots(mesh, rng, smooth=k >= count))
        tables.append(SpotTable.read(path, 2))
    start = torch.full((len(tables), mesh.n_nodes, 1), _AMBIENT, dtype=torch.float64)
    states = solve(mesh, pde, conditions, start, dt=template.DT, steps=template.STEPS, refine=1, substeps=4, degree=2,
                   source=lambda x, t: torch.cat([table(x, t) for table in tables])).numpy()
    made = [trajectory(state, mesh, template.DT, table, "train" if k < count else "test")
            for k, (state, table) in enumerate(zip(states, tables))]
    return project(name, mesh, pde, conditions, template.DT, made, folder / f"{name}.h5", offset=[_AMBIENT])


def _plate(folder: Path) -> Project:
    template.write(folder / "plate")
    return load(folder / "plate")


def _disc(folder: Path) -> Project:
    """A cooled rim, and a material that conducts a third as well."""
    return _simulated("disc", folder, disc(0.12, 0.012), PDE(("T",), diffusion=3e-5), [Dirichlet(ALL, _AMBIENT)])


def _tee(folder: Path) -> Project:
    """A T of two metals with a hole: held at its foot, convective along the top, insulated elsewhere."""
    corners = np.array([(0.08, 0.0), (0.16, 0.0), (0.16, 0.12), (0.24, 0.12), (0.24, 0.2), (0.0, 0.2), (0.0, 0.12), (0.08, 0.12)])
    names = ("foot", "side", "under", "side", "top", "side", "under", "side")
    mesh = plate(corners, [((0.12, 0.155), 0.018)], 0.011, names)
    middle = mesh.points[mesh.cells].mean(axis=1)
    pde = PDE(("T",), diffusion=np.where(middle[:, 1] > 0.12, 9.7e-5, 3.5e-5))
    return _simulated("tee", folder, mesh, pde, [Dirichlet("foot", _AMBIENT), Robin("top", 2e-4, _AMBIENT)])


PARTS: dict[str, Callable[[Path], Project]] = {"plate": _plate, "disc": _disc, "tee": _tee}


def run(folder: Path = Path("out/tune"), minutes: float = 0.5, parts: Sequence[str] = tuple(PARTS), counts: Sequence[int] = COUNTS,
        report: Report | None = None) -> dict[str, Any]:
    """All trainings, one after the other; runs and data stay in the folder."""
    jobs = [(part, model, count) for part in parts for model, some in ((TUNED, counts), ("dgnet", sorted({*counts, TODAY})))
            for count in some]
    made: dict[str, Project] = {}
    rows: list[dict[str, Any]] = []
    for done, (part, model, count) in enumerate(jobs):
        made[part] = made[part] if part in made else PARTS[part](folder)
        own = made[part]
        trained, progress = train_project(own, folder / f"{part}-{model}-{count}", model=model, minutes=minutes, trajectories=count)
        found = scores(trained, own.data)[0]
        errors = {name: row["rne_from_offset"] for name, row in found["scores"].items()}
        better = min(errors["classical_consistent"], errors["classical_lumped"])
        rows.append({"part": part, "nodes": own.case.mesh.n_nodes, "model": model, "trajectories": count,
                     "updates": progress.updates, "classical": better, "error": errors[model], "ratio": errors[model] / better,
                     "universal": errors["universal"] / better, "quadratic": errors["classical_p2"] / better})
        if report is not None:
            report("trainings", done + 1, len(jobs))
    return {"what": "tune", "version": __version__, "hardware": hardware("cpu"), "minutes": minutes, "rows": rows}


def table(result: dict[str, Any]) -> str:
    """The page of a result."""
    rows = result["rows"]
    counts = sorted({row["trajectories"] for row in rows if row["model"] == TUNED})
    zero = sorted({row["trajectories"] for row in rows if row["model"] == "dgnet"})
    lines = ["# Universal weights tuned to a few simulations", "",
             "Error on two test trajectories over that of the better classical solver with linear elements on the same mesh and "
             f"step; below 1 is better. {result['minutes']:g} minutes for each training, one seed, {result['hardware']}.", "",
             "| part | nodes | classical error | quadratic elements | universal, no data | "
             + " | ".join([*(f"tuned, {n}" for n in counts), *(f"DGNet from zero, {n}" for n in zero)]) + " |",
             "|---|" + "---|" * (4 + len(counts) + len(zero))]
    for part in dict.fromkeys(row["part"] for row in rows):
        mine = [row for row in rows if row["part"] == part]
        by = {(row["model"], row["trajectories"]): row["ratio"] for row in mine}
        one = mine[0]
        ratios = [by[TUNED, n] for n in counts] + [by["dgnet", n] for n in zero]
        lines.append(f"| {part} | {one['nodes']} | {one['classical']:.4f} | "
                     + " | ".join(f"{value:.3f}" for value in (one["quadratic"], one["universal"], *ratios)) + " |")
    lines += ["", "The number is that of training trajectories. `python -m benchmarks tune` prints this page.", ""]
    return "\n".join(lines)

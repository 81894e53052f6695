"""Two chemicals, an unknown reaction: found as a formula from four trajectories, from a problem folder.

    du/dt = D_u laplace(u) - u v^2 + F (1 - u)         F = 0.04, k = 0.06 (Gray and Scott)
    dv/dt = D_v laplace(v) + u v^2 - (F + k) v

The folder says `reaction = "unknown"`. From all products of u and v up to the third degree least squares choose those that the data
need; rollouts of the model then fit their coefficients. The formula is printed beside the true coefficients.
"""

import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch

import dgnet as dg
from dgnet.discovery import formulas, summands
from dgnet_paper.reference import solve as reference_solve

DU, DV, F, K, DT, STEPS = 2e-3, 1e-3, 0.04, 0.06, 1.0, 40
TRUE = {("u", "u v²"): -1.0, ("u", "1"): F, ("u", "u"): -F, ("v", "u v²"): 1.0, ("v", "v"): -(F + K)}
PROBLEM = f"""
[problem]
name = "gray-scott"
fields = ["u", "v"]
dt = {DT}

[mesh]
file = "mesh.npz"

[pde]
diffusion = {{ u = {DU}, v = {DV} }}
reaction = "unknown"

[model]  # the reaction alone: nothing else is learned
decoder = "none"
network = false

[[data]]
file = "train.npz"
split = "train"

[[data]]
file = "test.npz"
split = "test"
"""


def reaction(w: torch.Tensor) -> torch.Tensor:
    u, v = w.unbind(-1)
    return torch.stack([-u * v**2 + F * (1 - u), u * v**2 - (F + K) * v], -1)


def start(x: torch.Tensor, number: int, seed: int) -> torch.Tensor:
    """Patches of v on a plate full of u, [number, node, 2]."""
    g = torch.Generator().manual_seed(seed)
    centre, height = torch.rand(number, 3, 1, 2, generator=g).double(), torch.rand(number, 3, 1, generator=g).double()
    v = (0.6 * height * torch.exp(-((x - centre) ** 2).sum(-1) / 0.03)).amax(1)
    return torch.stack([1 - 1.2 * v, v], -1)


def write(folder: Path) -> None:
    """The problem folder; data from a refined mesh with a quarter of the step."""
    mesh = dg.box((24, 24), perturb=0.2)
    pde = dg.PDE(("u", "v"), diffusion={"u": DU, "v": DV}, reaction=reaction)
    dg.save_mesh(mesh, folder / "mesh.npz")
    for name, number, seed in (("train", 4, 1), ("test", 2, 2)):
        begin = partial(start, number=number, seed=seed)
        states = reference_solve(mesh, pde, [], begin, dt=DT, steps=STEPS, refine=1, substeps=4)
        np.savez(folder / f"{name}.npz", state=states.numpy(), points=mesh.points, time=DT * np.arange(STEPS + 1))
    (folder / "problem.toml").write_text(PROBLEM)


def main(folder: Path) -> dict[tuple[str, str], float]:
    write(folder)
    run, _ = dg.train(dg.load_project(folder), folder / "run")  # the same as: dgnet train FOLDER --out FOLDER/run
    found = summands(run.model)
    for line in formulas(found):
        print(line)
    scores = dg.evaluate(run, run.data)[0]["scores"]
    without = scores["classical_consistent"]["rne"]
    print(f"error of new trajectories: {scores['dgnet']['rne']:.2e}; without the reaction {without:.2e}")
    return {(s.field, s.term): s.coefficient for s in found}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place))

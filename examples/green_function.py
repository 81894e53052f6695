"""A column of the discrete Green's function G = (M + dt/2 K)^-1 M: what one step makes of a unit impulse at a node.

A longer step spreads it further, but it always falls off exponentially. That is why a few sparse products can replace
a factorisation as long as the step is short. Insulated boundaries keep the amount of heat: 1^T M G e = 1^T M e.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from matplotlib.colors import Normalize

import dgnet as dg
from dgnet.report.figures import Band, grid

STEEL = 50 / (7850 * 450)  # thermal diffusivity in m^2/s
STEPS = (10.0, 100.0, 1000.0)  # seconds


def main(path: Path) -> list[tuple[float, float]]:
    """Draw log10 |G| for each step; returns (relative change of total heat, radius of what exceeds 1e-6 of the peak)."""
    mesh = dg.shipped("gear-plate")
    node = int(np.argmin(np.linalg.norm(mesh.points - [1.0, 0.65], axis=1)))
    volumes = torch.tensor(mesh.dual_volumes())
    columns, found = [], []
    for dt in STEPS:
        problem = dg.Problem(mesh, dg.PDE(diffusion=STEEL), (), dt)
        column = dg.GreenSolver(problem).impulse(node)[:, 0]
        heat = float(column @ volumes / volumes[node] - 1)
        size = column.abs() / column.abs().max()
        radius = float(np.linalg.norm(mesh.points - mesh.points[node], axis=1)[size.numpy() > 1e-6].max())
        columns.append(torch.log10(size.clamp(min=1e-9)).numpy())
        found.append((heat, radius))
        print(f"dt = {dt:5g} s: total heat changed by {heat:8.1e}, above 1e-6 of the peak within {radius:.3f} m")
    band = Band([("", np.stack(columns))], Normalize(-6.0, 0.0), "inferno", "log10 |G| / max", "min")
    grid(path, mesh, [band], [f"Δt = {dt:g} s" for dt in STEPS])
    print(path)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/green_function.png"))

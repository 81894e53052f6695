"""Heat in a plate between two walls, against the exact solution.

    du/dt = D laplace(u) on the unit square,  u = 0 on the left, u = 1 on the right, no flux through top and bottom
    u(x, 0) = x + sin(pi x)      gives      u(x, t) = x + sin(pi x) exp(-D pi^2 t)
"""

import math

import torch

from dgnet.mesh import perturbed_square
from dgnet.models import Classical, rollout
from dgnet.problems import PDE, Dirichlet, Discretisation

D, DT, STEPS = 0.1, 0.02, 50


def exact(x: torch.Tensor, t: float) -> torch.Tensor:
    return x + torch.sin(math.pi * x) * math.exp(-D * math.pi**2 * t)


def main(n: int = 40) -> float:
    """Largest error at t = 1 on a perturbed mesh of (n+1)^2 nodes."""
    mesh = perturbed_square(n)
    walls = [Dirichlet("left", 0.0), Dirichlet("right", 1.0)]  # a boundary that is not named lets nothing through
    problem = Discretisation(mesh, PDE(diffusion=D), walls, DT)
    x = torch.tensor(mesh.points[:, 0])
    start = exact(x, 0.0)[None, :, None]  # [batch, node, field]
    states = rollout(Classical(), problem, start, steps=STEPS)  # [batch, time, node, field]
    error = float((states[0, -1, :, 0] - exact(x, STEPS * DT)).abs().max())
    print(f"{mesh.n_nodes} nodes, {STEPS} steps: largest error {error:.1e}")
    return error


if __name__ == "__main__":
    main()

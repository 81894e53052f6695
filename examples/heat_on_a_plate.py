"""Heat in a plate between two walls, against the exact solution.

    du/dt = D laplace(u) on the unit square,  u = 0 on the left, u = 1 on the right, no flux through top and bottom
    u(x, 0) = x + sin(pi x)      gives      u(x, t) = x + sin(pi x) exp(-D pi^2 t)
"""

import math

import torch

import dgnet as dg

D, DT, STEPS = 0.1, 0.02, 50


def exact(x: torch.Tensor, t: float) -> torch.Tensor:
    return x + torch.sin(math.pi * x) * math.exp(-D * math.pi**2 * t)


def main(n: int = 40) -> float:
    """Largest error at t = 1 on a perturbed mesh of (n+1)^2 nodes."""
    mesh = dg.box((n, n), perturb=0.25)
    walls = [dg.Dirichlet("left", 0.0), dg.Dirichlet("right", 1.0)]  # boundaries without a condition are insulated
    problem = dg.Problem(mesh, dg.PDE(diffusion=D), walls, DT)
    x = torch.tensor(mesh.points[:, 0])
    start = exact(x, 0.0)[None, :, None]  # [batch, node, field]
    states = dg.rollout(dg.Classical(), problem, start, steps=STEPS)  # [batch, time, node, field]
    error = float((states[0, -1, :, 0] - exact(x, STEPS * DT)).abs().max())
    print(f"{mesh.n_nodes} nodes, {STEPS} steps: largest error {error:.1e}")
    return error


if __name__ == "__main__":
    main()

"""How well does this plate conduct? An unknown diffusivity, recovered from two measured trajectories.

    dT/dt = D laplace(T) + f(x, t),  -D dT/dn = h T on the rim,  D unknown, first guess twice too large

The measurements come from the independent reference solver on a mesh with a quarter of the spacing, so they contain no trace
of the model's own discretisation error; once as they are, once with 1% of white noise.
"""

import torch

import dgnet as dg
from dgnet_paper.reference import solve as reference_solve

TRUE, GUESS = 0.05, 0.10  # m^2/s
DT, STEPS = 0.05, 20


def lamps(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """The heating of two experiments, [2, time, node, 1]: a lamp at rest, and one that moves."""
    def spot(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.exp(-((x[:, 0] - a[:, None]) ** 2 + (x[:, 1] - b[:, None]) ** 2) / 0.15)

    on = (1 - torch.exp(-5 * t))[:, None]
    return torch.stack([3 * on * spot(0.4 + 0 * t, 0.4 + 0 * t), 2 * on * spot(0.3 + 0.7 * t, 0.8 - 0.2 * t)])[..., None]


def main(noise: float = 0.0) -> tuple[float, float]:
    """The diffusivity without the bias of mesh and step, and its relative error."""
    mesh = dg.box((30, 25), upper=(1.2, 1.0), perturb=0.2)
    rim = [dg.Robin("boundary", 0.2)]
    start = torch.zeros(2, mesh.n_nodes, 1, dtype=torch.float64)
    true = dg.PDE(("T",), diffusion=TRUE)
    measured = reference_solve(mesh, true, rim, start, dt=DT, steps=STEPS, refine=2, substeps=4, source=lamps)
    measured += noise * measured.std() * torch.randn(measured.shape, generator=torch.Generator().manual_seed(0))
    heating = dg.step_average(lamps, torch.tensor(mesh.points), DT * torch.arange(STEPS), DT)
    data = dg.Corpus(measured, heating, None, DT, (0.0,))

    problem = dg.Problem(mesh, dg.PDE(("T",), diffusion=GUESS), rim, DT)
    model = dg.DGNet(dg.DGNetConfig(decoder="none", network=False, calibrate=("diffusion",)), problem).double()
    dg.fit(model, problem, data, data, dg.Recipe("calibration", (dg.Stage(5, STEPS, method="gauss-newton"),)))
    bar = dg.uncertainty(model, problem, data)["diffusion"]
    found = GUESS * bar.best
    print(f"noise {noise:4.0%}   guess {GUESS:.4f}   fitted {GUESS * bar.factor:.5f}   without the bias of mesh and step "
          f"{found:.5f} ± {bar.error * found:.5f}   true {TRUE:.4f}   off by {found / TRUE - 1:+.2%}")
    return found, bar.error


if __name__ == "__main__":
    for level in (0.0, 0.01):
        main(level)

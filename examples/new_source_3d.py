"""A source of a kind the model has never seen, on a 3D part.

    dT/dt = D laplace(T) + f(x, t) on a steel bracket,  -D dT/dn = h T on its surface,  T above ambient

Trained on six trajectories of spots that wander over the surface, then asked about an induction coil: a ring around the bore,
at rest and pulsating. What is learned sits in the operator (mass, diffusion, how a node gathers a source), not in the source,
so it carries over. The truth comes from the reference solver with quadratic elements; the classical solver has the same mesh
and step as the model.
"""

from collections.abc import Callable, Sequence

import torch

import dgnet as dg
from dgnet_paper.reference import solve as reference_solve

Source = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

STEEL, CONVECTION = 1.4e-5, 7.1e-6  # D in m^2/s, h / (density * heat capacity) in m/s
DT, STEPS = 0.5, 30  # s
MESH = dg.shipped("bracket-small")  # 60 mm long, with a bore
SURFACE = torch.tensor(MESH.points[MESH.on_boundary])
BORE = (0.0375, 0.015, 0.010)


def spots(seeds: Sequence[int]) -> Source:
    """For each seed six spots of 10 mm, each on its straight way between two points of the surface: [seed, time, node, 1]."""
    ways, power = [], []
    for seed in seeds:
        g = torch.Generator().manual_seed(seed)
        ways.append(SURFACE[torch.randint(len(SURFACE), (6, 2), generator=g)])
        power.append(20 + 40 * torch.rand(6, generator=g).double())  # K/s

    def f(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        start, end = torch.stack(ways)[:, None, :, None].unbind(-2)  # [seed, 1, 6, 1, 3]
        at = start + (end - start) * (t / (DT * STEPS))[:, None, None, None]
        return torch.einsum("bs,btsn->btn", torch.stack(power), torch.exp(-((x - at) ** 2).sum(-1) / 0.010**2))[..., None]

    return f


def coil(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """A ring of radius 12 mm around the upper end of the bore, pulsating: [1, time, node, 1]."""
    radius = (x[:, :2] - torch.tensor(BORE[:2], dtype=x.dtype)).norm(dim=1)
    ring = torch.exp(-((radius - 0.012) ** 2 + (x[:, 2] - BORE[2]) ** 2) / 0.008**2)
    return (40 * (1 - torch.cos(1.5 * t))[:, None] * ring)[None, ..., None]


def main(iterations: int = 150) -> dict[str, dict[str, float]]:
    """Errors by source and model."""
    pde, surface = dg.PDE(("T",), diffusion=STEEL), [dg.Robin("boundary", CONVECTION)]
    times = DT * torch.arange(STEPS, dtype=torch.float64)

    def simulated(source: Source) -> dg.Corpus:
        cold = torch.zeros(1, MESH.n_nodes, 1, dtype=torch.float64)
        states = reference_solve(MESH, pde, surface, cold, dt=DT, steps=STEPS, degree=2, substeps=4, source=source)
        heating = dg.step_average(source, torch.tensor(MESH.points), times, DT)
        return dg.Corpus(states.float(), heating.float(), None, DT, (0.0,))

    problem = dg.Problem(MESH, pde, surface, DT, dtype=torch.float32)
    torch.manual_seed(0)
    model = dg.DGNet(dg.DGNetConfig(free=True, hidden=32, layers=2), problem)
    plan = dg.Recipe("3d", (dg.Stage(iterations, 6, 8, 3e-3), dg.Stage(iterations // 2, 20, 4, 2e-3)))
    dg.fit(model, problem, simulated(spots(range(6))), simulated(spots([10])), plan)

    errors = {}
    print(f"{MESH.n_nodes} nodes, {MESH.n_cells} tetrahedra, {STEPS} steps: relative errors of free rollouts")
    for name, source in (("spots on other ways", spots([20, 21])), ("coil, never seen", coil)):
        test = simulated(source)
        judged = {"dgnet": model, "classical, consistent": dg.Classical(1.0), "classical, lumped": dg.Classical(0.0)}
        with torch.no_grad():
            errors[name] = {kind: dg.score(dg.predict(one, problem, test), test.state).rne for kind, one in judged.items()}
        print(f"    {name:20s}" + "   ".join(f"{kind}: {error:.4f}" for kind, error in errors[name].items()))
    return errors


if __name__ == "__main__":
    main()

"""A reaction nobody wrote down: learned from trajectories as a function of the local state.

    du/dt = D laplace(u) + r(u),  D known, r unknown; the truth is bistable, r(u) = 8 u (1 - u)(u - 0.3)

A small network of the state at one node takes the place of r inside the solver and is trained through it. It starts at zero, so
the untrained model is pure diffusion. The learned curve is compared with the true one where the data have been.
"""

import torch

import dgnet as dg
from dgnet_paper.reference import solve as reference_solve

D, DT, STEPS = 0.01, 0.05, 40


def reaction(u: torch.Tensor) -> torch.Tensor:
    return 8 * u * (1 - u) * (u - 0.3)


def start(x: torch.Tensor, number: int, seed: int) -> torch.Tensor:
    """Random patches of up to 1.3 on an empty plate, [number, node, 1]."""
    g = torch.Generator().manual_seed(seed)
    centre, height = torch.rand(number, 3, 1, 2, generator=g).double(), torch.rand(number, 3, 1, generator=g).double()
    return (1.3 * height * torch.exp(-((x - centre) ** 2).sum(-1) / 0.1)).amax(1)[..., None]


def error(model: dg.DGNet | dg.Classical, problem: dg.Problem, test: dg.Corpus) -> float:
    """Relative error of free rollouts."""
    with torch.no_grad():
        return dg.score(dg.predict(model, problem, test), test.state).rne


def main() -> dict[str, float]:
    mesh = dg.box((16, 16), perturb=0.2)
    x = torch.tensor(mesh.points)
    truth = dg.PDE(diffusion=D, reaction=reaction)

    def simulated(number: int, seed: int) -> dg.Corpus:
        states = reference_solve(mesh, truth, [], lambda y: start(y, number, seed), dt=DT, steps=STEPS, refine=1, substeps=4)
        return dg.Corpus(states, None, None, DT, (0.0,))

    train, valid, test = simulated(10, 1), simulated(1, 2), simulated(4, 3)
    problem = dg.Problem(mesh, dg.PDE(diffusion=D), [], DT)  # what is known: no reaction in it
    torch.manual_seed(0)
    model = dg.DGNet(dg.DGNetConfig(decoder="none", network=False, reaction="learned", reaction_hidden=24), problem).double()
    plan = dg.Recipe("reaction", (dg.Stage(500, 1, 8, 5e-2), dg.Stage(60, 10, 8, 5e-3)))
    dg.fit(model, problem, train, valid, plan)

    u = torch.linspace(0, 1, 50, dtype=torch.float64)[:, None]
    learned = model.reaction(problem)
    assert learned is not None
    with torch.no_grad():
        curve = float((learned(u) - reaction(u)).norm() / reaction(u).norm())
    errors = {"diffusion only": error(dg.Classical(), problem, test), "learned reaction": error(model, problem, test),
              "true reaction": error(dg.Classical(), dg.Problem(mesh, truth, [], DT), test), "curve": curve}
    print(f"error of {STEPS}-step rollouts from unseen starts, {mesh.n_nodes} nodes")
    for name in ("diffusion only", "learned reaction", "true reaction"):
        print(f"    {name:18s} {errors[name]:.4f}")
    print(f"learned r(u) against the true one on [0, 1]: {curve:.3f}")
    with torch.no_grad():
        last = dg.rollout(model, problem, start(x, 1, 4), None, 2000)[0, -1]
    print(f"after 2,000 steps from another start: between {last.min():.3f} and {last.max():.3f}")
    return errors


if __name__ == "__main__":
    main()

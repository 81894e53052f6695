"""How many rollouts does an answer cost? Kernels against scipy.optimize.least_squares with finite differences, the same problem.

A plate with an unknown start and two heaters of unknown strength, read by six thermocouples: hundreds of unknown numbers. Both
minimise the same sum of squares: misfit over noise, and the distance from the prior whose strength and length the evidence chose.

    python examples/without_finite_differences.py
"""

from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import least_squares

import dgnet as dg
from dgnet.inverse import Point, infer, kernels, linear_kind, strongest

PLACES, DT = ((0.3, 0.25), (0.9, 0.5)), 0.25
SENSORS = [Point(p, f"s{k}") for k, p in enumerate([(0.2, 0.3), (0.4, 0.2), (0.8, 0.6), (1.0, 0.4), (0.6, 0.4), (0.1, 0.7)])]


def main(cells: tuple[int, int] = (24, 16), steps: int = 24) -> dict[str, float]:
    """Rollouts of both, their ratio, and the largest difference of the answers over their largest standard deviation."""
    mesh = dg.box(cells, upper=(1.2, 0.8))
    problem = dg.Problem(mesh, dg.PDE(diffusion=0.01), [dg.Robin("boundary", 0.01, 0.0)], DT)
    spots = dg.SpotTable(("A", "B"), (np.array([0.0, 1.0]),) * 2, tuple(np.array([[*p, 0.1, 1.0]] * 2) for p in PLACES))
    x, t = torch.tensor(mesh.points), DT * (torch.arange(steps, dtype=torch.float64) + 0.5)
    each = [dg.SpotTable((name,), (knots,), (rows,)) for name, knots, rows in zip(spots.names, spots.times, spots.values)]
    shapes = torch.stack([spot.on(mesh)(x, torch.zeros(1))[0, 0, :, 0] for spot in each])
    count = 0

    def seen(start: torch.Tensor, strengths: torch.Tensor) -> np.ndarray:
        nonlocal count
        count += 1
        states = dg.rollout(dg.Classical(), problem, start[None, :, None], (strengths.T @ shapes)[None, :, :, None])
        return mesh.interpolate(states[0], [s.place for s in SENSORS])[..., 0].ravel()

    clean = seen(5 * torch.exp(-(x - 0.5).square().sum(1) / 0.1), torch.stack([3 + torch.sin(t), 2 + 0 * t]))
    y = clean + 0.02 * np.ptp(clean) * np.random.default_rng(0).standard_normal(clean.shape)

    made, unknowns = kernels(problem, SENSORS, steps), []
    for name in ("start", "source"):
        kind = linear_kind(name, problem, steps, spots)
        H = kind.responses(problem, made, SENSORS).double().numpy().transpose(1, 0, 2).reshape(len(y), -1)
        unknowns.append(kind.prior(H, problem))
    choices, sizes, noise = strongest(y, unknowns)
    chosen = [replace(u, choices=(c,), switched=None, strength=float(s)) for u, c, s in zip(unknowns, choices, sizes)]
    found = infer(y, chosen, noise)
    mine = len(SENSORS) + 1  # a backward rollout for each sensor, and a forward one for the boundary conditions

    halves = [s * np.linalg.cholesky(u.spread(c, np.eye(n))[0] + 1e-10 * np.eye(n))
              for u, c, s in zip(chosen, choices, sizes) for n in [u.response.shape[1]]]
    first = len(halves[0])

    def residual(z: np.ndarray) -> np.ndarray:
        """Of white numbers z: the start is L z, the strengths are M z."""
        start, strengths = torch.from_numpy(halves[0] @ z[:first]), torch.from_numpy(halves[1] @ z[first:]).view(2, steps)
        return np.concatenate([(seen(start, strengths) - y) / noise, z])

    count = 0
    fitted = least_squares(residual, np.zeros(first + 2 * steps))
    both = zip(halves, np.split(fitted.x, [first]), found.answers)
    apart = max(float(np.abs(half @ z - a.mean).max() / a.sd.max()) for half, z, a in both)
    print(f"{len(fitted.x)} unknown numbers: {mine} rollouts by kernels, {count} by finite differences, {count / mine:.0f} times "
          f"as many; the answers differ by at most {apart:.1g} standard deviations")
    return {"mine": mine, "theirs": count, "apart": apart}


if __name__ == "__main__":
    main()

"""Follow a plate through ten thermocouples with 1% of noise while unknown sources heat and cool it, and notice a lamp.

Twenty spots at random places with random strengths drive the plate; nobody tells the filter about them or about the start. It
learns how strong such things are from the first 3 s, and follows the whole field for 3 s more. At t = 4.5 s a strong lamp is
switched on in every other repeat: that is what an alarm is for. The truth comes from the independent reference on a mesh with
half the spacing and quadratic elements, never from the model's own operator.

    python examples/follow_a_plate.py 20
"""

import sys

import numpy as np
import torch

import dgnet as dg
from dgnet.inverse import Point, Readings
from dgnet_paper.reference import solve as reference_solve

DT, STEPS, LEARN, ON, NOISE = 0.1, 60, 31, 4.5, 0.01
PLATE = dg.Problem(dg.box((8, 8)), dg.PDE(("T",), diffusion=0.05), [dg.Robin("boundary", 0.2, 1.0)], dt=DT)
PLACES = ((1, 1), (4, 2), (7, 1), (2, 4), (5, 4), (7, 5), (1, 7), (4, 6), (6, 7), (3, 7))
SENSORS = tuple(Point((x / 8, y / 8), f"s{x}{y}") for x, y in PLACES)


def truth(seed: int, lamp: float) -> np.ndarray:
    """States [T+1, N]."""
    rng, count = np.random.default_rng(seed), 20
    middles, radii = torch.tensor(rng.uniform(-0.1, 1.1, (count, 2))), torch.tensor(rng.uniform(0.15, 0.3, count))
    knots, keep = np.arange(0, STEPS * DT + 1, 0.25), np.exp(-0.25 / 1.5)  # strengths change within 1.5 s
    strengths = np.empty((count, len(knots)))
    strengths[:, 0] = rng.standard_normal(count)
    for k in range(1, len(knots)):
        strengths[:, k] = keep * strengths[:, k - 1] + np.sqrt(1 - keep**2) * rng.standard_normal(count)
    begin = torch.tensor(0.2 * rng.standard_normal(count))

    def near(x: torch.Tensor, widths: torch.Tensor) -> torch.Tensor:
        return torch.exp(-((x[None] - middles[:, None]) ** 2).sum(-1) / (2 * widths[:, None] ** 2))

    def source(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        at = torch.tensor(np.stack([np.interp(t.numpy(), knots, row) for row in strengths]))
        glow = torch.exp(-((x - torch.tensor((0.55, 0.6))) ** 2).sum(1) / (2 * 0.15**2))
        return (0.5 * at.T @ near(x, radii) + lamp * (t > ON)[:, None] * glow)[None, ..., None]

    def start(x: torch.Tensor) -> torch.Tensor:
        return (1 + begin @ near(x, torch.full((count,), 0.25, dtype=torch.float64)))[None, :, None]

    return reference_solve(PLATE.mesh, PLATE.pde, PLATE.conditions, start, dt=DT, steps=STEPS, refine=1, degree=2, substeps=2,
                              order=2, source=source)[0, ..., 0].numpy()


def main(repeats: int = 4) -> dict[str, float]:
    """Shares: of the truth inside the bands of 90%, of readings' chi-square, of alarms with and without the lamp."""
    inside, errors, chi, alarms = [], [], [], {True: [], False: []}
    for seed in range(repeats):
        lit = seed % 2 == 1
        states = truth(seed, 8.0 if lit else 0.0)
        seen = PLATE.mesh.interpolate(states[..., None], [s.place for s in SENSORS])[..., 0]
        seen += NOISE * np.ptp(states[:LEARN]) * np.random.default_rng(1000 + seed).standard_normal(seen.shape)
        first = Readings(DT * np.arange(LEARN), seen[:LEARN], SENSORS)
        part = dg.follow(PLATE, first, ["start", "field"], start=torch.ones(PLATE.mesh.n_nodes, 1))
        raised = []
        for k in range(LEARN, STEPS + 1):
            raised += [e.time for e in part.update(DT * k, seen[k]).events if e.kind == "alarm"]
            if DT * k <= ON:
                low, high = part.estimate().band()
                inside.append(((low[:, 0] < states[k]) & (states[k] < high[:, 0])).mean())
                errors.append(np.sqrt(((part.estimate().mean[:, 0] - states[k]) ** 2).mean()) / np.ptp(states[: k + 1]))
                chi.append(part.consistency[0])
        alarms[lit].append(any(time > ON for time in raised) if lit else bool(raised))
    found = {"inside": float(np.mean(inside)), "error": float(np.mean(errors)), "chi": float(np.mean(chi)),
             "noticed": float(np.mean(alarms[True])), "false": float(np.mean(alarms[False]))}
    print(f"{repeats} plates: {found['inside']:.0%} of the field inside the bands of 90%, rms error {found['error']:.1%} of its "
          f"range, chi-square per reading {found['chi']:.2f}")
    print(f"alarm after the lamp was switched on: {found['noticed']:.0%} of plates; "
          f"without a lamp, in {STEPS + 1 - LEARN} rows: {found['false']:.0%}")
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 4)

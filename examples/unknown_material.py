"""A material nobody measured: heat capacity with a latent heat and conductivity, found from heating curves.

    c(T) dT/dt = div(k(T) grad T) + f,   c and k unknown; the truth takes up a latent heat of 60 between 100 and 130 degrees

Four heatings of a plate, with noise of 0.5 degrees on every value. Least squares give a first guess of both curves, rollouts of the
whole heatings fit them. They come with standard deviations, and with the latent heat that the hump of the capacity stands for.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

import dgnet as dg
from dgnet.discovery import material_curves

LATENT, DT, STEPS, NOISE = 60.0, 0.5, 60, 0.5
AT = torch.linspace(0, 300, 301, dtype=torch.float64)


def capacity(t: torch.Tensor) -> torch.Tensor:
    return 1 + 0.4 * torch.sigmoid((t - 115) / 5) + LATENT / (8 * np.sqrt(2 * np.pi)) * torch.exp(-0.5 * ((t - 115) / 8) ** 2)


def conductivity(t: torch.Tensor) -> torch.Tensor:
    return 1e-3 * (2 - 0.6 * torch.sigmoid((t - 115) / 20))


def heatings(mesh: dg.Mesh, number: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Temperatures and heat, both [number, time, node, 1], of spots that are switched off after two thirds."""
    true = dg.PDE(("T",), diffusion=dg.Curve(AT, conductivity(AT), extends=True), capacity=dg.Curve(AT, capacity(AT), extends=True))
    rng = np.random.default_rng(seed)
    spots = [20 * np.exp(-((mesh.points - c) ** 2).sum(1) / 0.15) for c in rng.uniform(0.2, 0.8, (number, 2))]
    on = (torch.arange(STEPS + 1) < 2 * STEPS // 3).double()
    heat = torch.tensor(np.stack(spots))[:, None, :, None] * on[:, None, None]
    problem = dg.Problem(mesh, true, [dg.Robin("left", 0.01, 20.0)], DT / 4)
    start = torch.full((number, mesh.n_nodes, 1), 20.0, dtype=torch.float64)
    with torch.no_grad():
        mean = 0.5 * (heat[:, 1:] + heat[:, :-1])  # over each step
        return dg.rollout(dg.Classical(1.0), problem, start, mean.repeat_interleave(4, 1), 4 * STEPS)[:, ::4], heat


def main(folder: Path, picture: Path | None = None) -> tuple[float, float, float]:
    mesh = dg.box((12, 12), perturb=0.2)
    (states, heat), (new, new_heat) = heatings(mesh, 4, 1), heatings(mesh, 2, 2)
    states = states + NOISE * torch.randn(states.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    runs = [dg.trajectory(s.numpy(), mesh, DT, f.numpy(), split=split)
            for many, heats, split in ((states, heat, "train"), (new, new_heat, "test")) for s, f in zip(many, heats)]
    guess = dg.PDE(("T",), diffusion=1e-3, capacity=1.0)  # where the search begins: any positive numbers
    model = {"unknown_curves": ("capacity", "diffusion"), "decoder": "none", "network": False}  # the curves alone are learned
    edge = [dg.Robin("left", 0.01, 20.0)]
    own = dg.project("plate", mesh, guess, edge, DT, runs, folder / "plate.h5", offset=(20.0,), model=model)
    run, _ = dg.train(own, folder / "run")
    found = material_curves(run.model)
    for one in found:
        print(one.sentence)
    scores = dg.evaluate(run, run.data)[0]["scores"]
    error, before = scores["dgnet"]["rne_from_offset"], scores["classical_consistent"]["rne_from_offset"]
    print(f"error of new heatings: {error:.2e}; with the guessed constants {before:.2e}")
    if picture is not None:
        from dgnet.report.learned import draw_material

        draw_material(picture, found, run)
    hump = found[0].hump
    assert hump is not None
    print(f"latent heat {hump[2]:.1f}, in truth {LATENT:g}")
    return hump[2], error, before


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        main(Path(place), Path(sys.argv[1]) if len(sys.argv) > 1 else None)

"""Lasers on a steel plate, and where three solvers on the same mesh go wrong: a moving picture.

The truth comes from the reference solver on a finer mesh. All three have the same mesh, step and sources, and none was trained on
this plate; quadratic elements have four times the unknowns. Writes errors_in_motion.gif.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from matplotlib.colors import Normalize

import dgnet as dg
from dgnet.report.pictures import Film
from dgnet.scoring.judge import judge_file
from dgnet_paper.scenarios import get
from dgnet_paper.scenarios.generate import generate


def main(out: Path, frames: int = 32) -> dict[str, float]:
    scenario = get("laser-heat", "small")
    models = {"linear elements": dg.Classical(), "universal weights": dg.Universal(), "quadratic elements": dg.Classical(degree=2)}
    with TemporaryDirectory() as folder, torch.no_grad():
        path = generate(scenario, Path(folder), split="test", trajectories=1)
        found = judge_file(models, scenario, path, keep=True)
        with dg.Dataset(path) as data:
            truth = data.batch([0]).state[0, :, :, 0].numpy()
    states = [found.states[name][0, :, :, 0].numpy() for name in models]
    shown = np.stack([truth, *(np.abs(u - truth) for u in states)], -1)  # [time, node, panel]
    top = Normalize(0, float(np.quantile(shown[..., 1], 0.998)))
    for name in models:
        print(f"{name}: error {100 * found.error(name):.2f}% of the rise in temperature")
    film = Film(scenario.mesh, ["temperature [K]", *(f"error, {name} [K]" for name in models)],
                [(Normalize(truth.min(), np.quantile(truth, 0.9995)), "inferno"), *[(top, "viridis")] * len(models)], dpi=64)
    every = np.linspace(0, len(shown) - 1, frames).astype(int)
    film.gif(out, [(shown[k], f"t = {k * scenario.dt:.1f} s") for k in every], milliseconds=110)
    print(out)
    return {name: found.error(name) for name in models}


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "errors_in_motion.gif"))

"""Rebuilds the mesh files that ship with the package: `python -m dgnet_paper.scenarios.meshes [--tune] [NAME ...]`.

Needs gmsh. Each mesh has a target node count (the paper's, where it gives one) and the size that reaches it with gmsh
4.15; `--tune` searches for that size again and prints it, as another version of gmsh may need.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dgnet.mesh.io import save
from dgnet.mesh.mesh import Mesh
from dgnet.mesh.shapes import bracket, dfg_channel, gear_plate
from dgnet_paper.scenarios.shapes import Bump, Ellipse, channel, circle, disc, hump, naca, wave

FILES = Path(__file__).parent / "files"


def cylinder(size: float) -> Mesh:
    """[0,24] x [0,8] with a cylinder of radius 1 on the centre line, three diameters behind the inlet."""
    return channel(obstacles=[circle((6.0, 4.0), 1.0)], size=size, near=0.5 * size, reach=2.5)


def sediments(size: float) -> Mesh:
    """Three smooth, lopsided deposits: two on the bed, one under the upper wall."""
    bed = [Bump(3.0, 8.0, 2.2, hump(0.35)), Bump(14.0, 20.5, 2.8, hump(0.65))]
    roof = [Bump(8.5, 13.5, -2.4, hump(0.3))]
    return channel(bottom=bed, top=roof, size=size, near=0.6 * size, reach=2.0)


def obstacles(size: float) -> Mesh:
    """Two tilted ellipses; on each wall one airfoil-shaped bump and one groove."""
    inside = [Ellipse((5.5, 4.8), (1.2, 0.7), 0.4), Ellipse((13.0, 3.4), (1.4, 0.8), -0.5)]
    bed = [Bump(3.0, 6.5, 1.1, naca), Bump(15.5, 19.0, -0.9, naca)]
    roof = [Bump(7.5, 11.0, 0.9, naca), Bump(15.0, 18.5, -1.2, naca)]
    return channel(obstacles=inside, bottom=bed, top=roof, size=size, near=0.6 * size, reach=2.0)


def wavy_channel(size: float) -> Mesh:
    """The cylinder channel between walls that swing together: y = 0.6 sin(2 pi x / 6), and 8 above it."""
    walls = [Bump(0.0, 24.0, 0.6, wave(4))]
    return channel(obstacles=[circle((6.0, 4.0), 1.0)], bottom=walls, top=walls, size=size, near=0.6 * size, reach=2.0)


def unit_disc(size: float) -> Mesh:
    return disc(1.0, size)


@dataclass(frozen=True)
class Recipe:
    shape: Callable[[float], Mesh]
    nodes: int
    """The target."""
    size: float


RECIPES = {
    "gear-plate": Recipe(gear_plate, 6072, 0.018),
    "gear-plate-small": Recipe(gear_plate, 480, 0.06715),
    "cylinder": Recipe(cylinder, 2275, 0.345546),
    "cylinder-small": Recipe(cylinder, 450, 0.824),
    "sediments": Recipe(sediments, 5758, 0.214112),
    "sediments-small": Recipe(sediments, 450, 0.839368),
    "obstacles": Recipe(obstacles, 8841, 0.184538),
    "obstacles-small": Recipe(obstacles, 550, 0.818616),
    "wavy-channel": Recipe(wavy_channel, 6000, 0.236545),
    "wavy-channel-small": Recipe(wavy_channel, 450, 0.97119),
    "disc": Recipe(unit_disc, 30000, 0.0110791),
    "disc-small": Recipe(unit_disc, 400, 0.101366),
    "bracket": Recipe(bracket, 6000, 0.00173405),
    "bracket-small": Recipe(bracket, 450, 0.00599296),
    "dfg-cylinder": Recipe(dfg_channel, 2500, 0.0348312),
}


def tuned(recipe: Recipe, tries: int = 60, enough: float = 0.0) -> float:
    """The size whose mesh has the target's node count, or comes nearest to it."""
    dim = 3 if recipe.shape is bracket else 2
    size, best_size, best = recipe.size, recipe.size, np.inf
    for k in range(tries):
        nodes = recipe.shape(size).n_nodes
        miss = abs(nodes / recipe.nodes - 1)
        if miss < best:
            best_size, best = size, miss
        if best <= enough:
            break
        if miss > 0.01:
            size *= (nodes / recipe.nodes) ** (1 / dim)
        else:  # node counts jump with the size, so near the target small steps to both sides do better than a secant
            size = best_size * (1 + (-1) ** k * 2e-4 * (1 + k % 7))
        size = float(f"{size:.6g}")
    return best_size


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m dgnet_paper.scenarios.meshes", description="Rebuild the shipped mesh files.")
    parser.add_argument("names", nargs="*", help="which meshes (all by default)", metavar="NAME")
    parser.add_argument("--tune", action="store_true", help="search for the sizes instead of using the recorded ones")
    parser.add_argument("--out", type=Path, default=FILES, help="folder to write to")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(RECIPES))
    if unknown:
        parser.error(f"unknown mesh '{unknown[0]}' (known: {', '.join(RECIPES)})")
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.names or RECIPES:
        recipe = RECIPES[name]
        size = tuned(recipe) if options.tune else recipe.size
        mesh = recipe.shape(size)
        path = options.out / f"{name}.npz"
        save(mesh, path)
        print(f"{name:20s} size {size:<10g} {mesh.n_nodes:6d} nodes (target {recipe.nodes}), {mesh.n_cells:6d} cells, "
              f"quality {mesh.quality.min():.2f}, spacing {mesh.spacing:.3g}, {path.stat().st_size / 1024:.0f} kB", flush=True)


if __name__ == "__main__":
    main()

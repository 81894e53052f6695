"""Colours of pictures: a GIF has as many as its maps need, surfaces of solids have no bands."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import Normalize
from PIL import Image

from dgnet.mesh import box, shipped
from dgnet.report.pictures import Film, _surface, mesh_picture


def test_a_gif_of_two_maps_has_no_bands(tmp_path: Path) -> None:
    mesh = box((8, 5))
    film = Film(mesh, ["a", "b"], [(Normalize(0, 1), "inferno"), (Normalize(0, 1), "viridis")], dpi=64)
    film.gif(tmp_path / "x.gif", [(np.stack([mesh.points[:, 0], mesh.points[:, 1]], axis=1), "t")])
    with Image.open(tmp_path / "x.gif") as image:
        pixels = np.asarray(image.convert("RGB")).astype(int)
    across = pixels[len(pixels) // 2, : int(0.75 * pixels.shape[1] / 2)]  # through the first panel, along the gradient
    assert len(np.unique(across, axis=0)) > 80


@pytest.mark.parametrize("shape", [(2, 2, 2), (9, 8, 7)])
def test_a_surface_is_cut_until_its_colours_vary_smoothly(shape: tuple[int, int, int]) -> None:
    mesh = box(shape)
    x, rgba = _surface(mesh, mesh.points @ [1.0, 0.5, 0.2], Normalize(0, 1.7), matplotlib.colormaps["viridis"])
    area = 0.5 * np.linalg.norm(np.cross(x[:, 1] - x[:, 0], x[:, 2] - x[:, 0]), axis=1)
    assert len(x) == len(rgba) > 2000 and area.sum() == pytest.approx(6.0)


@pytest.mark.parametrize("name", ["gear-plate-small", "bracket-small"])
def test_mesh_pictures_are_small_files(name: str, tmp_path: Path) -> None:
    mesh_picture(tmp_path / "mesh.png", shipped(name))
    assert 1000 < (tmp_path / "mesh.png").stat().st_size < 100_000

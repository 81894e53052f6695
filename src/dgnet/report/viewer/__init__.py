"""The viewer of fields on meshes that the studio and the report page share: plain JavaScript with WebGL, and its colour maps."""

from __future__ import annotations

import base64
from functools import cache
from pathlib import Path

import numpy as np

VIEWER = Path(__file__).parent
"""Folder of the viewer's own files."""


@cache
def colour_maps() -> dict[str, str]:
    """Name -> 256 colours as base64 of RGB bytes: three whose lightness grows evenly, and a diverging one."""
    from matplotlib import colormaps

    tables = {name: colormaps[name](np.linspace(0, 1, 256))[:, :3] for name in ("viridis", "cividis", "inferno")}
    tables["diverging"] = diverging()
    return {name: base64.b64encode(np.round(255 * table).astype(np.uint8).tobytes()).decode() for name, table in tables.items()}


def diverging(count: int = 256) -> np.ndarray:
    """Blue to light grey to orange [count, 3] in sRGB: lightness falls evenly from the middle to both ends in CIELAB.

    Blue and orange differ for every common colour blindness; the middle is grey, so that zero has no hue.
    """
    s = np.linspace(-1, 1, count)
    lightness = 95 - 53 * np.abs(s)
    angle = np.radians(np.where(s < 0, 285.0, 55.0))
    chroma = 58 * np.abs(s) ** 0.9  # the most that sRGB holds on both sides
    lab = np.stack([lightness, chroma * np.cos(angle), chroma * np.sin(angle)], axis=1)
    fy = (lab[:, 0] + 16) / 116
    f = np.stack([fy + lab[:, 1] / 500, fy, fy - lab[:, 2] / 200], axis=1)
    xyz = np.where(f > 6 / 29, f**3, 3 * (6 / 29) ** 2 * (f - 4 / 29)) * [0.95047, 1.0, 1.08883]
    linear = xyz @ np.array([[3.2406, -0.9689, 0.0557], [-1.5372, 1.8758, -0.2040], [-0.4986, 0.0415, 1.0570]])
    linear = linear.clip(0, 1)
    return np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)

"""The colour maps of the viewer: even in lightness, so that equal steps of a value look equal, and safe for the colour-blind."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from dgnet.report.viewer import colour_maps, diverging


def lightness(rgb: np.ndarray) -> np.ndarray:
    """CIELAB L* of sRGB colours [n, 3] in [0, 1]."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    y = linear @ [0.2126, 0.7152, 0.0722]
    return np.where(y > 216 / 24389, 116 * np.cbrt(y) - 16, y * 24389 / 27)


@pytest.mark.parametrize("name", ["viridis", "cividis", "inferno"])
def test_lightness_grows_evenly(name: str) -> None:
    steps = np.diff(lightness(np.frombuffer(base64.b64decode(colour_maps()[name]), np.uint8).reshape(256, 3)[::8] / 255))
    assert steps.min() > 0.3 * steps.mean()


def test_the_diverging_map_is_even_on_both_sides() -> None:
    found = lightness(diverging(257))
    assert np.allclose(found, found[::-1], atol=0.4) and found.argmax() == 128
    steps = np.diff(found[::8])
    assert np.abs(steps[:16] - steps[:16].mean()).max() < 0.35 and abs(found[0] - 42) < 0.5
    red, blue = diverging(257)[-1], diverging(257)[0]
    # without red or green cones (protanopia, deuteranopia) the two ends differ by their blue
    assert blue[2] - red[2] > 0.4

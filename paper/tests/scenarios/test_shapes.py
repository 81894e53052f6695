"""The paper's channels through gmsh, and the shipped files that come of them."""

from pathlib import Path

import numpy as np
import pytest

from dgnet.errors import InputError
from dgnet.mesh import load, shipped
from dgnet_paper.scenarios import meshes as build
from dgnet_paper.scenarios.shapes import Bump, Ellipse, channel, circle, hump, naca, wave

try:
    import gmsh  # noqa: F401
    HAVE_GMSH = True
except (ImportError, OSError):
    HAVE_GMSH = False
needs_gmsh = pytest.mark.skipif(not HAVE_GMSH, reason="gmsh does not import here")


def test_profiles() -> None:
    s = np.linspace(0, 1, 2001)
    for peak in (0.3, 0.5, 0.8):
        y = hump(peak)(s)
        assert s[y.argmax()] == pytest.approx(peak, abs=1e-3) and y.max() == pytest.approx(1)
        assert y[0] == y[-1] == 0 and abs(y[1] - y[0]) < 1e-4 and abs(y[-1] - y[-2]) < 1e-4
    assert naca(s).max() == pytest.approx(1, abs=2e-3) and s[naca(s).argmax()] == pytest.approx(0.3, abs=0.01)
    assert naca(s)[[0, -1]] == pytest.approx([0, 0], abs=1e-12)
    assert wave(3)(np.array([0, 1 / 12, 1])) == pytest.approx([0, 1, 0], abs=1e-12)
    with pytest.raises(InputError, match=r"peak of a hump"):
        hump(1.0)


def test_ellipse_outline_and_inside_agree() -> None:
    ellipse = Ellipse((1.0, 2.0), (2.0, 0.5), 0.7)
    outline = ellipse.outline()
    centre = np.array(ellipse.centre)
    assert ellipse.contains(centre + 0.999 * (outline - centre)).all()
    assert not ellipse.contains(centre + 1.001 * (outline - centre)).any()
    assert np.linalg.norm(outline - centre, axis=1).max() == pytest.approx(2)


@needs_gmsh
def test_a_channel_with_everything() -> None:
    mesh = channel(10.0, 4.0, [circle((3, 2), 0.5), Ellipse((6, 2), (0.4, 0.9), 0.3)], [Bump(1, 3, 0.8, hump(0.3))],
                   [Bump(0, 10, 0.3, wave(2))], size=0.5, near=0.2, reach=1.0)
    assert set(mesh.boundaries) == {"inlet", "outlet", "walls", "obstacle"}
    bump = 0.8 * 2 * hump(0.3)(np.linspace(0, 1, 10001)).mean()
    expected = 40 - np.pi * (0.25 + 0.36) - bump
    assert mesh.volumes.sum() == pytest.approx(expected, rel=0.01)
    near = mesh.facet_geometry("obstacle")[0]
    assert near.mean() == pytest.approx(0.2, rel=0.15) and mesh.facet_geometry("outlet")[0].mean() > 0.3
    plain = channel(2.0, 1.0, size=0.3)
    assert set(plain.boundaries) == {"inlet", "outlet", "walls"} and plain.volumes.sum() == pytest.approx(2)


@needs_gmsh
def test_the_shipped_files_follow_from_their_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["build", "--out", str(tmp_path), "cylinder-small", "bracket-small"])
    build.main()
    for name in ("cylinder-small", "bracket-small"):
        again = load(tmp_path / f"{name}.npz")
        assert again.n_nodes == pytest.approx(build.RECIPES[name].nodes, rel=0.05)  # another gmsh may differ a little
        assert again.volumes.sum() == pytest.approx(shipped(name).volumes.sum(), rel=1e-2)
    assert build.tuned(build.Recipe(build.unit_disc, 300, 0.2), enough=0.05) == pytest.approx(0.117, rel=0.05)


@pytest.mark.parametrize("call,message", [
    (lambda: channel(obstacles=[circle((6, 1.5), 1)], bottom=[Bump(4, 8, 2, hump())]), "obstacle 0 at .* reaches out"),
    (lambda: channel(obstacles=[circle((6, 4), 1), circle((7, 4), 1)]), "obstacles 0 and 1 overlap"),
    (lambda: channel(obstacles=[circle((6, 4), 0)]), "each radius of obstacle 0 must be a positive number"),
    (lambda: channel(bottom=[Bump(3, 6, 1, naca), Bump(5, 8, 1, naca)]), "bump 1 of the bottom wall spans 5 to 8"),
    (lambda: channel(bottom=[Bump(3, 6, 9, hump())]), "bottom and the top wall meet")])
def test_bad_shapes(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(InputError, match=message):
        call()

"""The meshes that ship: counts, names, domains and shapes as documented."""

import numpy as np
import pytest

from dgnet.errors import InputError
from dgnet.mesh import Mesh, shipped, shipped_names
from dgnet_paper.scenarios.meshes import RECIPES

CHANNEL = {"inlet", "outlet", "walls"}
BOUNDARIES = {"gear-plate": {"outer", "gear", "holes"}, "cylinder": CHANNEL | {"obstacle"}, "sediments": CHANNEL,
              "obstacles": CHANNEL | {"obstacle"}, "wavy-channel": CHANNEL | {"obstacle"}, "disc": {"rim"},
              "bracket": {"base", "bore", "faces"}, "dfg-cylinder": CHANNEL | {"obstacle"}}
EXACT = {"gear-plate": 6072, "cylinder": 2275, "sediments": 5758, "obstacles": 8841}


def kind(name: str) -> str:
    return name.removesuffix("-small")


def test_every_recipe_ships() -> None:
    assert shipped_names() == sorted(RECIPES)
    assert {kind(name) for name in RECIPES} == set(BOUNDARIES)


@pytest.mark.parametrize("name", list(RECIPES))
def test_counts_names_and_quality(name: str) -> None:
    mesh = shipped(name)
    assert mesh.n_nodes == pytest.approx(RECIPES[name].nodes, rel=0.01)
    assert mesh.n_nodes == EXACT.get(name, mesh.n_nodes)
    assert set(mesh.boundaries) == BOUNDARIES[kind(name)]
    rows = np.concatenate([mesh.facet_index(b) for b in mesh.boundaries])
    assert sorted(rows) == list(range(len(mesh.boundary_facets)))  # every facet has exactly one name
    assert mesh.quality.min() > (0.5 if mesh.dim == 2 else 0.2)


@pytest.mark.parametrize("name", [n for n in RECIPES if "inlet" in BOUNDARIES[kind(n)]])
def test_channels(name: str) -> None:
    mesh = shipped(name)
    length, height = (2.2, 0.41) if name == "dfg-cylinder" else (24.0, 8.0)
    for side, x in (("inlet", 0.0), ("outlet", length)):
        nodes = mesh.nodes_on(side)
        np.testing.assert_allclose(mesh.points[nodes, 0], x, atol=1e-12)
        np.testing.assert_allclose([mesh.points[nodes, 1].min(), mesh.points[nodes, 1].max()], [0, height], atol=1e-12)
    if "obstacle" in mesh.boundaries and kind(name) != "obstacles":
        centre, radius = ((0.2, 0.2), 0.05) if name == "dfg-cylinder" else ((6, 4), 1)
        distance = np.linalg.norm(mesh.points[mesh.nodes_on("obstacle")] - centre, axis=1)
        np.testing.assert_allclose(distance, radius, rtol=1e-9)
        polygon = len(mesh.facets("obstacle"))
        hole = 0.5 * polygon * radius**2 * np.sin(2 * np.pi / polygon)
        assert mesh.volumes.sum() == pytest.approx(length * height - hole, rel=1e-3 if "wavy" not in name else 2e-2)
    if kind(name) == "wavy-channel":
        x, y = mesh.points[mesh.nodes_on("walls")].T
        swing = 0.6 * np.sin(2 * np.pi * x / 6)
        assert np.minimum(abs(y - swing), abs(y - 8 - swing)).max() < 1e-3  # the walls are splines


def test_the_gear_plate() -> None:
    mesh = shipped("gear-plate")
    assert mesh.n_cells == 11750
    holes = mesh.points[mesh.nodes_on("holes")] - [0.7, 0.45]
    np.testing.assert_allclose(np.hypot(abs(holes[:, 0]) - 0.45, holes[:, 1]), 0.096, rtol=1e-9)
    gear = np.linalg.norm(mesh.points[mesh.nodes_on("gear")] - [0.7, 0.45], axis=1)
    assert (gear > 0.178).all() and gear.max() == pytest.approx(0.21)
    teeth = mesh.facet_geometry("gear")[0].sum() / 24
    assert teeth == pytest.approx(np.sqrt(0.21**2 + 0.18**2 - 2 * 0.21 * 0.18 * np.cos(np.pi / 12)))
    corners = np.array([[0, 0], [1.4, 0], [1.4, 0.9], [0, 0.9], [0.7, -0.09], [1.54, 0.45], [0.7, 0.99], [-0.14, 0.45]])
    nearest = np.linalg.norm(corners[:, None] - mesh.points[mesh.nodes_on("outer")], axis=2).min(axis=1)
    assert nearest[:4].max() < 1e-12 and nearest[4:].max() < 0.018


def test_disc_and_bracket() -> None:
    disc = shipped("disc")
    np.testing.assert_allclose(np.linalg.norm(disc.points[disc.nodes_on("rim")], axis=1), 1)
    assert disc.volumes.sum() == pytest.approx(np.pi, rel=1e-3)
    for name in ("bracket", "bracket-small"):
        bracket = shipped(name)
        np.testing.assert_allclose(bracket.points.min(axis=0), 0, atol=1e-12)
        np.testing.assert_allclose(bracket.points.max(axis=0), [0.06, 0.03, 0.04])
        assert (bracket.facet_geometry("base")[1] @ [0, 0, -1] > 0.999999).all()
        axis = bracket.points[bracket.nodes_on("bore"), :2] - [0.0375, 0.015]
        np.testing.assert_allclose(np.linalg.norm(axis, axis=1), 0.007, rtol=1e-6)
        solid = 0.03 * (0.06 * 0.01 + 0.03 * 0.01 + (1 - np.pi / 4) * 0.005**2) - np.pi * 0.007**2 * 0.01
        assert bracket.volumes.sum() == pytest.approx(solid, rel=0.02)


def test_shipped_meshes_are_loaded_once_and_unknown_ones_named() -> None:
    assert isinstance(shipped("disc-small"), Mesh) and shipped("disc-small") is shipped("disc-small")
    with pytest.raises(InputError, match=r"no mesh 'cylindre' ships with dgnet \(known: bracket, .*wavy-channel-small\)"):
        shipped("cylindre")

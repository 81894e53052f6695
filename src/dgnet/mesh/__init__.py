"""Meshes: points, cells, named boundaries and the geometry that discretisations need."""

from dgnet.mesh.box import box, perturbed_square
from dgnet.mesh.io import load, save
from dgnet.mesh.library import shipped, shipped_names
from dgnet.mesh.locate import from_cells
from dgnet.mesh.mesh import ALL, Mesh, facet_geometry
from dgnet.mesh.shapes import Bump, Ellipse, bracket, channel, circle, dfg_channel, disc, gear_plate, hump, naca, wave

__all__ = ["ALL", "Bump", "Ellipse", "Mesh", "box", "bracket", "channel", "circle", "dfg_channel", "disc", "facet_geometry",
           "from_cells", "gear_plate", "hump", "load", "naca", "perturbed_square", "save", "shipped", "shipped_names", "wave"]

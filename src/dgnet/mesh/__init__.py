"""Meshes: points, cells, named boundaries and the geometry that discretisations need."""

from dgnet.mesh.box import box, perturbed_square
from dgnet.mesh.io import load, save
from dgnet.mesh.library import shipped, shipped_names
from dgnet.mesh.locate import from_cells
from dgnet.mesh.mesh import ALL, Mesh, facet_geometry
from dgnet.mesh.shapes import bracket, channel, dfg_channel, gear_plate

__all__ = ["ALL", "Mesh", "box", "bracket", "channel", "dfg_channel", "facet_geometry",
           "from_cells", "gear_plate", "load", "perturbed_square", "save", "shipped", "shipped_names"]

"""Meshes: points, cells, named boundaries and the geometry that discretisations need."""

from dgnet.mesh.box import box, perturbed_square
from dgnet.mesh.mesh import ALL, Mesh, facet_geometry

__all__ = ["ALL", "Mesh", "box", "facet_geometry", "perturbed_square"]

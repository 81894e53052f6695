"""Operators on the one sparse type: stiffness, mass, Green-Gauss gradient, advection, boundary terms."""

from dgnet.operators.assembly import (
    Array,
    Geometry,
    advection,
    boundary_flux,
    check_scheme,
    facet_load,
    facet_mass,
    gradient,
    lumped,
    mass,
    mass_range,
    nodal_velocity,
    stiffness,
)
from dgnet.operators.sparse import EdgeMatrix, Pattern

__all__ = ["Array", "EdgeMatrix", "Geometry", "Pattern", "advection", "boundary_flux", "check_scheme", "facet_load",
           "facet_mass", "gradient", "lumped", "mass", "mass_range", "nodal_velocity", "stiffness"]

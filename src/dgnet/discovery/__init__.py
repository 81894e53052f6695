"""What data say about an equation: coefficients, reactions, material curves, with their uncertainty."""

from dgnet.discovery.found import (
    REACTION,
    MaterialCurve,
    Summand,
    formulas,
    material_curves,
    reaction_axes,
    reaction_curve,
    sentences,
    summands,
    write_found,
)
from dgnet.discovery.least_squares import Differences, Found, Prior, least_squares
from dgnet.discovery.reactions import splines
from dgnet.discovery.unknowns import Unknowns

__all__ = ["REACTION", "Differences", "Found", "MaterialCurve", "Prior", "Summand", "Unknowns", "formulas", "least_squares",
           "material_curves", "reaction_axes", "reaction_curve", "sentences", "splines", "summands", "write_found"]

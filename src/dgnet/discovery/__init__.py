"""What data say about an equation: coefficients, reactions, material curves, with their uncertainty."""

from dgnet.discovery.curve import curve_of, labels, write_curve
from dgnet.discovery.formula import summands, write_formula
from dgnet.discovery.least_squares import Differences, Found, Prior, least_squares
from dgnet.discovery.material_curve import found_curves, write_curves
from dgnet.discovery.unknowns import splines

__all__ = ["Differences", "Found", "Prior", "curve_of", "found_curves", "labels", "least_squares", "splines", "summands",
           "write_curve", "write_curves", "write_formula"]

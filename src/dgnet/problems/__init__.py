"""Problems: the PDE, its boundary conditions and sources, and their discretisation on a mesh."""

from dgnet.problems.case import OWN, Case, base_problem
from dgnet.problems.conditions import Condition, Dirichlet, Neumann, Periodic, Robin, TimeTable, Value, changed
from dgnet.problems.curves import ByRegion, Curve, Scaled, Varied, curves_of, typical
from dgnet.problems.deposit import LEAST, WIDE, Deposit
from dgnet.problems.fibres import fibre_tensors
from dgnet.problems.finer import half_steps, prolonged, refined
from dgnet.problems.flow import HeldFlow, given_velocity
from dgnet.problems.lift import Lift
from dgnet.problems.pde import PDE
from dgnet.problems.problem import CONSISTENT, DOUBLE, LUMPED, SINGLE, WORKING, Problem
from dgnet.problems.sight import Bounds, Doubt, doubts, spot_doubts
from dgnet.problems.sources import FunctionSource, Rule, Source, converged_average, panels_for, step_average, step_moments
from dgnet.problems.spot_table import SpotTable, bells
from dgnet.problems.units import FIELD, LENGTH, PURE, SPEED, TERMS, TIME, Dimension, Units

__all__ = ["CONSISTENT", "DOUBLE", "FIELD", "LEAST", "LENGTH", "LUMPED", "OWN", "PDE", "PURE", "SINGLE", "SPEED", "TERMS", "TIME",
           "WIDE", "WORKING", "Bounds", "ByRegion", "Case", "Condition", "Curve", "Deposit", "Dimension", "Dirichlet", "Doubt",
           "FunctionSource", "HeldFlow", "Lift", "Neumann", "Periodic", "Problem", "Robin", "Rule", "Scaled", "Source",
           "SpotTable", "TimeTable", "Units", "Value", "Varied", "base_problem", "bells", "changed", "converged_average",
           "curves_of", "doubts", "fibre_tensors", "given_velocity", "half_steps", "panels_for", "prolonged", "refined",
           "spot_doubts", "step_average", "step_moments", "typical"]

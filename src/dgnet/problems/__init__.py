"""Problems: the PDE, its boundary conditions and sources, and their discretisation on a mesh."""

from dgnet.problems.conditions import Condition, Dirichlet, Neumann, Periodic, Robin, TimeTable
from dgnet.problems.curves import ByRegion, Curve, Scaled
from dgnet.problems.fibres import fibre_tensors
from dgnet.problems.flow import HeldFlow, given_velocity
from dgnet.problems.pde import PDE
from dgnet.problems.problem import CONSISTENT, DOUBLE, LUMPED, SINGLE, WORKING, Problem
from dgnet.problems.sources import FunctionSource, Rule, Source, panels_for, step_average
from dgnet.problems.spot_table import SpotTable

__all__ = ["CONSISTENT", "DOUBLE", "LUMPED", "PDE", "SINGLE", "WORKING", "ByRegion", "Condition", "Curve", "Dirichlet",
           "FunctionSource", "HeldFlow", "Neumann", "Periodic", "Problem", "Robin", "Rule", "Scaled", "Source", "SpotTable",
           "TimeTable", "fibre_tensors", "given_velocity", "panels_for", "step_average"]

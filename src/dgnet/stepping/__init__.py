"""The discrete Green solver: G = (M + dt/2 K)^-1 M applied by the fastest backend, with its exact adjoint."""

from dgnet.stepping.backends import NAMES as BACKENDS
from dgnet.stepping.balance import Balance, Totals
from dgnet.stepping.bounds import Bounds, bounds_of
from dgnet.stepping.enthalpy import EnthalpySolver, Solver
from dgnet.stepping.fold import fold, product, unfold
from dgnet.stepping.linear import Linear
from dgnet.stepping.material import Materials, Term
from dgnet.stepping.operator import StepOperator
from dgnet.stepping.solver import GreenSolver, InTime, Operators
from dgnet.stepping.steady import steady

__all__ = ["BACKENDS", "Balance", "Bounds", "EnthalpySolver", "GreenSolver", "InTime", "Linear", "Materials", "Operators",
           "Solver", "StepOperator", "Term", "Totals", "bounds_of", "fold", "product", "steady", "unfold"]

"""The discrete Green solver: G = (M + dt/2 K)^-1 M applied by the fastest backend, with its exact adjoint."""

from dgnet.green.backends import NAMES as BACKENDS
from dgnet.green.balance import Balance, Totals
from dgnet.green.bounds import Bounds, bounds_of
from dgnet.green.enthalpy import EnthalpySolver, Stepper
from dgnet.green.fold import fold, product, unfold
from dgnet.green.linear import Linear
from dgnet.green.material import Materials, Term
from dgnet.green.operator import StepOperator
from dgnet.green.solver import GreenSolver, InTime, Operators
from dgnet.green.steady import steady

__all__ = ["BACKENDS", "Balance", "Bounds", "EnthalpySolver", "GreenSolver", "InTime", "Linear", "Materials", "Operators",
           "StepOperator", "Stepper", "Term", "Totals", "bounds_of", "fold", "product", "steady", "unfold"]

"""A reaction of several fields as a sum of few terms, which a person can read."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Sequence
from itertools import combinations_with_replacement

import torch
from torch import nn

from dgnet.errors import InputError

Tensor = torch.Tensor
Term = Callable[[Tensor], Tensor]
"""A function of the local state, [..., F] -> [...]."""

_FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    name: getattr(torch, name) for name in ("exp", "log", "sqrt", "tanh", "sin", "cos", "abs")}
_OPERATIONS: dict[type, Callable[[Tensor, Tensor], Tensor]] = {
    ast.Add: torch.add, ast.Sub: torch.sub, ast.Mult: torch.mul, ast.Div: torch.div, ast.Pow: torch.pow}


class Library(nn.Module):
    """r_f(u) = sum over the terms p of values[p, f] phi_p(u), in units of the reaction's usual size.

    The terms are all products of the fields up to a degree, the constant included, each over its largest size in the data, and
    those that the user adds. What is not `active` is zero. `deviation` is the standard deviation of each value (NaN: never
    estimated). Zero at first.

    - `fields`: their names
    - `degree`: of the products
    - `odd`: only products of an odd number of factors, for r(-u) = -r(u)
    - `added`: further terms in the names of the fields, such as "u/(1+v)"
    """

    def __init__(self, fields: Sequence[str], degree: int, odd: bool = False, added: Sequence[str] = ()) -> None:
        super().__init__()
        count = len(fields)
        self.fields, self.added = tuple(fields), tuple(added)
        self.products = [factors for total in range(degree + 1) if not odd or total % 2
                         for factors in combinations_with_replacement(range(count), total)]
        self._own = [parsed(text, fields) for text in added]
        terms = len(self.products) + len(added)
        self.values = nn.Parameter(torch.zeros(terms, count))
        self.register_buffer("size", torch.ones(terms))
        self.register_buffer("active", torch.ones(terms, count))
        self.register_buffer("deviation", torch.full((terms, count), torch.nan))

    size: Tensor
    active: Tensor
    deviation: Tensor

    def spread(self, state: Tensor) -> None:
        """Measure the terms on the states [..., F] of the training data."""
        self.size.fill_(1.0)
        top = self.features(state).double().flatten(0, -2).abs().amax(0)
        if not bool(torch.isfinite(top).all()):
            worst = self.names[int((~torch.isfinite(top)).nonzero()[0])]
            raise InputError(f"the term '{worst}' of the reaction is not finite at a state of the training data")
        self.size.copy_(top.clamp(min=1e-30))

    def features(self, u: Tensor) -> Tensor:
        """phi [..., P] of states [..., F]."""
        columns = []
        for factors in self.products:
            column = torch.ones_like(u[..., 0])
            for f in factors:
                column = column * u[..., f]
            columns.append(column)
        columns += [term(u) for term in self._own]
        return torch.stack(columns, -1) / self.size.to(u.dtype)

    def forward(self, u: Tensor) -> Tensor:
        return self.features(u) @ (self.values * self.active).to(u.dtype)

    @property
    def names(self) -> list[str]:
        """The terms as a person writes them: 1, u, u v, u²."""
        return [_product([self.fields[f] for f in factors]) for factors in self.products] + list(self.added)


def _product(names: Sequence[str]) -> str:
    powers = {name: names.count(name) for name in names}
    marks = {1: "", 2: "²", 3: "³"}
    return " ".join(name + marks.get(n, f"^{n}") for name, n in powers.items()) or "1"


def parsed(text: str, fields: Sequence[str]) -> Term:
    """A term such as "u/(1+v)" as a function; numbers, the fields, + - * / **, and exp, log, sqrt, tanh, sin, cos, abs."""
    def refuse(what: str) -> InputError:
        return InputError(f"the term '{text}' of the reaction {what} (known: numbers, {', '.join(fields)}, + - * / ** and "
                          f"{', '.join(_FUNCTIONS)})")

    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise refuse("cannot be read") from error

    def build(node: ast.expr) -> Term:
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and math.isfinite(node.value):
            number = float(node.value)
            return lambda u: torch.full_like(u[..., 0], number)
        if isinstance(node, ast.Name) and node.id in fields:
            at = list(fields).index(node.id)
            return lambda u: u[..., at]
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            inner = build(node.operand)
            return lambda u: -inner(u)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            left, right, operation = build(node.left), build(node.right), _OPERATIONS[type(node.op)]
            return lambda u: operation(left(u), right(u))
        if (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
                and len(node.args) == 1 and not node.keywords):
            argument, function = build(node.args[0]), _FUNCTIONS[node.func.id]
            return lambda u: function(argument(u))
        raise refuse(f"has a part that is not known here: '{ast.unparse(node)}'")

    return build(tree)

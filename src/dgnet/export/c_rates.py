"""A node-wise function of torch as C: the reaction, known, from a table or a small network.

The function is run once on one node and recorded; every recorded operation has a rule here. A number of the record is a C
expression, so what only moves numbers (views, slices, concatenation) costs nothing, and larger arrays (layers of a network) become
loops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dgnet.errors import InputError
from dgnet.export.record import reason

Tensor = torch.Tensor
Cells = np.ndarray  # of C expressions, in the shape of the tensor
Rates = Callable[[Tensor], Sequence[Tensor]]

_LOOP = 8  # numbers from which on a loop is written instead of one line each
_PROBED = 5  # nodes that are computed together and one by one


def rates_in_c(rates: Rates, example: Tensor, name: str) -> str:
    """`static void rates(const real *u, real *r)`: u has the F fields of a node, r all rates one after the other.

    `example` [1, n, F] are typical states; `name` is that of the problem, for messages.
    """
    few = example[:, :_PROBED]
    together = rates(few)
    for k in range(few.shape[1]):
        for whole, one in zip(together, rates(few[:, k:k + 1])):
            if not torch.allclose(whole[:, k:k + 1], one, rtol=1e-4, atol=1e-6 * float(whole.abs().max())):
                raise InputError(f"the reaction of '{name}' depends on other nodes, so it cannot be written as C")
    try:
        with torch.no_grad():
            graph = make_fx(lambda u: tuple(rates(u)))(few[:, :1].contiguous())
    except Exception as error:
        raise InputError(f"the reaction of '{name}' cannot be written as C, it does something other than tensor operations: "
                         f"{reason(error)}") from error
    return _Writer(name).function(graph)


def number(x: float) -> str:
    """A C constant."""
    if np.isfinite(x):
        return repr(float(x))
    return "NAN" if np.isnan(x) else "INFINITY" if x > 0 else "-INFINITY"


class _Writer:
    """The body of the function under construction."""

    def __init__(self, problem: str) -> None:
        self.problem = problem
        self.constants: list[str] = []
        self.lines: list[str] = []
        self.count = 0

    def function(self, graph: Any) -> str:
        known: dict[Any, Any] = {}
        results: Sequence[Any] = ()
        for node in graph.graph.nodes:
            if node.op == "placeholder":
                shape = tuple(node.meta["val"].shape)
                known[node] = np.array([f"u[{k}]" for k in range(int(np.prod(shape)))], dtype=object).reshape(shape)
            elif node.op == "get_attr":
                known[node] = getattr(graph, node.target).detach()  # constants of the function
            elif node.op == "output":
                results = [known[value] for value in node.args[0]]
            else:
                known[node] = self.node(node, torch.fx.map_arg(node.args, known.__getitem__),
                                        torch.fx.map_arg(node.kwargs, known.__getitem__))
        flat = [cell for cells in results for cell in self.cells(cells).ravel()]
        tail = [f"    r[{k}] = {cell};" for k, cell in enumerate(flat)]
        return "\n".join([*self.constants, "static void rates(const real *u, real *r)", "{", *self.lines, *tail, "}"])

    def node(self, node: Any, args: Any, kwargs: Any) -> Any:
        target = str(node.target).removeprefix("aten.").split(".")[0]
        if not any(isinstance(a, np.ndarray) for a in _leaves([*args, *kwargs.values()])):
            return node.target(*args, **kwargs)
        if target in _SAME:
            return args[0]
        if target in _MOVES:
            return _MOVES[target](self, *args, **kwargs)
        if target in _FORMULAS:
            return self.each(_FORMULAS[target], args, kwargs, tuple(node.meta["val"].shape))
        if target in _RULES:
            return _RULES[target](self, *args, **kwargs)
        raise InputError(f"the reaction of '{self.problem}' cannot be written as C: it has an operation '{node.target}'; .pt2 and "
                         ".onnx may hold it")

    # ------------------------------------------------------------------ building blocks

    def cells(self, value: Any) -> Cells:
        """A value as C expressions."""
        if isinstance(value, np.ndarray):
            return value
        array = np.asarray(value.detach().double().numpy() if isinstance(value, Tensor) else value, dtype=np.float64)
        return np.array([number(x) for x in array.ravel()], dtype=object).reshape(array.shape)

    def array(self, shape: tuple[int, ...]) -> tuple[str, Cells]:
        """A new local array."""
        self.count += 1
        name, size = f"v{self.count}", int(np.prod(shape))
        self.lines.append(f"    real {name}[{size}];")
        return name, np.array([f"{name}[{k}]" for k in range(size)], dtype=object).reshape(shape)

    def table(self, values: Tensor) -> str:
        """Constants outside of the function."""
        name = f"table_{len(self.constants)}"
        text = ", ".join(number(x) for x in values.detach().double().ravel().tolist())
        self.constants.append(f"static const real {name}[{values.numel()}] = {{{text}}};")
        return name

    def each(self, formula: str, args: Sequence[Any], kwargs: dict[str, Any], shape: tuple[int, ...]) -> Cells:
        """A formula number by number: in a loop where all operands are arrays in order or one number."""
        if "alpha" in kwargs and kwargs["alpha"] != 1:
            args = [args[0], self.each("({0} * {1})", [args[1], float(kwargs["alpha"])], {}, np.shape(self.cells(args[1])))]
        parts = [self.cells(a) for a in args]
        spread = [np.broadcast_to(p, shape).ravel() for p in parts]
        name, out = self.array(shape)
        size = out.size
        looped = [_in_order(p) for p in spread]
        if size >= _LOOP and all(looped):
            text = formula.format(*looped)
            self.lines.append(f"    for (int k = 0; k < {size}; k++) {name}[k] = {text};")
        else:
            self.lines += [f"    {name}[{k}] = {formula.format(*(p[k] for p in spread))};" for k in range(size)]
        return out

    def product(self, x: Any, weight: Any, bias: Any = None) -> Cells:
        """x [1, a] times constants [a, b], plus constants [b]."""
        if not isinstance(weight, Tensor) or (bias is not None and not isinstance(bias, Tensor)):
            raise InputError(f"the reaction of '{self.problem}' cannot be written as C: it multiplies two states as matrices")
        shape = (*x.shape[:-1], weight.shape[1])
        copy, copied = self.array(x.shape)
        self.lines += [f"    {a} = {b};" for a, b in zip(copied.ravel(), x.ravel())]
        name, out = self.array(shape)
        w, wide = self.table(weight.T.contiguous()), weight.shape[0]
        start = "0" if bias is None else f"{self.table(bias)}[j]"
        self.lines += [f"    for (int j = 0; j < {out.size}; j++) {{", f"        real s = {start};",
                       f"        for (int k = 0; k < {wide}; k++) s += {w}[j * {wide} + k] * {copy}[k];",
                       f"        {name}[j] = s;", "    }"]
        return out

    def looked_up(self, values: Any, axis: int, index: Any) -> Cells:
        """Entries of a table of constants."""
        if not isinstance(values, Tensor) or values.dim() != 1:
            raise InputError(f"the reaction of '{self.problem}' cannot be written as C: it looks up states by states")
        return self.each(f"{self.table(values)}[(int)({{0}})]", [index], {}, index.shape)


def _leaves(value: Any) -> list[Any]:
    return [x for v in value for x in _leaves(v)] if isinstance(value, list | tuple) else [value]


def _in_order(cells: np.ndarray) -> str | None:
    """How a loop over k reads these expressions; None where it cannot."""
    if all(c == cells[0] for c in cells):
        return str(cells[0])
    name = str(cells[0]).split("[")[0]
    return f"{name}[k]" if all(c == f"{name}[{k}]" for k, c in enumerate(cells)) else None


def _power(w: _Writer, x: Any, exponent: Any) -> Cells:
    plain = {2: "({0} * {0})", 3: "({0} * {0} * {0})", 4: "({0} * {0} * {0} * {0})", 1: "{0}", 0.5: "sqrt({0})"}
    formula = plain.get(exponent) if isinstance(exponent, int | float) else None
    args = [x] if formula else [x, exponent]
    return w.each(formula or "pow({0}, {1})", args, {}, np.broadcast_shapes(*(np.shape(w.cells(a)) for a in args)))


def _clamp(w: _Writer, x: Any, low: Any = None, high: Any = None, *, min: Any = None, max: Any = None) -> Cells:
    out = w.cells(x)
    bounds: list[tuple[Any, str]] = [(min if low is None else low, "({0} < {1} ? {1} : {0})"),
                                     (max if high is None else high, "({0} > {1} ? {1} : {0})")]
    for bound, formula in bounds:
        if bound is not None and not (isinstance(bound, Tensor) and bool(torch.isinf(bound).all())):
            out = w.each(formula, [out, bound], {}, np.broadcast_shapes(out.shape, np.shape(w.cells(bound))))
    return out


def _converted(w: _Writer, x: Cells, *, dtype: torch.dtype | None = None, **_: Any) -> Cells:
    if dtype in (None, torch.float32, torch.float64):
        return x
    if dtype not in (torch.int32, torch.int64):
        raise InputError(f"the reaction of '{w.problem}' cannot be written as C: it computes with numbers of the type {dtype}")
    return w.each("trunc({0})", [x], {}, x.shape)


def _summed(w: _Writer, x: Cells, axes: Any = None, keep: bool = False, **_: Any) -> Cells:
    axes = tuple(range(x.ndim)) if axes is None else tuple(np.atleast_1d(axes))
    moved = np.moveaxis(x, axes, range(-len(axes), 0))
    rows = moved.reshape(*moved.shape[:x.ndim - len(axes)], -1)
    out = w.array(rows.shape[:-1])[1]
    w.lines += [f"    {a} = {' + '.join(row)};" for a, row in zip(out.ravel(), rows.reshape(-1, rows.shape[-1]))]
    return np.expand_dims(out, tuple(a % x.ndim for a in axes)) if keep else out


def _mean(w: _Writer, x: Cells, axes: Any = None, keep: bool = False, **_: Any) -> Cells:
    total = _summed(w, x, axes, keep)
    return w.each("({0} / {1})", [total, float(x.size // max(1, total.size))], {}, total.shape)


def _filled(value: float) -> Callable[..., Any]:
    return lambda w, x, *_, **__: torch.full(np.shape(x), value, dtype=torch.float64)


def _reshaped(w: _Writer, x: Cells, shape: Any) -> Cells:
    return x.reshape([int(s) for s in shape])


def _sliced(w: _Writer, x: Cells, axis: int = 0, first: Any = None, last: Any = None, step: int = 1) -> Cells:
    at: list[Any] = [slice(None)] * x.ndim
    at[axis] = slice(first, last, step)
    return x[tuple(at)]


_SAME = {"detach", "clone", "alias", "lift_fresh_copy", "contiguous", "_assert_tensor_metadata"}
_MOVES: dict[str, Callable[..., Any]] = {
    "view": _reshaped, "_unsafe_view": _reshaped, "reshape": _reshaped, "slice": _sliced,
    "unsqueeze": lambda w, x, axis: np.expand_dims(x, axis),
    "squeeze": lambda w, x, axis=None: np.squeeze(x) if axis is None else np.squeeze(x, axis) if x.shape[axis] == 1 else x,
    "select": lambda w, x, axis, at: np.take(x, at, axis),
    "expand": lambda w, x, shape: np.broadcast_to(x, [x.shape[k - len(shape)] if s == -1 else s for k, s in enumerate(shape)]),
    "permute": lambda w, x, order: np.transpose(x, order), "t": lambda w, x: x.T,
    "transpose": lambda w, x, a, b: np.swapaxes(x, a, b),
    "cat": lambda w, parts, axis=0: np.concatenate([w.cells(p) for p in parts], axis),
    "stack": lambda w, parts, axis=0: np.stack([w.cells(p) for p in parts], axis),
    "unbind": lambda w, x, axis=0: [np.take(x, k, axis) for k in range(x.shape[axis])],
    "split": lambda w, x, size, axis=0: np.split(x, range(size, x.shape[axis], size), axis),
    "<built-in function getitem>": lambda w, x, k: x[k],
    "zeros_like": _filled(0.0), "ones_like": _filled(1.0), "full_like": lambda w, x, value, **_: _filled(value)(w, x)}
_FORMULAS = {
    "add": "({0} + {1})", "sub": "({0} - {1})", "mul": "({0} * {1})", "div": "({0} / {1})", "rsub": "({1} - {0})", "neg": "(-{0})",
    "reciprocal": "(1 / {0})", "square": "({0} * {0})", "where": "({0} != 0 ? {1} : {2})", "lerp": "({0} + {2} * ({1} - {0}))",
    "maximum": "({0} > {1} ? {0} : {1})", "minimum": "({0} < {1} ? {0} : {1})", "relu": "({0} > 0 ? {0} : 0)",
    "sigmoid": "(1 / (1 + exp(-{0})))", "silu": "({0} / (1 + exp(-{0})))", "rsqrt": "(1 / sqrt({0}))",
    "sign": "(real)(({0} > 0) - ({0} < 0))", "logical_and": "(({0} != 0) && ({1} != 0))",
    "logical_or": "(({0} != 0) || ({1} != 0))",
    "logical_not": "({0} == 0)", "gt": "({0} > {1})", "lt": "({0} < {1})", "ge": "({0} >= {1})", "le": "({0} <= {1})",
    "eq": "({0} == {1})", "ne": "({0} != {1})", "abs": "fabs({0})",
    **{name: f"{name}({{0}})" for name in ("exp", "log", "sqrt", "sin", "cos", "tan", "tanh", "sinh", "cosh", "asin", "acos",
                                           "atan", "floor", "ceil", "trunc", "erf", "expm1", "log1p")}}
_RULES: dict[str, Callable[..., Any]] = {
    "pow": _power, "clamp": _clamp, "_to_copy": _converted, "sum": _summed, "mean": _mean,
    "clamp_min": lambda w, x, low: _clamp(w, x, low), "clamp_max": lambda w, x, high: _clamp(w, x, None, high),
    "mm": lambda w, x, weight: w.product(x, weight), "addmm": lambda w, bias, x, weight: w.product(x, weight, bias),
    "index_select": lambda w, values, axis, index: w.looked_up(values, axis, index)}

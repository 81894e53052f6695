"""A traced program of torch as an ONNX graph, operation by operation.

Constants are folded and stored once, so that the iterations of a solve share their matrices. The graph uses what every runtime of
operator set 18 knows. An operation without a counterpart in `RULES` is refused by its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx

from dgnet import __version__
from dgnet.errors import InputError
from dgnet.export.record import agree

Tensor = torch.Tensor

OPSET = 18
IR = 9  # of the file: what onnxruntime reads since 2023
_FEW = 8  # fields whose values are gathered one by one
_NAMES = {torch.float32: "FLOAT", torch.float64: "DOUBLE", torch.int64: "INT64", torch.bool: "BOOL"}


def _packages() -> tuple[Any, Any]:
    try:
        import onnx
        import onnxruntime
    except ImportError as error:
        raise InputError("an ONNX file needs an extra: pip install 'dgnet[onnx]'") from error
    return onnx, onnxruntime


def to_onnx(program: Any, any_batch: bool) -> bytes:
    """The file. Inputs have the names of the traced function's arguments, the output is `next`."""
    onnx, _ = _packages()
    graph = _Graph(onnx)
    constants = {**program.state_dict, **program.constants}
    kept = {**program.graph_signature.inputs_to_parameters, **program.graph_signature.inputs_to_buffers,
            **program.graph_signature.inputs_to_lifted_tensor_constants}
    inputs = []
    for node in program.graph.nodes:
        if node.op == "placeholder":
            if node.name in kept:
                graph.known[node] = constants[kept[node.name]].detach()
            else:
                graph.known[node] = node.name
                inputs.append(graph.described(node.name, node.meta["val"], any_batch))
        elif node.op == "call_function":
            graph.add(node)
        elif node.op == "output":
            (result,) = node.args[0]
            graph.emit("Identity", [graph.name(result)], name="next")
            outputs = [graph.described("next", result.meta["val"], any_batch)]
    made = onnx.helper.make_graph(graph.nodes, "step", inputs, outputs, graph.initializers)
    model = onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", OPSET)], producer_name="dgnet",
                                   producer_version=__version__, ir_version=IR)
    onnx.checker.check_model(model)
    return model.SerializeToString()


def check_onnx(data: bytes, inputs: tuple[Tensor, ...], expected: Tensor, batch: int | None, what: str) -> None:
    """Compare what onnxruntime makes of the file with the model's own step."""
    _, runtime = _packages()
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    names, size = [i.name for i in session.get_inputs()], batch or len(expected)
    found = [session.run(None, {name: e[k:k + size].numpy() for name, e in zip(names, inputs)})[0]
             for k in range(0, len(expected), size)]
    agree(torch.from_numpy(np.concatenate(found)), expected, f"{what} in ONNX")


class _Graph:
    """Nodes and constants of an ONNX graph under construction. A value of torch is a constant tensor or the name of a result."""

    def __init__(self, onnx: Any) -> None:
        self.onnx = onnx
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self.known: dict[fx.Node, Any] = {}
        self.stored: dict[tuple[Any, ...], str] = {}
        self.spread: dict[str, str] = {}  # indices, repeated for every trajectory
        self.node: fx.Node | None = None  # the one that is being translated

    def add(self, node: fx.Node) -> None:
        target = str(node.target)
        args, kwargs = fx.map_arg(node.args, self.known.__getitem__), fx.map_arg(node.kwargs, self.known.__getitem__)
        if target in _NOTHING:
            return
        if not any(isinstance(a, str) for a in _flat([args, *kwargs.values()])):
            self.known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
            return
        if target not in RULES:
            raise InputError(f"ONNX: the step has an operation '{target}' that has no counterpart there; .pt2 can hold it")
        self.node = node
        self.known[node] = RULES[target](self, *args, **kwargs)

    # ------------------------------------------------------------------ building blocks

    def emit(self, kind: str, inputs: Sequence[str], name: str | None = None, **attributes: Any) -> str:
        out = name or f"v{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, list(inputs), [out], **attributes))
        return out

    def name(self, value: Any, dtype: torch.dtype | None = None) -> str:
        """The name of a value; numbers and constants become stored tensors, numbers of the type of the present result."""
        if isinstance(value, fx.Node):
            value = self.known[value]
        if isinstance(value, str):
            return value
        if not isinstance(value, Tensor):
            value = torch.tensor(value, dtype=dtype or self.dtype)
        array = np.asarray(value.detach().cpu().numpy(), order="C")  # ascontiguousarray would make a list of a number
        key = (array.shape, array.dtype.str, array.tobytes())
        if key not in self.stored:
            self.stored[key] = f"c{len(self.stored)}"
            self.initializers.append(self.onnx.numpy_helper.from_array(array, self.stored[key]))
        return self.stored[key]

    @property
    def value(self) -> Tensor:
        """Shape and type of the present result."""
        assert self.node is not None
        return self.node.meta["val"]

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype

    def shape(self, sizes: Sequence[Any]) -> str:
        """Sizes, some of which may be results themselves, as one tensor."""
        if all(isinstance(s, int) for s in sizes):
            return self.name(torch.tensor(list(sizes), dtype=torch.int64))
        parts = [s if isinstance(s, str) else self.name(torch.tensor([s], dtype=torch.int64)) for s in sizes]
        return self.emit("Concat", parts, axis=0)

    def reshaped(self, x: Any) -> str:
        """x in the shape of the present result, in which at most one size is not a number."""
        sizes = [int(s) if isinstance(s, int) else -1 for s in self.value.shape]
        return self.emit("Reshape", [self.name(x), self.shape(sizes)])

    def described(self, name: str, like: Tensor, any_batch: bool) -> Any:
        shape = ["batch" if k == 0 and any_batch else int(s) for k, s in enumerate(like.shape)]
        return self.onnx.helper.make_tensor_value_info(name, self.type(like.dtype), shape)

    def type(self, dtype: torch.dtype) -> int:
        if dtype not in _NAMES:
            raise InputError(f"ONNX: the step has numbers of the type {dtype}, which are not written")
        return getattr(self.onnx.TensorProto, _NAMES[dtype])


def _flat(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [x for v in value for x in _flat(v)]
    return [value]


# ---------------------------------------------------------------------- operations

Rule = Callable[..., Any]
_NOTHING = {"aten._assert_tensor_metadata.default"}


def _plain(kind: str) -> Rule:
    """The same number of tensors in as out."""
    return lambda g, *inputs: g.emit(kind, [g.name(i) for i in inputs])


def _scaled(kind: str) -> Rule:
    """a + alpha b."""
    def rule(g: _Graph, a: Any, b: Any, alpha: float = 1) -> str:
        other = g.name(b) if alpha == 1 else g.emit("Mul", [g.name(b), g.name(alpha)])
        return g.emit(kind, [g.name(a), other])

    return rule


def _compared(kind: str) -> Rule:
    def rule(g: _Graph, a: Any, b: Any) -> str:
        assert g.node is not None
        of = next(x.meta["val"].dtype for x in g.node.args if isinstance(x, fx.Node))
        return g.emit(kind, [g.name(a, of), g.name(b, of)])

    return rule


def _clamp(g: _Graph, x: Any, low: Any = None, high: Any = None) -> str:
    out = g.name(x)
    for kind, bound in (("Max", low), ("Min", high)):
        out = out if bound is None else g.emit(kind, [out, g.name(bound)])
    return out


def _power(g: _Graph, x: Any, exponent: float) -> str:
    if exponent in (2, 3):
        once = g.name(x)
        twice = g.emit("Mul", [once, once])
        return twice if exponent == 2 else g.emit("Mul", [twice, once])
    return g.emit("Pow", [g.name(x), g.name(exponent)])


def _linear(g: _Graph, x: Any, weight: Any, bias: Any = None) -> str:
    if not isinstance(weight, Tensor):
        raise InputError("ONNX: a layer whose weights are computed in the step is not written")
    out = g.emit("MatMul", [g.name(x), g.name(weight.T.contiguous())])
    return out if bias is None else g.emit("Add", [out, g.name(bias)])


def _normed(g: _Graph, x: Any, shape: list[int], weight: Any = None, bias: Any = None, eps: float = 1e-5, *_: Any) -> str:
    inputs = [g.name(x), g.name(torch.ones(shape) if weight is None else weight)] + ([] if bias is None else [g.name(bias)])
    return g.emit("LayerNormalization", inputs, axis=-len(shape), epsilon=eps)


def _reduced(kind: str) -> Rule:
    def rule(g: _Graph, x: Any, axes: Any = None, keep: bool = False, **_: Any) -> str:
        axes = [axes] if isinstance(axes, int) else axes
        inputs = [g.name(x)] + ([] if axes is None else [g.name(torch.tensor(axes, dtype=torch.int64))])
        return g.emit(kind, inputs, keepdims=int(keep))

    return rule


def _converted(g: _Graph, x: Any, *_: Any, **__: Any) -> str:
    return g.emit("Cast", [g.name(x)], to=g.type(g.dtype))


def _sliced(g: _Graph, x: Any, axis: int = 0, first: Any = None, last: Any = None, step: int = 1) -> str:
    first, last = 0 if first is None else first, 2**63 - 1 if last is None else last
    return g.emit("Slice", [g.name(x), *(g.shape([v]) for v in (first, last, axis, step))])


def _expanded(g: _Graph, x: Any, sizes: Sequence[Any], **_: Any) -> str:
    return g.emit("Expand", [g.name(x), g.shape([1 if isinstance(s, int) and s == -1 else s for s in sizes])])


def _filled(g: _Graph, x: Any, value: float) -> str:
    filler = g.onnx.helper.make_tensor("value", g.type(g.dtype), [1], [value])
    return g.emit("ConstantOfShape", [g.emit("Shape", [g.name(x)])], value=filler)


def _selected(g: _Graph, x: Any, axis: int, index: Any) -> str:
    """Entries along an axis. Gather copies blocks; for single numbers GatherElements on the last axis is ten times as fast."""
    size, few = g.value.shape, len(g.value.shape) == 3 and axis == 1 and g.value.shape[2] <= _FEW
    if not (few and isinstance(index, Tensor)):
        return g.emit("Gather", [g.name(x), g.name(index)], axis=axis)
    fields, places = int(size[2]), g.name(index.expand(1, int(size[2]), -1))
    if size[0] != 1:  # the same for every product of a step, whose batch is one and the same
        if places not in g.spread:
            g.spread[places] = g.emit("Expand", [places, g.shape([_size(g, x, 0), 1, 1])])
        places = g.spread[places]
    if fields == 1:
        flat = g.emit("Reshape", [g.name(x), g.shape([0, 1, -1])])
        return g.emit("Reshape", [g.emit("GatherElements", [flat, places], axis=2), g.shape([0, -1, 1])])
    flat = g.emit("Transpose", [g.name(x)], perm=[0, 2, 1])
    return g.emit("Transpose", [g.emit("GatherElements", [flat, places], axis=2)], perm=[0, 2, 1])


def _index_add(g: _Graph, x: Any, axis: int, index: Any, source: Any) -> str:
    rank = len(g.value.shape)
    across = [1] * rank
    across[axis] = -1
    places = g.emit("Expand", [g.name(index.reshape(across)), g.emit("Shape", [g.name(source)])])
    return g.emit("ScatterElements", [g.name(x), places, g.name(source)], axis=axis, reduction="add")


def _stacked(g: _Graph, parts: Sequence[Any], axis: int = 0) -> str:
    where = g.shape([axis])
    return g.emit("Concat", [g.emit("Unsqueeze", [g.name(p), where]) for p in parts], axis=axis)


def _lerp(g: _Graph, a: Any, b: Any, weight: Any) -> str:
    part = g.emit("Mul", [g.emit("Sub", [g.name(b), g.name(a)]), g.name(weight)])
    return g.emit("Add", [g.name(a), part])


def _einsum(g: _Graph, equation: str, parts: Sequence[Any]) -> str:
    return g.emit("Einsum", [g.name(p) for p in parts], equation=equation)


def _permuted(g: _Graph, x: Any, order: Sequence[int]) -> str:
    return g.emit("Transpose", [g.name(x)], perm=[k % len(order) for k in order])


def _swapped(g: _Graph, x: Any, a: int = -2, b: int = -1) -> str:
    order = list(range(len(g.value.shape)))
    order[a], order[b] = order[b], order[a]
    return _permuted(g, x, order)


def _silu(g: _Graph, x: Any) -> str:
    return g.emit("Mul", [g.name(x), g.emit("Sigmoid", [g.name(x)])])


def _size(g: _Graph, x: Any, axis: int) -> str:
    return g.emit("Gather", [g.emit("Shape", [g.name(x)]), g.name(torch.tensor([axis % 64], dtype=torch.int64))], axis=0)


def _rules(groups: dict[Rule, str]) -> dict[str, Rule]:
    return {f"aten.{name}": rule for rule, names in groups.items() for name in names.split()}


RULES: dict[str, Rule] = _rules({
    _scaled("Add"): "add.Tensor", _scaled("Sub"): "sub.Tensor", _plain("Mul"): "mul.Tensor", _plain("Div"): "div.Tensor",
    _plain("Max"): "maximum.default", _plain("Min"): "minimum.default", _plain("Pow"): "pow.Tensor_Tensor",
    _plain("Neg"): "neg.default", _plain("Exp"): "exp.default", _plain("Log"): "log.default", _plain("Sqrt"): "sqrt.default",
    _plain("Abs"): "abs.default", _plain("Floor"): "floor.default", _plain("Ceil"): "ceil.default", _plain("Sin"): "sin.default",
    _plain("Cos"): "cos.default", _plain("Tanh"): "tanh.default", _plain("Sigmoid"): "sigmoid.default",
    _plain("Relu"): "relu.default", _plain("Reciprocal"): "reciprocal.default", _plain("Erf"): "erf.default",
    _plain("Sign"): "sign.default", _plain("MatMul"): "matmul.default mm.default bmm.default",
    _plain("Identity"): "detach.default alias.default clone.default contiguous.default detach_.default",
    _plain("Where"): "where.self where.ScalarOther where.ScalarSelf where.Scalar", _plain("And"): "logical_and.default",
    _plain("Or"): "logical_or.default", _plain("Not"): "logical_not.default",
    _compared("Greater"): "gt.Scalar gt.Tensor", _compared("Less"): "lt.Scalar lt.Tensor",
    _compared("GreaterOrEqual"): "ge.Scalar ge.Tensor", _compared("LessOrEqual"): "le.Scalar le.Tensor",
    _compared("Equal"): "eq.Scalar eq.Tensor",
    _reduced("ReduceSum"): "sum.dim_IntList sum.default", _reduced("ReduceMean"): "mean.dim mean.default",
    _reduced("ReduceMax"): "amax.default", _reduced("ReduceMin"): "amin.default",
    _clamp: "clamp.default clamp.Tensor", _power: "pow.Tensor_Scalar", _linear: "linear.default", _normed: "layer_norm.default",
    _converted: "to.dtype to.dtype_layout _to_copy.default to.device", _sliced: "slice.Tensor", _expanded: "expand.default",
    _index_add: "index_add.default", _stacked: "stack.default", _lerp: "lerp.Tensor lerp.Scalar", _einsum: "einsum.default",
    _permuted: "permute.default", _swapped: "transpose.int mT.default", _silu: "silu.default", _size: "sym_size.int"})
RULES.update({
    "aten.square.default": lambda g, x: _power(g, x, 2),
    "aten.rsub.Scalar": lambda g, a, b, alpha=1: _scaled("Sub")(g, b, a, alpha),
    "aten.rsqrt.default": lambda g, x: g.emit("Reciprocal", [g.emit("Sqrt", [g.name(x)])]),
    "aten.index_select.default": _selected,
    "aten.select.int": lambda g, x, axis, at: g.emit("Gather", [g.name(x), g.name(torch.tensor(at))], axis=axis),
    "aten.cat.default": lambda g, parts, axis=0: g.emit("Concat", [g.name(p) for p in parts], axis=axis),
    "aten.zeros_like.default": lambda g, x, **_: _filled(g, x, 0.0),
    "aten.ones_like.default": lambda g, x, **_: _filled(g, x, 1.0),
    "aten.full_like.default": lambda g, x, value, **_: _filled(g, x, value)})
RULES.update({f"aten.{name}": lambda g, x, *_, **__: g.reshaped(x) for name in (
    "reshape.default view.default flatten.using_ints unflatten.int unsqueeze.default squeeze.dim squeeze.default "
    "ravel.default").split()})

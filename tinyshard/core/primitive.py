"""Primitives: the ops that tinyshard defines, each a class with all its rules.

A primitive is a torch op, so that a trace records it, with the rules that torch needs and those that this
package's interpreters of a graph need.

    rule        used by                                                         if there is none
    abstract    a trace: shape and dtype of the results                         `define` was passed one
    run         a call outside of a trace                                       `define` was passed one
    transpose   grad: from the gradients of the results to those of the operands
    jvp         jvp: from the tangents of the operands to those of the results
    batch       vmap
    save        transpose and jvp: the operands and results that they need      none is saved
    has_effect  dead code: whether it stays although no op uses its results     it is removed
    replay      a graph that is run again, to be differentiated or vmapped      the op is called again
    partition   `compile.spmd`: on whole tensors, a part of a program           as an op of torch
    inline      `primitives.manual_region`: on shards, in a manual region       as an op of torch
    typed       `arrays.explicit`: how its results are cut                      as an op of torch
    varies      `primitives.varying`: along which axes the results differ       as the operands do
    shardings   the device assignment of a function with it
    goal        the axes of its program: a layout that they must express if `fixes_axes`, else if they can
    graphs      searches for primitives: the graphs that it contains            it contains none
    text        `compile.text`: a line of a graph's text                        as an op of torch

`bind` calls a primitive at every level of torch.func and within any trace. A torch op takes only tensors and numbers,
so any other argument of a primitive is represented by a number.

    handle = primitive.handle(NamedSharding(mesh, P("a")))      a number, the same for an equal object

A trace keeps the handles that its graph names; a handle that no trace keeps is dropped.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch

from tinyshard.core.layout import Layout
from tinyshard.core.thread_state import is_tracing, keep
from tinyshard.core.types import ShapedType

P = TypeVar("P")  # the params of a primitive, beside tensors: a frozen, hashable value

T = TypeVar("T")

_library: Any = torch.library.Library("tinyshard", "DEF")  # type: ignore[no-untyped-call]
_by_op: dict[Any, Rules] = {}


def define(schema: str, run: Any, shape: Any) -> Any:
    """Define a torch op.

    Args:
        schema: as torch writes it, "fold_in(Tensor key, Tensor number) -> Tensor".
        run: computes it.
        shape: the same on tensors without values.

    Returns:
        The op.
    """
    name = _library.define(schema)
    _library.impl(name, run, "CompositeExplicitAutograd")
    _library.impl(name, shape, "Meta")
    return getattr(torch.ops.tinyshard, name.removeprefix("tinyshard::")).default


def primitive_of(op: Any) -> Rules | None:
    """The rules of an op that this package defines; None for one of torch's."""
    return _by_op.get(op)


@dataclass(frozen=True, eq=False)  # no slots: Python 3.12.3 leaves out weakref_slot in a generic class
class Handle(Generic[T]):
    """An object and its number, which represents it in a graph."""

    value: T
    number: int


class Handles(Generic[T]):
    """The live objects of one op, by number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = itertools.count(1)
        self._by_number: weakref.WeakValueDictionary[int, Handle[T]] = weakref.WeakValueDictionary()
        self._by_value: weakref.WeakValueDictionary[Any, Handle[T]] = weakref.WeakValueDictionary()

    def handle(self, value: T) -> Handle[T]:
        """The handle of a hashable object; equal objects share one. The caller keeps it alive."""
        with self._lock:
            found = self._by_value.get(value)
            if found is None:
                found = Handle(value, next(self._count))
                self._by_number[found.number] = self._by_value[value] = found
            return found

    def own(self, value: T) -> Handle[T]:
        """A handle for an object that refers to it, as a region does: the table would keep such an object for ever."""
        with self._lock:
            handle = Handle(value, next(self._count))
            self._by_number[handle.number] = handle
            return handle

    def value(self, number: int) -> T:
        """The object of a number."""
        return self._by_number[number].value


class Rules:
    """The rules by which the interpreters of a graph process one op.

    Attributes:
        op: the op.
    """

    def __init__(self, op: Any) -> None:
        self.op = op
        _by_op[op] = self

    def replay(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Call the op again on tensors that transformations may wrap."""
        return self.op(*args, **kwargs)

    def partition(self, partitioner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Write the op into a program; NotImplemented if it is written like a torch op."""
        return NotImplemented

    def inline(self, inliner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Write the op on shards into a program; NotImplemented if it is written like a torch op."""
        return NotImplemented

    def has_effect(self, args: Sequence[Any]) -> bool:
        """Whether the op stays in a graph though nothing uses its results."""
        return False

    def typed(self, args: Sequence[Any], given: Sequence[Any]) -> Any:
        """Along explicit axes the layouts of the results, from those of the operands; NotImplemented as `partition`."""
        return NotImplemented

    def varies(self, given: Sequence[frozenset[str]], args: Sequence[Any]) -> Any:
        """The axes along which the results differ between devices, from those along which each operand does.

        Returns:
            Names, the same for all results; or a list with the names for each.
        """
        return frozenset().union(*given)

    def text(self, printer: Any, result: str, args: Sequence[Any]) -> list[str] | None:
        """The lines of a graph's text, `result` being "%3: f32[8] ="; None for the line of a torch op."""
        return None


class Primitive(Rules, Generic[P]):
    """An op that takes tensors and a Python object, its params, which a number represents in the graph.

    Attributes:
        name: of the op.
        several: whether it takes and returns a list of tensors; else it takes and returns one.
        fixes_axes: whether its goal determines the axes of a program before the layouts of the operands do.
        asks: whether the devices read a value to choose what they run.
    """

    name: ClassVar[str]
    several: ClassVar[bool] = False
    fixes_axes: ClassVar[bool] = False
    asks: ClassVar[bool] = False

    def __init__(self) -> None:
        self._handles: Handles[P] = Handles()
        kind = "Tensor[] xs, int params) -> Tensor[]" if self.several else "Tensor x, int params) -> Tensor"
        super().__init__(define(f"{self.name}({kind}", self._on_values, self._on_meta))

    # ---- the rules of one primitive ---------------------------------------------------------------------------

    def abstract(self, params: P, *xs: ShapedType) -> Sequence[ShapedType]:
        """Shape and dtype of each result."""
        raise NotImplementedError

    def run(self, params: P, *xs: torch.Tensor) -> Sequence[torch.Tensor]:
        """Compute the results, outside of a trace."""
        raise NotImplementedError

    def differentiable(self, params: P, outputs: Sequence[torch.Tensor]) -> Sequence[int]:
        """The numbers of the results that a gradient may flow from."""
        return [i for i, x in enumerate(outputs) if x.is_floating_point() or x.is_complex()]

    def save(self, ctx: Any, params: P, xs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Keep in `ctx` what `transpose` and `jvp` need: `ctx.params` is there."""

    def transpose(self, ctx: Any, *gradients: torch.Tensor) -> Sequence[torch.Tensor | None]:
        """Compute the gradients of the operands from those of the results; None for an operand without one."""
        raise NotImplementedError

    def jvp(self, ctx: Any, *tangents: torch.Tensor | None) -> Sequence[torch.Tensor | None]:
        """Compute the tangents of the results from those of the operands."""
        raise NotImplementedError

    def batch(
        self, params: P, size: int, dims: Sequence[int | None], *xs: torch.Tensor
    ) -> tuple[Sequence[torch.Tensor], Sequence[int | None]]:
        """Apply the op to operands, some with one more dim: the results, and the position of that dim in each."""
        raise NotImplementedError

    def shardings(self, params: P) -> Sequence[Any]:
        """The shardings that name the devices of a function with this op."""
        return ()

    def goal(self, params: P, ndim: int) -> Layout | None:
        """A layout that determines the axes of a program; `ndim` is that of the result."""
        return None

    def graphs(self, params: P) -> Sequence[torch.fx.GraphModule]:
        """The graphs on whole tensors that it contains, as the body of a loop: their primitives have goals, too."""
        return ()

    def replay(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """Bind again."""
        outputs = self.bind(self.params(args), *(args[0] if self.several else args[:1]))
        return outputs if self.several else outputs[0]

    # ---- common to all ----------------------------------------------------------------------------------------

    def bind(self, params: P, *xs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Call the primitive: recorded in a trace, transformed by its rules, else run."""
        outputs: tuple[torch.Tensor, ...] = _Bind.apply(self, params, *xs)  # type: ignore[no-untyped-call]
        return outputs

    def record(self, params: P, xs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """Let the trace record the op."""
        handle = self.handle(params)
        if is_tracing():
            keep(handle)
        return tuple(self.op(list(xs), handle.number)) if self.several else (self.op(*xs, handle.number),)

    def handle(self, params: P) -> Handle[P]:
        """The handle of the params in a graph, which must keep it alive."""
        return self._handles.handle(params)

    def params(self, args: Sequence[Any]) -> P:
        """The params of a node, from the number among its arguments."""
        return self._handles.value(args[1])

    def nodes(self, module: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.Node, P]]:
        """The nodes of this op in a graph, in order, each with its params."""
        return ((node, self.params(node.args)) for node in module.graph.nodes if node.target is self.op)

    def _on_values(self, xs: Any, params: int) -> Any:
        """On tensors that the traced function makes: only the shape matters, the devices compute the values."""
        outputs = [torch.zeros(m.shape, dtype=m.dtype) for m in self._abstract(xs, params)]
        return outputs if self.several else outputs[0]

    def _on_meta(self, xs: Any, params: int) -> Any:
        outputs = [torch.empty(m.shape, dtype=m.dtype, device="meta") for m in self._abstract(xs, params)]
        return outputs if self.several else outputs[0]

    def _abstract(self, xs: Any, params: int) -> Sequence[ShapedType]:
        operands = xs if self.several else [xs]
        return self.abstract(self._handles.value(params), *(ShapedType(tuple(x.shape), x.dtype) for x in operands))


class FunctionPrimitive(Primitive[P]):
    """A primitive that is a function of its operands: its gradient and its tangent are functions of them, too."""

    several = True

    def check_differentiable(self, params: P) -> None:
        """Raise for a function whose derivative is not known."""

    def gradient(
        self, params: P, wanted: tuple[int, ...], xs: Sequence[torch.Tensor], cotangents: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """The gradients of the `wanted` operands, from those of the differentiable results."""
        raise NotImplementedError

    def tangent(
        self, params: P, moved: tuple[int, ...], xs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        """The tangents of the differentiable results, from those of the `moved` operands."""
        raise NotImplementedError

    def save(self, ctx: Any, params: P, xs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Keep the operands."""
        ctx.save_for_backward(*xs)
        ctx.save_for_forward(*xs)

    def transpose(self, ctx: Any, *gradients: torch.Tensor) -> Sequence[torch.Tensor | None]:
        """By `gradient`."""
        self.check_differentiable(ctx.params)
        xs = ctx.saved_tensors
        wanted = tuple(i for i, need in enumerate(ctx.needs_input_grad[2:]) if need)
        cotangents = iter(self.gradient(ctx.params, wanted, xs, [gradients[i] for i in ctx.flowing]))
        return [next(cotangents) if i in wanted else None for i in range(len(xs))]

    def jvp(self, ctx: Any, *tangents: torch.Tensor | None) -> Sequence[torch.Tensor | None]:
        """By `tangent`."""
        self.check_differentiable(ctx.params)
        if not ctx.flowing:
            return [None] * ctx.count
        moved = tuple(i for i, t in enumerate(tangents) if t is not None)
        pushed = iter(self.tangent(ctx.params, moved, ctx.saved_tensors, [t for t in tangents if t is not None]))
        return [next(pushed) if i in ctx.flowing else None for i in range(ctx.count)]


class _Bind(torch.autograd.Function):
    """A primitive as torch.func calls it."""

    @staticmethod
    def forward(primitive: Any, params: Any, *xs: torch.Tensor) -> Any:
        return tuple(primitive.record(params, xs) if is_tracing() else primitive.run(params, *xs))

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.primitive, ctx.params, *xs = inputs
        ctx.flowing, ctx.count = tuple(ctx.primitive.differentiable(ctx.params, output)), len(output)
        ctx.mark_non_differentiable(*(x for i, x in enumerate(output) if i not in ctx.flowing))
        ctx.primitive.save(ctx, ctx.params, xs, output)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return None, None, *ctx.primitive.transpose(ctx, *gradients)

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Any) -> Any:
        return tuple(ctx.primitive.jvp(ctx, *tangents))

    @staticmethod
    def vmap(info: Any, in_dims: Any, primitive: Any, params: Any, *xs: torch.Tensor) -> Any:
        outputs, dims = primitive.batch(params, info.batch_size, in_dims[2:], *xs)
        return tuple(outputs), tuple(dims)


def bound_in(module: torch.fx.GraphModule) -> Iterator[tuple[torch.fx.Node, Primitive[Any], Any]]:
    """The primitives in a graph and in the graphs inside them, in order: the node, the primitive, its params."""
    for node in module.graph.nodes:
        primitive = _by_op.get(node.target)
        if isinstance(primitive, Primitive):
            params = primitive.params(node.args)
            yield node, primitive, params
            for graph in primitive.graphs(params):
                yield from bound_in(graph)

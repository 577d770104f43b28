"""A collective over a named axis, as one op that torch.func can vmap and differentiate.

If the name is an axis of devices the op stays in the traced graph, and becomes a step of the program. If vmap
binds it, the rule of that level applies the row's function of a stack of shards (`tinyshard.core.collectives`) to the
mapped dim.

    rule            of every collective
    abstract        the row's `meta`
    batch           this level's name: the row's `form` on the mapped dim; another level: one more leading dim
    transpose       the table below; of the largest and the smallest: to those who hold it, in equal parts
    jvp             the collective itself; of the largest and the smallest: as its transpose
    save            of the largest and the smallest, the operand and the result
    replay          it is bound again, at the level that runs then
    inline          a step of the program, along its axes; pcast is none
    partition       in a shard_map over a part of the axes: as inline, on shards of the block along other dims
    varies          along its own axes, or not: by what it does
    text            "all_reduce(x, over=i, op=sum)"
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tinyshard.core import axis_names
from tinyshard.core.collectives import COLLECTIVES, in_groups, reduced
from tinyshard.core.primitive import Primitive, bound_in
from tinyshard.core.program import Builder, Value
from tinyshard.core.thread_state import levels, varying_types
from tinyshard.core.types import ShapedType
from tinyshard.partition.layouts import choose
from tinyshard.partition.partitioner import place
from tinyshard.partition.reshard import ShardedVar, noted
from tinyshard.partition.reshard import collective as emit_collective
from tinyshard.partition.rule import Rule, letters, settled

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Call:
    """The params of a collective op.

    Attributes:
        kind: a row of `COLLECTIVES`.
        axes: the names of its axes, most significant first.
        size: the number of participants.
        groups: positions along the axis, if it is cut into groups.
        params: the row's other arguments.
        to: where values have types by `arrays.varying_types`, whether the result is "varying" along the axes or
            "invarying"; elsewhere "".
    """

    kind: str
    axes: tuple[str, ...]
    size: int
    groups: Groups | None
    params: tuple[tuple[str, Any], ...]
    to: str = ""

    def __str__(self) -> str:
        parts = [f"{k}={v}" for k, v in self.params]
        parts += [] if self.groups is None else [f"groups={[list(g) for g in self.groups]}"]
        parts += [f"to={self.to}"] if self.kind in ("pcast", "all_gather") and self.to else []
        return ", ".join([f"over={'*'.join(self.axes)}", *parts])

    @property
    def is_extreme(self) -> bool:
        """Whether it computes the maximum or the minimum."""
        return self.arguments.get("op") in ("max", "min")

    @property
    def arguments(self) -> dict[str, Any]:
        """The parameters by name."""
        return dict(self.params)

    def check_differentiable(self) -> None:
        """Refuse a collective without a derivative rule."""
        if self.arguments.get("op") == "product":
            raise NotImplementedError(
                "the derivative of an all_reduce by product: gather, and multiply what is gathered"
            )

    def with_batch_dim(self) -> Call:
        """The same params for operands with one more leading dim."""
        return replace(self, params=tuple((k, v + 1 if k in ("dim", "split", "join") else v) for k, v in self.params))


_Transposed = Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]

_TRANSPOSED: dict[str, _Transposed] = {
    "all_reduce": lambda p: ("all_reduce", p),  # of a sum or a mean
    "all_gather": lambda p: ("reduce_scatter", {"dim": p["dim"], "op": "sum"}),
    "reduce_scatter": lambda p: ("all_gather", {"dim": p["dim"]}),
    "all_to_all": lambda p: ("all_to_all", {"split": p["join"], "join": p["split"]}),
    "collective_permute": lambda p: ("collective_permute", {"pairs": tuple((t, s) for s, t in p["pairs"])}),
    "pcast": lambda p: ("all_reduce", {"op": "sum"}),
    "local_slice": lambda p: ("all_gather", {"dim": p["dim"]}),
}

# of those whose result is the same on all devices, and typed so: its gradient is the same on all, too
_TRANSPOSED_TYPED: dict[str, _Transposed] = {
    "all_reduce": lambda p: ("pcast", {}),
    "all_gather": lambda p: ("local_slice", {"dim": p["dim"]}),
}


class Collective(Primitive[Call]):
    """A collective over named axes, of one tensor."""

    name = "named"

    def abstract(self, params: Call, *xs: ShapedType) -> Sequence[ShapedType]:
        return [COLLECTIVES[params.kind].meta(xs[0], params.size, params.arguments)]

    def run(self, params: Call, *xs: torch.Tensor) -> Sequence[torch.Tensor]:
        raise NotImplementedError(f"{params.kind} over {params.axes} outside of what is mapped over these axes")

    def save(self, ctx: Any, params: Call, xs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        if params.is_extreme:
            ctx.save_for_backward(xs[0], outputs[0])
            ctx.save_for_forward(xs[0], outputs[0])

    def transpose(self, ctx: Any, *gradients: torch.Tensor) -> Sequence[torch.Tensor]:
        call, g = ctx.params, gradients[0]
        call.check_differentiable()
        is_typed = call.to == "invarying"
        if call.is_extreme:
            total = self.perform(g, pcast_of(call)) if is_typed else _summed(g, call)
            return [_share(ctx) * total]
        kind, params = (_TRANSPOSED_TYPED if is_typed else _TRANSPOSED)[call.kind](call.arguments)
        to = "invarying" if call.kind in ("pcast", "local_slice") else call.to and "varying"
        return [self.perform(g, replace(call, kind=kind, params=tuple(params.items()), to=to))]

    def jvp(self, ctx: Any, *tangents: torch.Tensor | None) -> Sequence[torch.Tensor]:
        dx = tangents[0]
        assert dx is not None
        ctx.params.check_differentiable()
        return [_summed(_share(ctx) * dx, ctx.params) if ctx.params.is_extreme else self.perform(dx, ctx.params)]

    def batch(
        self, params: Call, size: int, dims: Sequence[int | None], *xs: torch.Tensor
    ) -> tuple[Sequence[torch.Tensor], Sequence[int | None]]:
        assert dims[0] is not None
        x, here = xs[0].movedim(dims[0], 0), axis_names.at_level(axis_names.level() + 1)
        if here is None or here.name not in params.axes:
            return self.bind(params.with_batch_dim(), x), [0]
        assert params.axes == (here.name,), "a name that vmap binds is the only one of its call"
        result, dim = _along_mapped_dim(x, params, here.size)
        return [result], [dim]

    def replay(self, args: Sequence[Any], kwargs: dict[str, Any]) -> torch.Tensor:
        return self.perform(args[0], self.params(args))

    def perform(self, x: torch.Tensor, call: Call) -> torch.Tensor:
        """Bind it to a tensor that may not be mapped along its names yet.

        Communication: over axes of devices, that of the row of `COLLECTIVES`.
        """
        for axis in call.axes:
            x = lifted(x, axis_names.find(axis))
        return self.bind(call, x)[0]

    def inline(self, inliner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        x, call, builder = args[0], self.params(args), inliner.builder
        return x if call.kind == "pcast" else Value(_step(builder, x.number, call, inliner.axes))

    def partition(self, partitioner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        call, builder, result = self.params(args), partitioner.builder, partitioner.type_of(node)
        if call.kind == "pcast":
            return args[0]
        x = partitioner.placed(partitioner.value(args[0]))
        if call.kind == "own_index":  # it does not read its operand
            whole = ShardedVar(0, result.shape, result.dtype, ())
        else:
            layouts = choose(_rule(call, x.shape, result.shape), [x], [result], builder.axes, moves=True)
            x, whole = place(builder, x, layouts.operands[0].dims), layouts.results[0]
        return noted(builder, replace(whole, number=_step(builder, x.number, call, partitioner.part.axes)))

    def varies(self, given: Sequence[frozenset[str]], args: Sequence[Any]) -> frozenset[str]:
        call, operand = self.params(args), frozenset[str]().union(*given)
        own = frozenset(call.axes)
        if call.kind == "own_index":
            return own
        if call.to == "varying":
            return operand | own
        if call.kind in ("all_reduce", "all_gather"):
            return operand - own if call.groups is None else operand
        if call.kind == "collective_permute" and len(call.arguments["pairs"]) == call.size:
            return operand  # every device gets another one's value; equal values stay equal
        return operand | own

    def text(self, printer: Any, result: str, args: Sequence[Any]) -> list[str]:
        call = self.params(args)
        return [f"{result} {call.kind}({args[0]!r}, {call})"]


COLLECTIVE = Collective()


def _step(builder: Builder, x: int, call: Call, axes: Any) -> int:
    """Write a collective into a program; returns the number of its result.

    Args:
        x: the number of its operand.
        axes: the program's axes for its names, a `primitives.manual_region.Axes`.
    """
    over, groups = axes.of(call.axes, call.groups, builder.axes)
    params = call.arguments
    if not over:  # a group of one: its own position is 0, a permutation without a pair gives zeros, all else is x
        if call.kind == "own_index" or params.get("pairs") == ():
            meta: Any = ShapedType((), torch.int32) if call.kind == "own_index" else builder.metas[x]
            return builder.emit("aten.full.default", (list(meta.shape), 0), {"dtype": meta.dtype}, [meta])[0]
        return x
    if groups is not None:
        params["groups"] = groups
    # of two meshes one name may mean different axes
    key = "collective", x, call, over, groups
    return builder.once(key, lambda: emit_collective(builder, call.kind, x, over, **params))


def _rule(call: Call, shape: Sequence[int], result_shape: Sequence[int]) -> Rule:
    """Which dims of a block may be cut: all but those along which it cuts or joins blocks."""
    touched = {value for name, value in call.params if name in ("dim", "split", "join")}
    dims = [() if d in touched else (f,) for d, f in enumerate(letters(len(shape)))]
    return settled([dims], [dims], [{}], [shape], [result_shape])


def _summed(x: torch.Tensor, call: Call) -> torch.Tensor:
    return COLLECTIVE.perform(x, replace(call, params=(("op", "sum"),)))


def _share(ctx: Any) -> torch.Tensor:
    """1 / (the number of positions that hold the extreme value) where this one holds it, else 0."""
    x, extreme = ctx.saved_tensors
    holds = (x == extreme).to(x.dtype)
    return holds / _summed(holds, ctx.params)


def _along_mapped_dim(x: torch.Tensor, call: Call, size: int) -> tuple[torch.Tensor, int | None]:
    """A collective over the name that a level of vmap binds: the mapped dim of x is dim 0.

    Returns:
        The result and its mapped dim; None for a result that is the same for all positions.
    """
    if call.groups is None and call.kind == "all_reduce":
        whole = reduced(x, call.arguments["op"])
        return whole if size else torch.zeros_like(whole), None
    if call.groups is None and call.kind == "all_gather":
        dim = call.arguments["dim"]
        return x[:size].movedim(0, dim).flatten(dim, dim + 1), None
    form = COLLECTIVES[call.kind].form
    assert form is not None
    return in_groups(form, x, call.groups, call.arguments), 0


def collective(
    kind: str, x: torch.Tensor, axes: Sequence[str], groups: Groups | None = None, *, to: str = "", **params: Any
) -> torch.Tensor:
    """A collective over axes that are all of devices, or over one that vmap binds.

    Args:
        to: whether its result is "varying" along the axes, where values have types; by default a reduction's is not.
    """
    call = Call(kind, tuple(axes), axis_total(axes, groups), groups, tuple(params.items()))
    types = varying_types()
    if types is None or not types.axes.issuperset(axes):
        return COLLECTIVE.perform(x, call)
    to = to or ("invarying" if kind == "all_reduce" and groups is None else "varying")
    return COLLECTIVE.perform(x if kind == "own_index" else types.cast(x, frozenset(axes)), replace(call, to=to))


def pcast_of(call: Call) -> Call:
    """The mark that a value may differ along the axes of a collective."""
    return Call("pcast", call.axes, call.size, None, (), "varying")


def pcast(x: torch.Tensor, axes: Sequence[str]) -> torch.Tensor:
    """The value, marked as one that may differ along axes of devices. The gradient is summed over them."""
    return COLLECTIVE.perform(x, Call("pcast", tuple(axes), axis_total(axes), None, (), "varying"))


def axis_total(axes: Sequence[str], groups: Groups | None = None) -> int:
    """The number of participants of a collective along these axes."""
    return len(groups[0]) if groups else math.prod(axis_names.find(axis).size for axis in axes)


def lifted(x: torch.Tensor, name: axis_names.Name) -> torch.Tensor:
    """The tensor, mapped along the name: functorch skips the batch rule of an op without mapped operands."""
    if name.index is None or axis_names.is_free(name) or is_mapped(x, name.level):
        return x
    return torch.where(name.index >= 0, x, x)


def is_mapped(x: torch.Tensor, level: int) -> bool:
    """Whether a level of torch.func's vmap maps the tensor."""
    functorch = torch._C._functorch
    return any(functorch.is_batchedtensor(inner) and functorch.maybe_get_level(inner) == level for inner in levels(x))


def exchanges(graph: torch.fx.GraphModule) -> bool:
    """Whether the devices exchange data in a graph, or in the bodies of its loops."""
    calls = [call for _, primitive, call in bound_in(graph) if primitive is COLLECTIVE]
    return any(COLLECTIVES[call.kind].communicates for call in calls)


def named_in(graph: torch.fx.GraphModule) -> set[str]:
    """The names that the collectives of a graph use, including those in its loops."""
    return {name for _, primitive, call in bound_in(graph) if primitive is COLLECTIVE for name in call.axes}

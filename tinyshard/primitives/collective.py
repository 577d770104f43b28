"""A collective over a named axis, as one op that torch.func can vmap and differentiate.

Where the name is an axis of devices the op stays in the traced graph, and becomes a step of the program. Where vmap
binds it, the rule of that level does to the mapped dim what `tinyshard.core.collectives` says of a stack of shards.

    rule            of every collective
    shape           the row's `meta`
    batch           this level's name: the row's `form` on the mapped dim; another level: one more leading dim
    gradient        the transpose below; forwards, the collective itself
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tinyshard.arrays.placement import as_tensor
from tinyshard.core import axis_names
from tinyshard.core.collectives import COLLECTIVES, in_groups, reduced
from tinyshard.core.current_trace import is_tracing, keep
from tinyshard.core.errors import DtypeError, MappingError, message
from tinyshard.core.handles import Handles
from tinyshard.core.leaves import is_whole
from tinyshard.core.types import ShapedType

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Call:
    """What a collective op does, but for its operand.

    Attributes:
        kind: a row of `COLLECTIVES`.
        axes: the names of its axes, most significant first.
        size: how many take part.
        groups: positions along the axis, where it is cut in groups.
        params: the row's other arguments.
    """

    kind: str
    axes: tuple[str, ...]
    size: int
    groups: Groups | None
    params: tuple[tuple[str, Any], ...]

    def __str__(self) -> str:
        told = [f"{k}={v}" for k, v in self.params]
        told += [] if self.groups is None else [f"groups={[list(g) for g in self.groups]}"]
        return ", ".join([f"over={'*'.join(self.axes)}", *told])

    @property
    def arguments(self) -> dict[str, Any]:
        """The parameters by name."""
        return dict(self.params)

    def with_batch_dim(self) -> Call:
        """The same on operands with one more dim in front."""
        return replace(self, params=tuple((k, v + 1 if k in ("dim", "split", "join") else v) for k, v in self.params))


_TRANSPOSED: dict[str, Callable[[dict[str, Any]], tuple[str, dict[str, Any]]]] = {
    "all_reduce": lambda p: ("all_reduce", p),
    "all_gather": lambda p: ("reduce_scatter", {"dim": p["dim"], "op": "sum"}),
    "reduce_scatter": lambda p: ("all_gather", {"dim": p["dim"]}),
    "all_to_all": lambda p: ("all_to_all", {"split": p["join"], "join": p["split"]}),
    "collective_permute": lambda p: ("collective_permute", {"pairs": tuple((t, s) for s, t in p["pairs"])}),
}

_library = torch.library.Library("tinyshard", "FRAGMENT")
_library.define("named(Tensor x, int call) -> Tensor")
_calls: Handles[Call] = Handles()


@torch.library.impl(_library, "named", "CompositeExplicitAutograd")
def _while_tracing(x: torch.Tensor, call: int) -> torch.Tensor:
    """On a tensor that the traced function makes: what matters is the shape, the values are the devices' affair."""
    return torch.zeros_like(_on_meta(x, call), device=x.device)


@torch.library.impl(_library, "named", "Meta")
def _on_meta(x: torch.Tensor, call: int) -> torch.Tensor:
    does = _calls.value(call)
    made = COLLECTIVES[does.kind].meta(ShapedType(tuple(x.shape), x.dtype), does.size, does.arguments)
    return torch.empty(made.shape, dtype=made.dtype, device="meta")


NAMED = torch.ops.tinyshard.named.default


def call_of(number: int) -> Call:
    """What a collective op's number stands for."""
    return _calls.value(number)


def _recorded(x: torch.Tensor, call: Call) -> torch.Tensor:
    handle = _calls.handle(call)
    if is_tracing():
        keep(handle)
    made: torch.Tensor = NAMED(x, handle.number)
    return made


class _Linear(torch.autograd.Function):
    """Every collective but the largest and the smallest."""

    @staticmethod
    def forward(x: torch.Tensor, call: Call) -> torch.Tensor:
        return _recorded(x, call)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        call = ctx.call
        kind, params = _TRANSPOSED[call.kind](call.arguments)
        return perform(g, replace(call, kind=kind, params=tuple(params.items()))), None

    @staticmethod
    def jvp(ctx: Any, dx: torch.Tensor, _: Any) -> torch.Tensor:
        return perform(dx, ctx.call)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor, call: Call) -> Any:
        return _batched(x.movedim(in_dims[0], 0), call)


class _Extreme(torch.autograd.Function):
    """The largest or smallest: its gradient goes to those who hold it, in equal parts."""

    @staticmethod
    def forward(x: torch.Tensor, call: Call) -> torch.Tensor:
        return _recorded(x, call)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call = inputs[1]
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        total = _summed(g, ctx.call)
        return _share(ctx) * total, None

    @staticmethod
    def jvp(ctx: Any, dx: torch.Tensor, _: Any) -> torch.Tensor:
        return _summed(_share(ctx) * dx, ctx.call)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor, call: Call) -> Any:
        return _batched(x.movedim(in_dims[0], 0), call)


def _summed(x: torch.Tensor, call: Call) -> torch.Tensor:
    return perform(x, replace(call, params=(("op", "sum"),)))


def _share(ctx: Any) -> torch.Tensor:
    """1 / (how many hold the extreme value) where this one does, else 0."""
    x, extreme = ctx.saved_tensors
    holds = (x == extreme).to(x.dtype)
    return holds / _summed(holds, ctx.call)


def _batched(x: torch.Tensor, call: Call) -> tuple[torch.Tensor, int | None]:
    """The batch rule of the level above the one that runs now: x has its mapped dim in front.

    Returns:
        The result and its mapped dim; None for a result that is the same for all positions.
    """
    here = axis_names.at_level(axis_names.level() + 1)
    if here is None or here.name not in call.axes:
        return _apply(x, call.with_batch_dim()), 0
    assert call.axes == (here.name,), "a name that vmap binds stands alone in its call"
    if call.groups is None and call.kind == "all_reduce":
        whole = reduced(x, call.arguments["op"])
        return whole if here.size else torch.zeros_like(whole), None
    if call.groups is None and call.kind == "all_gather":
        dim = call.arguments["dim"]
        return x[: here.size].movedim(0, dim).flatten(dim, dim + 1), None
    form = COLLECTIVES[call.kind].form
    assert form is not None
    return in_groups(form, x, call.groups, call.arguments), 0


def _apply(x: torch.Tensor, call: Call) -> torch.Tensor:
    extreme = call.arguments.get("op") in ("max", "min")
    made: torch.Tensor = (_Extreme if extreme else _Linear).apply(x, call)
    return made


def perform(x: torch.Tensor, call: Call) -> torch.Tensor:
    """Apply a collective to a tensor that may not be mapped along its names yet.

    Communication: over axes of devices, what the row of `COLLECTIVES` says.
    """
    for axis in call.axes:
        x = lifted(x, axis_names.find(axis))
    return _apply(x, call)


def collective(
    kind: str, x: torch.Tensor, axes: Sequence[str], groups: Groups | None = None, **params: Any
) -> torch.Tensor:
    """A collective over axes that are all of devices, or over one that vmap binds."""
    size = len(groups[0]) if groups else _total(axes)
    return perform(x, Call(kind, tuple(axes), size, groups, tuple(params.items())))


def _total(axes: Sequence[str]) -> int:
    size = 1
    for axis in axes:
        size *= axis_names.find(axis).size
    return size


def lifted(x: torch.Tensor, name: axis_names.Name) -> torch.Tensor:
    """The tensor, mapped along the name: functorch skips the batch rule of an op whose operands are not."""
    if name.index is None or axis_names.is_free(name) or _is_mapped(x, name.level):
        return x
    return torch.where(name.index >= 0, x, x)


def _is_mapped(x: torch.Tensor, level: int) -> bool:
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        if functorch.is_batchedtensor(x) and functorch.maybe_get_level(x) == level:
            return True
        x = functorch.get_unwrapped(x)
    return False


def axes_of(axis_name: Any) -> tuple[str, ...]:
    """One name or a tuple of names, each bound, none twice.

    Raises:
        AxisNameError: a name that nobody binds.
        MappingError: a name that stands there twice, or something that is no name.
    """
    axes = tuple(axis_name) if isinstance(axis_name, list | tuple) else (axis_name,)
    for axis in axes:
        if not isinstance(axis, str):
            raise MappingError(
                message(
                    "an axis name is a string",
                    got=f"{axis!r} ({type(axis).__name__})",
                    try_="psum(x, 'i'), or a tuple of names",
                )
            )
        axis_names.find(axis)
    if len(set(axes)) < len(axes):
        raise MappingError(message("an axis name stands twice in one collective", got=repr(axes)))
    return axes


def one_by_one(axes: Sequence[str]) -> list[tuple[str, ...]]:
    """The axes in parts that one op can take: those of devices in this region together, every other one alone."""
    found = [axis_names.find(axis) for axis in axes]
    if found and all(n.level == 0 and not axis_names.is_free(n) for n in found):
        return [tuple(axes)]
    return [(axis,) for axis in axes]


def groups_of(axes: Sequence[str], axis_index_groups: Any) -> Groups | None:
    """Check and freeze `axis_index_groups`.

    Raises:
        MappingError: they do not cover each index once, differ in size, or go with several axes of which vmap binds
            one.
    """
    if axis_index_groups is None:
        return None
    groups = tuple(tuple(int(i) for i in group) for group in axis_index_groups)
    size = _total(axes)
    problem = ""
    if len(one_by_one(axes)) != 1:
        problem = "several axes with groups must all be axes of devices: vmap binds one at a time"
    elif sorted(i for g in groups for i in g) != list(range(size)):
        problem = f"they must cover all indices 0 .. {size - 1} exactly once"
    elif len({len(g) for g in groups}) != 1:
        problem = "they must all be of the same size"
    if problem:
        got = f"{[list(g) for g in groups]} for {'*'.join(axes)} of size {size}"
        raise MappingError(message("axis_index_groups do not fit", got=got, rule=problem))
    return groups


def dim_of(dim: int, ndim: int, what: str) -> int:
    """A dim counted from the front.

    Raises:
        MappingError: the tensor has no such dim.
    """
    if not -ndim <= dim < ndim:
        raise MappingError(
            message(
                f"{what} is no dim of the operand", got=f"{what}={dim}, an operand of {ndim} dims for each of the axis"
            )
        )
    return dim % ndim


def on_leaves(one: Callable[[torch.Tensor, int], Any], tree: Any, adds: str = "") -> Any:
    """What a collective does to each leaf: `one(leaf, ndim)`, ndim being the dims that its user counts.

    Args:
        one: of a tensor; of keys it gets the words, whose last dim stays.
        tree: leaves are tensors, what can be made one, and keys.
        adds: what the collective is called, if it computes with values: then keys are refused.

    Raises:
        DtypeError: a leaf is no tensor, or keys where values are computed with.
    """

    def apply(leaf: Any) -> Any:
        if not is_whole(leaf):
            x = leaf if isinstance(leaf, torch.Tensor) else as_tensor(leaf)
            return one(x, x.dim())
        if adds:
            got = f"a {type(leaf).__name__} of shape {leaf.shape} for each of the axis"
            try_ = "all_gather or ppermute, which move keys; or ts.random.fold_in(key, number) for another key"
            raise DtypeError(message(f"{adds} computes with numbers, and keys are none", got=got, try_=try_))
        return type(leaf)(one(leaf.data, leaf.ndim))

    return tree_map(apply, tree, is_leaf=is_whole)

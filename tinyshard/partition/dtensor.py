"""A plan by DTensor's rule: asked on few axes, tried on tensors without values.

Every touch of torch's internal API for DTensor is here. Its sharding propagator is asked, on meta tensors and on
a mesh without process group, which placement each operand of an op must have and which one each result gets. That takes
10 ms on two axes, 0.6 s on four: so an op is planned on as few as its operands need. To import DTensor takes half a
second (sympy comes with it), so this module is imported when the first op needs a rule.
"""

from __future__ import annotations

import atexit
import gc
import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from tinyshard.core.layout import Axes
from tinyshard.core.types import ShapedType
from tinyshard.partition.on_meta import run_on_meta
from tinyshard.partition.op_table import AS_RESHAPE, combined_by
from tinyshard.partition.plan import Plan, local_types
from tinyshard.partition.reshard import Dims, ShardedVar

_dispatcher = DTensor._op_dispatcher
_propagator = _dispatcher.sharding_propagator


class NoRule(Exception):
    """DTensor has no rule for this op and these placements, or one that needs more than plain blocks.

    `axes` are the axes that the trouble is about; empty if it is about all of them.
    """

    def __init__(self, why: str, axes: Axes = ()) -> None:
        super().__init__(why)
        self.axes = axes


def by_rule(op: Any, args: Any, kwargs: Any, whole: Any, axes: Axes, hidden: set[int]) -> Plan:
    """Ask DTensor, and try its answer on meta tensors."""

    def visible(x: ShardedVar) -> ShardedVar:
        dims = []
        for cut in x.dims:
            kept = next((i for i, a in enumerate(cut) if a in hidden), len(cut))
            dims.append(cut[:kept])
        return replace(x, dims=tuple(dims), partial=tuple(p for p in x.partial if p[0] not in hidden))

    args, kwargs = tree_map_only(ShardedVar, visible, (args, kwargs))
    operands = [x for x in tree_leaves((args, kwargs)) if isinstance(x, ShardedVar)]
    groups, refused = planning_axes(operands, merge=op not in AS_RESHAPE)
    mesh = _mesh(tuple(math.prod(axes[a] for a in group) for group in groups))

    def as_dtensor(x: ShardedVar) -> DTensor:
        x = replace(x, dims=tuple(() if (x.number, d) in refused else cut for d, cut in enumerate(x.dims)))
        return _as_dtensor(x, [_placement(x, group) for group in groups], mesh, x.local(axes).shape)

    answer, placements, new_args, new_kwargs = _ask(op, args, kwargs, as_dtensor)
    for each in (
        *placements,
        *(x.placements for x in tree_leaves((new_args, new_kwargs)) if isinstance(x, DTensorSpec)),
    ):
        strange = [(g, p) for g, p in zip(groups, each or (), strict=False) if _is_strange(p)]
        if strange:
            raise NoRule(f"needs {[p for _, p in strange]}", tuple(a for group, _ in strange for a in group))

    def blocks(meta: Any, placements: Sequence[Any]) -> tuple[Dims, tuple[tuple[int, str], ...]]:
        dims: list[Axes] = [()] * len(meta.shape)
        partial: list[tuple[int, str]] = []
        for group, placement in zip(groups, placements, strict=True):
            if isinstance(placement, Partial):
                partial += [(a, combined_by(op, meta.dtype, placement.reduce_op)) for a in group]
            elif isinstance(placement, Shard):
                dims[placement.dim] += group
                if meta.shape[placement.dim] % math.prod(axes[a] for a in dims[placement.dim]):
                    raise NoRule("an uneven shard", group)
        return tuple(dims), tuple(partial)

    old = iter(operands)

    def as_placed(spec: DTensorSpec) -> ShardedVar:
        dims, partial = blocks(spec.tensor_meta, spec.placements)
        before = next(old)
        if not set(partial) <= set(before.partial):
            raise NoRule("an operand as a partial sum", tuple(a for a, _ in partial))
        return replace(before, dims=dims, partial=partial)

    new_args, new_kwargs = tree_map_only(DTensorSpec, as_placed, (new_args, new_kwargs))
    op = answer.op
    if op is torch.ops.aten.squeeze.dims and len(new_args) > 1 and isinstance(new_args[1], int):
        new_args = (new_args[0], [new_args[1]])  # what it answers for squeeze.dim
    placements = placements if len(placements) == len(whole) else placements * len(whole)
    if len(placements) != len(whole):
        raise NoRule("other results than the op has")
    results = tuple(
        None if m is None else ShardedVar(0, m.shape, m.dtype, *blocks(m, p or (Replicate(),) * len(groups)))
        for m, p in zip(whole, placements, strict=True)
    )
    made = local_types(results, axes)
    try:
        local = run_on_meta(op, new_args, new_kwargs, axes, local=True)
    except RuntimeError as error:  # torch's word that shards of these shapes are no operands of the op
        raise NoRule(f"the op refuses its shards: {error}") from error
    if local != made:
        raise NoRule(f"the op makes {local} of its shards, not {made}")
    return Plan(op, new_args, new_kwargs, results)


def _is_strange(placement: Any) -> bool:
    """No plain block, copy or part: as `_StridedShard`."""
    return isinstance(placement, _StridedShard) or (isinstance(placement, Partial) and type(placement) is not Partial)


def _placement(x: ShardedVar, group: Axes) -> Any:
    dim = next((d for d, cut in enumerate(x.dims) if group[0] in cut), None)
    how = next((how for a, how in x.partial if a == group[0]), None)
    return Shard(dim) if dim is not None else Replicate() if how is None else Partial(how)


@lru_cache(maxsize=64)
def _mesh(sizes: Axes) -> DeviceMesh:
    # _init_backend=False: no process group is made, the kernel's default group stays free for the learner
    return DeviceMesh("cpu", torch.arange(math.prod(sizes)).reshape(sizes), _init_backend=False, _rank=0)


def _as_dtensor(x: ShardedVar, placements: Sequence[Any], mesh: DeviceMesh, local: Sequence[int]) -> DTensor:
    whole = torch.empty(x.shape, dtype=x.dtype, device="meta")
    spec = DTensorSpec(mesh, tuple(placements), TensorMeta(whole.shape, whole.stride(), x.dtype))
    meta = torch.empty(local, dtype=x.dtype, device="meta")
    return DTensor(meta, spec, requires_grad=False)  # type: ignore[no-untyped-call]


def _ask(op: Any, args: Any, kwargs: Any, as_dtensor: Any) -> tuple[Any, tuple[Any, ...], Any, Any]:
    """DTensor's answer, the placements of each result (None for one that is None), and the arguments with specs."""
    made = tree_map_only(ShardedVar, as_dtensor, (args, kwargs))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DTensor warns of costs that only its own runtime has
            info = _dispatcher.unwrap_to_op_info(op, *made)
            asked: Any = info.schema
            sharding = _propagator.propagate_op_sharding_non_cached(asked)
    except (RuntimeError, AssertionError) as error:
        # how DTensor says that it has no rule, or none for these placements; or a check within its own rule failed
        raise NoRule(f"DTensor: {(str(error) or 'a check of its own failed').splitlines()[0]}") from error
    redistributes = sharding.redistribute_schema is not None and sharding.needs_redistribute
    answer: Any = sharding.redistribute_schema if redistributes else asked
    spec: Any = sharding.output_spec
    specs = spec if isinstance(spec, list | tuple) else (spec,)
    new_kwargs = _in_form_of(kwargs, answer.kwargs_schema or asked.kwargs_schema)
    placements = tuple(None if s is None else s.placements for s in specs)
    return answer, placements, _in_form_of(args, answer.args_schema), new_kwargs


def _in_form_of(given: Any, answered: Any) -> Any:
    """The answer's arguments, which DTensor may have flattened, grouped as they were given."""
    answered = tree_map_only(torch.Size, tuple, answered, is_leaf=lambda x: isinstance(x, torch.Size))
    leaves, (old, form) = tree_leaves(answered), tree_flatten(given)
    operands = [isinstance(x, ShardedVar) for x in old]
    if len(leaves) != len(old):
        if isinstance(given, tuple) and sum(operands) == 1:
            return (leaves[0], *answered[1:])  # a variant with other arguments, as squeeze.dims for squeeze
        raise NoRule("DTensor answered with other arguments than it was asked about")
    if operands != [isinstance(x, DTensorSpec) for x in leaves]:
        raise NoRule("DTensor answered with other operands than it was asked about")
    return tree_unflatten(leaves, form)


@lru_cache(maxsize=1)
def warm_up() -> None:
    """Ask once about a plain case: torch imports much of itself only when it is first asked."""
    # the interpreter's last collection would walk all of that, for half a second, and free what ends with the process
    atexit.register(gc.freeze)
    x, y = (ShardedVar(n, (2, 2), torch.float32, ((0,) * (1 - n), ())) for n in (0, 1))
    torch.ops.aten.add.Tensor(torch.empty(2, device="meta"), 1)
    by_rule(torch.ops.aten.mm.default, (x, y), {}, (ShapedType((2, 2), torch.float32),), (2,), set())


def planning_axes(operands: Sequence[ShardedVar], *, merge: bool = True) -> tuple[list[Axes], set[tuple[int, int]]]:
    """The axes to plan on: as few as the operands need, ordered so that each cut names them in ascending order.

    Args:
        operands: the tensors that the op takes.
        merge: join axes that all operands use as one; a view may need them apart.

    Returns:
        Groups of axes that all operands use as one, and the (value number, dim) whose cut fits no such order.

    Example:
        >>> import torch
        >>> x = ShardedVar(0, (8, 8), torch.float32, ((2, 0), (1,)))
        >>> planning_axes([x])
        ([(1,), (2, 0)], set())
    """
    cuts = [(x, d, cut) for x in sorted(operands, key=lambda x: -math.prod(x.shape)) for d, cut in enumerate(x.dims)]
    refused: set[tuple[int, int]] = set()
    after: dict[int, set[int]] = {}
    for x, d, cut in cuts:
        trial = {a: set(b) for a, b in after.items()}
        for a in cut:
            trial.setdefault(a, set())
        for a, b in pairwise(cut):
            trial[a].add(b)
        if _order(trial) is None:
            refused.add((x.number, d))
        else:
            after = trial
    for x in operands:
        for a, _ in x.partial:
            after.setdefault(a, set())
    order = _order(after) or []
    kept = [cut for x, d, cut in cuts if (x.number, d) not in refused]
    reduced = [dict(x.partial) for x in operands]
    groups: list[Axes] = []
    for a in order:
        if merge and groups and _used_as_one(groups[-1][-1], a, kept, reduced):
            groups[-1] += (a,)
        else:
            groups.append((a,))
    return groups, refused


def _used_as_one(a: int, b: int, cuts: Sequence[Axes], partial: Sequence[dict[int, str]]) -> bool:
    for cut in cuts:
        if (a in cut or b in cut) and (a, b) not in pairwise(cut):
            return False
    return all(p.get(a) == p.get(b) for p in partial)


def _order(after: dict[int, set[int]]) -> list[int] | None:
    """A topological order, neighbours of one cut kept together where possible; None if there is a cycle."""
    order: list[int] = []
    left = {a: set(b) for a, b in after.items()}
    while left:
        blocked = {b for bs in left.values() for b in bs}
        free = [a for a in left if a not in blocked]
        if not free:
            return None
        follows = [a for a in free if order and a in after.get(order[-1], ())]
        chosen = min(follows or free)
        order.append(chosen)
        del left[chosen]
    return order

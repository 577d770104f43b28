"""What PyTorch's DTensor knows about sharding ops: every touch of torch's internal API for it is in this file.

DTensor's sharding propagator is asked, on meta tensors and on a mesh without process group, which placement each
operand of an op must have and which one each result gets. Importing it takes half a second (sympy comes with it), so
this module is imported when the first op needs a rule.
"""

from __future__ import annotations

import atexit
import gc
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.placement_types import _StridedShard
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

_dispatcher = DTensor._op_dispatcher
_propagator = _dispatcher.sharding_propagator

# along one axis: ("shard", dim), ("replicate",) or ("partial", op)
Placement = tuple[Any, ...]
REPLICATE: Placement = ("replicate",)


class NoRule(Exception):
    """DTensor has no rule for this op and these placements, or one that needs more than plain blocks.

    `axes` are the axes that the trouble is about; empty if it is about all of them.
    """

    def __init__(self, why: str, axes: tuple[int, ...] = ()) -> None:
        super().__init__(why)
        self.axes = axes


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor operand as DTensor is told of it: global shape and dtype, and its placement along each axis."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What DTensor says.

    Attributes:
        op: the op to run on shards (as `squeeze`, which becomes `squeeze.dims`).
        args, kwargs: its arguments, Operands in the placement that they must have, sizes made local.
        results: for each tensor result its placements; None for a result that is None.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[tuple[Placement, ...] | None, ...]


@lru_cache(maxsize=64)
def _mesh(sizes: tuple[int, ...]) -> DeviceMesh:
    count = 1
    for size in sizes:
        count *= size
    # _init_backend=False: no process group is made, the kernel's default group stays free for the learner
    return DeviceMesh("cpu", torch.arange(count).reshape(sizes), _init_backend=False, _rank=0)


def ask(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], sizes: tuple[int, ...]) -> Answer:
    """Ask for the placements of one op.

    Args:
        op: the OpOverload.
        args, kwargs: its arguments with an `Operand` for each tensor.
        sizes: sizes of the axes, in the order of the placements.

    Raises:
        NoRule: there is no usable rule.
    """
    mesh = _mesh(sizes)
    made = tree_map_only(Operand, lambda x: _as_dtensor(x, mesh), (args, kwargs))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # DTensor warns of costs that only its own runtime has
            info = _dispatcher.unwrap_to_op_info(op, *made)
            asked: Any = info.schema
            sharding = _propagator.propagate_op_sharding_non_cached(asked)
    except (RuntimeError, AssertionError) as error:
        # how DTensor says that it has no rule, or none for these placements; or a check within its own rule failed
        raise NoRule(f"DTensor: {(str(error) or 'a check of its own failed').splitlines()[0]}") from error
    schema = asked
    if sharding.redistribute_schema is not None and sharding.needs_redistribute:
        schema = sharding.redistribute_schema
    spec: Any = sharding.output_spec
    specs = spec if isinstance(spec, list | tuple) else (spec,)
    results = tuple(None if s is None else _placements(s.placements) for s in specs)
    answered = _in_form_of(args, schema.args_schema)
    if (
        schema.op is torch.ops.aten.squeeze.dims and len(answered) > 1 and isinstance(answered[1], int)
    ):  # what it answers for squeeze.dim
        answered = (answered[0], [answered[1]])
    return Answer(
        schema.op,
        answered,
        _in_form_of(kwargs, schema.kwargs_schema or asked.kwargs_schema),
        results,
    )


def _in_form_of(given: Any, answered: Any) -> Any:
    """The answer's arguments, which DTensor may have flattened, grouped as they were given."""
    answered = tree_map_only(torch.Size, tuple, answered, is_leaf=lambda x: isinstance(x, torch.Size))
    leaves = [_as_operand(x) if isinstance(x, DTensorSpec) else x for x in tree_leaves(answered)]
    old, form = tree_flatten(given)
    if len(leaves) != len(old):
        if isinstance(given, tuple) and sum(isinstance(x, Operand) for x in old) == 1:
            return (leaves[0], *answered[1:])  # a variant with other arguments, as squeeze.dims for squeeze
        raise NoRule("DTensor answered with other arguments than it was asked about")
    if [isinstance(x, Operand) for x in old] != [isinstance(x, Operand) for x in leaves]:
        raise NoRule("DTensor answered with other operands than it was asked about")
    return tree_unflatten(leaves, form)


def _as_dtensor(x: Operand, mesh: DeviceMesh) -> DTensor:
    whole = torch.empty(x.shape, dtype=x.dtype, device="meta")
    spec = DTensorSpec(
        mesh, tuple(map(_torch_placement, x.placements)), TensorMeta(whole.shape, whole.stride(), x.dtype)
    )
    local = list(x.shape)
    for size, placement in zip(mesh.shape, x.placements, strict=True):
        if placement[0] == "shard":
            local[placement[1]] //= size
    meta = torch.empty(local, dtype=x.dtype, device="meta")
    return DTensor(meta, spec, requires_grad=False)  # type: ignore[no-untyped-call]


def _torch_placement(placement: Placement) -> Any:
    kind = placement[0]
    return Shard(placement[1]) if kind == "shard" else Partial(placement[1]) if kind == "partial" else Replicate()


def _as_operand(spec: DTensorSpec) -> Operand:
    meta = spec.tensor_meta
    assert meta is not None
    return Operand(tuple(meta.shape), meta.dtype, _placements(spec.placements))


def _placements(placements: Sequence[Any]) -> tuple[Placement, ...]:
    trouble = [
        axis
        for axis, p in enumerate(placements)
        if isinstance(p, _StridedShard) or (isinstance(p, Partial) and type(p) is not Partial)
    ]
    if trouble:
        raise NoRule(f"needs {[placements[a] for a in trouble]}", tuple(trouble))
    return tuple(map(_plain_placement, placements))


def _plain_placement(placement: Any) -> Placement:
    if isinstance(placement, Shard):
        return ("shard", placement.dim)
    return ("partial", placement.reduce_op) if isinstance(placement, Partial) else REPLICATE


@lru_cache(maxsize=1)
def warm_up() -> None:
    """Ask once about a plain case: torch imports much of itself only when it is first asked."""
    # the interpreter's last collection would walk all of that, for half a second, and free what ends with the process
    atexit.register(gc.freeze)
    x = Operand((2, 2), torch.float32, (("shard", 0),))
    y = Operand((2, 2), torch.float32, (REPLICATE,))
    torch.ops.aten.add.Tensor(torch.empty(2, device="meta"), 1)
    ask(torch.ops.aten.mm.default, (x, y), {}, (2,))

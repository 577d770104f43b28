"""Values that are only described: shape, dtype, sharding, no data. `lower` accepts them, also on abstract meshes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from tinyshard.arrays.placement import as_sharding, device_put
from tinyshard.core.errors import DtypeError, ShardingError
from tinyshard.core.layout import Layout, is_same_placement
from tinyshard.core.thread_state import levels, types_around
from tinyshard.core.types import ShapedType
from tinyshard.sharding import NamedSharding, PartitionSpec, Sharding
from tinyshard.sharding.base import checked_shape
from tinyshard.sharding.mesh import Mesh


class ShapeDtypeStruct:
    """Describes an array: shape, dtype and sharding.

    Args:
        shape: global shape.
        dtype: a torch dtype.
        sharding: its sharding, with `set_mesh` also a PartitionSpec; None for an uncommitted value.

    Raises:
        ShardingError: the sharding does not fit the shape.
        DtypeError: the shape is not made of sizes, or the dtype is not a torch dtype.

    Communication: none.

    Two of the same shape, dtype and sharding are equal. `ndim`, `size` and `len` are those of the array.

    Example:
        >>> import tinyshard as ts
        >>> mesh = ts.AbstractMesh((64,), "x")
        >>> ShapeDtypeStruct((128, 3), torch.float32, sharding=ts.NamedSharding(mesh, ts.P("x")))
        f32[128@x, 3]
    """

    def __init__(
        self, shape: Sequence[int], dtype: torch.dtype, *, sharding: Sharding | PartitionSpec | None = None
    ) -> None:
        self.shape = checked_shape(shape)
        if not isinstance(dtype, torch.dtype):
            problem = "an array has one of torch's dtypes"
            raise DtypeError(problem, got=f"{dtype!r} ({type(dtype).__name__})", try_="torch.float32")
        self.dtype = dtype
        place = None if sharding is None else as_sharding(sharding)
        self.sharding = place
        self.committed = place is not None
        self._mesh: Mesh | None = place.mesh if isinstance(place, NamedSharding) else None
        self._layout: Layout | None = place.checked_layout(self.shape) if place is not None else None

    @property
    def ndim(self) -> int:
        """Number of dims."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def __len__(self) -> int:
        if not self.shape:
            raise DtypeError("a value of shape () has no length", got=repr(self))
        return self.shape[0]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShapeDtypeStruct):
            return NotImplemented
        return (self.shape, self.dtype, self.sharding) == (other.shape, other.dtype, other.sharding)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype, self.sharding))

    def __repr__(self) -> str:
        return described(self.shape, self.dtype, self.sharding)


def described(shape: Sequence[int], dtype: torch.dtype, sharding: Sharding | None) -> str:
    """`f32[8@a, 4@b]`: the dtype, and for each dim its size and the axes that cut it."""
    text = str(ShapedType((), dtype))
    if sharding is None:
        cuts = [""] * len(shape)
    elif isinstance(sharding, NamedSharding):
        entries = [*sharding.spec, *[None] * (len(shape) - len(sharding.spec))]
        cuts = ["" if not e else f"@{e}" if isinstance(e, str) else f"@({','.join(e)})" for e in entries]
    else:
        cuts = ["" if n == 1 else f"/{n}" for n in sharding.layout(len(shape)).parts]
    return text[:-1] + ", ".join(f"{n}{cut}" for n, cut in zip(shape, cuts, strict=True)) + "]"


def typeof(x: object) -> str:
    """The type of a value: dtype, sizes, and how each dim is cut.

    Args:
        x: an Array, a torch tensor, a ShapeDtypeStruct, or a number; within jit also a traced value.

    Returns:
        Text as `f32[8@a, 4@b]`; a dim cut by position is written `8/4`, in 4 parts. For a traced value only cuts along
        Explicit axes are known.

    Raises:
        DtypeError: not an array.

    Communication: none.

    Example:
        >>> typeof(torch.zeros(3, 2))
        'f32[3, 2]'
    """
    if not isinstance(x, torch.Tensor | ShapeDtypeStruct):
        try:
            x = torch.as_tensor(x)
        except (TypeError, ValueError, RuntimeError) as error:
            raise DtypeError("only arrays have a type", got=f"{x!r} ({type(x).__name__})") from error
    return described(tuple(x.shape), x.dtype, sharding_in_type(x))


def sharding_in_type(x: Any) -> Sharding | None:
    """The sharding of an Array; for a traced or mapped value, the one along explicit axes; None if unknown."""
    wrapped = levels(x)
    sharding, types = getattr(wrapped[-1], "sharding", None), types_around()
    if sharding is None and types is not None and isinstance(x, torch.Tensor):
        sharding = types.sharding_of(wrapped[-1])
    if len(wrapped) == 1 or sharding is None:
        return sharding
    if not isinstance(sharding, NamedSharding) or not sharding.mesh.is_explicit:
        return None
    entries = [*sharding.spec, *[None] * (wrapped[-1].dim() - len(sharding.spec))]
    functorch = torch._C._functorch
    for each in reversed(wrapped[:-1]):
        if functorch.is_batchedtensor(each):
            del entries[functorch.maybe_get_bdim(each)]
    return NamedSharding(sharding.mesh, PartitionSpec(*entries))


def put_where(x: Any, sharding: Sharding, described: bool) -> Any:
    """An argument of jit in its in_shardings; raises ShardingError if it is committed elsewhere."""
    layout = sharding.checked_layout(tuple(x.shape))
    if getattr(x, "committed", False) and not is_same_placement(x._layout, layout):
        raise ShardingError(
            "an argument is committed to another sharding than in_shardings says",
            got=f"an Array of shape {tuple(x.shape)} with {x.sharding!r}",
            rule=f"in_shardings says {sharding!r}",
            try_="ts.device_put(x, sharding) before the call, or no in_shardings",
        )
    return ShapeDtypeStruct(tuple(x.shape), x.dtype, sharding=sharding) if described else device_put(x, sharding)


def put_at(x: Any, place: Any) -> Any:
    """A tensor in a sharding; anything else, and a tensor without one, unchanged."""
    return device_put(x, as_sharding(place)) if place is not None and isinstance(x, torch.Tensor) else x

"""Functions that read or copy the memory of a tensor: an Array has values, and no memory in this process.

as_strided reads the memory of a tensor; an Array is read as one contiguous tensor.

    x                        f32[8, 4], not a view: its memory is its values in order
    x.flatten(), x[None]     the same memory, in the same order
    x.T, x[:, 1], x[2:]      in torch a part of x's memory, or another order of it: an offset and strides count in x

copy.deepcopy of a traced value, or of one that a transformation wraps, is a clone, and its storage is refused. The
result of an op that copies or not by the strides (reshape, contiguous) cannot be changed in place afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from tinyshard.arrays.function_overrides.show import is_traced
from tinyshard.arrays.refusals import Immutable, no_memory_wrapped
from tinyshard.core.errors import DtypeError
from tinyshard.core.thread_state import innermost, levels

aten = torch.ops.aten

# views whose values are in the same order in memory as those of their operand
_IN_ORDER = {
    aten.view.default,
    aten._unsafe_view.default,
    aten._reshape_alias.default,
    aten.unsqueeze.default,
    aten.squeeze.default,
    aten.squeeze.dim,
    aten.squeeze.dims,
}


def is_part(op: Any, operand: Any) -> bool:
    """Whether the result of a view op is, in torch, a part of its base's memory, or in another order."""
    return op not in _IN_ORDER or getattr(operand, "_is_part", False)


def check_traced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse as_strided in a graph where its operand, a node, is in torch a view or not contiguous.

    Raises:
        DtypeError: the values would not be torch's.
    """
    value = args[0].meta["val"]
    offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
    starts_there = offset is None or value.storage_offset() == 0
    if not (value.is_contiguous() and starts_there):
        _refuse(value)


def _refuse(x: Any) -> NoReturn:
    """Raise DtypeError: as_strided of a part of a tensor."""
    raise DtypeError(
        "as_strided of a part of a tensor",
        got=f"a view of shape {tuple(x.shape)}, as x.T or x[2:] is",
        rule="its strides count in the memory of the whole tensor, and an Array has values and no memory",
        try_="x.clone(memory_format=torch.contiguous_format) before it, if the strides are meant for its own values; "
        "or x.unfold, x.T, slices",
    )


def as_strided(func: Any, *args: Any, **kwargs: Any) -> Any:
    """`as_strided` of an Array, or of a transformation's wrapper around one."""
    x = args[0] if args else kwargs.get("input")
    if getattr(innermost(x), "_is_part", False):
        _refuse(x)
    return func(*args, **kwargs)


def maybe_copied(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Within a transformation, a method that copies or not by the strides: an Array is not changed after it."""
    value = innermost(args[0] if args else kwargs.get("input"))
    if isinstance(value, Immutable):
        value._mark_viewed()
    return func(*args, **kwargs)


def method_of_arrays(func: Any) -> Callable[..., Any]:
    """A method that `Immutable` overrides, called as a function of `torch.Tensor`."""

    def called(x: torch.Tensor, *args: Any) -> Any:
        return getattr(x, func.__name__)(*args)

    return called


def set_data(x: torch.Tensor, value: torch.Tensor) -> None:
    """The op behind `x.data = value`, which torch's dispatcher calls regardless of the class."""
    x.data = value


def deepcopy_transformed(x: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """`copy.deepcopy` within a transformation: the wrapped value has no memory to copy."""
    return x.clone() if len(levels(x)) > 1 else x.__deepcopy__(memo)


def deepcopy_traced(x: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    """`copy.deepcopy` in a trace."""
    if id(x) not in memo:
        memo[id(x)] = x.clone() if is_traced(x) else x.__deepcopy__(memo)
    copy: torch.Tensor = memo[id(x)]
    return copy


def untyped_storage(x: torch.Tensor) -> Any:
    """`untyped_storage` within a transformation or a trace."""
    if len(levels(x)) > 1:
        no_memory_wrapped("untyped_storage")
    return x.untyped_storage()

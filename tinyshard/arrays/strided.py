"""as_strided reads the memory that a tensor lies in; an Array has values, which are read as one contiguous tensor.

x                        f32[8, 4] as made: its memory is its values in order
x.flatten(), x[None]     the same memory, in the same order
x.T, x[:, 1], x[2:]      in torch a part of x's memory, or another order of it: an offset and strides count in x
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from tinyshard.core.errors import DtypeError

aten = torch.ops.aten

FUNCTIONS = {torch.as_strided, torch.Tensor.as_strided}

# views whose values lie in memory as those of their operand do
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
    """Whether the result of a view op is, in torch, a part of some memory or another order of it."""
    return op not in _IN_ORDER or getattr(operand, "_is_part", False)


def check_traced(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse as_strided in a graph where its operand, a node, is not in torch a contiguous tensor of its own.

    Raises:
        DtypeError: the values would not be torch's.
    """
    value = args[0].meta["val"]
    offset = args[3] if len(args) > 3 else kwargs.get("storage_offset")
    starts_there = offset is None or value.storage_offset() == 0
    if not (value.is_contiguous() and starts_there):
        refuse(value)


def refuse(x: Any) -> NoReturn:
    """Raise DtypeError: as_strided of a part of a tensor."""
    raise DtypeError(
        "as_strided of a part of a tensor",
        got=f"a view of shape {tuple(x.shape)}, as x.T or x[2:] is",
        rule="its strides count in the memory of the whole tensor, and an Array has values and no memory",
        try_="x.clone(memory_format=torch.contiguous_format) before it, if the strides are meant for its own values; "
        "or x.unfold, x.T, slices",
    )

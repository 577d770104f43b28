"""Which tensors a device can hold: dense ones in plain memory. Other tensors are refused before anything is sent."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from tinyshard.core.errors import DtypeError

QUANTIZED = frozenset({torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4})
# torch has names for these dtypes but no op on them, not even a copy
NARROW = frozenset(getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in range(1, 8))
# aten ops that make another kind of tensor, by the prefixes of their names
_IN_PLACE_OF_FUSED = (
    "ts.optim.functional(torch.optim.AdamW, lr=1e-3), in place of an optimizer with fused=True;\n"
    "g / scale and torch.isfinite(g).all(), in place of a GradScaler's unscale_"
)
_MAKES = {
    ("quantize_per_", "quantized_", "_make_per_"): "a quantized tensor",
    ("to_sparse", "_to_sparse", "sparse_", "_sparse_"): "a sparse tensor",
    ("to_mkldnn",): "an mkldnn tensor",
    ("_nested_",): "a nested tensor",
}
_RULE = "a device holds dense (strided) values of torch's plain dtypes"


def check_holdable(x: torch.Tensor) -> None:
    """Refuse a host tensor that no device can hold.

    Raises:
        DtypeError: it is quantized, sparse, nested, mkldnn, meta or fake, on another torch device than the CPU, or of
            a dtype that torch itself can only name.

    Communication: none.

    Example:
        >>> check_holdable(torch.ones(2).to_sparse())
        Traceback (most recent call last):
        tinyshard.errors.DtypeError: only dense CPU tensors can be placed
          got:  torch.sparse_coo of shape (2,), torch.float32
          rule: a device holds dense (strided) values of torch's plain dtypes
          try:  x.to_dense()
    """
    found = _trouble(x)
    if found is not None:
        kind, try_ = found
        shape = "" if x.is_nested else f" of shape {tuple(x.shape)}"
        got = f"{kind}{shape}, {x.dtype}"
        raise DtypeError("only dense CPU tensors can be placed", got=got, rule=_RULE, try_=try_)


def _trouble(x: torch.Tensor) -> tuple[str, str] | None:
    """The kind of the tensor and what to do instead; None if a device can hold it."""
    from torch._subclasses.fake_tensor import FakeTensor

    if isinstance(x, FakeTensor):
        return "a fake tensor, without values,", "a real tensor; a ts.ShapeDtypeStruct where only the shape matters"
    if x.is_nested:
        return "a nested tensor", "torch.nested.to_padded_tensor(x, 0.0)"
    if x.layout != torch.strided:
        return str(x.layout), "x.to_dense()"
    if x.is_meta:
        return "a meta tensor, without values,", "a real tensor; a ts.ShapeDtypeStruct where only the shape matters"
    if x.device.type != "cpu":
        return f"a tensor on {x.device}", "x.cpu()"
    if x.is_quantized or x.dtype in QUANTIZED:
        return "a quantized tensor", "x.dequantize(), or x.int_repr() for the integers"
    if x.dtype in NARROW:
        return "a tensor of a dtype that torch cannot copy", "the integers as torch.int8 or torch.uint8"
    return None


def check_makes_holdable(op: Any) -> None:
    """Refuse an op whose result no device can hold, by its name, or no program, by its schema.

    Args:
        op: an OpOverload.

    Raises:
        DtypeError: it makes a quantized, sparse, mkldnn or nested tensor; or, as the fused optimizers do, a list and
            further results.
    """
    name = op._schema.name.removeprefix("aten::")
    if _makes_lists_and_more(op):
        is_fused = name.startswith(("_fused_", "_amp_"))
        raise DtypeError(
            "an op makes a list of tensors, and more beside it",
            got=str(op),
            rule="an op of a program makes tensors, or one list of them",
            try_=_IN_PLACE_OF_FUSED if is_fused else "an op for the list, and one for the rest",
        )
    for beginnings, kind in _MAKES.items():
        if name.startswith(beginnings):
            raise _cannot_be_made(op, kind)


@cache
def _makes_lists_and_more(op: Any) -> bool:
    written = [a for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    results = op._schema.returns, written
    return any(len(returned) > 1 and any("List" in str(x.type) for x in returned) for returned in results)


def check_result(op: Any, x: torch.Tensor) -> None:
    """Refuse a result of an op, given as a tensor without values, that no device can hold.

    Raises:
        DtypeError: it is quantized, sparse, mkldnn or nested, or of a dtype that torch cannot copy.
    """
    if x.layout != torch.strided or x.is_quantized or x.dtype in QUANTIZED or x.dtype in NARROW or x.is_nested:
        raise _cannot_be_made(op, f"{x.layout}, {x.dtype}")


def _cannot_be_made(op: Any, kind: str) -> DtypeError:
    return DtypeError(
        "an op on an Array makes a value that no device can hold",
        got=f"{op}, which makes {kind}",
        rule=_RULE,
        try_="the op on ts.device_get(x), on the host",
    )

"""The shapes and dtypes of an op's results: it runs on tensors without values, or where torch cannot, on zeros."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten

from tinyshard.core.device_dtypes import check_makes_holdable, check_result
from tinyshard.core.errors import DtypeError
from tinyshard.core.types import ShapedType
from tinyshard.partition.op_table import (
    AS_RESHAPE,
    CHECKS_VALUES,
    SHAPED_BY_VALUES,
    has_mask,
    meta_differs,
)
from tinyshard.partition.reshard import ShardedVar

aten = torch.ops.aten


class UnknownShape(Exception):
    """The shape of the result depends on values (nonzero, boolean masks)."""


def run_on_meta(op: Any, args: Any, kwargs: Any) -> tuple[ShapedType | None, ...]:
    """Shapes and dtypes of the results, on whole tensors.

    Raises:
        UnknownShape: the shape depends on values.
        DtypeError: no device can hold such a result.
    """
    check_makes_holdable(op)

    def empty(x: ShardedVar) -> torch.Tensor:
        return torch.empty(x.shape, dtype=x.dtype, device="meta")

    by_values = torch.Tag.data_dependent_output in op.tags or torch.Tag.dynamic_output_shape in op.tags
    if by_values and not _is_shaped_by_arguments(op, args, kwargs):
        raise UnknownShape(str(op))
    meta_args, meta_kwargs = tree_map_only(ShardedVar, empty, (args, kwargs))
    if "device" in meta_kwargs:
        meta_kwargs = {**meta_kwargs, "device": torch.device("meta")}
    op = aten.reshape.default if op in AS_RESHAPE else op
    if meta_differs(op, args):
        return _run_on_zeros(op, args, kwargs)
    try:
        out = op(*meta_args, **meta_kwargs)
    except NotImplementedError:  # torch has no meta kernel for it
        return _run_on_zeros(op, args, kwargs)
    except (AssertionError, KeyError):  # how its meta kernel, in Python, refuses dtypes that no kernel takes
        check_takes(op, args, kwargs)
        raise
    return _metas(op, out)


def _run_on_zeros(op: Any, args: Any, kwargs: Any) -> tuple[ShapedType | None, ...]:
    """As `run_on_meta`, with the kernel of the CPU, which is slower.

    Raises:
        UnknownShape: the shape depends on values, or the kernel does not take zeros.
    """
    if op in SHAPED_BY_VALUES:
        raise UnknownShape(str(op))

    def zeros(x: ShardedVar) -> torch.Tensor:
        return torch.zeros(x.shape, dtype=x.dtype)

    zero_args, zero_kwargs = tree_map_only(ShardedVar, zeros, (args, kwargs))
    try:
        return _metas(op, op(*zero_args, **zero_kwargs))
    except RuntimeError as error:
        raise UnknownShape(str(op)) from error


def check_takes(op: Any, args: Any, kwargs: Any) -> None:
    """Refuse dtypes that the op itself refuses: the ops that replace it may take more.

    Raises:
        DtypeError: torch's kernel does not take operands of these dtypes, although its meta kernel does.
    """
    if op in CHECKS_VALUES:
        return
    leaves, form = tree_flatten((tuple(args), dict(kwargs)))
    tensors = (ShardedVar, torch.Tensor)
    described = tuple(ShapedType(tuple(x.shape), x.dtype) if isinstance(x, tensors) else x for x in leaves)
    with _disable_current_modes():  # within a trace
        word = _refusal(op, described, form)
    if word:
        got = ", ".join(str(x) for x in described if isinstance(x, ShapedType))
        raise DtypeError(
            f"{op} does not take operands of these dtypes",
            got=got,
            rule=f"torch: {word}",
            try_="x.float(), x.long() or x.int(), as the rule asks",
        )


@lru_cache(maxsize=1024)
def _refusal(op: Any, described: tuple[Any, ...], form: TreeSpec) -> str:
    """torch's error for the op on zeros of these dtypes, at most two along each dim; empty if it runs."""
    zeros = [
        torch.zeros([min(n, 2) for n in x.shape], dtype=x.dtype) if isinstance(x, ShapedType) else x for x in described
    ]
    args, kwargs = tree_unflatten(zeros, form)
    try:
        op(*args, **kwargs)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return ""


def _metas(op: Any, out: Any) -> tuple[ShapedType | None, ...]:
    flat = out if isinstance(out, list | tuple) else (out,)
    for t in flat:
        if isinstance(t, torch.Tensor):
            check_result(op, t)
    return tuple(ShapedType(tuple(t.shape), t.dtype) if isinstance(t, torch.Tensor) else None for t in flat)


def _is_shaped_by_arguments(op: Any, args: Any, kwargs: Any) -> bool:
    """Whether the shapes of this call's results are known, although torch tags the op as data-dependent.

    The shape of index.Tensor depends on values only with a boolean mask; that of repeat_interleave only if it is not
    passed the size of its result.
    """
    if op is aten.repeat_interleave.Tensor:
        return kwargs.get("output_size") is not None
    return op in (aten.index.Tensor, aten._unsafe_index.Tensor) and not has_mask(args[1])

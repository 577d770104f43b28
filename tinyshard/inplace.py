"""In-place ops: a user's are refused; those that torch makes on values of its own give the handle a new value.

torch's composite functions and autograd change intermediates in place: `F.linear` of a vector squeezes its result,
`maximum`'s gradient is filled where a mask holds. Such a value was made inside the running call (`array.origin`), and
nobody else has it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

from tinyshard.array import _DEFAULT_ORIGIN, Array, _refuse, origin
from tinyshard.program import Meta

aten = torch.ops.aten


def rebind(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an in-place op on a value made inside the running call, by its out-of-place form.

    Returns:
        The target, which has the new values.

    Raises:
        ImmutableError: the target is the user's; or it has views, which the new values would not reach.
    """
    name = op._schema.name.removeprefix("aten::")
    target = args[0] if args else None
    out_of_place = getattr(aten, name.removesuffix("_"), None) if name.endswith("_") else None
    only_shape = torch.Tag.inplace_view in op.tags
    if isinstance(target, Array) and out_of_place is not None and target._origin == origin() != _DEFAULT_ORIGIN:
        if not target._viewed or only_shape:
            return _given(target, getattr(out_of_place, op._overloadname)(*args, **kwargs), op, args, kwargs)
        made = f"{name} of a part of a tensor, inside a function of torch"
        _refuse(made, "say it in other functions, as torch.cat of the parts")
    if "out" in kwargs or op._overloadname.endswith("out"):
        _refuse(f"torch.{name}(..., out=...)", f"y = torch.{name}(...)")
    if not isinstance(target, Array):
        instead = f"torch.{name.removesuffix('_')}(t, x), which gives an Array, or ts.device_get(x)"
        _refuse(f"t.{name}(x)", instead, "a plain tensor cannot take the values of an Array in place")
    return _refuse(f"x.{name}(...)", f"y = torch.{name.removesuffix('_')}(x, ...)")


def _given(target: Array, result: Any, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Array:
    """The handle `target` with the value of `result`."""
    if result.dtype != target.dtype:
        result = result.to(target.dtype)
    target._buffer, target._layout, target._mesh = result._buffer, result._layout, result._mesh
    target._sharding = result._sharding
    if torch.Tag.inplace_view in op.tags:
        _reshape_handle(op, args, kwargs)
        target._meta = Meta(tuple(target.shape), target.dtype)
    return target


def _reshape_handle(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Change the shape that the handle itself has, as torch's own wrappers of tensors do it."""
    before = torch._C._meta_in_tls_dispatch_include()
    torch._C._set_meta_in_tls_dispatch_include(True)
    try:
        with no_dispatch():
            op(*args, **kwargs)
    finally:
        torch._C._set_meta_in_tls_dispatch_include(before)

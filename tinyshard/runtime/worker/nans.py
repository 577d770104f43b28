"""The flag `debug_nans`: a step that makes a NaN raises. Programs that are made without the flag do not use this."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

# ops whose results are not written yet
_UNWRITTEN = ("aten.empty", "aten.new_empty", "aten.resize")

F = TypeVar("F", bound=Callable[..., Any])


def checking(op: str, function: F) -> F:
    """A step's function that raises FloatingPointError if a result has a NaN."""
    if op.startswith(_UNWRITTEN):
        return function

    def checked(*args: Any) -> Any:
        result = function(*args)
        check(op, result)
        return result

    return checked  # type: ignore[return-value]


def check(op: str, result: Any) -> None:
    """Raise FloatingPointError if a tensor, or one of several, has a NaN."""
    for x in result if isinstance(result, list | tuple) else (result,):
        if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex()) and bool(torch.isnan(x).any()):
            raise FloatingPointError(
                f"invalid value (nan) encountered in {op}: {int(torch.isnan(x).sum())} of {x.numel()}"
            )

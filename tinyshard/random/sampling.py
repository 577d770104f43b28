"""The common part of all distributions: checks, and where the numbers are made."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from tinyshard.arrays.array import Array
from tinyshard.arrays.explicit import called
from tinyshard.core import config
from tinyshard.core.errors import DtypeError
from tinyshard.core.thread_state import is_tracing
from tinyshard.dispatch import eager
from tinyshard.lax.constraint import reshard
from tinyshard.primitives.floats import FLOATS, rounded
from tinyshard.primitives.legacy_threefry import DRAW_ORIGINAL, MOST_WORDS, word_count
from tinyshard.primitives.random_bits import DRAW
from tinyshard.random.key_creation import draw_op
from tinyshard.random.keys import DrawError, checked_key, checked_shape


def placed(draw: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Add the argument `out_sharding` to a distribution; within jit its numbers are made in that sharding."""

    @functools.wraps(draw)
    def drawn_there(*args: Any, out_sharding: Any = None, **kwargs: Any) -> Tensor:
        with called(draw.__name__):
            numbers = draw(*args, **kwargs)
        return numbers if out_sharding is None else reshard(numbers, out_sharding)

    known = inspect.signature(draw)
    *own, others = known.parameters.values()
    added = inspect.Parameter("out_sharding", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Any)
    drawn_there.__signature__ = known.replace(parameters=[*own, added, others])  # type: ignore[attr-defined]
    return drawn_there


def drawn(
    data: Tensor, shape: Sequence[int], kind: str, dtype: torch.dtype, low: float = 0.0, high: float = 1.0
) -> Tensor:
    """The numbers of one key: on the devices, except in a trace or a transformation of plain tensors.

    Args:
        data: the words of a key, int32[2].
        shape: checked.
        kind: "bits", "uniform" or "normal".
        dtype: of the numbers.
        low, high: of "uniform".

    Raises:
        DrawError: more words than the original mode has counters.
    """
    if not config.read("threefry_partitionable") and word_count(shape, kind, dtype) > MOST_WORDS:
        raise DrawError(
            "too many numbers for one key",
            got=f"shape {tuple(shape)}",
            rule="without threefry_partitionable a counter has 32 bits",
            try_="ts.config.update('threefry_partitionable', True)",
        )
    transformed = torch._C._functorch.is_functorch_wrapped_tensor(data)
    if is_tracing() or isinstance(data, Array) or transformed:
        return draw_op(data, shape, kind, dtype, low, high)
    # torch.func.grad would wrap a value that is made inside of it: the draw is a constant, made outside
    with temporarily_clear_interpreter_stack():
        if config.read("threefry_partitionable"):
            return eager.dispatch(DRAW, (data, shape, [1] * len(shape), [], kind, dtype, low, high), {})
        return eager.dispatch(DRAW_ORIGINAL, (data, shape, kind, dtype, low, high), {})


def unit(data: Tensor, shape: Sequence[int], dtype: torch.dtype, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Uniform numbers between two numbers, in one op."""
    return drawn(data, shape, "uniform", dtype, rounded(low, dtype), rounded(high, dtype))


def checked(function: str, key: Any, shape: Any) -> tuple[Tensor, list[int]]:
    """The words of the key, and the shape as a list; the shape is checked first, so an error does not use the key."""
    sizes = checked_shape(function, shape)
    return checked_key(function, key), sizes


def checked_float(function: str, dtype: torch.dtype | None) -> torch.dtype:
    """A float dtype; float32 for None.

    Raises:
        DtypeError: any other dtype.
    """
    dtype = torch.float32 if dtype is None else dtype
    if dtype not in FLOATS:
        raise DtypeError(
            f"{function} makes floats", got=str(dtype), rule=f"dtype is one of {', '.join(map(str, FLOATS))}"
        )
    return dtype


def checked_parameters(function: str, shape: Sequence[int] | None, **given: Any) -> list[int]:
    """The shape of a draw with parameters; by default that of the parameters.

    Raises:
        DtypeError: not a shape.
        DrawError: a parameter does not broadcast to the shape.
    """
    shape = None if shape is None else checked_shape(function, shape)
    shapes = {name: tuple(getattr(x, "shape", ())) for name, x in given.items()}
    try:
        broadcast = torch.broadcast_shapes(*shapes.values(), *([] if shape is None else [tuple(shape)]))
    except RuntimeError:
        broadcast = None
    if broadcast is None or (shape is not None and tuple(broadcast) != tuple(shape)):
        named = ", ".join(f"{name} of shape {s}" for name, s in shapes.items())
        raise DrawError(
            f"the parameters of {function} do not fit its shape",
            got=f"{named}, shape {None if shape is None else tuple(shape)}",
            rule="each parameter broadcasts to the shape",
        )
    return list(broadcast)


def number_of(value: Any) -> float | None:
    """A Python number unchanged; None for a tensor."""
    return float(value) if isinstance(value, int | float) else None


def check_range(function: str, low: Any, high: Any, widest: float | None = None) -> None:
    """Raise DrawError for numbers that are not a range; tensors are not checked, since reading them would wait.

    Args:
        function: the calling function, for errors.
        low, high: the bounds.
        widest: the largest width of the range, and its largest distance from 0; None for an unbounded range.
    """
    if not (isinstance(low, int | float) and isinstance(high, int | float)):
        return
    if not low <= high:
        raise DrawError(
            f"the range of {function} is empty", got=f"minval={low}, maxval={high}", rule="minval <= maxval"
        )
    if widest is not None and not (-widest <= low and high <= widest and high - low <= widest):
        raise DrawError(
            f"the range of {function} is wider than its dtype",
            got=f"minval={low}, maxval={high}",
            rule=f"minval, maxval and maxval - minval are at most {widest:.3g}",
        )

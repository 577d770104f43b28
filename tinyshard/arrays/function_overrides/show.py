"""Values that are shown, or become Python's: a traced value has a shape and a dtype, and no values.

print(x), f"{x}"            Traced f32[8, 4]
x.tolist(), x.numpy()       refused in a trace; inside of `grad`, `tolist` is asked of what `grad` wraps
torch.tensor([x, y])        refused in a trace: torch.stack
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from tinyshard.arrays.levels import levels
from tinyshard.arrays.refusals import Immutable, traced_value_error
from tinyshard.core.types import ShapedType


def is_traced(x: torch.Tensor) -> bool:
    """In a trace: whether a tensor is a stand-in, or what a transformation wraps around one."""
    is_plain = type(x) is torch.Tensor or isinstance(x, Immutable | torch.nn.Parameter)
    return not is_plain or torch._C._functorch.is_functorch_wrapped_tensor(x)


def tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`torch.tensor` in a trace."""
    if isinstance(data, list | tuple) and any(isinstance(x, torch.Tensor) for x in _leaves(data)):
        raise traced_value_error(
            problem="torch.tensor of traced values",
            rule="it takes Python numbers, and a traced value has no number yet",
            try_="torch.stack([...]), or ts.array([...]) which stacks",
        )
    return torch.tensor(data, *args, **kwargs)


def _leaves(data: Any) -> Iterator[Any]:
    for x in data:
        if isinstance(x, list | tuple):
            yield from _leaves(x)
        else:
            yield x


def repr_traced(x: torch.Tensor, *, tensor_contents: Any = None) -> str:
    """`repr` in a trace."""
    if is_traced(x):
        with torch._C.DisableTorchFunction():
            return f"Traced {ShapedType(tuple(x.shape), x.dtype)}"
    with _disable_current_modes():
        return repr(x)


def format_traced(x: torch.Tensor, spec: str) -> str:
    """`format` in a trace."""
    if spec and is_traced(x):
        raise traced_value_error()
    return repr_traced(x)


def values(name: str, x: torch.Tensor, **kwargs: Any) -> Any:
    """In a trace, a method that gives the values."""
    if is_traced(x):
        raise traced_value_error()
    return getattr(x, name)(**kwargs)


def tolist_transformed(x: torch.Tensor) -> Any:
    """`tolist` inside of a transformation: asked of what `grad` wraps."""
    inner = next(at for at in levels(x) if not torch._C._functorch.is_gradtrackingtensor(at))
    return inner.tolist() if isinstance(inner, Immutable) else torch.Tensor.tolist(inner)

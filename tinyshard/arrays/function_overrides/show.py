"""Values that are printed, or become Python values: a traced value has a shape and a dtype, and no values.

print(x), f"{x}"            Traced f32[8, 4]
x.tolist(), x.numpy()       refused in a trace; inside of `grad`, `tolist` is called on the wrapped value
torch.tensor([x, y])        refused in a trace and inside of `grad` for torch.stack; as_tensor, asarray likewise
torch.as_tensor(3.0)        a tensor with its own dtype, also where the number is an argument of a traced function
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from tinyshard.arrays.refusals import Immutable, traced_value_error
from tinyshard.core.errors import DtypeError
from tinyshard.core.thread_state import current_recorder, innermost, levels
from tinyshard.core.types import ShapedType


def is_traced(x: torch.Tensor) -> bool:
    """In a trace: whether a tensor is a stand-in, or a transformation's wrapper around one."""
    is_plain = type(x) is torch.Tensor or isinstance(x, Immutable | torch.nn.Parameter)
    return not is_plain or torch._C._functorch.is_functorch_wrapped_tensor(x)


def tensor_traced(func: Callable[..., Any], data: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.tensor`, `as_tensor` or `asarray` in a trace."""
    recorder = current_recorder()
    _refuse_listed(data, f"torch.{func.__name__}")
    if isinstance(data, torch.Tensor) and recorder is not None and data in recorder.numbers:
        data = data.to(data.dtype, copy=True)
        func = torch.asarray if func is torch.tensor else func  # without the warning about a tensor as its argument
    return func(data, *args, **kwargs)


def tensor_transformed(func: Callable[..., Any], data: Any, *args: Any, **kwargs: Any) -> Any:
    """`torch.tensor`, `as_tensor` or `asarray` inside of a transformation: torch handles plain tensors."""
    if any(isinstance(innermost(x), Immutable) for x in _listed(data)):
        raise DtypeError(
            f"torch.{func.__name__} of values that a transformation follows",
            got="a list of Arrays inside of grad, vmap or their like",
            rule="it takes Python numbers, which have no derivative",
            try_="torch.stack([...])",
        )
    return func(data, *args, **kwargs)


def new_tensor(x: torch.Tensor, data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`x.new_tensor` of numbers, some of which are Arrays: of their values. Waits."""
    if isinstance(data, list | tuple):
        data = tree_map_only(Immutable, lambda value: value._gather(), data)
    return x.new_tensor(data, *args, **kwargs)


def new_tensor_traced(x: torch.Tensor, data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """`x.new_tensor` in a trace."""
    _refuse_listed(data, "x.new_tensor")
    return x.new_tensor(data, *args, **kwargs)


def _refuse_listed(data: Any, what: str) -> None:
    """Raise TracedValueError for traced values in a list of numbers."""
    if any(True for _ in _listed(data)):
        raise traced_value_error(
            problem=f"{what} of traced values",
            rule="it takes Python numbers, and a traced value has no number yet",
            try_="torch.stack([...]), or ts.array([...]) which stacks",
        )


def _listed(data: Any) -> Iterator[torch.Tensor]:
    """The tensors in a list of numbers."""
    for x in data if isinstance(data, list | tuple) else ():
        if isinstance(x, torch.Tensor):
            yield x
        yield from _listed(x)


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
    """`tolist` inside of a transformation: of the value that `grad` wraps."""
    inner = next(level for level in levels(x) if not torch._C._functorch.is_gradtrackingtensor(level))
    return inner.tolist() if isinstance(inner, Immutable) else torch.Tensor.tolist(inner)

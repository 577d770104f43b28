"""A Python number among the arguments does not promote a tensor, as in eager torch.

jit(torch.mul)(f16[], 3.0)              f16[]: as torch.tensor(1.0, dtype=torch.float16) * 3.0
jit(torch.mul)(f16[], torch.tensor(3.0))   f32[]: two tensors

In a trace the number is a 0-d tensor without a value. With tensors that have dims torch promotes it as a number; with
0-d tensors it would count as a tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

from tinyshard.core.thread_state import current_recorder

_NUMBERS = (bool, int, float, complex, np.integer, np.floating)
_KINDS = (bool, int, float, complex)

Numbers = MutableMapping[torch.Tensor, None]  # stand-ins for numbers, and values computed only from these


def is_number(leaf: Any) -> bool:
    """Whether torch treats an argument as a Python number, or, in a trace, whether it is the stand-in for one."""
    recorder = current_recorder()
    return isinstance(leaf, _NUMBERS) or (
        recorder is not None and isinstance(leaf, torch.Tensor) and leaf in recorder.numbers
    )


def note_numbers(operands: Sequence[Any], numbers: Sequence[bool]) -> None:
    """In a trace: the operands of a function that becomes a part of it, and which of them are numbers."""
    recorder = current_recorder()
    if recorder is not None:
        recorder.numbers.update((x, None) for x, is_one in zip(operands, numbers, strict=True) if is_one)


def called(numbers: Numbers, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Call an op of a trace so that its result has the dtype that it has with Python numbers.

    An arithmetic op computes in the number's precision, and its result is rounded: `loss * 65536.0` of a 0-d
    float16 is finite where the product is. A comparison rounds the number first.

    Args:
        numbers: the numbers of the trace; the result is added if it is one too.
        op: an aten op, and its arguments.
    """
    if not numbers:
        return op(*args, **kwargs)
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    those = [x for x in tensors if x in numbers]
    result = op(*args, **kwargs)
    if not those or not isinstance(result, torch.Tensor) or op._schema.is_mutable:
        return result
    if len(those) == len(tensors):
        if result.dim() == 0 and kwargs.get("dtype") is None:
            numbers[result] = None
        return result
    if torch.Tag.pointwise not in op.tags:
        return result
    narrow_args, narrow_kwargs = rounded(numbers, tensors, tuple(args), kwargs)
    narrow = op(*narrow_args, **narrow_kwargs)
    return narrow if narrow.dtype is result.dtype else result.to(narrow.dtype)


def called_under_vmap(numbers: Numbers, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function that vmap maps: with the 0-d value of an example vmap treats a number as a tensor.

    Args:
        numbers: the numbers of the trace.
        function: of torch's, not in place; and its arguments.
    """
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    result = function(*args, **kwargs)
    if not isinstance(result, torch.Tensor) or not 0 < sum(x in numbers for x in tensors) < len(tensors):
        return result
    narrow_args, narrow_kwargs = rounded(numbers, tensors, args, kwargs)
    narrow = function(*narrow_args, **narrow_kwargs)
    return narrow if narrow.dtype is result.dtype else result.to(narrow.dtype)


def rounded(numbers: Numbers, tensors: Sequence[torch.Tensor], args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Arguments with each number in the dtype in which torch computes; unchanged with tensors that have dims."""
    others = [x for x in tensors if x not in numbers]
    kind = max(map(_kind_of, others))
    deciding = [x for x in others if _kind_of(x) == kind]
    if any(x.dim() for x in deciding):
        return args, kwargs
    dtype = functools.reduce(torch.promote_types, [x.dtype for x in deciding])

    def converted(x: torch.Tensor) -> torch.Tensor:
        return x.to(_result_type(dtype, _kind_of(x), torch.get_default_dtype())) if x in numbers else x

    new_args, new_kwargs = tree_map_only(torch.Tensor, converted, (args, kwargs))
    return new_args, new_kwargs


def _kind_of(x: torch.Tensor) -> int:
    """The rank of a tensor's dtype among bool, int, float and complex."""
    if x.is_complex() or x.is_floating_point():
        return 3 if x.is_complex() else 2
    return 0 if x.dtype is torch.bool else 1


@functools.cache
def _result_type(dtype: torch.dtype, kind: int, _default: torch.dtype) -> torch.dtype:
    """The dtype in which torch computes, for a 0-d tensor and a number of a kind."""
    with _disable_current_modes():
        return torch.result_type(torch.empty((), dtype=dtype), _KINDS[kind](1))

"""A factor that torch takes as a Python number, where it is a traced 0-d value: a learning rate, a step size.

x.add_(y, alpha=a), x.sub_(y, alpha=a)             y * a is added or subtracted
addcmul(x, y, z, value=v), addcdiv, and in place   y * v replaces y
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tinyshard.arrays.function_overrides.show import is_traced

SUMS = [torch.Tensor.add_, torch.Tensor.sub_]
PRODUCTS = [
    *(torch.addcmul, torch.Tensor.addcmul, torch.Tensor.addcmul_),
    *(torch.addcdiv, torch.Tensor.addcdiv, torch.Tensor.addcdiv_),
]


def factor_first(name: str, func: Callable[..., Any], x: Any, y: Any, *others: Any, **options: Any) -> Any:
    """The function, with its factor of this name multiplied into `y` where the factor is traced."""
    factor = options.get(name)
    if isinstance(factor, torch.Tensor) and is_traced(factor):
        y = y * options.pop(name)  # torch multiplies first, too
    return func(x, y, *others, **options)

"""Values inside of transformations: torch.func wraps a tensor in a tensor for each level."""

from __future__ import annotations

from typing import Any

import torch


def levels(x: Any) -> list[Any]:
    """A value, and the values that transformations of torch.func have wrapped in it, from the outermost in."""
    found = [x]
    while isinstance(found[-1], torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(found[-1]):
        found.append(torch._C._functorch.get_unwrapped(found[-1]))
    return found


def innermost(x: Any) -> Any:
    """The value inside the wrappers of torch.func's transformations; anything else unchanged."""
    return levels(x)[-1]

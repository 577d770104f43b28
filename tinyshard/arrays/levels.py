"""Values inside of transformations: what torch.func has wrapped in a tensor, one wrapper in the other."""

from __future__ import annotations

from typing import Any

import torch


def levels(x: Any) -> list[Any]:
    """A value, and what transformations of torch.func have wrapped in it, one in the other."""
    found = [x]
    while isinstance(found[-1], torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(found[-1]):
        found.append(torch._C._functorch.get_unwrapped(found[-1]))
    return found


def innermost(x: Any) -> Any:
    """What transformations of torch.func have wrapped, without their wrappers; anything else as it is."""
    return levels(x)[-1]

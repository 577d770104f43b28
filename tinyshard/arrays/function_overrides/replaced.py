"""Functions of torch that read the memory of a tensor and ask no subclass: others stand in their place in torch itself.

torch.utils.dlpack.to_dlpack(x)     of the values, which come to the host
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from tinyshard.arrays.refusals import Immutable


def _of_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is called with the values of Arrays. Waits."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return function(*tree_map_only(Immutable, lambda x: x._gather(), args), **kwargs)

    return called


# owner, name, what makes the function that stands in its place of the one that is there
REPLACED: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    (torch.utils.dlpack, "to_dlpack", _of_values),
    (torch, "to_dlpack", _of_values),
)


def install() -> None:
    """Put them in their places."""
    for owner, name, make in REPLACED:
        setattr(owner, name, make(getattr(owner, name)))

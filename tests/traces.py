"""How often Python runs a jitted function, and whether what it gives is right."""

import functools
from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts

__all__ = ["Counted", "same"]


class Counted:
    """A function under jit, and how often Python has run it."""

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        self.traces = 0

        @functools.wraps(function)
        def counting(*args: Any, **kwargs: Any) -> Any:
            self.traces += 1
            return function(*args, **kwargs)

        self.jitted = ts.jit(counting, **options)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.jitted(*args, **kwargs)


def same(got: Any, wanted: Any) -> None:
    """Values, shapes and dtypes of a tree of Arrays are those of a tree of tensors."""
    torch.testing.assert_close(ts.device_get(got), wanted)

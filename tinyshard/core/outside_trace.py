"""What runs within a trace, or an op, as if nothing were around it.

with outside_trace():   outside of the trace, of torch's modes, and of the levels of torch.func
with default_keys():    outside of an op, for torch's dispatcher
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import overrides
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from tinyshard.core.current_trace import this_thread

# Within an op on Arrays torch's dispatcher passes over keys: it would take an Array for a plain tensor, and kernels
# that call other ops (`linalg.pinv`) would go wrong
_INCLUDED = torch._C._dispatch_tls_local_include_set()
_EXCLUDED = torch._C._dispatch_tls_local_exclude_set()


def default_keys() -> Any:
    """A block in which torch's dispatcher looks as it does outside of any op."""
    return torch._C._ForceDispatchKeyGuard(_INCLUDED, _EXCLUDED)


@contextlib.contextmanager
def outside_trace() -> Iterator[None]:
    """In this block ops on tensors run as if nothing were traced or transformed around it."""
    recorder, this_thread.recorder = this_thread.recorder, None
    modes: list[Any] = []
    try:
        while overrides._len_torch_function_stack():
            modes.append(overrides._pop_mode())  # type: ignore[no-untyped-call]
        with (
            torch._C._EnableTorchFunction(),
            _disable_current_modes(),
            temporarily_clear_interpreter_stack(),
            default_keys(),
        ):
            yield
    finally:
        while modes:
            overrides._push_mode(modes.pop())  # type: ignore[no-untyped-call]
        this_thread.recorder = recorder

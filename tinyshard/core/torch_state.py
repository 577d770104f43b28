"""A thread's torch modes, levels of torch.func, and keys of torch's dispatcher.

with outside_trace():   outside of the trace, of torch's modes, and of the levels of torch.func
with default_keys():    outside of an op, for torch's dispatcher
with guards_ended():    an error keeps no guard of torch's dispatcher
state_to_carry()        the caller's state that the thread of a trace gets
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import overrides
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from tinyshard.core.current_trace import this_thread
from tinyshard.core.users_code import TORCH

# Within an op on Arrays torch's dispatcher skips keys: it would treat an Array as a plain tensor, and kernels
# that call other ops (`linalg.pinv`) would fail
_INCLUDED = torch._C._dispatch_tls_local_include_set()
_EXCLUDED = torch._C._dispatch_tls_local_exclude_set()
_AUTOCASTS = ("cpu", "cuda")


def default_keys() -> Any:
    """A block in which torch's dispatcher is in its state outside of any op."""
    return torch._C._ForceDispatchKeyGuard(_INCLUDED, _EXCLUDED)


@contextlib.contextmanager
def outside_trace() -> Iterator[None]:
    """A block in which ops on tensors run without the surrounding traces and transformations."""
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


@contextlib.contextmanager
def guards_ended() -> Iterator[None]:
    """A block whose error keeps no guard of torch's dispatcher.

    A torch frame may keep a guard, and an error that passed it keeps the frame: when the error is dropped, the guard
    would reset the dispatcher of that thread to the state in which the guard was made. So it ends here.
    """
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded):
        try:
            yield
        except BaseException as error:
            cause: BaseException | None = error
            seen: set[int] = set()  # `raise e from e` makes a circle
            while cause is not None and id(cause) not in seen:
                seen.add(id(cause))
                for frame, _ in traceback.walk_tb(cause.__traceback__):
                    if frame.f_code.co_filename.startswith(TORCH):
                        with contextlib.suppress(RuntimeError):  # it still runs
                            frame.clear()
                cause = cause.__cause__ or cause.__context__
            raise


def state_to_carry() -> Callable[[], None]:
    """torch's state of this thread, as a function that sets it in another thread."""
    modes = overrides._get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    device = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    has_grad = torch.is_grad_enabled()
    casts = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in _AUTOCASTS]

    def set_in_this_thread() -> None:
        torch._GLOBAL_DEVICE_CONTEXT.device_context = device
        for mode in modes:
            overrides._push_mode(mode)  # type: ignore[no-untyped-call]
        torch.set_grad_enabled(has_grad)
        for kind, is_on, dtype in casts:
            torch.set_autocast_enabled(kind, is_on)
            torch.set_autocast_dtype(kind, dtype)

    return set_in_this_thread

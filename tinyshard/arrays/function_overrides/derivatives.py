"""Functions that stop, change or compute derivatives on torch's tape, which the graph of a trace does not show.

x.detach(), x.data          the op `detach`: gradients of the trace stop there (torch's own become `alias`)
x.data = value              refused in a trace
torch.no_grad, x.detach_()  noted, as hooks are: the graph alone does not show the function's derivative
backward, autograd.grad     refused in a trace; on Arrays an error with a fix where torch would add in place
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tinyshard.arrays.function_overrides.show import is_traced
from tinyshard.arrays.refusals import Immutable, traced_value_error
from tinyshard.core.errors import ImmutableError
from tinyshard.core.frames import frames, module_of
from tinyshard.core.thread_state import current_recorder, is_tracing
from tinyshard.core.users_line import users_line

_MODES = ("tinyshard.compile.intercept", "tinyshard.compile.traced_views", "torch.fx.experimental.proxy_tensor")


def note_custom_derivative(what: str) -> None:
    """In a trace: note what makes the function's derivative differ from its graph's."""
    recorder = current_recorder()
    if recorder is not None and recorder.custom_derivative is None:
        recorder.custom_derivative = f"{what} in {users_line()}"


def detach(input: torch.Tensor) -> torch.Tensor:
    """`detach` in a trace."""
    recorder = current_recorder()
    if recorder is None:
        return input.detach()
    with recorder.stopping():
        return input.detach()


def get_data(x: torch.Tensor, *_: Any) -> torch.Tensor:
    """`x.data` in a trace."""
    return detach(x) if isinstance(x, torch.Tensor) else x


def set_data(x: torch.Tensor, value: torch.Tensor) -> None:
    """`x.data = value` in a trace."""
    if value is not x and (is_traced(x) or is_traced(value) or isinstance(value, Immutable)):
        raise ImmutableError(
            "a traced function assigns to `data`",
            got=f"x.data = value in {users_line()}",
            rule="the trace does not see it: the new values would be dropped without a word",
            try_="x = value; or x.data.copy_(value), where the function made x",
        )
    x.data = value


def detach_in_place(input: torch.Tensor) -> torch.Tensor:
    """`detach_` in a trace."""
    note_custom_derivative("Tensor.detach_")
    return input.detach_()


def register_hook(x: torch.Tensor, hook: Callable[..., Any]) -> Any:
    """`register_hook` in a trace."""
    note_custom_derivative("Tensor.register_hook")
    return x.register_hook(hook)


def set_grad_enabled(mode: bool) -> None:
    """Called by `torch.no_grad` and similar context managers, in a trace."""
    if not mode and _is_users_switch():
        note_custom_derivative("torch.no_grad")
    torch._C._set_grad_enabled(mode)


def _is_users_switch() -> bool:
    """Whether the user switches gradients off; not torch.func, this package, or the end of `enable_grad`."""
    passing = (__name__, *_MODES, "torch.autograd.grad_mode")
    for frame in frames():
        if module_of(frame) not in passing:
            return not module_of(frame).startswith(("torch._functorch", "tinyshard."))
        if frame.f_code.co_name == "__exit__":
            return False
    return True


def by_tape(func: Callable[..., Any]) -> Callable[..., Any]:
    """In a trace, a function that walks torch's tape: refused, unless another part of torch calls it."""

    def refused(*args: Any, **kwargs: Any) -> Any:
        passing = (__name__, *_MODES, "torch.overrides", "torch.autograd", "torch._tensor")
        caller = next(module for module in map(module_of, frames()) if not module.startswith(passing))
        if is_tracing() and not caller.startswith("torch."):
            raise traced_value_error(
                users_line(),
                "torch's autograd is asked for a gradient in a traced function",
                "a traced function runs without torch's tape, on which backward() and torch.autograd.grad go back",
                "ts.grad(loss)(w), or ts.value_and_grad(loss)(w), inside of it or around it;\n"
                "or .backward() of what it returns, outside",
            )
        return func(*args, **kwargs)

    return refused


def backward(*args: Any, **kwargs: Any) -> None:
    """`Tensor.backward`: torch adds to the `.grad` of an earlier call in place, which an Array does not allow."""
    try:
        torch.Tensor.backward(*args, **kwargs)
    except ImmutableError as error:
        raise ImmutableError(
            "backward() would change an Array in place",
            got=str(error).splitlines()[1].removeprefix("  got:").strip(),
            rule="torch adds to a .grad that an earlier backward() has left; a hook may change what it is given",
            try_="x.grad = None before it; to sum gradients, add those of ts.grad or torch.autograd.grad",
        ) from error

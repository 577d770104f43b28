"""What a traced function's calls of torch become, where the trace could not record them as they are.

x[i], y[i] = v, narrow, select      with a traced number: `tinyshard.compile.indexing`
one_hot                             a comparison, checked on the device: torch's own reads the values
cov, cross_entropy, …               without the check for which torch's own reads a value: `tinyshard.arrays.unchecked`
print(x), f"{x}"                    Traced f32[8, 4]
copy.deepcopy(x)                    x.clone()
x.detach(), x.data                  the op `detach`: gradients of the trace stop there (torch's own become `alias`)
x.data = value                      refused
torch.distributions                 check nothing: values are not there. So under vmap
det, slogdet, logdet                of a contiguous matrix
torch.no_grad, autograd.Function    noted: the graph alone does not tell the function's derivative
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from tinyshard.arrays.array import Array
from tinyshard.arrays.refusals import no_memory_wrapped
from tinyshard.arrays.unchecked import OF_CONTIGUOUS, TAKE_CLASSES, corrcoef, cov, gaussian_nll_loss, one_hot
from tinyshard.compile.capture import capture_outer, traced_value_error
from tinyshard.compile.indexing import BY_TRACED_NUMBERS
from tinyshard.compile.traced_views import TracedViews
from tinyshard.core.absent import OF_ARRAYS, no_attribute
from tinyshard.core.current_trace import current_recorder, is_tracing
from tinyshard.core.errors import DtypeError, ImmutableError
from tinyshard.core.types import ShapedType
from tinyshard.core.undisturbed import raise_waiting
from tinyshard.runtime.controller.lineage import users_line


def _detach(input: torch.Tensor) -> torch.Tensor:
    recorder = current_recorder()
    if recorder is None:
        return input.detach()
    with recorder.stopping():
        return input.detach()


def _get_data(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return _detach(x) if isinstance(x, torch.Tensor) else x


def _set_data(x: torch.Tensor, value: torch.Tensor) -> None:
    if value is not x and (_is_traced(x) or _is_traced(value)):
        raise ImmutableError(
            "a traced function assigns to `data`",
            got=f"x.data = value in {users_line()}",
            rule="the trace does not see it: the new values would be dropped without a word",
            try_="x = value; or x.data.copy_(value), where the function made x",
        )
    x.data = value


def _detach_in_place(input: torch.Tensor) -> torch.Tensor:
    _note("Tensor.detach_")
    return input.detach_()


def _register_hook(x: torch.Tensor, hook: Callable[..., Any]) -> Any:
    _note("Tensor.register_hook")
    return x.register_hook(hook)


def _one_hot(input: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    if num_classes < 0:
        raise DtypeError(
            "one_hot without num_classes in a traced function",
            got=f"one_hot of shape {tuple(input.shape)} in {users_line()}",
            rule="torch then reads the values to find the largest, and a traced value has none",
            try_="one_hot(x, num_classes=n)",
        )
    return one_hot(input, num_classes)


def _tensor(data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    if isinstance(data, list | tuple) and any(isinstance(x, torch.Tensor) for x in _leaves(data)):
        raise traced_value_error(
            problem="torch.tensor of traced values",
            rule="it takes Python numbers, and a traced value has no number yet",
            try_="torch.stack([...]), or ts.array([...]) which stacks",
        )
    return torch.tensor(data, *args, **kwargs)


def _leaves(data: Any) -> Iterator[Any]:
    for x in data:
        if isinstance(x, list | tuple):
            yield from _leaves(x)
        else:
            yield x


def _repr(x: torch.Tensor, *, tensor_contents: Any = None) -> str:
    if _is_traced(x):
        with torch._C.DisableTorchFunction():
            return f"Traced {ShapedType(tuple(x.shape), x.dtype)}"
    with _disable_current_modes():
        return repr(x)


def _format(x: torch.Tensor, spec: str) -> str:
    if spec and _is_traced(x):
        raise traced_value_error()
    return _repr(x)


def _deepcopy(x: torch.Tensor, memo: dict[int, Any]) -> torch.Tensor:
    if id(x) not in memo:
        memo[id(x)] = x.clone() if _is_traced(x) else x.__deepcopy__(memo)
    return memo[id(x)]


def _of_values(name: str) -> Callable[..., Any]:
    """A method that gives the values, which a traced tensor has not."""

    def called(x: torch.Tensor, **kwargs: Any) -> Any:
        if _is_traced(x):
            raise traced_value_error()
        return getattr(x, name)(**kwargs)

    return called


def _storage(x: torch.Tensor) -> Any:
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        no_memory_wrapped("untyped_storage")
    return x.untyped_storage()


def _is_traced(x: torch.Tensor) -> bool:
    return (not isinstance(x, Array) and type(x) is not torch.Tensor and not isinstance(x, torch.nn.Parameter)) or (
        torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def _set_grad_enabled(mode: bool) -> None:
    if not mode and _is_users_switch():
        _note("torch.no_grad")
    torch._C._set_grad_enabled(mode)


def _is_users_switch() -> bool:
    """Whether gradients are switched off, not by torch.func or this package, nor as `enable_grad` ends."""
    frame = sys._getframe(1)
    passing = (
        __name__,
        "tinyshard.compile.traced_views",
        "torch.autograd.grad_mode",
        "torch.fx.experimental.proxy_tensor",
    )
    while frame is not None and frame.f_globals.get("__name__") in passing:
        if frame.f_code.co_name == "__exit__":
            return False
        frame = frame.f_back  # type: ignore[assignment]
    module = "" if frame is None else str(frame.f_globals.get("__name__"))
    return not module.startswith(("torch._functorch", "tinyshard."))


def _by_tape(func: Callable[..., Any]) -> Callable[..., Any]:
    """A function that goes back on torch's tape: refused, unless torch.func or another part of torch calls it."""

    def refused(*args: Any, **kwargs: Any) -> Any:
        frame: Any = sys._getframe(1)
        passing = (__name__, "tinyshard.compile.traced_views", "torch.fx.experimental.proxy_tensor", "torch.overrides")
        while str(frame.f_globals.get("__name__")).startswith((*passing, "torch.autograd", "torch._tensor")):
            frame = frame.f_back
        if is_tracing() and not str(frame.f_globals.get("__name__")).startswith("torch."):
            raise traced_value_error(
                users_line(),
                "torch's autograd is asked for a gradient in a traced function",
                "a traced function runs without torch's tape, on which backward() and torch.autograd.grad go back",
                "ts.grad(loss)(w), or ts.value_and_grad(loss)(w), inside of it or around it;\n"
                "or .backward() of what it returns, outside",
            )
        return func(*args, **kwargs)

    return refused


_unchecked: list[bool] = []  # for each block that is open, of any thread, what was there before the first one
_unchecked_lock = threading.Lock()


@contextlib.contextmanager
def distributions_unchecked() -> Iterator[None]:
    """In this block `torch.distributions` checks no parameters and values, unless `validate_args=True` says so."""
    base = torch.distributions.Distribution
    with _unchecked_lock:
        _unchecked.append(_unchecked[0] if _unchecked else base._validate_args)
        base.set_default_validate_args(False)
    try:
        yield
    finally:
        with _unchecked_lock:
            before = _unchecked.pop()
            if not _unchecked:
                base.set_default_validate_args(before)


def _note(what: str) -> None:
    recorder = current_recorder()
    if recorder is not None and recorder.own_rule is None:
        recorder.own_rule = f"{what} in {users_line()}"


_INSTEAD: dict[Any, Callable[..., Any]] = {
    **BY_TRACED_NUMBERS,
    torch.nn.functional.one_hot: _one_hot,
    torch.nn.functional.gaussian_nll_loss: gaussian_nll_loss,
    **TAKE_CLASSES,
    torch.cov: cov,
    torch.Tensor.cov: cov,
    torch.corrcoef: corrcoef,
    torch.Tensor.corrcoef: corrcoef,
    torch.tensor: _tensor,
    torch.Tensor.__repr__: _repr,
    torch.Tensor.__format__: _format,
    torch.Tensor.__deepcopy__: _deepcopy,
    torch.Tensor.tolist: _of_values("tolist"),
    torch.Tensor.numpy: _of_values("numpy"),
    torch.Tensor.untyped_storage: _storage,
    torch.Tensor.register_hook: _register_hook,
    torch.Tensor.detach: _detach,
    torch.detach: _detach,
    torch.Tensor.detach_: _detach_in_place,
    torch.detach_: _detach_in_place,
    torch.Tensor.data.__get__: _get_data,  # type: ignore[attr-defined]
    torch.Tensor.data.__set__: _set_data,  # type: ignore[attr-defined]
    torch._C._set_grad_enabled: _set_grad_enabled,
    torch.Tensor.backward: _by_tape(torch.Tensor.backward),
    torch.autograd.grad: _by_tape(torch.autograd.grad),
    **OF_CONTIGUOUS,
}


class Intercept(TorchFunctionMode):
    """Calls of torch by what stands for them here; outer values are captured before torch.func sees them."""

    def __init__(self, *, captures: bool) -> None:
        super().__init__()
        self._captures = captures
        self._views = TracedViews()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise_waiting()
        if self._captures:
            args, kwargs = capture_outer((args, kwargs or {}))
        made = self._views.call(func, _INSTEAD.get(func, func), args, kwargs or {})
        recorder = current_recorder()
        if recorder is not None:
            recorder.note_wrapped((args, made))
        return made

    def __exit__(self, kind: Any, *rest: Any) -> None:
        super().__exit__(kind, *rest)
        if kind is None:
            self._views.end()


_of_function: Any = torch.autograd.function
_has_setup_context = _of_function._is_setup_context_defined


def _applied(setup_context: Any) -> bool:
    """Note that a Function of the user's is applied. Its `apply` asks this: one that was bound before the trace too."""
    if is_tracing():
        kind: Any = sys._getframe(1).f_locals["cls"]
        if not kind.__module__.startswith("tinyshard."):
            _note(f"autograd.Function {kind.__name__}")
    return bool(_has_setup_context(setup_context))


_of_function._is_setup_context_defined = _applied


def _attribute(x: torch.Tensor, name: str) -> Any:
    return no_attribute(x, name) if name in OF_ARRAYS else object.__getattribute__(x, name)


@contextlib.contextmanager
def methods_replaced() -> Iterator[None]:
    """Replace within the block, for the trace of this thread, three methods that no mode of torch sees.

    inference_mode.__enter__       switches gradients off, as no_grad does: in it torch counts no writes
    FunctionalTensor.__repr__      shows a traced value
    FunctionalTensor.__getattr__   says what stands for an attribute of jax.Array's
    """
    from torch._subclasses.functional_tensor import FunctionalTensor

    stand_in: Any = FunctionalTensor
    shown = stand_in.__repr__

    inference: Any = torch.inference_mode
    enter = inference.__enter__

    def without_gradients(block: Any) -> None:
        if is_tracing():
            block._inference_mode_context = torch.set_grad_enabled(not block.mode)
        else:
            enter(block)

    inference.__enter__ = without_gradients
    stand_in.__repr__ = lambda x: _repr(x) if is_tracing() else shown(x)
    is_outermost = "__getattr__" not in stand_in.__dict__
    stand_in.__getattr__ = _attribute
    try:
        yield
    finally:
        if is_outermost:
            del stand_in.__getattr__
        stand_in.__repr__, inference.__enter__ = shown, enter

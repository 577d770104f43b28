"""A thread's state: its trace in progress, and torch's modes, levels of torch.func and keys of the dispatcher.

with recording(recorder):
    is_tracing()        True

levels(x)               a value, and what transformations of torch.func have wrapped in it
with outside_trace():   outside of the trace, of torch's modes, and of the levels of torch.func
with default_keys():    outside of an op, for torch's dispatcher
with guards_ended():    an error keeps no guard of torch's dispatcher
state_to_carry()        the caller's state that the thread of a trace gets

And that of the process, which a trace changes:

with process_kept():    what torch's tracer and a trace replace in the process is restored, even if a trace is abandoned
with unlogged():        without torch's log of an error in the shapes
with compiling():       `torch.compiler.is_compiling()` is true
"""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import overrides
from torch._C._dynamo.eval_frame import set_eval_frame
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from tinyshard.core.users_code import TORCH

# Within an op on Arrays torch's dispatcher skips keys: it would treat an Array as a plain tensor, and kernels
# that call other ops (`linalg.pinv`) would fail
_INCLUDED = torch._C._dispatch_tls_local_include_set()
_EXCLUDED = torch._C._dispatch_tls_local_exclude_set()
_AUTOCASTS = ("cpu", "cuda")
_MISSING = object()


class _ThisThread(threading.local):
    """The trace or plan in progress in this thread.

    Attributes:
        recorder: the trace; None outside of one. Each op on Arrays reads it.
        task: the trace or plan that this thread was started for; see `core/trace_thread.py`.
    """

    recorder: Any = None
    task: Any = None


this_thread = _ThisThread()


def current_recorder() -> Any:
    """The trace of this thread; None outside of one."""
    return this_thread.recorder


def types_around() -> Any:
    """How values are cut along explicit axes, or along which they vary, in the trace in progress.

    Returns:
        An `arrays.explicit.Types`, or an `arrays.varying_types.VaryingTypes`; None outside of a trace, and where values
        are not typed.
    """
    recorder = this_thread.recorder
    return None if recorder is None else recorder.types


def varying_types() -> Any:
    """The `arrays.varying_types.VaryingTypes` of the trace in progress; None where its types are not these."""
    types = types_around()
    return types if types is not None and types.says_what_varies else None


@contextlib.contextmanager
def recording(recorder: Any) -> Iterator[None]:
    """A block in which this thread traces."""
    before, this_thread.recorder = this_thread.recorder, recorder
    try:
        yield
    finally:
        this_thread.recorder = before


def is_tracing() -> bool:
    """Whether a function is being traced now."""
    return this_thread.recorder is not None


def keep(thing: Any) -> None:
    """During a trace: keep alive an object that an op refers to by number, as long as the traced graph."""
    recorder = current_recorder()
    assert recorder is not None
    recorder.kept.append(thing)


def levels(x: Any) -> list[Any]:
    """A value, and the values that transformations of torch.func have wrapped in it, from the outermost in."""
    found = [x]
    while isinstance(found[-1], torch.Tensor) and torch._C._functorch.is_functorch_wrapped_tensor(found[-1]):
        found.append(torch._C._functorch.get_unwrapped(found[-1]))
    return found


def innermost(x: Any) -> Any:
    """The value inside the wrappers of torch.func's transformations; anything else unchanged."""
    return levels(x)[-1]


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


@contextlib.contextmanager
def process_kept() -> Iterator[None]:
    """A block that restores what torch's tracer and a trace replace in the process."""
    import torch._dynamo.eval_frame as eval_frame
    import torch.fx._symbolic_trace as symbolic_trace
    import torch.fx.experimental.proxy_tensor as proxy_tensor
    import torch.fx.traceback as node_meta

    owners: tuple[tuple[Any, tuple[str, ...]], ...] = (
        (torch.nn.Module, ("__call__", "__getattr__")),
        (symbolic_trace, ("CURRENT_PATCHER", "_is_fx_tracing_flag")),
        (proxy_tensor, ("_CURRENT_MAKE_FX_TRACER",)),
        (node_meta, ("should_preserve_node_meta", "current_meta")),
        (torch.compiler, ("_is_compiling_flag",)),
        (eval_frame, ("_stance",)),
        (torch.distributions.Distribution, ("_validate_args",)),
    )
    before = [(owner, name, vars(owner).get(name, _MISSING)) for owner, names in owners for name in names]
    try:
        yield
    finally:
        for owner, name, value in before:
            if value is not _MISSING:
                setattr(owner, name, value)
            elif name in vars(owner):
                delattr(owner, name)


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Without torch's log of an error in the shapes: the error is raised, and its logged stack does not help."""

    def has_no_error(record: logging.LogRecord) -> bool:
        return record.exc_info is None

    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addFilter(has_no_error)
    try:
        yield
    finally:
        log.removeFilter(has_no_error)


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """`torch.compiler.is_compiling()` is true: libraries then ask for no values. Dynamo itself compiles nothing."""
    before = set_eval_frame(None)  # it may be compiling the function that calls
    try:
        with torch.compiler._compile_session_context(), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        set_eval_frame(before)

"""The user's function in a trace or a transformation: its calls of torch are replaced where Arrays differ from tensors.

function_overrides          has the replacements: a torch function mode looks each call up there
torch.distributions         do not check their arguments: there are no values. The same under vmap
torch.autograd.Function     is noted: the graph alone does not show the function's derivative
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._C._functorch import is_batchedtensor, maybe_current_level
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode

from tinyshard.arrays.array import op_scope
from tinyshard.arrays.function_overrides import IN_PLACE, TRACED, TRANSFORMED
from tinyshard.arrays.function_overrides.derivatives import note_custom_derivative
from tinyshard.arrays.function_overrides.replaced import Replacement
from tinyshard.arrays.function_overrides.show import repr_traced
from tinyshard.arrays.varying_types import VaryingTypes, described
from tinyshard.compile import python_numbers
from tinyshard.compile.capture import capture_outer
from tinyshard.compile.traced_views import TracedViews
from tinyshard.core.errors import ImmutableError, ShardingError
from tinyshard.core.jax_hints import OF_ARRAYS, no_attribute
from tinyshard.core.thread_state import is_tracing, this_thread, varying_types

_unchecked: list[bool] = []  # for each open block, of any thread, the setting from before the first one
_unchecked_lock = threading.Lock()


@contextlib.contextmanager
def distributions_unchecked() -> Iterator[None]:
    """In this block `torch.distributions` does not check parameters and values, except with `validate_args=True`."""
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


class Intercept(TorchFunctionMode):
    """Replaces calls of torch, and tracks views by traced numbers.

    Args:
        meanings: a function of torch -> its replacement: `function_overrides.TRACED` or `TRANSFORMED`.
        captures: whether outer values are captured before torch.func sees them.
    """

    def __init__(self, meanings: Mapping[Any, Callable[..., Any]] = TRACED, *, captures: bool = False) -> None:
        super().__init__()
        self._meanings = meanings
        self._captures = captures
        self._views = TracedViews()
        self._refusal: ImmutableError | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._captures:
            args, kwargs = capture_outer((args, kwargs or {}))
        recorder = this_thread.recorder
        if recorder is not None and isinstance(recorder.types, VaryingTypes):
            args, kwargs = recorder.types.alike(func, args, kwargs or {})
        meaning = self._meanings.get(func, func)
        if recorder is not None and recorder.numbers and _is_mapped(func, args):
            meaning = functools.partial(python_numbers.called_under_vmap, recorder.numbers, meaning)
        try:
            result = self._views.call(func, meaning, args, kwargs or {})
        except ImmutableError as error:
            if func in IN_PLACE:  # the operator hides it: it is raised at the end
                self._refusal = error
            raise
        if recorder is not None and maybe_current_level() is not None:
            recorder.note_wrapped((args, result))
        return result

    def __exit__(self, kind: Any, *rest: Any) -> None:
        super().__exit__(kind, *rest)
        if kind is None:
            self._views.end()
            if self._refusal is not None:
                raise self._refusal


def _is_mapped(func: Any, args: Sequence[Any]) -> bool:
    """Whether vmap maps an argument, and the function is not in place."""
    name = getattr(func, "__name__", "")
    is_in_place = name.endswith("_") and not name.endswith("__")
    return not is_in_place and any(isinstance(x, torch.Tensor) and is_batchedtensor(x) for x in args)


class transform_scope(op_scope):
    """One call of a transformation: the user's function runs inside it, on the transformation's values.

    In inference_mode torch would not count writes: here it only switches gradients off.
    """

    __slots__ = ("_counted", "_depth", "_intercept")

    def __enter__(self) -> None:
        self._depth = torch._C._len_torch_function_stack()
        self._counted = contextlib.ExitStack()
        if torch.is_inference_mode_enabled():
            self._counted.enter_context(torch._C._InferenceMode(False))
            self._counted.enter_context(torch.no_grad())
        super().__enter__()
        self._intercept = None if is_tracing() else Intercept(TRANSFORMED)
        if self._intercept is not None:
            self._intercept.__enter__()

    def __exit__(self, *args: object) -> None:
        try:
            if self._intercept is not None:
                self._intercept.__exit__(*args)  # it may refuse a view that is left
        finally:
            while torch._C._len_torch_function_stack() > self._depth:  # Ctrl-C as torch ended the mode
                torch._C._pop_torch_function_stack()
            super().__exit__(*args)
            self._counted.close()


def _noting(asks_for_setup: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """Called first by `apply` of the user's Function: notes its use, even if `apply` was bound earlier."""

    def asked(setup_context: Any) -> bool:
        if is_tracing():
            kind: Any = sys._getframe(1).f_locals["cls"]
            if not kind.__module__.startswith("tinyshard."):
                note_custom_derivative(f"autograd.Function {kind.__name__}")
                _check_varying(kind.__name__, sys._getframe(1).f_locals["args"])
        return asks_for_setup(setup_context)

    return asked


def _check_varying(name: str, args: Sequence[Any]) -> None:
    """Refuse operands that vary along different axes: the Function's backward says nothing of the sum over devices."""
    types = varying_types()
    tensors = [x for x in args if isinstance(x, torch.Tensor) and (x.is_floating_point() or x.is_complex())]
    found = [] if types is None else [types.names(x) for x in tensors]
    if any(names != found[0] for names in found):
        axes = ", ".join(map(repr, sorted(frozenset().union(*found))))
        raise ShardingError(
            f"the operands of {name}, a torch.autograd.Function, vary along different axes between devices",
            got="\n".join(f"tensor {i}: {described(names)}" for i, names in enumerate(found)),
            rule="with check_vma=True the gradient of a value that all devices share is a sum over them",
            try_=f"ts.lax.pcast(x, ({axes},), to='varying') of what is the same on all devices",
        )


def _without_gradients(enter: Callable[[Any], None]) -> Callable[[Any], None]:
    """inference_mode in a trace switches gradients off, as no_grad does: torch itself would not count writes in it."""

    def entered(block: Any) -> None:
        if is_tracing():
            block._inference_mode_context = torch.set_grad_enabled(not block.mode)
        else:
            enter(block)

    return entered


def _shown(show: Callable[[Any], str]) -> Callable[[Any], str]:
    return lambda x: repr_traced(x) if is_tracing() else show(x)


def _attribute(_: None) -> Callable[[Any, str], Any]:
    """The replacement of an attribute of jax.Array that a traced value does not have."""

    def attribute(x: torch.Tensor, name: str) -> Any:
        return no_attribute(x, name) if name in OF_ARRAYS and is_tracing() else object.__getattribute__(x, name)

    return attribute


# no mode of torch sees them
REPLACED: list[Replacement] = [
    (torch.autograd.function, "_is_setup_context_defined", _noting),
    (torch.inference_mode, "__enter__", _without_gradients),
    (FunctionalTensor, "__repr__", _shown),
    (FunctionalTensor, "__getattr__", _attribute),
]

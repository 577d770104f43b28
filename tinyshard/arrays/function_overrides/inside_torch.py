"""Functions inside of torch that its public ones call, and that do not work on Arrays.

Rows as those of `replaced`, where the callers look them up.

    _equalize_attributes          torch.testing.assert_close compares values on the host, and names those that differ
    _chunked_standard_basis_for_  torch.func.jacrev and jacfwd write into tensors that they make, which is allowed
    DeviceContext                 `with torch.device("meta")` is for tensors of the user, not of this package
    _reparametrize_module         functional_call restores a module that has two names: torch's own restores the
                                  tensors in the order in which it replaced them, and leaves the new ones in it
    torch.compile                 on Arrays a function runs op by op; no function of this package is compiled
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._functorch import eager_transforms
from torch.nn.utils import stateless
from torch.testing._comparison import TensorLikePair
from torch.utils._device import DeviceContext
from torch.utils._pytree import tree_leaves

from tinyshard.arrays.array import Array, op_scope
from tinyshard.arrays.function_overrides.replaced import Replacement
from tinyshard.core.thread_state import innermost

Call = Callable[..., Any]


def _of_values(equalize: Call) -> Call:
    def called(pair: Any, actual: torch.Tensor, expected: torch.Tensor) -> Any:
        return equalize(pair, *(x._gather() if isinstance(x, Array) else x for x in (actual, expected)))

    return called


def _as_one_call(basis: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    def called(*args: Any, **kwargs: Any) -> Iterator[Any]:
        chunks = basis(*args, **kwargs)
        while True:
            with op_scope(), torch._C.DisableTorchFunctionSubclass():
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk

    return called


def _of_the_user(on_device: Call) -> Call:
    def called(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(sys._getframe(1).f_globals.get("__name__")).startswith("tinyshard."):
            return func(*args, **(kwargs or {}))
        return on_device(mode, func, types, args, kwargs)

    return called


def _last_first(reparametrize: Call) -> Call:
    @functools.wraps(reparametrize)
    def called(*args: Any, **kwargs: Any) -> Any:
        return reparametrize(*args, **kwargs | {"stack_weights": True})

    return called


@functools.cache
def _leave_out_this_package() -> None:
    """Make Dynamo treat a call of a function of this package as one step, without tracing into it."""
    from torch._dynamo import trace_rules

    trace_rules.add("tinyshard")


def _op_by_op(compile_: Call) -> Call:
    if "torch._dynamo" in sys.modules:  # a function may have been compiled before this package was imported
        _leave_out_this_package()

    @functools.wraps(compile_)
    def called(model: Any = None, **options: Any) -> Any:
        _leave_out_this_package()
        if model is None:  # as a decorator with options
            return functools.partial(called, **options)
        compiled = compile_(model, **options)
        if isinstance(compiled, torch.nn.Module):
            compiled.forward = _eager_on_arrays(model, compiled.forward)
            return compiled
        return _eager_on_arrays(model, compiled)

    return called


def _eager_on_arrays(model: Any, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled form of a function or module; with Arrays as arguments or parameters the original is called."""

    @functools.wraps(compiled)
    def called(*args: Any, **kwargs: Any) -> Any:
        held = (*model.parameters(), *model.buffers()) if isinstance(model, torch.nn.Module) else ()
        has_arrays = any(isinstance(innermost(x), Array) for x in (*tree_leaves((args, kwargs)), *held))
        return (model if has_arrays else compiled)(*args, **kwargs)

    return called


REPLACED: list[Replacement] = [
    (TensorLikePair, "_equalize_attributes", _of_values),
    (eager_transforms, "_chunked_standard_basis_for_", _as_one_call),
    (DeviceContext, "__torch_function__", _of_the_user),
    (stateless, "_reparametrize_module", _last_first),
    (torch, "compile", _op_by_op),
]

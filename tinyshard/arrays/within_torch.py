"""Functions inside of torch that its public ones call, and that cannot take an Array as they are.

They are replaced once, where their callers look them up: so it does not matter under which name, and when, a user has
imported the public function.

    _equalize_attributes          torch.testing.assert_close compares values on the host, and names those that differ
    _chunked_standard_basis_for_  torch.func.jacrev and jacfwd write into what they make: here it is their own
    DeviceContext                 `with torch.device("meta")`: where the user makes tensors, not where this package does
    _reparametrize_module         functional_call leaves a module that has two names as it was: torch's own puts the
                                  tensors back in the order in which it took them, and leaves the given ones in it
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

from tinyshard.arrays.array import Array, one_call
from tinyshard.arrays.levels import innermost

_basis_of_torch: Any = eager_transforms._chunked_standard_basis_for_
_equalize_of_torch: Any = TensorLikePair._equalize_attributes
_device_of_torch: Any = DeviceContext.__torch_function__
_compile_of_torch: Any = torch.compile
_reparametrize_of_torch: Any = stateless._reparametrize_module


def _equalize(pair: Any, actual: torch.Tensor, expected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return _equalize_of_torch(pair, *(x._gather() if isinstance(x, Array) else x for x in (actual, expected)))


def _basis(*args: Any, **kwargs: Any) -> Iterator[Any]:
    chunks = _basis_of_torch(*args, **kwargs)
    while True:
        with one_call(), torch._C.DisableTorchFunctionSubclass():
            chunk = next(chunks, None)
        if chunk is None:
            return
        yield chunk


def _on_device(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    if str(sys._getframe(1).f_globals.get("__name__")).startswith("tinyshard."):
        return func(*args, **(kwargs or {}))
    return _device_of_torch(mode, func, types, args, kwargs)


@functools.wraps(_reparametrize_of_torch)
def _reparametrize(*args: Any, **kwargs: Any) -> Any:
    return _reparametrize_of_torch(*args, **kwargs | {"stack_weights": True})  # the last one first


@functools.cache
def _leave_out_this_package() -> None:
    """Dynamo takes a call of a function of this package as one step, and does not look into it."""
    from torch._dynamo import trace_rules

    trace_rules.add("tinyshard")


@functools.wraps(_compile_of_torch)
def _compile(model: Any = None, **options: Any) -> Any:
    _leave_out_this_package()
    if model is None:  # as a decorator with options
        return functools.partial(_compile, **options)
    compiled = _compile_of_torch(model, **options)
    if isinstance(compiled, torch.nn.Module):
        compiled.forward = _eager_on_arrays(model, compiled.forward)
        return compiled
    return _eager_on_arrays(model, compiled)


def _eager_on_arrays(model: Any, compiled: Callable[..., Any]) -> Callable[..., Any]:
    """The compiled form of a function or module, which itself is called where it is given Arrays, or holds them."""

    @functools.wraps(compiled)
    def called(*args: Any, **kwargs: Any) -> Any:
        held = (*model.parameters(), *model.buffers()) if isinstance(model, torch.nn.Module) else ()
        has_arrays = any(isinstance(innermost(x), Array) for x in (*tree_leaves((args, kwargs)), *held))
        return (model if has_arrays else compiled)(*args, **kwargs)

    return called


_module: Any = eager_transforms
_module._chunked_standard_basis_for_ = _basis
_stateless: Any = stateless
_stateless._reparametrize_module = _reparametrize
_pair: Any = TensorLikePair
_pair._equalize_attributes = _equalize
_context: Any = DeviceContext
_context.__torch_function__ = _on_device
_torch: Any = torch
_torch.compile = _compile
if "torch._dynamo" in sys.modules:  # a function may have been compiled before this package was imported
    _leave_out_this_package()

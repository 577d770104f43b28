"""Replacements of torch functions and methods that do not work on Arrays: a row for each function.

    eager          called where an argument is an Array
    transformed    called in a function under `grad`, `vmap` and similar ones, outside of a trace
    traced         called in a trace
    no entry       torch's function

A replacement takes the arguments of the function; one that refuses raises. The files, one for each kind of reason:

value_checks        torch reads values only to check them, or reads strides
traced_index        x[i], x[i] = v, narrow, select with a number that only the devices know
traced_scalars      add_(alpha=), addcdiv(value=) with a number that only the devices know
recurrent           gru, lstm, rnn and packed sequences: torch changes the state in place, and reads lengths on the host
memory              as_strided, copies and storages: an Array has no memory in this process
show                print, tolist, numpy, torch.tensor: a traced value has no values
ufuncs              NumPy's functions of numbers
replaced            functions that ignore subclasses and would read memory: replaced in torch itself, as all that follow
inside_torch        functions that torch's public functions call: assert_close, jacrev, functional_call, compile
derivatives         detach, data, hooks, backward: effects on derivatives that a graph does not show
implicit_mutation   batch norm, max_norm, optimizers: they change an argument implicitly; dropout
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from tinyshard.arrays.function_overrides import (
    derivatives,
    implicit_mutation,
    memory,
    recurrent,
    replaced,
    show,
    traced_index,
    traced_scalars,
    value_checks,
)

Call = Callable[..., Any]
_torch: Any = torch  # its stubs lack some of these
_Tensor: Any = torch.Tensor
aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Meaning:
    """The replacements of a function; None for the function itself.

    Attributes:
        eager: where an argument is an Array.
        transformed: inside of a transformation of torch.func, outside of a trace.
        traced: inside of a trace.
    """

    eager: Call | None = None
    transformed: Call | None = None
    traced: Call | None = None


def _each(functions: Iterable[Any], **meanings: Callable[[Any], Call]) -> dict[Any, Meaning]:
    """A row for each of several functions, whose replacements are made from the function."""
    return {f: Meaning(**{when: make(f) for when, make in meanings.items()}) for f in functions}


def _of_both(*names: str) -> list[Any]:
    """The function and the method of each name."""
    return [getattr(owner, name) for name in names for owner in (torch, torch.Tensor)]


def _everywhere(meaning: Call) -> Meaning:
    return Meaning(meaning, meaning, meaning)


OVERRIDES: dict[Any, Meaning] = {
    # ---- values are read only to check them
    F.one_hot: Meaning(value_checks.one_hot, value_checks.one_hot_of_examples, value_checks.one_hot_traced),
    F.cross_entropy: _everywhere(value_checks.cross_entropy),
    F.nll_loss: _everywhere(value_checks.nll_loss),
    F.gaussian_nll_loss: Meaning(traced=value_checks.gaussian_nll_loss),
    **_each(_of_both("cov"), traced=lambda f: value_checks.cov),
    **_each(_of_both("corrcoef"), traced=lambda f: value_checks.corrcoef),
    **_each(
        [torch.linalg.det, torch.linalg.slogdet, *_of_both("det", "slogdet", "logdet")],
        transformed=value_checks.of_contiguous,
        traced=value_checks.of_contiguous,
    ),
    **_each(_of_both("tensor_split"), eager=lambda f: partial(value_checks.second_on_host, f)),
    # ---- an index may be a number that only the devices know
    **{
        f: Meaning(transformed=partial(traced_index.of_examples, f, meaning), traced=meaning)
        for f, meaning in traced_index.BY_TRACED_NUMBERS.items()
    },
    **_each(traced_scalars.SUMS, traced=lambda f: partial(traced_scalars.factor_first, "alpha", f)),
    **_each(traced_scalars.PRODUCTS, traced=lambda f: partial(traced_scalars.factor_first, "value", f)),
    # ---- layers with a state
    **_each(
        [getattr(torch, name + end) for name in ("gru", "lstm", "rnn_tanh", "rnn_relu") for end in ("", "_cell")],
        eager=lambda f: partial(recurrent.recurrent, f),
    ),
    _torch._pack_padded_sequence: Meaning(recurrent.packed),
    _torch._pad_packed_sequence: Meaning(recurrent.padded),
    # ---- memory
    **_each(
        _of_both("as_strided"),
        eager=lambda f: partial(memory.as_strided, f),
        transformed=lambda f: partial(memory.as_strided, f),
    ),
    **_each(
        [_Tensor.contiguous, _Tensor.reshape_as, _Tensor.to, *_of_both("reshape", "flatten", "ravel")],
        transformed=lambda f: partial(memory.maybe_copied, f),
    ),
    _Tensor.__deepcopy__: Meaning(transformed=memory.deepcopy_transformed, traced=memory.deepcopy_traced),
    _Tensor.untyped_storage: Meaning(transformed=memory.untyped_storage, traced=memory.untyped_storage),
    # methods of `Immutable`, also where they are called as functions of torch.Tensor
    **_each([_Tensor.apply_, _Tensor.data_ptr, _Tensor.const_data_ptr], eager=memory.method_of_arrays),
    **dict.fromkeys([aten.set_data, aten.set_data.default], Meaning(memory.set_data)),
    # `module.to(dtype)` and its like ask whether `param.data = value` would do: else they make a new parameter
    _torch._has_compatible_shallow_copy_type: Meaning(lambda *_: False),
    # ---- values are printed, or become Python values
    **_each(
        [getattr(_Tensor, f"__{name}__") for name in ("float", "int", "bool", "complex", "index")],
        eager=lambda f: partial(value_checks.number, f),
    ),
    **_each(
        [torch.tensor, torch.as_tensor, torch.asarray],
        transformed=lambda f: partial(show.tensor_transformed, f),
        traced=lambda f: partial(show.tensor_traced, f),
    ),
    _Tensor.new_tensor: Meaning(show.new_tensor, traced=show.new_tensor_traced),
    _Tensor.__repr__: Meaning(traced=show.repr_traced),
    _Tensor.__format__: Meaning(traced=show.format_traced),
    _Tensor.tolist: Meaning(transformed=show.tolist_transformed, traced=partial(show.values, "tolist")),
    _Tensor.numpy: Meaning(traced=partial(show.values, "numpy")),
    _Tensor.__ipow__: Meaning(
        transformed=_Tensor.pow_, traced=_Tensor.pow_
    ),  # torch's hides its error, as `IN_PLACE` do
    # ---- derivatives
    **_each(_of_both("detach"), traced=lambda f: derivatives.detach),
    **_each(_of_both("detach_"), traced=lambda f: derivatives.detach_in_place),
    replaced.DATA.__get__: Meaning(traced=derivatives.get_data),
    replaced.DATA.__set__: Meaning(traced=derivatives.set_data),
    _Tensor.register_hook: Meaning(traced=derivatives.register_hook),
    _torch._C._set_grad_enabled: Meaning(traced=derivatives.set_grad_enabled),
    _Tensor.backward: Meaning(derivatives.backward, traced=derivatives.by_tape(_Tensor.backward)),
    torch.autograd.grad: Meaning(traced=derivatives.by_tape(torch.autograd.grad)),
    # ---- a mask would be drawn on the host
    **_each(implicit_mutation.DROPOUTS, transformed=lambda f: partial(implicit_mutation.dropout, f)),
}

EAGER: dict[Any, Call] = {f: row.eager for f, row in OVERRIDES.items() if row.eager is not None}
TRANSFORMED: dict[Any, Call] = {f: row.transformed for f, row in OVERRIDES.items() if row.transformed is not None}
TRACED: dict[Any, Call] = {f: row.traced for f, row in OVERRIDES.items() if row.traced is not None}

# called by `t += x` and similar: torch reads their TypeError as "not implemented", and Python rebinds the name
IN_PLACE: set[Any] = {
    getattr(_Tensor, name)
    for symbol, method in {
        "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder",
        "pow": "pow", "and": "bitwise_and", "or": "bitwise_or", "xor": "bitwise_xor",
        "lshift": "bitwise_left_shift", "rshift": "bitwise_right_shift",
    }.items()
    for name in (f"__i{symbol}__", f"{method}_")
}  # fmt: skip

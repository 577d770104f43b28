"""torch.cond of Arrays: torch's own would compile the branches, and torch.compile does not take an Array.

    in a trace, under torch.func    both branches run, and a `where` chooses between their results
    otherwise                       the predicate is read, and one branch runs

A program runs both branches in any case; `ts.lax.cond` is one step, and the devices run one of its branches.

Every control flow function of torch (cond, while_loop, scan, map, associative_scan) ends in a call of one operator,
which compiles. That call is replaced, so `from torch import cond` may come before the import of tinyshard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._higher_order_ops.utils as higher_order
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from tinyshard.arrays.array import Array
from tinyshard.arrays.function_overrides.replaced import Replacement
from tinyshard.core.errors import DtypeError
from tinyshard.core.thread_state import innermost, is_tracing
from tinyshard.core.users_line import users_line


def _on_arrays(compile_and_call: Callable[..., Any]) -> Callable[..., Any]:
    """The calls in which torch's control flow functions end: their operators, and functions and operands, flat."""

    def called(function: Any, args: Sequence[Any], kwargs: Any = None) -> Any:
        if not is_tracing() and not any(isinstance(innermost(x), Array) for x in tree_leaves(args)):
            return compile_and_call(function, args, kwargs)
        name = function.__module__.rpartition(".")[2]
        if name == "cond":
            return _cond(*args)
        raise DtypeError(
            f"torch's {name} of Arrays or traced values",
            got=f"a call in {users_line()}",
            rule="of torch's control flow functions, cond has a meaning in a program",
            try_=f"ts.lax.{name}, which is one step of a program; a Python loop, which a trace unrolls",
        )

    return called


REPLACED: list[Replacement] = [(higher_order, "_hop_compile_and_call", _on_arrays)]


def _cond(
    pred: torch.Tensor, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]
) -> Any:
    """`torch.cond` of Arrays. Communication: that of both branches in a trace; else that of one.

    Raises:
        DtypeError: the results of the branches differ in tree, shape or dtype.
    """
    if is_tracing() or torch._C._functorch.maybe_current_level() is not None:
        return _choose(pred, true_fn, false_fn, operands)
    return (true_fn if bool(pred) else false_fn)(*operands)


def _choose(
    pred: torch.Tensor, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]
) -> Any:
    (left, form), (right, other) = (tree_flatten(f(*operands)) for f in (true_fn, false_fn))
    described = [
        [f"{x.dtype} {tuple(x.shape)}" if isinstance(x, torch.Tensor) else repr(x) for x in s] for s in (left, right)
    ]
    if form != other or described[0] != described[1]:
        raise DtypeError(
            "the branches of torch.cond have different results",
            got=f"{', '.join(described[0])} if true\n{', '.join(described[1])} if false",
            rule="both give the same tree of tensors of the same shapes and dtypes",
        )
    pred = pred.reshape(())
    chosen = [torch.where(pred, a, b) if isinstance(a, torch.Tensor) else a for a, b in zip(left, right, strict=True)]
    return tree_unflatten(chosen, form)

"""torch.cond where it meets Arrays: torch's own would compile the branches, and an Array cannot be compiled.

    in a trace, under torch.func    both branches run, and a `where` chooses between their results
    otherwise                       the predicate is read, and one branch runs

Devices run the same steps, so none can go its own way: in a program, what a branch costs is paid in any case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from tinyshard.arrays.array import Array
from tinyshard.arrays.levels import innermost
from tinyshard.core.current_trace import is_tracing
from tinyshard.core.errors import DtypeError

_cond_of_torch = torch.cond


def cond(
    pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: tuple[Any, ...] | list[Any] = ()
) -> Any:
    """`torch.cond`, which takes Arrays and traced values too: this function stands in its place.

    Args:
        pred: a bool, or a tensor of one.
        true_fn, false_fn: functions whose results have the same trees, shapes and dtypes.
        operands: their arguments.

    Raises:
        DtypeError: the results of the branches differ in tree, shape or dtype.

    Communication: that of both branches in a trace; else that of one.
    """
    if is_tracing():
        return _choose(pred, true_fn, false_fn, operands)
    if not any(isinstance(innermost(x), Array) for x in tree_leaves((pred, operands))):
        return _cond_of_torch(pred, true_fn, false_fn, operands)
    if torch._C._functorch.maybe_current_level() is not None:
        return _choose(pred, true_fn, false_fn, operands)
    return (true_fn if bool(pred) else false_fn)(*operands)


torch.cond = cond


def _choose(pred: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Sequence[Any]) -> Any:
    if isinstance(pred, bool):
        return (true_fn if pred else false_fn)(*operands)
    (left, form), (right, other) = (tree_flatten(f(*operands)) for f in (true_fn, false_fn))
    told = [
        [f"{x.dtype} {tuple(x.shape)}" if isinstance(x, torch.Tensor) else repr(x) for x in s] for s in (left, right)
    ]
    if form != other or told[0] != told[1]:
        raise DtypeError(
            "the branches of torch.cond have different results",
            got=f"{', '.join(told[0])} if true\n{', '.join(told[1])} if false",
            rule="both give the same tree of tensors of the same shapes and dtypes",
        )
    pred = pred.reshape(())
    chosen = [torch.where(pred, a, b) if isinstance(a, torch.Tensor) else a for a, b in zip(left, right, strict=True)]
    return tree_unflatten(chosen, form)

"""Which values `checkpoint` saves all the same: each policy is asked of every op, with what it takes.

everything_saveable                   all of them: nothing is computed again
nothing_saveable                      none, as without a policy
dots_saveable                         results of matrix products; checkpoint_dots is another name
dots_with_no_batch_dims_saveable      of those of two matrices, as a layer with a weight has it; of the products within
                                      attention none. checkpoint_dots_with_no_batch_dims is another name
save_only_these_names("a", "b")       values that `checkpoint_name` has named so
save_anything_except_these_names(..)  all values but those named so
save_any_names_but_these(..)          values with a name, but those named so
save_from_both_policies(p, q)         what one of two policies saves

A function of your own does as well: `policy(op, *types, **params)`.

    >>> import torch
    >>> import tinyshard as ts
    >>> block = ts.checkpoint(lambda x, w: torch.relu(x @ w).sum(), policy=ts.checkpoint_policies.dots_saveable)
    >>> ts.grad(block)(torch.ones(2), torch.ones(2, 2))
    tensor([2., 2.])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_PRODUCTS = ("mm", "addmm", "mv", "addmv", "dot", "vdot", "linear")
_BATCHED = ("bmm", "baddbmm", "matmul")

Policy = Callable[..., bool]


def everything_saveable(op: str, *types: Any, **params: Any) -> bool:
    """Every value is saved."""
    return True


def nothing_saveable(op: str, *types: Any, **params: Any) -> bool:
    """No value is saved."""
    return False


def dots_saveable(op: str, *types: Any, **params: Any) -> bool:
    """Results of matrix products are saved."""
    return _kind(op) in (*_PRODUCTS, *_BATCHED)


def dots_with_no_batch_dims_saveable(op: str, *types: Any, **params: Any) -> bool:
    """Results of products of two matrices are saved, those of batches of matrices are not."""
    return _kind(op) in _PRODUCTS


checkpoint_dots = dots_saveable
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable


def save_only_these_names(*names: str) -> Policy:
    """Values with one of these names are saved."""
    return lambda op, *types, name=None, **params: name in names


def save_any_names_but_these(*names: str) -> Policy:
    """Values with a name are saved, if it is none of these."""
    return lambda op, *types, name=None, **params: name is not None and name not in names


def save_anything_except_these_names(*names: str) -> Policy:
    """All values are saved but those with one of these names."""
    return lambda op, *types, name=None, **params: name not in names


def save_from_both_policies(first: Policy, second: Policy) -> Policy:
    """What one of two policies saves is saved."""
    return lambda op, *types, **params: first(op, *types, **params) or second(op, *types, **params)


def _kind(op: str) -> str:
    """The name of an op of torch's: "mm" of "aten.mm.default"."""
    return op.split(".")[1] if op.count(".") == 2 else op

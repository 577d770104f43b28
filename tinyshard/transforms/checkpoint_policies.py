"""Policies of `checkpoint`, which choose values to save: each is called for every op, with the types of its operands.

everything_saveable                   all of them: nothing is computed again
nothing_saveable                      none, as without a policy
dots_saveable                         results of matrix products; checkpoint_dots is another name
dots_with_no_batch_dims_saveable      results of products of two matrices, as in a layer with a weight, but not of the
                                      products in attention. checkpoint_dots_with_no_batch_dims is another name
save_only_these_names("a", "b")       values that `checkpoint_name` gave one of these names
save_anything_except_these_names(..)  all values except those with one of these names
save_any_names_but_these(..)          values with a name, except those with one of these names
save_from_both_policies(p, q)         values that one of two policies saves

Your own function is a policy, too: `policy(op, *types, **params)`.

    >>> import torch
    >>> import tinyshard as ts
    >>> block = ts.checkpoint(lambda x, w: torch.relu(x @ w).sum(), policy=ts.checkpoint_policies.dots_saveable)
    >>> ts.grad(block)(torch.ones(2), torch.ones(2, 2))
    tensor([2., 2.])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = [
    "checkpoint_dots",
    "checkpoint_dots_with_no_batch_dims",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "everything_saveable",
    "nothing_saveable",
    "save_any_names_but_these",
    "save_anything_except_these_names",
    "save_from_both_policies",
    "save_only_these_names",
]

_PRODUCTS = ("mm", "addmm", "mv", "addmv", "dot", "vdot", "linear")
_BATCHED = ("bmm", "baddbmm", "matmul")

Policy = Callable[..., bool]


def everything_saveable(op: str, *types: Any, **others: Any) -> bool:
    """Every value is saved.

    Args:
        op: the op, as graphs show it.
        types: shape and dtype of each tensor that it takes.
        others: `name`, of a `checkpoint_name`.

    Returns:
        Whether its results are saved.

    Communication: none.

    Example:
        >>> everything_saveable("aten.sin.default")
        True
    """
    return True


def nothing_saveable(op: str, *types: Any, **others: Any) -> bool:
    """No value is saved.

    Args:
        op: the op, as graphs show it.
        types: shape and dtype of each tensor that it takes.
        others: `name`, of a `checkpoint_name`.

    Returns:
        Whether its results are saved.

    Communication: none.

    Example:
        >>> nothing_saveable("aten.mm.default")
        False
    """
    return False


def dots_saveable(op: str, *types: Any, **others: Any) -> bool:
    """Results of matrix products are saved.

    Args:
        op: the op, as graphs show it.
        types: shape and dtype of each tensor that it takes.
        others: `name`, of a `checkpoint_name`.

    Returns:
        Whether its results are saved.

    Communication: none.

    Example:
        >>> dots_saveable("aten.bmm.default"), dots_saveable("aten.sin.default")
        (True, False)
    """
    return _kind(op) in (*_PRODUCTS, *_BATCHED)


def dots_with_no_batch_dims_saveable(op: str, *types: Any, **others: Any) -> bool:
    """Results of products of two matrices are saved, those of batches of matrices are not.

    Args:
        op: the op, as graphs show it.
        types: shape and dtype of each tensor that it takes.
        others: `name`, of a `checkpoint_name`.

    Returns:
        Whether its results are saved.

    Communication: none.

    Example:
        >>> [dots_with_no_batch_dims_saveable(op) for op in ("aten.mm.default", "aten.bmm.default")]
        [True, False]
    """
    return _kind(op) in _PRODUCTS


checkpoint_dots = dots_saveable
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable


def save_only_these_names(*names: str) -> Policy:
    """Values with one of these names are saved.

    Args:
        names: that `checkpoint_name` gives.

    Returns:
        The policy.

    Communication: none.

    Example:
        >>> policy = save_only_these_names("a")
        >>> policy("checkpoint_name", name="a"), policy("checkpoint_name", name="b"), policy("aten.mm.default")
        (True, False, False)
    """
    return lambda op, *types, name=None, **params: name in names


def save_any_names_but_these(*names: str) -> Policy:
    """Values with a name are saved, unless it is one of these.

    Args:
        names: that `checkpoint_name` gives.

    Returns:
        The policy.

    Communication: none.

    Example:
        >>> policy = save_any_names_but_these("a")
        >>> policy("checkpoint_name", name="a"), policy("checkpoint_name", name="b"), policy("aten.mm.default")
        (False, True, False)
    """
    return lambda op, *types, name=None, **params: name is not None and name not in names


def save_anything_except_these_names(*names: str) -> Policy:
    """All values are saved but those with one of these names.

    Args:
        names: that `checkpoint_name` gives.

    Returns:
        The policy.

    Communication: none.

    Example:
        >>> policy = save_anything_except_these_names("a")
        >>> policy("checkpoint_name", name="a"), policy("checkpoint_name", name="b"), policy("aten.mm.default")
        (False, True, True)
    """
    return lambda op, *types, name=None, **params: name not in names


def save_from_both_policies(first: Policy, second: Policy) -> Policy:
    """Values that one of two policies saves are saved.

    Args:
        first: a policy.
        second: another one.

    Returns:
        The policy.

    Communication: none.

    Example:
        >>> policy = save_from_both_policies(dots_saveable, save_only_these_names("a"))
        >>> policy("aten.mm.default"), policy("checkpoint_name", name="a"), policy("aten.sin.default")
        (True, True, False)
    """
    return lambda op, *types, **params: first(op, *types, **params) or second(op, *types, **params)


def _kind(op: str) -> str:
    """The name of a torch op: "mm" of "aten.mm.default"."""
    return op.split(".")[1] if op.count(".") == 2 else op

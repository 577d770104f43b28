"""Clipping of gradients by their global norm."""

from __future__ import annotations

from typing import Any

import torch

from tinyshard.core import tree as trees

_EPSILON = 1e-6  # as in torch.nn.utils.clip_grad_norm_


def global_norm(tree: Any) -> torch.Tensor:
    """The 2-norm of all elements of all leaves, taken as one vector.

    Args:
        tree: a tree of floating-point or complex values, of any shapes.

    Returns:
        A 0-d value: float32, or float64 if a leaf has 64 bits.

    Raises:
        DtypeError: a leaf that no device can hold.

    Communication: for each sharded leaf an all_reduce of one number.

    In JAX: `optax.global_norm`.

    Example:
        >>> global_norm({"w": torch.tensor([3.0, 0.0]), "b": torch.tensor(4.0)})
        tensor(5.)
    """
    squares = [_square_sum(x) for x in trees.leaves(tree)]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros(())


def _square_sum(x: torch.Tensor) -> torch.Tensor:
    x = torch.view_as_real(x) if x.is_complex() else x
    return (x if x.dtype == torch.float64 else x.float()).square().sum()  # in bfloat16 a sum stops at 256


def clip_by_global_norm(grads: Any, max_norm: float | torch.Tensor) -> tuple[Any, torch.Tensor]:
    """Scale all gradients by one factor, so that their global norm is at most `max_norm`.

    Args:
        grads: a tree of gradients.
        max_norm: a number, or a 0-d value.

    Returns:
        The tree of the same shapes, dtypes and shardings, and the norm before clipping.

    Raises:
        DtypeError: a leaf that no device can hold.

    Communication: that of `global_norm`.

    In JAX: `optax.clip_by_global_norm`. In torch: `torch.nn.utils.clip_grad_norm_`, with the same numbers: the factor
    is max_norm / (norm + 1e-6), and at most 1.

    Example:
        >>> clip_by_global_norm([torch.tensor([3.0, 4.0])], 1.0)
        ([tensor([0.6000, 0.8000])], tensor(5.))
    """
    norm = global_norm(grads)
    factor = (max_norm / (norm + _EPSILON)).clamp(max=1.0)
    return trees.map(lambda g: g * factor.to(g.dtype), grads), norm

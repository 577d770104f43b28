"""stop_gradient: a value as a constant for every derivative."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._pytree import tree_map_only


def stop_gradient(x: Any) -> Any:
    """The same values, without derivatives: neither a gradient nor a tangent flows through.

    Args:
        x: a tree of tensors of any shape and dtype.

    Returns:
        The tree, each tensor detached.

    Communication: none.

    In JAX: `jax.lax.stop_gradient`; `x.detach()` is the same for a tensor.

    Example:
        >>> from tinyshard import grad
        >>> grad(lambda x: x * stop_gradient(x))(torch.tensor(3.0))
        tensor(3.)
    """
    return tree_map_only(torch.Tensor, lambda leaf: leaf.detach(), x)

"""Look at where things are, and why: the pictures and the rules that a learner prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinyshard.core.errors import DtypeError
from tinyshard.core.jax_hints import names_of
from tinyshard.core.layout import Layout
from tinyshard.draw.text import sharding_text
from tinyshard.partition.rule_text import OpRules, rules_in
from tinyshard.sharding import Sharding
from tinyshard.sharding.base import checked_shape
from tinyshard.transforms.jit import jit

__all__ = ["rule", "visualize_array_sharding", "visualize_sharding"]


__getattr__ = names_of("tinyshard.debug", __all__)


def visualize_array_sharding(x: Any) -> None:
    """Print which device holds which block of an array.

    Args:
        x: an Array of any rank and dtype. A plain torch.Tensor is shown on device 0, where an uncommitted
            value lives.

    Raises:
        DtypeError: `x` is neither, or a traced value: only a call gives it a place.

    Communication: none; the values are not needed, so it does not wait for them either.

    In JAX: rank 1 and 2 only; colours where the terminal has them. Inside jit it draws when the program runs.

    Example:
        >>> visualize_array_sharding(torch.zeros(8))
        ┌───────┐
        │ CPU 0 │
        └───────┘
    """
    from torch._subclasses.functional_tensor import FunctionalTensor

    sharding = getattr(x, "sharding", None)
    if isinstance(sharding, Sharding):
        visualize_sharding(tuple(x.shape), sharding)
    elif isinstance(x, torch.Tensor):
        if isinstance(x, FunctionalTensor) or torch._C._functorch.is_functorch_wrapped_tensor(x):
            raise DtypeError(
                "a traced value has no place yet",
                got=f"a value of shape {tuple(x.shape)} inside jit, vmap, grad or a mapped function",
                rule="where it lives is decided when the traced function is compiled",
                try_="return it, and draw the result; or jit(f).lower(...).compile().output_shardings",
            )
        print(sharding_text(Layout((0,), (1,), ((),) * x.ndim), tuple(x.shape)))
    else:
        raise DtypeError(
            "only an array can be shown",
            got=f"{_short(x)}, a {type(x).__name__}",
            rule="visualize_array_sharding takes an Array or a torch.Tensor",
            try_="ts.debug.visualize_array_sharding(ts.array(x)), or one leaf at a time of a tree",
        )


def visualize_sharding(shape: Sequence[int], sharding: Any) -> None:
    """Print which device would hold which block of an array of this shape.

    Args:
        shape: the global shape, of any rank; each dim a multiple of the number of its parts.
        sharding: any Sharding.

    Raises:
        DtypeError: `sharding` is not a Sharding, or `shape` is not a sequence of ints.
        ShardingError: the sharding does not fit the shape.

    Communication: none; works on abstract meshes.

    In JAX: rank 1 and 2 only; more arguments for colours and sizes.

    Example:
        >>> from tinyshard.sharding.mesh import AbstractMesh
        >>> from tinyshard.sharding import NamedSharding, P
        >>> visualize_sharding((8,), NamedSharding(AbstractMesh(2, "i"), P("i")))
        ┌───────┬───────┐
        │ CPU 0 │ CPU 1 │
        └───────┴───────┘
    """
    if not isinstance(sharding, Sharding):
        raise DtypeError(
            "not a sharding",
            got=f"{_short(sharding)}, a {type(sharding).__name__}",
            rule="visualize_sharding takes a shape and a Sharding",
            try_="NamedSharding(mesh, P('x')), or ts.debug.visualize_array_sharding(x) for an array",
        )
    global_shape = checked_shape(shape)
    print(sharding_text(sharding.checked_layout(global_shape), global_shape))


def _short(value: Any) -> str:
    words = repr(value)
    return words if len(words) <= 60 else words[:57] + "..."


def rule(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> OpRules:
    """By which rule an op is computed in parts: which dims correspond, which may be cut, and what each device then has.

    Each dim of an operand is named by a factor, as in an einsum. An axis of the mesh cuts one factor of an op, or none.

        i k, k j -> i j +k      +k: each device has a part of the sum over k
        a [b] -> a [b]          [b]: must be whole
        a (b c) -> (a b) c      (b c): a dim of two factors, the most significant first
        _                       a dim that must be whole

    Args:
        fun: an op, or a function of several.
        args: its arguments, named ones too: Arrays, tensors or ShapeDtypeStructs; where they are does not matter.

    Returns:
        A tuple of the rules of the ops that `fun` calls, in order, each with `op` and `rule`; printed, it is a line for
        each factor.

    Raises:
        TracedValueError, ImmutableError, DtypeError, StaticArgumentError: as `jit`, of a function.

    Communication: none; nothing runs.

    In JAX: has no counterpart; a `sharding_rule` of `jax.experimental.custom_partitioning` is written in like notation.

    Example:
        >>> x, y = torch.zeros(4, 6), torch.zeros(6, 8)
        >>> rule(torch.mm, x, y)
        aten.mm.default    i k, k j -> i j +k
          i: cut along an axis, each device has its block of the result
          k: cut along an axis, each device has a part of the sum
          j: cut along an axis, each device has its block of the result
        >>> rule(torch.cumsum, x, 1)
        aten.cumsum.default    a [b] -> a [b]
          a: cut along an axis, each device has its block of the result
          b: must be whole
    """
    operands = [x for x in args if hasattr(x, "shape")]

    def called(*tensors: Any) -> Any:
        given = iter(tensors)
        return fun(*(next(given) if hasattr(x, "shape") else x for x in args), **kwargs)

    return rules_in(jit(called).lower(*operands).graph)

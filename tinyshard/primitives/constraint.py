"""The constraint op: where a value is to be placed, as one op that torch can differentiate and vmap.

in a trace       the op is recorded; the partitioner brings the value there
outside of one   the value is put there at once
gradient         of a constraint: constrained likewise; of a `device_put`: put back to where its argument was
vmap             left out: the constraint is on each example, and a spec cannot name the mapped dim
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from tinyshard.arrays.array import Array
from tinyshard.core.current_trace import is_tracing, keep
from tinyshard.core.handles import Handles
from tinyshard.sharding import Sharding

_library = torch.library.Library("tinyshard", "DEF")
_library.define("constrain(Tensor x, int sharding) -> Tensor")
_shardings: Handles[Sharding] = Handles()


@torch.library.impl(_library, "constrain", "CompositeExplicitAutograd")
def _on_plain_tensors(x: torch.Tensor, sharding: int) -> torch.Tensor:
    return x.clone()


@torch.library.impl(_library, "constrain", "Meta")
def _on_meta(x: torch.Tensor, sharding: int) -> torch.Tensor:
    return torch.empty_like(x)


CONSTRAIN = torch.ops.tinyshard.constrain.default


def constraint(number: int) -> Sharding:
    """The sharding that a constraint op's number stands for."""
    return _shardings.value(number)


@dataclass(frozen=True)
class Target:
    """Where a value is to be placed.

    Attributes:
        sharding: on which devices, and how; None for the host.
        committed: whether the value is to stay there.
        put: puts a tensor there, outside of a trace.
    """

    sharding: Sharding | None
    committed: bool
    put: Callable[[torch.Tensor, Sharding | None, bool], torch.Tensor]


def placed_at(x: torch.Tensor, target: Target, *, returns: bool = False) -> torch.Tensor:
    """A tensor at its target, within any transformation.

    Args:
        x: the tensor.
        target: where it is to be.
        returns: whether its gradient is put back to where `x` was; else it is placed as the result is.
    """
    made: torch.Tensor = _Placed.apply(x, target, returns)
    return made


def is_transformed(x: torch.Tensor) -> bool:
    """Whether a trace, a transformation of torch.func or torch's tape watches what is done with the tensor."""
    return (
        is_tracing()
        or torch._C._functorch.maybe_current_level() is not None
        or (torch.is_grad_enabled() and x.requires_grad)
    )


class _Placed(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, target: Target, returns: bool) -> torch.Tensor:
        if not is_tracing():
            return target.put(x, target.sharding, target.committed)
        if target.sharding is None or not target.committed:
            return x.clone()
        handle = _shardings.handle(target.sharding)
        keep(handle)
        made: torch.Tensor = CONSTRAIN(x, handle.number)
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, target, returns = inputs
        ctx.returns = returns
        ctx.target = target
        ctx.source = target if is_tracing() or not returns else _target_of(x, target)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        return _Placed.apply(g, ctx.source, ctx.returns), None, None

    @staticmethod
    def jvp(ctx: Any, dx: torch.Tensor, _: Any, __: Any) -> torch.Tensor:
        return placed_at(dx, ctx.target, returns=ctx.returns)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: torch.Tensor, target: Target, returns: bool) -> Any:
        return x.clone(), in_dims[0]


def _target_of(x: torch.Tensor, target: Target) -> Target:
    """Where the value that transformations wrap is placed now."""
    functorch = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(x):
        x = functorch.get_unwrapped(x)
    if isinstance(x, Array):
        return Target(x.sharding, x.committed, target.put)
    return Target(None, False, target.put)

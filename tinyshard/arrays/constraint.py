"""The constraint: the placement of a value. `device_put` and `with_sharding_constraint` bind it.

in a trace       the op is recorded; the partitioner reshards the value
outside of one   the value is moved at once
gradient         of a constraint: constrained likewise; of a `device_put`: put back to the placement of its argument
vmap             with spmd_axis_name the mapped dim is cut by it; else left out: a spec cannot name the mapped dim
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.autograd import forward_ad

from tinyshard.arrays.array import Array
from tinyshard.arrays.transfer import put_plain
from tinyshard.core import axis_names
from tinyshard.core.layout import Layout
from tinyshard.core.primitive import Primitive
from tinyshard.core.thread_state import innermost, is_tracing
from tinyshard.core.types import ShapedType
from tinyshard.sharding import NamedSharding, PartitionSpec, Sharding


@dataclass(frozen=True)
class Target:
    """The placement of a value.

    Attributes:
        sharding: its sharding; None for the host.
        committed: whether the value should stay there.
        returns: whether the gradient is put back to the placement of the value; else it is placed like the result.
    """

    sharding: Sharding | None
    committed: bool
    returns: bool = False


class Constraint(Primitive[Target]):
    """The placement of one tensor."""

    name = "constrain"

    def abstract(self, params: Target, *xs: ShapedType) -> Sequence[ShapedType]:
        return xs

    def run(self, params: Target, *xs: torch.Tensor) -> Sequence[torch.Tensor]:
        return [put_plain(xs[0], params.sharding, params.committed)]

    def record(self, params: Target, xs: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        if params.sharding is None or not params.committed:
            return (xs[0].clone(),)
        return super().record(params, xs)

    def save(self, ctx: Any, params: Target, xs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        ctx.source = params if is_tracing() or not params.returns else _place_of(xs[0])

    def transpose(self, ctx: Any, *gradients: torch.Tensor) -> Sequence[torch.Tensor]:
        return self.bind(ctx.source, *gradients)

    def jvp(self, ctx: Any, *tangents: torch.Tensor | None) -> Sequence[torch.Tensor]:
        return self.bind(ctx.params, *(dx for dx in tangents if dx is not None))

    def batch(
        self, params: Target, size: int, dims: Sequence[int | None], *xs: torch.Tensor
    ) -> tuple[Sequence[torch.Tensor], Sequence[int | None]]:
        names, sharding, dim = axis_names.cutting(axis_names.level() + 1), params.sharding, dims[0]
        if not names or not isinstance(sharding, NamedSharding) or dim is None:
            return [xs[0].clone()], dims
        entries = [*sharding.spec, *[None] * (xs[0].dim() - 1 - len(sharding.spec))]
        entries.insert(dim, names)
        return self.bind(replace(params, sharding=NamedSharding(sharding.mesh, PartitionSpec(*entries))), *xs), dims

    def shardings(self, params: Target) -> Sequence[Sharding]:
        assert params.sharding is not None, "a placement on the host is not recorded"
        return [params.sharding]

    def goal(self, params: Target, ndim: int) -> Layout | None:
        return params.sharding.layout(ndim) if params.sharding is not None else None

    def partition(self, partitioner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return partitioner.constrained_to(partitioner.settled_layout(args[0]), *partitioner.goals[node])

    def typed(self, args: Sequence[Any], given: Sequence[Any]) -> Any:
        sharding = self.params(args).sharding
        return given if sharding is None else [sharding.layout(given[0].ndim)]

    def text(self, printer: Any, result: str, args: Sequence[Any]) -> list[str]:
        return [f"{result} {self.op}({args[0]!r}, {self.params(args).sharding!r})"]


CONSTRAINT = Constraint()


def placed_at(x: torch.Tensor, target: Target) -> torch.Tensor:
    """A tensor at its target, within any transformation."""
    return CONSTRAINT.bind(target, x)[0]


def is_transformed(x: torch.Tensor) -> bool:
    """Whether a trace, a transformation of torch.func or torch's tape records ops on the tensor."""
    return is_tracing() or torch._C._functorch.maybe_current_level() is not None or is_on_tape([x])


def is_on_tape(values: Sequence[Any]) -> bool:
    """Whether torch's tape, or its forward mode, records ops on one of the values."""
    if torch.is_grad_enabled():
        with torch._C.DisableTorchFunctionSubclass():  # without it each would call `Array.__torch_function__`
            if any(isinstance(x, torch.Tensor) and x.requires_grad for x in values):
                return True
    return has_tangent(values)


def has_tangent(values: Sequence[Any]) -> bool:
    """Whether one of the values is dual, in a block `torch.autograd.forward_ad.dual_level()`."""
    if forward_ad._current_level < 0:
        return False
    with torch._C.DisableTorchFunctionSubclass():
        return any(isinstance(x, torch.Tensor) and forward_ad.unpack_dual(x).tangent is not None for x in values)


def _place_of(x: torch.Tensor) -> Target:
    """The present placement of the value that transformations wrap."""
    there = innermost(x)
    if isinstance(there, Array):
        return Target(there.sharding, there.committed, returns=True)
    return Target(None, False, returns=True)

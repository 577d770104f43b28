"""Derivatives that recompute a function, except for the values that a policy saves.

    forwards     x                     ->  result, saved values
    backwards    saved values, x, g    ->  gradients

Both are cut out of one graph of the gradient (`cutting`): the values that the policy chooses become inputs of the
backward part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tinyshard.compile import replay
from tinyshard.compile.replay import replayed, replayed_with_values
from tinyshard.core.primitive import Primitive, primitive_of
from tinyshard.primitives.branching import types_of
from tinyshard.primitives.call import Call, Derivation, Positions, Split, continuous
from tinyshard.primitives.name import NAME
from tinyshard.transforms import bodies
from tinyshard.transforms.cutting import cut

Policy = Callable[..., bool]


@dataclass(frozen=True)
class Recomputed:
    """A call whose gradient recomputes it.

    Attributes:
        policy: which values are saved even so: a function of the op, its operands' types and its params; or None.
    """

    name: str = "call"
    is_apart: bool = False
    policy: Policy | None = None
    tells_results: bool = field(default=False, init=False)

    @property
    def saves(self) -> bool:
        """Whether there is a policy."""
        return self.policy is not None

    def split(self, call: Call, wanted: tuple[int, ...]) -> Split:
        """As `Derivation.split`."""
        count, taken, given = call.count, call.taken, call.outputs
        flowing = continuous(given[:count])
        function = replayed_with_values(call.body, self._is_saved)

        def gradient(*values: torch.Tensor) -> Sequence[torch.Tensor]:
            xs, cotangents = values[: len(taken)], values[len(taken) :]

            def alone(*chosen: torch.Tensor) -> Any:
                inputs = list(xs)
                for i, x in zip(wanted, chosen, strict=True):
                    inputs[i] = x
                outputs = function(*inputs)
                return tuple(outputs[i] for i in flowing), tuple(outputs[len(given) :])

            vjp: Any = torch.func.vjp
            _, pull, saved = vjp(alone, *(xs[i] for i in wanted), has_aux=True)
            return [*saved, *pull(tuple(cotangents))]

        joint = bodies.traced_silently(
            gradient, [*taken, *(given[i] for i in flowing)], custom_derivative=call.body.custom_derivative
        )
        if self.policy is None:
            return Split(call.body, joint)
        both = bodies.traced_body(function, taken, custom_derivative=call.body.custom_derivative)
        return cut(both, len(given), joint, len(joint.results) - len(wanted))

    def tangent(self, call: Call, moved: tuple[int, ...]) -> Call:
        """As `Derivation.tangent`."""
        taken, function = call.taken, replayed(call.body)

        def push(*given: torch.Tensor) -> Sequence[torch.Tensor]:
            return replay.tangents(function, given[: len(taken)], moved, call.flowing, given[len(taken) :])

        body = bodies.traced_silently(
            push, [*taken, *(taken[i] for i in moved)], custom_derivative=call.body.custom_derivative
        )
        return Call(body, self, len(call.flowing))

    def batched(self, call: Call, in_axes: Positions, size: int, name: str | None) -> Derivation:
        """The same, for the graph of the vmapped function."""
        return self

    def _is_saved(self, node: torch.fx.Node) -> bool:
        """Whether the policy saves the value of a node."""
        if self.policy is None:
            return False
        primitive = primitive_of(node.target)
        params = primitive.params(node.args) if isinstance(primitive, Primitive) else None
        name = {"name": params} if primitive is NAME else {}
        metas = types_of([x for x in node.all_input_nodes if isinstance(x.meta.get("val"), torch.Tensor)])
        op = NAME.name if primitive is NAME else getattr(primitive, "name", str(node.target))
        return bool(self.policy(op, *metas, **name))


RECOMPUTED = Recomputed()

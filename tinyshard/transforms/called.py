"""The base of checkpoint, custom_vjp and custom_jvp: a function that becomes one op wherever it is called, a `Call`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_unflatten

from tinyshard.arrays.explicit import Types, type_of
from tinyshard.arrays.varying_types import VaryingTypes
from tinyshard.compile.capture import capture_outer, note_modes
from tinyshard.compile.executable import assembled
from tinyshard.compile.outlived import refuse_holders
from tinyshard.compile.python_numbers import note_numbers
from tinyshard.compile.signature import Bound, Signature, static_both_ways
from tinyshard.compile.trace_cache import MOST_TRACES, TraceCacheEntry, Traces
from tinyshard.core import activity, axis_names
from tinyshard.core.cache import Recent
from tinyshard.core.thread_state import types_around, varying_types
from tinyshard.primitives.call import Call, Derivation
from tinyshard.transforms import bodies
from tinyshard.transforms.call_rules import apply_call
from tinyshard.transforms.jitted import Jitted


class Called(Jitted):
    """A function that is traced by itself, and becomes one op of its caller's trace."""

    def __init__(self, function: Callable[..., Any], static_numbers: Sequence[int]) -> None:
        numbers, by_name = static_both_ways(function, tuple(static_numbers), (), self.what)
        super().__init__(function, None, None, numbers, by_name)

    @abstractmethod
    def _derivation(self, signature: Signature) -> Derivation:
        """How the derivatives of a call with this signature are made."""

    def _is_plain(self, entry: TraceCacheEntry) -> bool:
        """Whether the function is called untraced, because its derivative differs from its graph's."""
        return False

    def _known_traces(self) -> Traces:
        return Recent(MOST_TRACES)  # of calls: the function's own are of another kind

    def __repr__(self) -> str:
        return f"<{self.what} of {self._name}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it on plain tensors, Arrays or traced values, within any transformation."""
        bound = self._bind(args, kwargs)
        note_numbers(bound.operands, bound.signature.numbers)
        entry, everything = self._trace_and_inputs(bound, bound.operands)
        if self._is_plain(entry):
            return bound.call(bound.operands)
        note_modes(entry.traced.modes)
        if entry.derived is None:
            entry.derived = Call(entry.traced, self._derivation(bound.signature), len(entry.traced.results))
        if not entry.traced.results:
            return assembled(entry.traced, [])
        return assembled(entry.traced, apply_call(entry.derived, [capture_outer(x) for x in everything]))

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Bound:
        bound = super()._bind(args, kwargs)
        around = tuple((n.name, n.size) for n in axis_names.in_scope())
        varying = varying_types()
        types: tuple[Any, ...] = tuple(map(type_of if varying is None else varying.names, bound.operands))
        signature = replace(bound.signature, around=around, types=types if varying is not None or any(types) else None)
        return replace(bound, signature=signature)

    def _traced(self, bound: Bound, roots: Sequence[Any]) -> TraceCacheEntry:
        def call(xs: Sequence[torch.Tensor]) -> Any:
            out = bound.call(xs)
            refuse_holders(out, self._name)
            return out

        with activity.doing(f"tracing {self._name}"):
            signature = bound.signature
            varying = varying_types()
            types = Types(signature.types or (), types_around()) if varying is None else varying.within(bound.operands)
            traced = bodies.traced_in_place(roots, call, signature.metas, bound.names, signature.numbers, types)
            return TraceCacheEntry(traced)


def types_of_call(signature: Signature) -> VaryingTypes | None:
    """Along which axes the operands of a call that is traced now vary, if values have types that say so."""
    varying = varying_types()
    return None if varying is None else varying.of(signature.types or ())


def arguments_of(signature: Signature, operands: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """The positional arguments of a call with these tensors in place of its own: the traced ones, and all."""
    given = iter(operands)
    traced, _ = tree_unflatten([None if none else next(given) for none in signature.nones], signature.tree)
    static = {key: value for key, _, value in signature.static}
    rest = iter(traced)
    return list(traced), [static[i] if i in static else next(rest) for i in range(len(traced) + len(static))]

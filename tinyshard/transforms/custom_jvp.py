"""custom_jvp: a function whose tangent the user defines; its gradient is the transpose of the tangent."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tinyshard.arrays.array import shaped_type_of
from tinyshard.arrays.varying_types import VaryingTypes
from tinyshard.compile.signature import Signature, checked_numbers
from tinyshard.compile.tracing import Traced
from tinyshard.core.errors import DtypeError
from tinyshard.primitives.branching import types_of
from tinyshard.primitives.call import Call, Derivation, Positions, Split
from tinyshard.transforms import bodies
from tinyshard.transforms.autodiff import check_function
from tinyshard.transforms.called import arguments_of, types_of_call
from tinyshard.transforms.custom import Custom, check_alike, check_not_closed_over, flat, pair_of
from tinyshard.transforms.cutting import cut, linear
from tinyshard.transforms.recomputed import RECOMPUTED
from tinyshard.transforms.vmap import vmap


def custom_jvp(fun: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()) -> CustomJvp:
    """A function whose forward-mode derivative you define: its gradient follows from that. Also a decorator.

    Args:
        fun: a function of trees of tensors and numbers that returns a tree of tensors, as for `jit`.
        nondiff_argnums: positions of arguments that are Python values, as functions; they can be hashed.

    Returns:
        The function, with a method `defjvp(jvp)` that takes its derivative:
        `jvp(*nondiff, primals, tangents)`, both tuples, returns (result, tangent of the result), which is linear in
        the tangents; where a derivative is taken, this result is the function's. Or with `defjvps(first, second, ...)`,
        a function for each argument: `first(tangent, result, *primals)` returns what this argument adds to the tangent
        of the result; None for nothing.

    Raises:
        DtypeError: when it is called, no derivative has been defined, or one does not fit; it closes over a value that
            is differentiated.

    Communication: that of your functions.

    In JAX: `jax.custom_jvp`. The tangent of an integer is zeros of its dtype, in place of float0.

    Example:
        >>> @custom_jvp
        ... def log1pexp(x):
        ...     return torch.log1p(torch.exp(x))
        >>> @log1pexp.defjvp
        ... def jvp(primals, tangents):
        ...     (x,), (t,) = primals, tangents
        ...     return log1pexp(x), torch.sigmoid(x) * t
        >>> from tinyshard import grad
        >>> grad(log1pexp)(torch.tensor(100.0))
        tensor(1.)
    """
    check_function(fun, "custom_jvp")
    return CustomJvp(fun, checked_numbers(nondiff_argnums, "nondiff_argnums"))


class CustomJvp(Custom):
    """A function whose derivative the user defines. Made by `custom_jvp`."""

    what = "custom_jvp"
    takes = "defjvp(jvp)"

    def defjvp(self, jvp: Callable[..., Any]) -> Callable[..., Any]:
        """Define the derivative; also a decorator.

        Args:
            jvp: `jvp(*nondiff, primals, tangents)` returns (result, tangent of the result).

        Returns:
            The same function.
        """
        check_function(jvp, "defjvp")
        self._define(jvp)
        return jvp

    def defjvps(self, *jvps: Callable[..., Any] | None) -> None:
        """Define the derivative with respect to each argument.

        Args:
            jvps: `jvp(tangent, result, *primals)` for each argument; None for a derivative of zero.
        """
        if self._static_argnums:
            got = f"nondiff_argnums={self._static_argnums}"
            raise DtypeError("defjvps has no meaning with nondiff_argnums", got=got, try_="defjvp(jvp)")
        for jvp in jvps:
            if jvp is not None:
                check_function(jvp, "defjvps")

        def all_of(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
            result = self(*primals)
            if len(jvps) != len(primals):
                got = f"{len(jvps)} for {len(primals)} arguments"
                raise DtypeError(f"defjvps of {self._name} was not given a function for each argument", got=got)
            each = [jvp(t, result, *primals) for jvp, t in zip(jvps, tangents, strict=True) if jvp is not None]
            leaves, form = tree_flatten(result)
            if not each:
                return result, tree_unflatten([torch.zeros_like(x) for x in leaves], form)
            parts = zip(*(tree_flatten(one)[0] for one in each), strict=True)
            return result, tree_unflatten([functools.reduce(torch.add, part) for part in parts], form)

        self._define(all_of)

    def _derivation(self, signature: Signature) -> Derivation:
        jvp, nondiff, count = self._rules, self._nondiff(signature), len(signature.metas)

        def push(*values: torch.Tensor) -> list[torch.Tensor]:
            primals, tangents = (tuple(arguments_of(signature, xs)[0]) for xs in (values[:count], values[count:]))
            outputs = pair_of("jvp", self, jvp(*nondiff, primals, tangents), "(result, tangent of the result)")
            results, along = flat(outputs[0])[0], flat(outputs[1])[0]
            check_alike(f"jvp of {self._name}", list(map(shaped_type_of, along)), list(map(shaped_type_of, results)))
            return [*results, *along]

        return _Given(self._name, push, count, types_of_call(signature))


@dataclass(frozen=True, eq=False)
class _Given:
    """A derivative that the user defined.

    Attributes:
        function: its name, for errors.
        push: of the operands and a tangent of each; it returns the results and their tangents.
        count: how many operands it knows; those behind them are what the function closes over.
        types: along which axes these operands vary, if values have types that say so.
    """

    function: str
    push: bodies.Function
    count: int
    types: VaryingTypes | None
    name: str = field(default="custom_jvp", init=False)
    is_apart: bool = field(default=False, init=False)
    saves: bool = field(default=True, init=False)
    tells_results: bool = field(default=True, init=False)

    def _traced(self, call: Call) -> Traced:
        known = [*call.taken[: self.count]] * 2
        types = None if self.types is None else self.types.of([*self.types.arguments] * 2)
        traced: Traced = bodies.derived(call.derived, "jvp", lambda: bodies.traced_body(self.push, known, types=types))
        results = call.outputs[: call.count]
        check_alike(f"jvp of {self.function}", types_of(traced.results)[: len(results)], results)
        return traced

    def split(self, call: Call, wanted: tuple[int, ...]) -> Split:
        check_not_closed_over(self.name, self.function, wanted, self.count)
        results, taken, flowing = call.count, call.taken, call.flowing
        function = linear(self._traced(call), self.count)

        def both(*xs: torch.Tensor) -> list[torch.Tensor]:
            outputs = function(*xs[: self.count], *map(torch.zeros_like, xs[: self.count]))
            return [*outputs[:results], *outputs[2 * results :]]

        def gradient(*values: torch.Tensor) -> list[torch.Tensor]:
            xs, cotangents = values[: self.count], values[len(taken) :]

            def along(*chosen: torch.Tensor) -> Any:
                tangents = list(map(torch.zeros_like, xs))
                for i, t in zip(wanted, chosen, strict=True):
                    tangents[i] = t
                outputs = function(*xs, *tangents)
                return tuple(outputs[results + i] for i in flowing), tuple(outputs[2 * results :])

            vjp: Any = torch.func.vjp
            _, pull, saved = vjp(along, *(torch.zeros_like(xs[i]) for i in wanted), has_aux=True)
            return [*saved, *pull(tuple(cotangents))]

        metas = [*taken, *(call.outputs[i] for i in flowing)]
        joint = bodies.traced_silently(gradient, metas)
        return cut(bodies.traced_body(both, taken), results, joint, len(joint.results) - len(wanted))

    def tangent(self, call: Call, moved: tuple[int, ...]) -> Call:
        check_not_closed_over(self.name, self.function, moved, self.count)
        taken, results, flowing = call.taken, call.count, call.flowing

        def along(*values: torch.Tensor) -> list[torch.Tensor]:
            xs, given = values[: self.count], dict(zip(moved, values[len(taken) :], strict=True))
            outputs = self.push(*xs, *(given[i] if i in given else torch.zeros_like(x) for i, x in enumerate(xs)))
            return [*outputs[:results], *(outputs[results + i] for i in flowing)]

        types = None
        if self.types is not None:
            names = self.types.arguments
            closed = [frozenset[str]()] * (len(taken) - self.count)
            types = self.types.of([*names, *closed, *(names[i] for i in moved)])
        body = bodies.traced_body(along, [*taken, *(taken[i] for i in moved)], types=types)
        return Call(body, replace(RECOMPUTED, name="tangent"), results + len(flowing))

    def batched(self, call: Call, in_axes: Positions, size: int, name: str | None) -> Derivation:
        axes = in_axes[: self.count]
        push = vmap(self.push, (*axes, *axes), axis_name=name, axis_size=size)
        return _Given(self.function, push, self.count, self.types)

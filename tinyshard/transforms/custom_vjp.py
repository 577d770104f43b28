"""custom_vjp: a function whose gradient the user defines, in two parts: a forward and a backward function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from tinyshard.arrays.array import shaped_type_of
from tinyshard.arrays.varying_types import VaryingTypes, described
from tinyshard.compile.signature import Signature, checked_numbers
from tinyshard.core.errors import DtypeError, ShardingError
from tinyshard.core.evaluate import evaluate
from tinyshard.primitives.branching import types_of
from tinyshard.primitives.call import Call, Derivation, Positions, Split
from tinyshard.primitives.varying import Varying
from tinyshard.transforms import bodies
from tinyshard.transforms.autodiff import check_function
from tinyshard.transforms.called import arguments_of, types_of_call
from tinyshard.transforms.custom import Custom, check_alike, check_not_closed_over, flat, pair_of
from tinyshard.transforms.vmap import vmap


def custom_vjp(fun: Callable[..., Any], nondiff_argnums: int | Sequence[int] = ()) -> CustomVjp:
    """A function whose gradient you define. Also a decorator.

    Args:
        fun: a function of trees of tensors and numbers that returns a tree of tensors, as for `jit`.
        nondiff_argnums: positions of arguments that are Python values, as functions; they can be hashed.

    Returns:
        The function, with a method `defvjp(fwd, bwd)` that takes its gradient:
        `fwd`, of the same arguments, returns (result, residuals): any tree of values that `bwd` needs.
        `bwd(*nondiff, residuals, cotangent)` returns a tuple: for each differentiable argument its gradient, a tree as
        the argument; None for zeros.

    Raises:
        DtypeError: when it is called, no gradient has been defined, or one does not fit; under `jvp`, for which it has
            no rule; it closes over a value that is differentiated.

    Communication: that of your functions.

    In JAX: `jax.custom_vjp`. An integer argument has None or zeros for its gradient, in place of float0. In the
    gradient of a gradient the outer one differentiates the ops of `fwd` and `bwd`, as in JAX.

    Example:
        >>> @custom_vjp
        ... def clipped(x):
        ...     return x
        >>> clipped.defvjp(lambda x: (x, None), lambda residuals, g: (g.clamp(-1, 1),))
        >>> from tinyshard import grad
        >>> grad(lambda x: 5 * clipped(x))(torch.tensor(2.0))
        tensor(1.)
    """
    check_function(fun, "custom_vjp")
    return CustomVjp(fun, checked_numbers(nondiff_argnums, "nondiff_argnums"))


class CustomVjp(Custom):
    """A function whose gradient the user defines. Made by `custom_vjp`."""

    what = "custom_vjp"
    takes = "defvjp(fwd, bwd)"

    def defvjp(self, fwd: Callable[..., Any], bwd: Callable[..., Any]) -> None:
        """Define the gradient.

        Args:
            fwd: takes the arguments of the function; returns (result, residuals).
            bwd: `bwd(*nondiff, residuals, cotangent)` returns a tuple of gradients.
        """
        check_function(fwd, "defvjp")
        check_function(bwd, "defvjp")
        self._define((fwd, bwd))

    def _derivation(self, signature: Signature) -> Derivation:
        fwd, bwd = self._rules
        name, nondiff = self._name, self._nondiff(signature)
        forms: list[TreeSpec] = []
        residuals: list[Any] = []  # with None in place of each tensor
        is_saved: list[bool] = []

        def forwards(*xs: torch.Tensor) -> list[torch.Tensor]:
            returned, residual_tree = pair_of("fwd", self, fwd(*arguments_of(signature, xs)[1]), "(result, residuals)")
            results, form = flat(returned)
            leaves, of_residuals = tree_flatten(residual_tree)
            is_saved[:] = [isinstance(x, torch.Tensor) for x in leaves]
            residuals[:] = [None if one else x for x, one in zip(leaves, is_saved, strict=True)]
            forms[:] = [form, of_residuals]
            return [*results, *(x for x in leaves if isinstance(x, torch.Tensor))]

        def backwards(saved: list[Any], cotangents: list[Any], xs: list[Any]) -> list[torch.Tensor]:
            given = iter(saved)
            leaves = [next(given) if one else x for x, one in zip(residuals, is_saved, strict=True)]
            gradients = bwd(*nondiff, tree_unflatten(leaves, forms[1]), tree_unflatten(cotangents, forms[0]))
            return _gradients(name, gradients, arguments_of(signature, xs)[0])

        return _Given(name, forwards, backwards, len(signature.metas), types_of_call(signature))


@dataclass(frozen=True, eq=False)
class _Given:
    """A gradient that the user defined.

    Attributes:
        function: its name, for errors.
        forwards: of the operands; it returns the results, and what is saved.
        backwards: of what is saved, the gradients of all results, and the operands; it returns the gradients of these.
        count: how many operands it knows; those behind them are what the function closes over.
        types: along which axes these operands vary, if values have types that say so.
    """

    function: str
    forwards: bodies.Function
    backwards: Callable[[list[Any], list[Any], list[Any]], Sequence[torch.Tensor]]
    count: int
    types: VaryingTypes | None
    name: str = field(default="custom_vjp", init=False)
    is_apart: bool = field(default=False, init=False)
    saves: bool = field(default=True, init=False)
    tells_results: bool = field(default=False, init=False)

    def split(self, call: Call, wanted: tuple[int, ...]) -> Split:
        check_not_closed_over(self.name, self.function, wanted, self.count)
        results, taken, flowing = call.outputs[: call.count], call.taken, call.flowing
        named = self._named(len(taken))
        of_forwards = None if self.types is None else self.types.of(named)
        forwards = bodies.traced_body(lambda *xs: self.forwards(*xs[: self.count]), taken, types=of_forwards)
        types = types_of(forwards.results)
        check_alike(f"fwd of {self.function}", types[: len(results)], results)
        saved = len(types) - len(results)

        def gradient(*values: torch.Tensor) -> Sequence[torch.Tensor]:
            given = dict(zip(flowing, values[saved + len(taken) :], strict=True))
            cotangents = [
                given[i] if i in given else torch.zeros(m.shape, dtype=m.dtype) for i, m in enumerate(results)
            ]
            found = self.backwards(list(values[:saved]), cotangents, list(values[saved:][: self.count]))
            return [found[i] for i in wanted]

        metas = [*types[len(results) :], *taken, *(results[i] for i in flowing)]
        if self.types is None:
            return Split(forwards, bodies.traced_body(gradient, metas))
        made = list(evaluate(forwards.graph, Varying(), named))
        given = [*made[len(results) :], *named, *(made[i] for i in flowing)]
        backwards = bodies.traced_body(gradient, metas, types=self.types.of(given))
        self._check_varying(evaluate(backwards.graph, Varying(), given), wanted)
        return Split(forwards, backwards)

    def _named(self, count: int) -> list[frozenset[str]]:
        """Along which axes the operands vary; what the function closes over has no gradient."""
        known = [] if self.types is None else self.types.arguments
        return [*known, *[frozenset[str]()] * (count - len(known))]

    def _check_varying(self, found: Sequence[frozenset[str]], wanted: Sequence[int]) -> None:
        """Refuse a gradient that varies along axes along which its argument does not."""
        for names, i in zip(found, wanted, strict=True):
            beyond = names - self._named(i + 1)[i]
            if beyond:
                axes, have = ", ".join(map(repr, sorted(beyond))), self._named(i + 1)[i]
                raise ShardingError(
                    f"bwd of {self.function}, a custom_vjp, returns a gradient that varies where its argument does not",
                    got=f"tensor {i} of the arguments: {described(have)}, its gradient {described(names)}",
                    rule="a gradient varies between devices along the axes along which its argument does",
                    try_=f"ts.lax.psum(gradient, ({axes},)) in bwd, the sum over all devices that used the argument",
                )

    def tangent(self, call: Call, moved: tuple[int, ...]) -> Call:
        raise DtypeError(
            "a custom_vjp has no derivative forwards",
            got=f"{self.function} under jvp, jacfwd, hessian or linearize",
            rule="defvjp says what its gradient is, and not what its tangent is",
            try_="ts.grad, ts.vjp or ts.jacrev of it; or ts.custom_jvp, which has both",
        )

    def batched(self, call: Call, in_axes: Positions, size: int, name: str | None) -> Derivation:
        axes = in_axes[: self.count]

        def backwards(saved: list[Any], cotangents: list[Any], xs: list[Any]) -> list[torch.Tensor]:
            mapped: Any = vmap(self.backwards, (0, 0, list(axes)), axis_name=name, axis_size=size)
            found = mapped(saved, cotangents, xs)
            return [g.sum(0) if d is None else g for g, d in zip(found, axes, strict=True)]

        forwards = vmap(self.forwards, axes, axis_name=name, axis_size=size)
        return _Given(self.function, forwards, backwards, self.count, self.types)


def _gradients(function: str, returned: Any, arguments: Sequence[Any]) -> list[torch.Tensor]:
    """The result of bwd, as a gradient for each tensor of the arguments."""
    if not isinstance(returned, tuple | list) or len(returned) != len(arguments):
        raise DtypeError(
            f"bwd of {function}, a custom_vjp, does not return a gradient for each argument",
            got=f"{type(returned).__name__}" + (f" of {len(returned)}" if isinstance(returned, tuple | list) else ""),
            rule=f"a tuple of {len(arguments)}, one for each argument that is not in nondiff_argnums; None for zeros",
        )
    found: list[torch.Tensor] = []
    for number, (given, argument) in enumerate(zip(returned, arguments, strict=True)):
        xs, form = tree_flatten(argument)
        leaves, other = ([None] * len(xs), form) if given is None else tree_flatten(given)
        if other != form:
            raise DtypeError(
                f"bwd of {function}, a custom_vjp, returns a gradient of another tree than its argument",
                got=f"{other} for argument {number}: {form}",
                rule="a gradient has the containers of its argument; None means zeros",
            )
        pairs = [(x, g) for x, g in zip(xs, leaves, strict=True) if x is not None]
        slopes = [torch.zeros_like(x) if g is None else flat(g)[0][0] for x, g in pairs]
        metas = [shaped_type_of(x) for x, _ in pairs]
        check_alike(f"bwd of {function}, argument {number}", list(map(shaped_type_of, slopes)), metas)
        found += slopes
    return found

"""Derivatives under JAX's names and signatures; they are torch.func's, so they compose with vmap and jit.

grad  value_and_grad      reverse, of a function with a scalar result
vjp   jvp                 the product of one vector and the Jacobian, from either side

Whole Jacobians are in `jacobians`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinyshard.arrays.array import Array
from tinyshard.arrays.explicit import cut_as
from tinyshard.arrays.placement import array
from tinyshard.compile.capture import capture_arguments
from tinyshard.compile.intercept import transform_scope
from tinyshard.core import tree
from tinyshard.core.errors import DtypeError
from tinyshard.core.ints import one_or_more
from tinyshard.core.jax_hints import check_others
from tinyshard.core.thread_state import innermost
from tinyshard.transforms.tangents import REAL, Kinds, OfLeaves, checked_values, fitted

Function = Callable[..., Any]


def grad(
    fun: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    **others: Any,
) -> Function:
    """The gradient of a function with a real scalar result.

    Args:
        fun: a function of trees of floating-point tensors.
        argnums: the arguments to differentiate with respect to, an int or a tuple of ints. A float among them is a 0-d
            tensor of torch's default dtype, and a NumPy array a tensor of its dtype.
        has_aux: whether `fun` returns (result, anything else).
        holomorphic: whether `fun` is a holomorphic function of complex tensors with a complex result; then this is its
            complex derivative.
        allow_int: whether integers and bools among the tensors are allowed; their gradient is zeros of their dtype.
        others: none; an argument that JAX has is refused with what to write in its place.

    Returns:
        A function that returns the gradient, a tree as the argument (a tuple of trees for a tuple of argnums); with
        has_aux (gradient, anything else).

    Raises:
        DtypeError: an argument that is not real floating-point (or complex with holomorphic), an argnums that names
            one twice, or a result that is not a scalar.

    Communication: that of the function and its transpose: for data cut over devices one all_reduce per parameter.

    In JAX: the gradient of an integer has dtype float0. Real functions of complex numbers are allowed: here use `vjp`.

    Example:
        >>> grad(lambda x: (x**2).sum())(torch.tensor([1.0, 2.0]))
        tensor([2., 4.])
    """
    check_others(grad, others)
    both = _with_gradient("grad", fun, argnums, has_aux, Kinds(holomorphic, allow_int))

    @functools.wraps(fun)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, derivative = both(*args, **kwargs)
        return (derivative, value[1]) if has_aux else derivative

    return gradient


def value_and_grad(
    fun: Function,
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    **others: Any,
) -> Function:
    """The result of a function together with its gradient.

    Args:
        fun: a function of trees of floating-point tensors.
        argnums: the arguments to differentiate with respect to, an int or a tuple of ints, as for `grad`.
        has_aux: whether `fun` returns (result, anything else).
        holomorphic: as for `grad`.
        allow_int: as for `grad`.
        others: as for `grad`.

    Returns:
        A function that returns (result, gradient); with has_aux ((result, anything else), gradient).

    Raises:
        DtypeError: as `grad`.

    Communication: as `grad`.

    In JAX: as `grad`.

    Example:
        >>> value_and_grad(lambda x: (x**2).sum())(torch.tensor([1.0, 2.0]))
        (tensor(5.), tensor([2., 4.]))
    """
    check_others(value_and_grad, others)
    return _with_gradient("value_and_grad", fun, argnums, has_aux, Kinds(holomorphic, allow_int))


def _with_gradient(what: str, fun: Function, argnums: int | Sequence[int], has_aux: bool, kinds: Kinds) -> Function:
    check_function(fun, what)
    numbers = checked_argnums(argnums)

    @functools.wraps(fun)
    def both(*args: Any, **kwargs: Any) -> Any:
        of = by_chosen(what, fun, args, kwargs, numbers, has_aux, kinds)
        alone = of.of_continuous(_scalar(what, fun, of.value, has_aux, kinds))
        with transform_scope():
            if not of.continuous:
                value, slopes = alone(), []
            elif kinds.holomorphic:
                found: Any = torch.func.vjp(alone, *of.continuous, has_aux=has_aux)
                value = (found[0], found[2]) if has_aux else found[0]
                slopes = [g.conj() for g in found[1](torch.ones_like(found[0]))]  # torch multiplies by J^H
            else:
                every = tuple(range(len(of.continuous)))
                slopes, value = torch.func.grad_and_value(alone, argnums=every, has_aux=has_aux)(*of.continuous)
        slopes = of.with_zeros(tuple(map(cut_as, slopes, of.continuous)))
        return ((value[0], of.aux(value[1])) if has_aux else value), chosen_of(of.arguments(slopes), numbers)

    return both


def vjp(fun: Function, *primals: Any, has_aux: bool = False) -> Any:
    """The result of a function, and the function that multiplies a cotangent with its Jacobian from the left.

    Args:
        fun: a function of the primals.
        primals: trees of floating-point or complex tensors, floats and NumPy arrays.
        has_aux: whether `fun` returns (result, anything else).

    Returns:
        (result, vjp_fun), with has_aux (result, vjp_fun, anything else). `vjp_fun(cotangent)` returns a tuple with one
        entry for each primal; the cotangent has the containers, shapes and dtypes of the result.

    Raises:
        DtypeError: a primal of integers, or when called, a cotangent that does not fit the result.

    Communication: that of the function and its transpose.

    In JAX: integers have cotangents of dtype float0. Cotangents of complex numbers are the conjugates of those here.

    Example:
        >>> value, back = vjp(lambda x: x * 3, torch.tensor(2.0))
        >>> back(torch.tensor(1.0))
        (tensor(3.),)
    """
    check_function(fun, "vjp")
    of = OfLeaves("vjp", fun, checked_values("vjp", capture_arguments(primals)), has_aux)
    with transform_scope():
        found: Any = torch.func.vjp(of, *of.leaves, has_aux=has_aux)
    value = of.results(found[0])

    def pull(cotangent: Any) -> tuple[Any, ...]:
        cotangents = tuple(tree.leaves(fitted("vjp", "cotangent", capture_arguments(cotangent), value)))
        return tuple(of.arguments(tuple(map(cut_as, found[1](cotangents), of.leaves))))

    return (value, pull, of.aux(found[2])) if has_aux else (value, pull)


def jvp(fun: Function, primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """The result of a function, and its Jacobian multiplied with a tangent from the right.

    Args:
        fun: a function of the primals.
        primals: its arguments, a tuple or list.
        tangents: a tangent for each, of the same containers, shapes and dtypes.
        has_aux: whether `fun` returns (result, anything else).

    Returns:
        (result, tangent of the result), with has_aux also anything else.

    Raises:
        DtypeError: tangents that do not fit the primals, or a primal of integers.

    Communication: that of the function.

    In JAX: integers have tangents of dtype float0.

    Example:
        >>> jvp(lambda x: x**2, (torch.tensor(3.0),), (torch.tensor(1.0),))
        (tensor(9.), tensor(6.))
    """
    load_jvp_rules()
    check_function(fun, "jvp")
    if not isinstance(primals, list | tuple) or not isinstance(tangents, list | tuple):
        got = f"{type(primals).__name__} and {type(tangents).__name__}"
        raise DtypeError("jvp takes primals and tangents as tuples", got=got, try_="ts.jvp(f, (x,), (t,))")
    if len(primals) != len(tangents):
        raise DtypeError("jvp needs a tangent for each primal", got=f"{len(primals)} and {len(tangents)}")
    primals, tangents = capture_arguments((primals, tangents))
    primals = checked_values("jvp", primals)
    of = OfLeaves("jvp", fun, primals, has_aux)
    slopes = tree.leaves(fitted("jvp", "tangent", tangents, primals))
    pairs = [_beside(x, slope) for x, slope in zip(of.leaves, slopes, strict=True)]
    with transform_scope():
        found: Any = torch.func.jvp(of, tuple(x for x, _ in pairs), tuple(t for _, t in pairs), has_aux=has_aux)
    result = of.results(found[0]), of.results(found[1])
    return (*result, of.aux(found[2])) if has_aux else result


def _beside(primal: torch.Tensor, tangent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Make a plain tensor an Array if its tangent, or its primal, is one: torch cannot take views of a mixed pair."""

    def put(x: Any, other: Any) -> Any:
        is_plain = type(x) is torch.Tensor and x is innermost(x) and not x.requires_grad
        return array(x) if is_plain and isinstance(innermost(other), Array) else x

    return put(primal, tangent), put(tangent, primal)


@functools.cache
def load_jvp_rules() -> None:
    """Load torch's rules of forward mode, which torch loads at their first use, with a warning about jit.script."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import torch._decomp.decompositions_for_jvp  # noqa: F401


def by_chosen(
    what: str,
    fun: Function,
    args: Any,
    kwargs: Any,
    numbers: int | tuple[int, ...],
    has_aux: bool,
    kinds: Kinds = REAL,
) -> OfLeaves:
    """The function of only the tensors in the chosen arguments. Raises DtypeError as `checked_values`."""
    args, kwargs = capture_arguments((args, kwargs))
    places = _places(what, numbers, len(args))
    chosen = [checked_values(what, args[n], f"argument {n}: ", kinds) for n in places]

    def alone(*values: Any) -> Any:
        full = list(args)
        for place, value in zip(places, values, strict=True):
            full[place] = value
        return fun(*full, **kwargs)

    return OfLeaves(what, functools.wraps(fun)(alone), chosen, has_aux)


def chosen_of(values: tuple[Any, ...], numbers: int | tuple[int, ...]) -> Any:
    """The single value, or for a tuple of argnums all values."""
    return values[0] if isinstance(numbers, int) else values


def checked_argnums(argnums: Any) -> int | tuple[int, ...]:
    """The arguments to differentiate with respect to. Raises DtypeError for anything but ints."""
    return one_or_more(argnums, "argnums", DtypeError, "argnums=0, or argnums=(0, 1)")


def check_function(fun: Any, name: str) -> None:
    """Raise DtypeError for an object that cannot be called."""
    if not callable(fun):
        raise DtypeError(f"{name} takes a function", got=f"{fun!r} ({type(fun).__name__})", try_=f"ts.{name}(f)")


def _places(what: str, argnums: int | tuple[int, ...], count: int) -> list[int]:
    """The positions in argnums, from the front. Raises DtypeError for one that does not exist, or is named twice."""
    numbers = (argnums,) if isinstance(argnums, int) else argnums
    got = f"argnums={argnums!r}, {count} positional arguments"
    if any(not -count <= n < count for n in numbers):
        problem = f"{what} is asked for an argument that is not there"
        raise DtypeError(problem, got=got, try_="pass the argument by position")
    places = [n % count for n in numbers]
    if len(set(places)) < len(places):
        raise DtypeError(
            f"{what} differentiates with respect to one argument twice",
            got=got,
            rule="each argument is named once; -1 is the last one",
            try_=f"argnums={tuple(dict.fromkeys(places))!r}",
        )
    return places


def _scalar(what: str, fun: Function, call: Function, has_aux: bool, kinds: Kinds) -> Function:
    @functools.wraps(fun)
    def checked(*args: Any, **kwargs: Any) -> Any:
        out = call(*args, **kwargs)
        value = out[0] if has_aux else out
        is_tensor = isinstance(value, torch.Tensor)
        fits = is_tensor and (value.dtype.is_complex if kinds.holomorphic else value.dtype.is_floating_point)
        if not fits or value.dim():
            got = f"shape {tuple(value.shape)}, {value.dtype}" if is_tensor else type(value).__name__
            kind = "complex scalar result where it is holomorphic" if kinds.holomorphic else "real scalar result"
            raise DtypeError(
                f"{what} needs a function with a {kind}",
                got=f"{getattr(fun, '__name__', 'the function')} returns {got}",
                try_=".sum() or .mean() at its end; jacrev for the whole Jacobian",
            )
        return out

    return checked

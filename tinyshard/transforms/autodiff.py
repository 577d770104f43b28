"""Derivatives under JAX's names and signatures; they are torch.func's, so they compose with vmap and jit.

grad  value_and_grad      reverse, of a function with a scalar result
vjp   jvp                 one vector with the Jacobian, from either side

Whole Jacobians are in `jacobians`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tinyshard.arrays.array import Array
from tinyshard.arrays.levels import innermost
from tinyshard.arrays.placement import array
from tinyshard.compile.capture import capture_arguments
from tinyshard.compile.intercept import one_transform
from tinyshard.core.errors import DtypeError
from tinyshard.transforms.tangents import checked_values, fitted

Function = Callable[..., Any]


def grad(fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """The gradient of a function with a real scalar result.

    Args:
        fun: a function of trees of floating-point tensors.
        argnums: the arguments to differentiate by, an int or a tuple of ints. A float among them is a 0-d tensor of
            torch's default dtype, and a NumPy array a tensor of its dtype.
        has_aux: whether `fun` returns (result, anything else).

    Returns:
        A function that returns the gradient, a tree as the argument (a tuple of trees for a tuple of argnums); with
        has_aux (gradient, anything else).

    Raises:
        DtypeError: an argument that is not real floating-point, an argnums that names one twice, or a result that is
            no scalar.

    Communication: that of the function and its transpose: for data cut over devices one all_reduce a parameter.

    In JAX: also holomorphic= and allow_int=. Here the derivative of a function of complex numbers is asked of `vjp`.

    Example:
        >>> grad(lambda x: (x**2).sum())(torch.tensor([1.0, 2.0]))
        tensor([2., 4.])
    """
    check_function(fun, "grad")
    both = value_and_grad(fun, argnums, has_aux)

    @functools.wraps(fun)
    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, derivative = both(*args, **kwargs)
        return (derivative, value[1]) if has_aux else derivative

    return gradient


def value_and_grad(fun: Function, argnums: int | Sequence[int] = 0, has_aux: bool = False) -> Function:
    """The result of a function together with its gradient.

    Args:
        fun: a function of trees of floating-point tensors.
        argnums: the arguments to differentiate by, an int or a tuple of ints, as for `grad`.
        has_aux: whether `fun` returns (result, anything else).

    Returns:
        A function that returns (result, gradient); with has_aux ((result, anything else), gradient).

    Raises:
        DtypeError: as `grad`.

    Communication: as `grad`.

    In JAX: also holomorphic= and allow_int=, as `grad`.

    Example:
        >>> value_and_grad(lambda x: (x**2).sum())(torch.tensor([1.0, 2.0]))
        (tensor(5.), tensor([2., 4.]))
    """
    check_function(fun, "value_and_grad")
    numbers = argnums if isinstance(argnums, int) else tuple(argnums)

    @functools.wraps(fun)
    def both(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = capture_arguments((args, kwargs))
        args = _with_tensors(args, numbers)
        alone, whole = aux_apart(fun, has_aux)
        alone = _scalar(alone, has_aux)
        with one_transform():
            derivative, value = torch.func.grad_and_value(alone, argnums=numbers, has_aux=has_aux)(*args, **kwargs)
        return ((value[0], whole(value[1])) if has_aux else value), derivative

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

    In JAX: integers have cotangents of dtype float0. Cotangents of complex numbers are the conjugates of these.

    Example:
        >>> value, back = vjp(lambda x: x * 3, torch.tensor(2.0))
        >>> back(torch.tensor(1.0))
        (tensor(3.),)
    """
    check_function(fun, "vjp")
    alone, whole = aux_apart(fun, has_aux)
    primals = checked_values("vjp", capture_arguments(primals))
    with one_transform():
        found: Any = torch.func.vjp(alone, *primals, has_aux=has_aux)
    value, back = found[0], found[1]

    def pull(cotangent: Any) -> tuple[Any, ...]:
        out = back(fitted("vjp", "cotangent", capture_arguments(cotangent), value))
        # torch.func gives the bare cotangent or a tuple of one, as the primal is a tensor or a tree
        is_tuple = isinstance(out, tuple) and tree_flatten(out)[1] == tree_flatten(tuple(primals))[1]
        return (out,) if len(primals) == 1 and not is_tuple else tuple(out)

    return (value, pull, whole(found[2])) if has_aux else (value, pull)


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
    alone, whole = aux_apart(fun, has_aux)
    primals, tangents = capture_arguments((primals, tangents))
    primals = checked_values("jvp", primals)
    tangents = tuple(fitted("jvp", "tangent", tangents, primals))
    primals, tangents = _beside(tuple(primals), tangents)
    with one_transform():
        found: Any = torch.func.jvp(alone, primals, tangents, has_aux=has_aux)
    return (found[0], found[1], whole(found[2])) if has_aux else found


def _beside(primals: Any, tangents: Any) -> tuple[Any, Any]:
    """A plain tensor whose tangent, or whose primal, is an Array as an Array, too: torch takes no views of the two."""

    def put(x: Any, other: Any) -> Any:
        is_plain = type(x) is torch.Tensor and x is innermost(x) and not x.requires_grad
        return array(x) if is_plain and isinstance(innermost(other), Array) else x

    (ps, form), (ts, _) = tree_flatten(primals), tree_flatten(tangents)
    ps, ts = list(map(put, ps, ts)), list(map(put, ts, ps))
    return tree_unflatten(ps, form), tree_unflatten(ts, form)


@functools.cache
def load_jvp_rules() -> None:
    """torch loads some rules of forward mode when it first needs them, and warns of its own use of jit.script."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import torch._decomp.decompositions_for_jvp  # noqa: F401


def aux_apart(fun: Function, has_aux: bool) -> tuple[Function, Callable[[Any], Any]]:
    """torch.func takes only tensors as aux: the function with these alone, and how to put the whole together again."""
    if not has_aux:
        return fun, lambda aux: aux
    kept: list[Any] = []

    @functools.wraps(fun)
    def alone(*args: Any, **kwargs: Any) -> Any:
        out = fun(*args, **kwargs)
        if not (isinstance(out, tuple) and len(out) == 2):
            got = f"{getattr(fun, '__name__', 'the function')} returns {type(out).__name__}"
            raise DtypeError("with has_aux a function returns (result, anything else)", got=got)
        value, aux = out
        kept[:] = tree_flatten(aux)
        return value, [x for x in kept[0] if isinstance(x, torch.Tensor)]

    def whole(tensors: Any) -> Any:
        given = iter(tensors)
        return tree_unflatten([next(given) if isinstance(x, torch.Tensor) else x for x in kept[0]], kept[1])

    return alone, whole


def by_chosen(fun: Function, args: Sequence[Any], kwargs: Any, argnums: int | Sequence[int]) -> tuple[Function, Any]:
    """The function of the chosen arguments alone, and their values: one value, or a tuple for a tuple of argnums."""
    numbers = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    args = _with_tensors(args, numbers)

    def alone(chosen: Any) -> Any:
        full = list(args)
        for number, value in zip(numbers, (chosen,) if isinstance(argnums, int) else chosen, strict=True):
            full[number] = value
        return fun(*full, **kwargs)

    chosen = args[argnums] if isinstance(argnums, int) else tuple(args[n] for n in numbers)
    return alone, chosen


def check_function(fun: Any, name: str) -> None:
    """Raise DtypeError for what cannot be called."""
    if not callable(fun):
        raise DtypeError(f"{name} takes a function", got=f"{fun!r} ({type(fun).__name__})", try_=f"ts.{name}(f)")


def _with_tensors(args: Sequence[Any], argnums: Any) -> tuple[Any, ...]:
    """The arguments, those of argnums as trees of tensors. Raises DtypeError if they cannot be differentiated by."""
    args = list(args)
    for number in (argnums,) if isinstance(argnums, int) else argnums:
        if not isinstance(number, int) or not -len(args) <= number < len(args):
            raise DtypeError(
                "grad is asked for an argument that is not there",
                got=f"argnums={argnums!r}, {len(args)} positional arguments",
                try_="pass the argument by position",
            )
        args[number] = checked_values("grad", args[number], f"argument {number}: ", real=True)
    places = [] if isinstance(argnums, int) else [number % len(args) for number in argnums]
    if len(set(places)) < len(places):
        raise DtypeError(
            "grad is asked for the gradient by one argument twice",
            got=f"argnums={argnums!r}, {len(args)} positional arguments",
            rule="each argument is named once; -1 is the last one",
            try_=f"argnums={tuple(dict.fromkeys(places))!r}",
        )
    return tuple(args)


def _scalar(fun: Function, has_aux: bool) -> Function:
    @functools.wraps(fun)
    def checked(*args: Any, **kwargs: Any) -> Any:
        out = fun(*args, **kwargs)
        value = out[0] if has_aux else out
        if not isinstance(value, torch.Tensor) or value.dim() or not value.dtype.is_floating_point:
            is_tensor = isinstance(value, torch.Tensor)
            got = f"shape {tuple(value.shape)}, {value.dtype}" if is_tensor else type(value).__name__
            raise DtypeError(
                "grad needs a function with a real scalar result",
                got=f"{getattr(fun, '__name__', 'the function')} returns {got}",
                try_=".sum() or .mean() at its end; jacrev for the whole Jacobian",
            )
        return out

    return checked

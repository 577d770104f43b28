"""linearize and linear_transpose: the derivative of a function at one point, as a linear function; its transpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tinyshard.arrays.abstract import ShapeDtypeStruct
from tinyshard.arrays.array import shaped_type_of
from tinyshard.compile.capture import capture_arguments, capture_outer
from tinyshard.compile.replay import replayed
from tinyshard.core import tree
from tinyshard.core.errors import DtypeError
from tinyshard.core.thread_state import varying_types
from tinyshard.primitives.branching import types_of
from tinyshard.primitives.call import Call, continuous
from tinyshard.transforms import bodies
from tinyshard.transforms.autodiff import check_function, jvp, load_jvp_rules, vjp
from tinyshard.transforms.call_rules import apply_call
from tinyshard.transforms.cutting import cut, linear
from tinyshard.transforms.recomputed import RECOMPUTED
from tinyshard.transforms.tangents import OfLeaves, checked_values, fitted

_LINEAR = replace(RECOMPUTED, name="linearize")


def linearize(fun: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """The result of a function, and its derivative at this point, as a function of tangents.

    The function is traced and run once. The values that its derivative needs are saved: a call of `jvp_fun` runs only
    the linear part.

    Args:
        fun: a function of the primals.
        primals: trees of floating-point or complex tensors, floats and NumPy arrays.

    Returns:
        (result, jvp_fun). `jvp_fun(*tangents)`, a tangent for each primal of the same containers, shapes and dtypes,
        returns the tangent of the result.

    Raises:
        DtypeError: a primal of integers, or when called, tangents that do not fit the primals.

    Communication: that of the function; of `jvp_fun`, that of the linear part.

    In JAX: as here. A function with a custom derivative (`torch.no_grad`, a `torch.autograd.Function`) is recomputed
    for each tangent.

    Example:
        >>> value, along = linearize(lambda x: x**2, torch.tensor(3.0))
        >>> value, along(torch.tensor(1.0)), along(torch.tensor(10.0))
        (tensor(9.), tensor(6.), tensor(60.))
    """
    load_jvp_rules()
    check_function(fun, "linearize")
    values = checked_values("linearize", capture_arguments(primals))
    of = OfLeaves("linearize", fun, values)
    metas = list(map(shaped_type_of, of.leaves))
    varying = varying_types()
    traced = bodies.traced_body(of, metas, types=None if varying is None else varying.within(of.leaves))
    if traced.custom_derivative is not None:
        return fun(*values), lambda *tangents: jvp(fun, values, tangents)[1]
    count, results = len(metas), types_of(traced.results)
    flowing = continuous(results)
    xs = [*of.leaves, *(capture_outer(c.value) for c in traced.closed)]
    taken = types_of(traced.inputs)

    def push(*given: torch.Tensor) -> Sequence[torch.Tensor]:
        primals, along = given[: len(taken)], given[len(taken) :]
        return bodies.with_tangents(replayed(traced), primals, range(count), along, range(len(results)), flowing)

    function = linear(bodies.traced_body(push, [*taken, *metas]), len(taken))

    def forwards(*xs: torch.Tensor) -> Sequence[torch.Tensor]:
        outputs = function(*xs, *map(torch.zeros_like, xs[:count]))
        return [*outputs[: len(results)], *outputs[len(results) + len(flowing) :]]

    def onwards(*given: torch.Tensor) -> Sequence[torch.Tensor]:
        outputs = function(*given)
        return [*outputs[len(results) + len(flowing) :], *outputs[len(results) :][: len(flowing)]]

    both, joint = bodies.traced_body(forwards, taken), bodies.traced_silently(onwards, [*taken, *metas])
    parts = cut(both, len(results), joint, len(joint.results) - len(flowing))
    outputs = apply_call(Call(parts.forwards, _LINEAR, len(parts.forwards.results)), xs)
    value, saved = of.results(outputs[: len(results)]), outputs[len(results) :]
    call = Call(parts.backwards, _LINEAR, len(flowing))

    def along(*tangents: Any) -> Any:
        if len(tangents) != len(primals):
            raise DtypeError("linearize needs a tangent for each primal", got=f"{len(tangents)} and {len(primals)}")
        given = tree.leaves(fitted("linearize", "tangent", capture_arguments(tangents), values))
        found = dict(zip(flowing, apply_call(call, [*saved, *xs, *given]), strict=True))
        zeros = (torch.zeros(m.shape, dtype=m.dtype) for m in results)
        return of.results([found.get(i, zero) for i, zero in enumerate(zeros)])

    return value, along


def linear_transpose(fun: Callable[..., Any], *primals: Any) -> Callable[..., Any]:
    """The transpose of a linear function: from the cotangent of its result to those of its arguments.

    Args:
        fun: a linear function of the primals; if it is not linear, this is the transpose of its derivative at zero.
        primals: trees of tensors or ShapeDtypeStructs; only their shapes and dtypes count.

    Returns:
        A function of a cotangent, which has the containers, shapes and dtypes of the result; it returns a tuple with
        one entry for each primal.

    Raises:
        DtypeError: a primal of integers, or a cotangent that does not fit the result.

    Communication: that of the transpose.

    In JAX: it refuses a function that is not linear.

    Example:
        >>> back = linear_transpose(lambda x: 3 * x, torch.tensor(0.0))
        >>> back(torch.tensor(2.0))
        (tensor(6.),)
    """
    check_function(fun, "linear_transpose")
    described = tree_map(
        lambda x: torch.zeros(x.shape, dtype=x.dtype) if isinstance(x, ShapeDtypeStruct) else x, primals
    )
    zeros = tree_map(torch.zeros_like, checked_values("linear_transpose", described))
    back: Callable[..., Any] = vjp(fun, *zeros)[1]
    return back

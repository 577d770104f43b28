"""Distributions with parameters: public functions from formulas of the key's words and the parameters.

@of_parameters()
def pareto(data, sizes, dtype, b): ...        pareto(key, b, shape=None, dtype=None)
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

import torch
from torch import Tensor

from tinyshard.core.errors import DtypeError
from tinyshard.core.jax_hints import check_others
from tinyshard.random.key_creation import draw_op
from tinyshard.random.keys import checked_key
from tinyshard.random.sampling import checked_float, checked_parameters, placed

Formula = Callable[..., Tensor]
LOOPS = (
    "none but the loop's: in each round the devices that have a part\n"
    "agree to go on, by an all_reduce of 4 bytes. A device draws for the parameters that it has: where they are whole\n"
    "it draws all numbers, and keeps its block."
)
INTS = (torch.int32, torch.int64, torch.int16, torch.int8, torch.uint8)

_ARGUMENTS = """Args:
    key: one Key.
{parameters}
    shape: of the result; by default the shape to which the parameters broadcast.
    dtype: {dtypes}.
    out_sharding: how the result is cut, a PartitionSpec or a Sharding; None for an uncommitted one.

Returns:
    {returns}, placed as by `uniform`.

Raises:
    DtypeError: not a key, a dtype that the function does not make, an invalid shape.
    DrawError: several keys, or a parameter that does not broadcast to the shape.

Communication: {communication}

"""
_DTYPES = {
    "float": "float32 (default), float64, float16 or bfloat16",
    "float of 32 bits or more": "float32 (default) or float64",
    "int": "int32 (default), int64, int16, int8 or uint8",
}


def of_parameters(
    returns: str = "Numbers", dtypes: str = "float", communication: str = "as `uniform`.", ndims: int = 0
) -> Callable[[Formula], Callable[..., Tensor]]:
    """Make the public function of a formula, with the common checks and arguments.

    Args:
        returns: the first words of Returns in its docstring.
        dtypes: the dtypes that it makes: a key of `_DTYPES`.
        communication: for its docstring.
        ndims: the number of trailing dims of each parameter that belong to one draw.

    The formula is a function of the key's words, the sizes of the result, its dtype, and the parameters as tensors of
    the dtype (of float32 where ints are made). Its docstring has a first line, a section Args of the parameters, and
    its own further sections.
    """

    def decorate(formula: Formula) -> Callable[..., Tensor]:
        name = formula.__name__
        given = list(inspect.signature(formula).parameters.values())[3:]
        key = Parameter("key", Parameter.POSITIONAL_OR_KEYWORD, annotation="Any")
        shape, dtype = (key.replace(name=each, default=None) for each in ("shape", "dtype"))
        others = Parameter("others", Parameter.VAR_KEYWORD, annotation="Any")
        last = [shape, dtype, others]
        signature = inspect.Signature([key, *given, *last], return_annotation="Tensor")

        def draw(*args: Any, **kwargs: Any) -> Tensor:
            try:
                bound = signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(f"{name}(): {error}") from None
            bound.apply_defaults()
            check_others(draw, bound.arguments["others"])
            kind = checked_int(name, bound.arguments["dtype"]) if dtypes == "int" else _float(name, bound, dtypes)
            wide = torch.float32 if dtypes == "int" else kind
            values = {each.name: as_parameter(name, each.name, bound.arguments[each.name], wide) for each in given}
            batches = {each: _Batch(x.shape[: x.dim() - ndims]) for each, x in values.items()} if ndims else values
            sizes = checked_parameters(name, bound.arguments["shape"], **batches)
            return formula(checked_key(name, bound.arguments["key"]), sizes, kind, **values)

        draw.__name__ = draw.__qualname__ = name
        draw.__module__ = formula.__module__
        draw.__signature__ = signature  # type: ignore[attr-defined]
        first, arguments, rest = _sections(formula)
        draw.__doc__ = f"{first}\n\n" + _ARGUMENTS.format(
            parameters=arguments, dtypes=_DTYPES[dtypes], returns=returns, communication=communication
        )
        draw.__doc__ += rest
        return placed(draw)

    return decorate


class _Batch:
    """The shape of a parameter without the dims of one draw."""

    def __init__(self, shape: Any) -> None:
        self.shape = shape


def _sections(formula: Formula) -> tuple[str, str, str]:
    """The first line of its docstring, the lines of its section Args, and the rest."""
    doc = inspect.cleandoc(formula.__doc__ or "")
    first, _, rest = doc.partition("\n\n")
    arguments, _, rest = rest.partition("\n\n")
    return first, arguments.removeprefix("Args:\n"), rest


def _float(name: str, bound: inspect.BoundArguments, dtypes: str) -> torch.dtype:
    dtype = checked_float(name, bound.arguments["dtype"])
    if dtypes != "float" and dtype.itemsize < 4:
        raise DtypeError(f"{name} makes floats of 32 bits or more", got=str(dtype), try_=f"{name}(...).to({dtype})")
    return dtype


def checked_int(name: str, dtype: torch.dtype | None) -> torch.dtype:
    """A dtype of ints; int32 for None. Raises DtypeError for any other dtype."""
    dtype = torch.int32 if dtype is None else dtype
    if dtype not in INTS:
        raise DtypeError(f"{name} makes ints", got=str(dtype), rule=f"dtype is {_DTYPES['int']}")
    return dtype


def as_parameter(function: str, name: str, value: Any, dtype: torch.dtype) -> Tensor:
    """A parameter as a tensor of floats.

    Raises:
        DtypeError: neither a number nor a value that torch can make a tensor of numbers.
    """
    try:
        x = torch.as_tensor(value, dtype=None if isinstance(value, Tensor) else dtype)
    except (TypeError, ValueError, RuntimeError) as error:
        got = f"{type(value).__name__}: {str(value)[:60]}"
        raise DtypeError(f"{name} of {function} is a number or a tensor", got=got) from error
    if x.is_complex():
        raise DtypeError(f"{name} of {function} is real", got=f"a tensor of {x.dtype}")
    return x.to(dtype)


def split_words(data: Tensor, count: int = 2) -> tuple[Tensor, ...]:
    """The words of new keys: from one key, int32[2], or from each of many, int32[..., 2]."""
    return draw_op(data, [count], "words", torch.int32).unbind(-2)

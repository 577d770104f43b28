"""Names of blocks of code: `with ts.named_scope("attention"):` is a part of each line in it that errors and texts name.

    def layer(x, w):                             %2: f32[8, 4] = aten.mm.default(%0, %1)    # in layer/product
        with ts.named_scope("product"):
            return x @ w

A line has the names around it in its own function. Where a traced graph becomes a part of a program, the names around
it there come first: a trace is kept, and may be used in several places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, TypeVar

from tinyshard.core.errors import DtypeError

F = TypeVar("F", bound=Callable[..., Any])

# the names around the line that runs now, from outside to inside: "layer/product"; "" for none
SCOPE: ContextVar[str] = ContextVar("tinyshard_named_scope", default="")


def named_scope(name: str) -> Any:
    """Name a block of code, or a function: in a program's text, a profile and an error its lines say the name.

    Names of blocks within each other are joined: "layer/product".

    Args:
        name: of the block.

    Returns:
        A context manager that is a decorator, too.

    Raises:
        DtypeError: a name that is not a string.

    Communication: none; the program is the same.

    In JAX: the names are in the metadata of the compiled text.

    Example:
        >>> import torch
        >>> import tinyshard as ts
        >>> @ts.named_scope("layer")
        ... def f(x):
        ...     with ts.named_scope("sum"):
        ...         return x + x
        >>> ts.make_graph(f)(torch.zeros(3))
        f on whole tensors
          %0: f32[3] = x
          %1: f32[3] = aten.add.Tensor(%0, %0)    # in layer/sum
          return %1
    """
    if not isinstance(name, str):
        raise DtypeError("named_scope takes a name", got=f"{name!r} ({type(name).__name__})", rule="a name is a string")
    return _named(name)


@contextmanager
def _named(name: str) -> Iterator[None]:
    before = SCOPE.get()
    SCOPE.set(f"{before}/{name}" if before else name)
    try:
        yield
    finally:
        SCOPE.set(before)


def named_call(fun: F, *, name: str | None = None) -> F:
    """A function whose ops say its name: `named_scope` of the function's own name.

    Args:
        fun: a function.
        name: another name.

    Returns:
        The function, in that scope.

    Raises:
        DtypeError: not a function, or a name that is not a string.

    Communication: none.

    Example:
        >>> import torch
        >>> import tinyshard as ts
        >>> ts.make_graph(ts.named_call(lambda x: x.sin(), name="wave"))(torch.zeros(3))
        <lambda> on whole tensors
          %0: f32[3] = x
          %1: f32[3] = aten.sin.default(%0)    # in wave
          return %1
    """
    if not callable(fun):
        raise DtypeError("named_call takes a function", got=f"{fun!r} ({type(fun).__name__})")
    named: F = named_scope(getattr(fun, "__name__", type(fun).__name__) if name is None else name)(fun)
    return named


def within(where: Any, around: Any) -> Any:
    """A line of a graph that becomes a part of a program at a line: with the names that this one is in first."""
    if not around.scope:
        return where
    return around if where is None else replace(where, scope="/".join(filter(None, (around.scope, where.scope))))

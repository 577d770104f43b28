"""Ints as users write them: Python's, NumPy's, and any other object that Python accepts as an index.

np.prod((2, 3))     6
2.0                 not an int
"""

from __future__ import annotations

import operator
from typing import Any

from tinyshard.core.errors import TinyshardError


def as_int(x: Any) -> int | None:
    """The int, or None for anything else.

    Example:
        >>> as_int(3), as_int(3.0)
        (3, None)
    """
    try:
        return operator.index(x)
    except TinyshardError:  # a traced number: its value is read too early
        raise
    except TypeError:
        return None


def one_or_more(x: Any, what: str, kind: type[TinyshardError], try_: str = "") -> int | tuple[int, ...]:
    """An int as an int, and several as a tuple.

    Args:
        x: the user's value.
        what: its name in the error: "static_argnums".
        kind: the class of the error.
        try_: what to write instead.

    Raises:
        TinyshardError: of that kind, for anything else.

    Example:
        >>> one_or_more([0, 2], "argnums", TinyshardError)
        (0, 2)
    """
    one = as_int(x)
    if one is not None:
        return one
    try:
        several = [as_int(n) for n in x]
    except TypeError:
        several = [None]
    if None in several:
        raise kind(f"{what} is an int or a tuple of ints", got=f"{x!r} ({type(x).__name__})", try_=try_)
    return tuple(n for n in several if n is not None)

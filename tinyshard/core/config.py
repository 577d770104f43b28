"""Flags that change what programs do; those are part of every cache key."""

from __future__ import annotations

from typing import Any

import torch

from tinyshard.core.errors import UnknownFlagError
from tinyshard.core.ints import as_int

__all__ = ["FLAGS", "UnknownFlagError", "update"]

# name -> (default, meaning, whether it changes programs)
FLAGS: dict[str, tuple[Any, str, bool]] = {
    "explain_cache_misses": (False, "print why a jitted function is traced again", False),
    "explain_gathers": (False, "print which op gathers an operand, on whose line, how many bytes and why", False),
    "threefry_partitionable": (
        True,
        "a random number depends on its own counter alone, not on how many there are",
        True,
    ),
    "check_replicated": (
        False,
        "shard_map and pmap compare the blocks of a result that out_specs or out_axes call the same",
        True,
    ),
    "debug_key_reuse": (False, "drawing twice from one key, outside of jit, is an error", False),
    "hosts_timeout_s": (120, "how long ts.init(hosts=...) waits for the workers of other machines", False),
    "collective_timeout_s": (60, "how long a wait goes on while no device makes progress; then it is an error", False),
}

# what `set_mesh` made current; no ContextVar: a notebook may run each cell in a context of its own
mesh: list[Any] = [None]
_values: dict[str, Any] = {name: default for name, (default, _, _) in FLAGS.items()}
_CHANGE_PROGRAMS = tuple(name for name, (_, _, changes) in FLAGS.items() if changes)


def update(name: str, value: Any) -> None:
    """Set a flag.

    Args:
        name: one of `FLAGS`.
        value: of the same type as its default.

    Raises:
        UnknownFlagError: no such flag, or a value of another type, or a number below 1.

    Communication: none.

    Example:
        >>> update("explain_cache_misses", False)
    """
    if name not in FLAGS:
        raise UnknownFlagError(f"there is no flag {name!r}", rule=f"the flags are {', '.join(map(repr, FLAGS))}")
    kind = type(FLAGS[name][0])
    number = as_int(value) if kind is int and not isinstance(value, bool) else None
    value = value if number is None else number
    if type(value) is not kind:
        raise UnknownFlagError(
            f"{name!r} takes {'an int' if kind is int else f'a {kind.__name__}'}",
            got=f"{value!r} ({type(value).__name__})",
        )
    if kind is int and value < 1:
        raise UnknownFlagError(f"{name!r} is a positive int", got=repr(value))
    _values[name] = value


def read(name: str) -> Any:
    """The value of a flag."""
    return _values[name]


def key() -> tuple[Any, ...]:
    """What changes programs: flags, the current mesh, and torch's default dtype and its autocast."""
    autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return (*map(_values.__getitem__, _CHANGE_PROGRAMS), mesh[0], torch.get_default_dtype(), autocast)

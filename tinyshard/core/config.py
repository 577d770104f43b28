"""Flags: a row for each; those that change what programs do are part of every cache key."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from tinyshard.core.devices import Device
from tinyshard.core.errors import UnknownFlagError
from tinyshard.core.ints import as_int

__all__ = ["FLAGS", "UnknownFlagError", "debug_nans", "update"]


class Flag(NamedTuple):
    """A flag.

    Attributes:
        default: its value before `update`; a new value has the same type.
        meaning: its effect.
        changes_programs: whether it is part of every cache key.
        choices: its legal values, if they are words: then the environment variable TINYSHARD_<NAME> sets it too.
        kind: the type of its values, if the default is None, which stays allowed.
        least: the least value of an int.
    """

    default: Any
    meaning: str
    changes_programs: bool = False
    choices: tuple[str, ...] = ()
    kind: type | None = None
    least: int = 1


FLAGS: dict[str, Flag] = {
    "explain_cache_misses": Flag(False, "print why a jitted function is traced again"),
    "explain_gathers": Flag(False, "print which op gathers an operand, on whose line, how many bytes and why"),
    "threefry_partitionable": Flag(
        True, "a random number depends on its own counter alone, not on how many there are", changes_programs=True
    ),
    "check_replicated": Flag(
        False,
        "shard_map and pmap compare the blocks of a result that out_specs or out_axes call the same",
        changes_programs=True,
    ),
    "combine_nbytes": Flag(
        4 << 20,
        "collectives that do not wait for each other are one exchange, up to so many bytes; 0: each is one of its own, "
        "and so is each op",
        changes_programs=True,
        least=0,
    ),
    "debug_nans": Flag(False, "an op that makes a NaN raises, where it is and on its device", changes_programs=True),
    "default_device": Flag(
        None, "where values live that are not placed; None: on the first one", changes_programs=True, kind=Device
    ),
    "disable_jit": Flag(False, "jitted functions run op by op"),
    "debug_key_reuse": Flag(False, "drawing twice from one key, outside of jit, is an error"),
    "hosts_timeout_s": Flag(120, "how long ts.init(hosts=...) waits for the workers of other machines"),
    "collective_timeout_s": Flag(60, "how long a wait goes on while no device makes progress; then it is an error"),
    "tracebacks": Flag(
        "short", "what an uncaught error shows: the user's own lines, or every frame", choices=("short", "full")
    ),
}

# the current mesh of `set_mesh`; not a ContextVar: a notebook may run each cell in its own context
mesh: list[Any] = [None]
values: dict[str, Any] = {name: flag.default for name, flag in FLAGS.items()}
_CHANGE_PROGRAMS = tuple(name for name, flag in FLAGS.items() if flag.changes_programs)


def update(name: str, value: Any) -> None:
    """Set a flag.

    Args:
        name: one of `FLAGS`.
        value: of the same type as its default; one of its choices, if it has any.

    Raises:
        UnknownFlagError: no such flag, or a value of another type, an int below the least, a word that is not a choice.

    Communication: none.

    Example:
        >>> update("explain_cache_misses", False)
    """
    if name not in FLAGS:
        raise UnknownFlagError(f"there is no flag {name!r}", rule=f"the flags are {', '.join(map(repr, FLAGS))}")
    kind: type = FLAGS[name].kind or type(FLAGS[name].default)
    choices = FLAGS[name].choices
    if value is None and FLAGS[name].kind is not None:
        values[name] = value
        return
    if choices and value not in choices:
        raise UnknownFlagError(f"{name!r} takes {' or '.join(map(repr, choices))}", got=repr(value))
    number = as_int(value) if kind is int and not isinstance(value, bool) else None
    value = value if number is None else number
    if type(value) is not kind:
        raise UnknownFlagError(
            f"{name!r} takes {'an int' if kind is int else f'a {kind.__name__}'}",
            got=f"{value!r} ({type(value).__name__})",
        )
    least = FLAGS[name].least
    if isinstance(value, int) and kind is int and value < least:
        raise UnknownFlagError(f"{name!r} is {'a positive int' if least else 'an int, 0 or more'}", got=repr(value))
    values[name] = value


@contextlib.contextmanager
def debug_nans(value: bool = True) -> Iterator[None]:
    """A block in which an op that makes a NaN raises, on the line that called it; or in which none does.

    Args:
        value: whether it raises. Outside of blocks the flag decides, `ts.config.update("debug_nans", True)`.

    Returns:
        A context manager.

    Raises:
        NotANumberError: a call made a NaN; it names the op, its line, and the devices that made
            the NaN, and is a FloatingPointError. Each call then waits for its end, and every op's result is checked.

    Communication: none; programs are planned again for it.

    In JAX: the block applies to the thread that enters it; here to all threads.

    Example:
        >>> with debug_nans():
        ...     read("debug_nans")
        True
    """
    before = read("debug_nans")
    update("debug_nans", value)
    try:
        yield
    finally:
        update("debug_nans", before)


def read(name: str) -> Any:
    """The value of a flag."""
    return values[name]


def key() -> tuple[Any, ...]:
    """The settings that change programs: flags, the current mesh, and torch's default dtype and autocast."""
    autocast = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
    return (*map(values.__getitem__, _CHANGE_PROGRAMS), mesh[0], torch.get_default_dtype(), autocast)


for _name, _flag in FLAGS.items():
    if _flag.choices and f"TINYSHARD_{_name.upper()}" in os.environ:
        update(_name, os.environ[f"TINYSHARD_{_name.upper()}"])

"""Every error that tinyshard raises, and the four-part form of their messages.

A message says the problem, what it got, the rule, and what to try. Each class is also the builtin that JAX raises in
its place, and holds nothing but its message, so that it survives pickling.
"""

from typing import Any

__all__ = [
    "AxisNameError",
    "CancelledError",
    "CollectiveTimeoutError",
    "DeviceLostError",
    "DonationError",
    "DrawError",
    "DtypeError",
    "EndedTraceError",
    "FileError",
    "ImmutableError",
    "IndexingError",
    "KeyIndexError",
    "KeyReuseError",
    "MappingError",
    "MeshError",
    "NotANumberError",
    "OutOfMemoryError",
    "RemoteError",
    "RuntimeStateError",
    "ShardingError",
    "StatefulRandomError",
    "StaticArgumentError",
    "TinyshardError",
    "TracedValueError",
    "UnknownFlagError",
    "message",
]


class TinyshardError(Exception):
    """The base of every error that tinyshard raises deliberately; takes the parts of its `message`."""

    def __init__(self, problem: str = "", *, got: str = "", rule: str = "", try_: str = "") -> None:
        super().__init__(message(problem, got=got, rule=rule, try_=try_))

    def _repr_pretty_(self, printer: Any, is_cycle: bool) -> None:
        """In IPython: as it is printed."""
        printer.text(str(self))

    def _repr_html_(self) -> str:
        from tinyshard.core.page import error_html

        return error_html(str(self))


class MeshError(TinyshardError, ValueError):
    """An invalid mesh: duplicate names, too many devices, a shape that does not fit."""


class ShardingError(TinyshardError, ValueError):
    """A sharding that does not fit its array, or arrays whose shardings do not fit each other."""


class MappingError(TinyshardError, ValueError):
    """Mapped axes that do not fit their arguments, or a collective that does not fit its operand or its axis."""


class AxisNameError(TinyshardError, NameError):
    """A named axis that is not bound."""


class StaticArgumentError(TinyshardError, ValueError):
    """A static argument that cannot be hashed, or that the function does not have."""


class DonationError(TinyshardError, ValueError):
    """An argument is donated, and used a second time in the same call."""


class DtypeError(TinyshardError, TypeError):
    """A value of a type or dtype that cannot be used there."""


class ImmutableError(TinyshardError, TypeError):
    """An in-place operation on an Array."""


class StatefulRandomError(TinyshardError, TypeError):
    """A stateful random operation (dropout, rand_like) on an Array."""


class UnknownFlagError(TinyshardError, AttributeError):
    """An unknown flag, or a value that it cannot have."""


class TracedValueError(TinyshardError, TypeError):
    """Python read the number of a traced value, as `if` does."""


class EndedTraceError(TinyshardError, RuntimeError):
    """A traced value is used when its trace is over."""


class DrawError(TinyshardError, ValueError):
    """An invalid draw: from several keys at once, or with an invalid shape, range or mode."""


class KeyIndexError(DrawError, IndexError):
    """An index that an array of keys does not have."""


class IndexingError(TinyshardError, IndexError, ValueError):
    """An index that an array does not have, or values that do not fit it."""


class KeyReuseError(TinyshardError, RuntimeError):
    """A key was used a second time."""


class FileError(TinyshardError, OSError):
    """A saved tree that cannot be written or read: a file of it is missing, cut or damaged; the message names it."""


class RuntimeStateError(TinyshardError, RuntimeError):
    """The pool of devices is not in a state that allows this call."""


class RemoteError(TinyshardError, RuntimeError):
    """An operation failed on a device; the message carries the device's own frames and the dispatching line."""


class CancelledError(RemoteError):
    """The value was still queued when an interrupt came; the message names the interrupted line."""


class CollectiveTimeoutError(RemoteError):
    """No device that a wait depends on makes progress; the message names those that reached the collective."""


class OutOfMemoryError(RemoteError):
    """A device has no memory for a value; the message lists its live values."""


class NotANumberError(RemoteError, FloatingPointError):
    """An op made a NaN on a device, with the flag `debug_nans`; the message names the op, its line and the device."""


class DeviceLostError(RemoteError):
    """A device's worker process is gone; the message names the device and the signal."""


def message(problem: str, *, got: str = "", rule: str = "", try_: str = "") -> str:
    """Join the four parts of an error, one per line.

    Args:
        problem: what is wrong, in one line.
        got: the values that were passed.
        rule: the requirement.
        try_: what to write instead.

    Returns:
        A line for the problem, and one for each other part that is not empty.

    Communication: none.

    Example:
        >>> print(message("too many devices", got="9", rule="at most 8 here", try_="ts.init(devices=9)"))
        too many devices
          got:  9
          rule: at most 8 here
          try:  ts.init(devices=9)
    """
    lines = [problem]
    for label, text in (("got: ", got), ("rule:", rule), ("try: ", try_)):
        if text:
            lines.append(f"  {label} " + text.replace("\n", "\n        "))
    return "\n".join(lines)


for _name in __all__:
    globals()[_name].__module__ = "tinyshard.errors"  # the public name, which tracebacks show and pickles hold

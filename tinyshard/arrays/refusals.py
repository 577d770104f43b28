"""What an Array cannot do that a tensor can: it is immutable, and has no memory in this process."""

from __future__ import annotations

from typing import NoReturn

from tinyshard.core.errors import DtypeError, ImmutableError, message


def no_memory(what: str) -> NoReturn:
    """Raise DtypeError for a method that asks for the memory of a tensor."""
    raise DtypeError(
        message(
            "an Array has no memory in this process",
            got=f"x.{what}()",
            rule="its shards lie in the memory of its devices",
            try_=f"ts.device_get(x).{what}(), or x.addressable_shards",
        )
    )


def refuse(what: str, instead: str, problem: str = "an Array cannot be changed in place") -> NoReturn:
    """Raise ImmutableError for a change in place."""
    raise ImmutableError(
        message(
            problem,
            got=what,
            rule="an Array is immutable: other arrays and queued computations may share its shards",
            try_=instead,
        )
    )

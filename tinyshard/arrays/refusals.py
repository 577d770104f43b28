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


def no_memory_wrapped(what: str) -> NoReturn:
    """Raise DtypeError for a method that asks for the memory of a value that a transformation wraps."""
    raise DtypeError(
        message(
            "a value inside of a transformation has no memory of its own",
            got=f"x.{what}(), as copy.copy(x) and pickle.dumps(x) call it",
            rule="it stands for a value whose uses the transformation follows",
            try_="x.clone() for a copy; what is to be saved is returned from the function",
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

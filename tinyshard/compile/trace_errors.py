"""Errors of a trace that an op raises outside of one too: a result without a static shape, writes in place."""

from __future__ import annotations

from typing import Any

from tinyshard.core.errors import DtypeError, ImmutableError
from tinyshard.core.users_line import Where


def unknown_shape_error(op: Any, where: Where | None) -> DtypeError:
    """The error for an op whose result has a shape that depends on values."""
    return DtypeError(
        "the shape of a result depends on values",
        got=f"{op} in {where}" if where else str(op),
        rule="a program has static shapes",
        try_="torch.where(mask, x, 0), or call it outside of jit",
    )


def closed_over_changed(got: str) -> ImmutableError:
    """The error for an in-place change of a tensor from outside."""
    return ImmutableError(
        "a traced function changes a tensor that it closes over",
        got=got,
        rule="a traced function runs once; what it does to outer tensors would happen only then",
        try_="return the new value, and assign it outside; x.clone() first where you want to write into it",
    )


def custom_op_writes(op: Any, got: str) -> ImmutableError:
    """The error for a library's op that changes its arguments."""
    return ImmutableError(
        "a custom op writes into its arguments in place",
        got=got,
        rule="Arrays and traced values are immutable, and what a custom op writes cannot be traced",
        try_=f"a custom op {op._schema.name} with mutates_args=() that returns the new values",
    )

"""Donated arguments: their memory may be reused after the program's last use of them.

    f = ts.jit(lambda p, g: p - 0.1 * g, donate_argnums=0)
    p = f(p, g)         the handle of the old p is deleted; the devices free its blocks after their last use

An argument is donated if a result has the shape and dtype of its blocks, so that it can take their place; for others
there is a warning, and they stay as they are. So it is under a transformation: a derivative may need them.
"""

from __future__ import annotations

import collections
import warnings
from collections.abc import Collection, Sequence
from typing import Any

from torch.utils._pytree import tree_leaves, tree_unflatten

from tinyshard.arrays.array import Array
from tinyshard.compile.signature import Bound, checked_numbers, static_both_ways
from tinyshard.core.errors import DonationError, StaticArgumentError
from tinyshard.core.program import Program
from tinyshard.core.users_line import users_line
from tinyshard.runtime.controller.lineage import Buffer

_warned: dict[Any, Any] = {}  # lines that were warned of kept arguments


def checked_donation(
    function: Any, numbers: Any, names: Any, static: Sequence[int], what: str = "jit"
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Which arguments are donated, both ways; raises StaticArgumentError, also for one that is static."""
    given = (names,) if isinstance(names, str) else tuple(names or ())
    by_number, by_name = static_both_ways(function, checked_numbers(numbers, "donate_argnums"), given, what, "donate")
    both = sorted(set(by_number) & set(static))
    if both:
        problem, rule = "an argument is static and donated", "a static argument is a Python value, without memory"
        raise StaticArgumentError(problem, got=f"positions {both}", rule=rule)
    return by_number, by_name


def donated_operands(bound: Bound, numbers: Sequence[int], names: Collection[str]) -> tuple[int, ...]:
    """Which operands of a call are in arguments of these positions and names."""
    given = iter(range(len(bound.operands)))
    leaves = [None if none else next(given) for none in bound.signature.nones]
    args, kwargs = tree_unflatten(leaves, bound.signature.tree)
    static = {key for key, _, _ in bound.signature.static if isinstance(key, int)}
    count = len(args) + len(static)
    donated = {number % count for number in numbers if -count <= number < count}
    by_number = [x for place, x in zip(sorted({*range(count)} - static), args, strict=True) if place in donated]
    by_name = [x for name, x in kwargs.items() if name in names]
    return tuple(sorted(x for x in tree_leaves([by_number, by_name]) if x is not None))


def usable(program: Program, donated: Sequence[int]) -> tuple[int, ...]:
    """Those of the donated inputs whose memory a result can reuse; a UserWarning names the rest."""
    results = [program.metas[number] for number in program.outputs]
    used, left = [], []
    for number in donated:
        meta = program.metas[number]
        if meta in results:
            results.remove(meta)
            used.append(number)
        else:
            left.append(meta)
    if left:
        where = users_line()
        text = (
            f"Some donated buffers were not usable: {', '.join(map(str, left))}.\n"
            "No result has blocks of this shape and dtype to take their place; the arguments stay as they are."
        )
        warnings.warn_explicit(text, UserWarning, where.file, where.line)
    return tuple(used)


def warn_of_kept(function: str, numbers: Sequence[int], names: Collection[str]) -> None:
    """A UserWarning, once a line, if a function with donated arguments is called under a transformation."""
    if numbers or names:
        where = users_line()
        text = (
            f"The donated arguments of {function} stay as they are under grad, vmap and other transformations, and on "
            "torch's tape: a derivative may need them.\nDonate to what is jitted around the transformation."
        )
        warnings.warn_explicit(text, UserWarning, where.file, where.line, registry=_warned)


def donated_buffers(operands: Sequence[Any], buffers: Sequence[Buffer], donated: Sequence[int]) -> list[Buffer]:
    """The buffers of the donated operands that are Arrays and in place.

    Raises:
        DonationError: one of them is among the operands a second time, itself or by another handle.
    """
    found = []
    uses = collections.Counter(buffers)
    for i in donated:
        buffer = buffers[i]
        if not isinstance(operands[i], Array) or operands[i]._buffer is not buffer:
            continue  # a copy, which is freed when the call has used it
        if uses[buffer] > 1:
            twice = [j for j, other in enumerate(buffers) if other is buffer and j != i]
            problem = "Attempt to donate the same buffer twice"
            if not set(twice) & set(donated):
                problem = "Attempt to use a buffer that was previously donated in the same call"
            raise DonationError(
                problem,
                got=f"the operands {sorted((i, *twice))}, counted from 0: one Array, with blocks of {buffer.block}",
                rule="the memory of a donated argument is used again while the call runs",
                try_="f(x, x.clone()); or a function without donation",
            )
        found.append(buffer)
    return found

"""scan: a loop whose body is one function, with a carry from round to round and a row of operands for each."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from tinyshard.arrays.array import Array, shaped_type_of
from tinyshard.arrays.explicit import types_within
from tinyshard.arrays.placement import as_tensor
from tinyshard.arrays.varying_types import VaryingTypes, described
from tinyshard.core.errors import DtypeError, MappingError, ShardingError
from tinyshard.core.jax_hints import check_others
from tinyshard.core.leaves import named_leaves, without_none
from tinyshard.core.thread_state import innermost, is_tracing, varying_types
from tinyshard.core.types import ShapedType
from tinyshard.primitives.scan import Scan
from tinyshard.transforms import bodies
from tinyshard.transforms.jitted import Jitted
from tinyshard.transforms.scan_rules import apply_scan

Tensors = list[torch.Tensor]


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any = None,
    length: int | None = None,
    reverse: bool = False,
    unroll: int | bool = 1,
    **others: Any,
) -> tuple[Any, Any]:
    """Loop over the rows of some operands, with a carry from round to round, and stack the result of each round.

    In a trace (jit, pmap, shard_map) the body is traced once, and the loop is one step of the program, with the body as
    a nested program: its text, its compile time and its size do not grow with the number of rounds. On Arrays
    outside of a trace it is jitted; on plain tensors it is a Python loop.

    Its gradient is a scan again: the forward pass saves the carry of each round, the backward pass recomputes each
    round.

    Args:
        f: `f(carry, x) -> (carry, y)`: a round. The carry that it returns has the tree, shapes and dtypes of the one
            that it is passed. Closed-over tensors are the same for all rounds.
        init: the first carry, a tree of tensors and numbers; None for none.
        xs: a tree of tensors with the same dim 0; each round is passed one row of each. None for none.
        length: the number of rounds; needed if xs has no tensor.
        reverse: whether the last row comes first; results are stacked in the order of the rows.
        unroll: the number of rounds in one body; True for all of them.
        others: none; an argument that JAX has is refused with what to write in its place.

    Returns:
        (carry, ys): the last carry, and the y of all rounds, stacked along a new dim 0.

    Raises:
        MappingError: rows whose numbers differ, or differ from length; or neither rows nor a length.
        DtypeError: the body does not return a pair, or returns a carry with another tree, shape or dtype.

    Communication: that of the body, in each round. Operands are gathered along dim 0; a carry keeps its layout. Where
    the carry starts as `torch.zeros` or `zeros_like` in the same trace, and the body only adds to it, each device
    carries its part of the sum, and the parts are combined after the loop: the gradients of micro-batches once in a
    step. If the carry is sharded and a part would be larger, as with FSDP, they are combined in each round.

    In JAX: the same: a carry is saved in each round only if a gradient is needed; a policy of `jax.checkpoint` says
    what else is saved. XLA for CPUs combines such a sum in each round.

    Example:
        >>> def body(total, x):
        ...     total = total + x
        ...     return total, total * 10
        >>> scan(body, torch.tensor(0.0), torch.tensor([1.0, 2.0, 3.0]))
        (tensor(6.), tensor([10., 30., 60.]))
    """
    check_others(scan, others)
    rounds = _rounds(xs, length)
    written_out = rounds if unroll is True else max(1, operator.index(unroll))
    if is_tracing():
        return _in_program(f, init, xs, rounds, bool(reverse), written_out)
    if has_array((init, xs)):
        result: tuple[Any, Any] = _jitted(f, init, xs, rounds, bool(reverse), written_out)
        return result
    return _in_python(f, init, xs, rounds, bool(reverse))


def has_array(tree: Any) -> bool:
    """Whether a leaf is an Array, which transformations may wrap."""
    return any(isinstance(innermost(x), Array) for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor))


def flat(tree: Any) -> tuple[Tensors, TreeSpec]:
    """The tensors of a tree, where None is empty and a key is its tensor; numbers are tensors, too."""
    leaves, form = tree_flatten(without_none(tree))
    return [x if isinstance(x, torch.Tensor) else as_tensor(x) for x in leaves], form


def _rounds(xs: Any, length: Any) -> int:
    """The number of rounds. Raises MappingError."""
    sizes = {}
    for way, x in named_leaves(xs):
        shape = tuple(getattr(x, "shape", ()))
        if x is not None and not shape:
            raise MappingError(
                "scan's xs have rows, which a 0-d value has not",
                got=f"xs{way} of shape ()",
                rule="each round is given one row of each tensor in xs, along dim 0",
                try_="a function that closes over it, or x.expand(length)",
            )
        if x is not None:
            sizes[way] = shape[0]
    described = "\n".join(f"xs{way}: {size} rows" for way, size in sizes.items())
    if length is not None:
        length = operator.index(length)
    if len(set(sizes.values())) > 1:
        rule = "each round is given one row of each tensor in xs"
        raise MappingError("scan's xs have different numbers of rows", got=described, rule=rule)
    if not sizes and length is None:
        rule = "without rows only length says how many rounds there are"
        raise MappingError("scan has no length", got="xs without a tensor, length=None", rule=rule, try_="length=10")
    found = next(iter(sizes.values()), length)
    if length is not None and found != length:
        raise MappingError("scan's length is not the number of rows", got=f"length={length}\n{described}")
    return int(found)


# ---- in a program ----------------------------------------------------------------------------------------------------


def _on_arrays(f: Any, init: Any, xs: Any, rounds: int, reverse: bool, written_out: int) -> Any:
    if is_tracing():
        return _in_program(f, init, xs, rounds, reverse, written_out)
    # a function with a custom derivative, which is differentiated op by op
    return _in_python(f, init, xs, rounds, reverse)


_on_arrays.__name__ = "scan"
_jitted = Jitted(_on_arrays, static_argnums=(0, 3, 4, 5))


def _in_program(f: Any, init: Any, xs: Any, rounds: int, reverse: bool, written_out: int) -> tuple[Any, Any]:
    """A scan as an op of the trace."""
    rest = rounds % written_out
    if written_out >= rounds or not (flat(init)[0] or flat(xs)[0]):
        return _in_python(f, init, xs, rounds, reverse)
    if written_out == 1:
        return _recorded(f, init, xs, rounds, reverse)
    # 7 rounds, 3 of them in one body: rows 0 1 2 and 3 4 5, then row 6; in reverse row 6 comes first
    rows, form = flat(xs)
    main = [x[rest:] if reverse else x[: rounds - rest] for x in rows]
    left = [x[:rest] if reverse else x[rounds - rest :] for x in rows]

    def several(carry: Any, some: Any) -> Any:
        return _in_python(f, carry, some, written_out, reverse)

    grouped = tree_unflatten([x.unflatten(0, (-1, written_out)) for x in main], form)
    carry, rows_out = _recorded(several, init, grouped, rounds // written_out, reverse)
    rows_out, of_rows = flat(rows_out)
    parts = [[x.flatten(0, 1) for x in rows_out]]
    if rest:
        carry, last = _in_python(f, carry, tree_unflatten(left, form), rest, reverse)
        parts.append(flat(last)[0])
    ordered = reversed(parts) if reverse else parts
    return carry, tree_unflatten([torch.cat(some) for some in zip(*ordered, strict=True)], of_rows)


def _recorded(f: Any, init: Any, xs: Any, rounds: int, reverse: bool) -> tuple[Any, Any]:
    carry, form = flat(init)
    rows, of_rows = flat(xs)
    forms: list[TreeSpec] = []
    names = [f"carry{way}" for way, _ in named_leaves(init)] + [f"x{way}" for way, _ in named_leaves(xs)]

    def body(*values: torch.Tensor) -> Tensors:
        out = f(tree_unflatten(values[: len(carry)], form), tree_unflatten(values[len(carry) :], of_rows))
        (following, of_carry), (outputs, form_of_rows) = map(flat, _pair(out))
        check_carry(values[: len(carry)], form, following, of_carry)
        forms[:] = [form_of_rows]
        return [*following, *outputs]

    metas = [*map(shaped_type_of, carry), *(_row_of(x) for x in rows)]
    types = types_within([*carry, *rows], len(rows))
    traced, closed = bodies.used_now(bodies.traced_body(body, metas, lambda: names, types=types))
    outputs = apply_scan(Scan(traced, len(carry), len(rows), rounds, reverse), [*carry, *rows, *closed])
    return tree_unflatten(outputs[: len(carry)], form), tree_unflatten(outputs[len(carry) :], forms[0])


def _row_of(x: torch.Tensor) -> ShapedType:
    meta = shaped_type_of(x)
    return replace(meta, shape=meta.shape[1:])


def _pair(out: Any) -> tuple[Any, Any]:
    if not isinstance(out, tuple | list) or len(out) != 2:
        raise DtypeError(
            "the function of a scan returns a pair",
            got=f"{type(out).__name__}" + (f" of {len(out)}" if isinstance(out, tuple | list) else ""),
            rule="(carry, y): the next carry, and what is stacked over the rounds",
            try_="return carry, None, where nothing should be stacked",
        )
    return out[0], out[1]


def check_carry(given: Sequence[Any], form: TreeSpec, returned: Sequence[Any], of_returned: TreeSpec) -> None:
    """Raise DtypeError for a carry whose tree, shapes or dtypes differ from the one before."""
    rule = "each round is given what the one before returns: it has the same tree, shapes and dtypes"
    problem = "the carry of a loop changes from round to round"
    if form != of_returned:
        raise DtypeError(problem, got=f"given {form}\nreturned {of_returned}", rule=rule)
    ways = [way for way, x in named_leaves(tree_unflatten(given, form)) if x is not None]
    pairs = zip(ways, map(shaped_type_of, given), map(shaped_type_of, returned), strict=True)
    wrong = [f"carry{way}: given {a}, returned {b}" for way, a, b in pairs if a != b]
    if wrong:
        try_ = "a first carry of the shape and dtype that a round returns: torch.tensor(0.0) in place of 0; x.to(dtype)"
        raise DtypeError(problem, got="\n".join(wrong), rule=rule, try_=try_)
    types = varying_types()
    if types is not None:
        check_varying_carry(types, ways, given, returned)


def check_varying_carry(
    types: VaryingTypes, ways: Sequence[str], given: Sequence[Any], returned: Sequence[Any]
) -> None:
    """Raise ShardingError for a carry that does not vary along the axes of the one before."""
    pairs = [(way, types.names(a), types.names(b)) for way, a, b in zip(ways, given, returned, strict=True)]
    wrong = [(way, a, b) for way, a, b in pairs if a != b]
    if wrong:
        way, a, b = wrong[0]
        missing, of = (b - a, "the first carry") if b - a else (a - b, "what a round returns")
        axes = ", ".join(map(repr, sorted(missing)))
        raise ShardingError(
            "the carry of a loop changes the axes along which it varies between devices",
            got="\n".join(f"carry{way}: given {described(a)}, returned {described(b)}" for way, a, b in wrong),
            rule="each round is given what the one before returns, of the same type",
            try_=f"ts.lax.pcast(x, ({axes},), to='varying') of {of}, x being its carry{way}",
        )


# ---- in Python -------------------------------------------------------------------------------------------------------


def _in_python(f: Any, init: Any, xs: Any, rounds: int, reverse: bool) -> tuple[Any, Any]:
    """A scan round by round."""
    carry, form = flat(init)
    rows, of_rows = flat(xs)

    def one(carry: Sequence[torch.Tensor], row: Sequence[torch.Tensor]) -> tuple[Tensors, Tensors, TreeSpec]:
        out = f(tree_unflatten(carry, form), tree_unflatten(row, of_rows))
        (following, of_carry), (rows_out, of_made) = map(flat, _pair(out))
        check_carry(carry, form, following, of_carry)
        return following, rows_out, of_made

    if not rounds:  # find the shapes of the stacked results
        _, row_out, of_made = one(carry, [x.new_zeros(x.shape[1:]) for x in rows])
        return tree_unflatten(carry, form), tree_unflatten([x.new_zeros((0, *x.shape)) for x in row_out], of_made)
    each = []
    for i in reversed(range(rounds)) if reverse else range(rounds):
        carry, row_out, of_made = one(carry, [x[i] for x in rows])
        each.append(row_out)
    ordered = each[::-1] if reverse else each
    return tree_unflatten(carry, form), tree_unflatten([torch.stack(s) for s in zip(*ordered, strict=True)], of_made)

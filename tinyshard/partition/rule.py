"""How the dims of an op's operands and results correspond: each dim is named by its factors, as in an einsum.

    mm           i k, k j -> i j +k           each device has a part of the sum over k
    _softmax     ... [d] -> ... [d]           d must be whole, all other dims may be cut
    embedding    [v] e, ... -> ... e
    view         a (b c) -> (a b) c           a dim of several factors, the most significant first

A factor may be cut along axes of the mesh: each device then runs the op on its blocks of the dims that have it. What a
rule's text consists of:

    i        a factor                               [i]      a factor that must be whole
    ...      further dims, each with its factor     _        a dim that must be whole
    (i j)    a dim of several factors               *        further dims that must be whole
    +i       each device has a part of the sum      =i       each device computes the same
    max:i    a part of a maximum; so min, avg and product
    (c [k])  a dim of several factors; k must be whole

Nothing on the right of the arrow is a result without dims. A rule whose result does not mention a factor of an operand
is an error: a forgotten +i would be wrong and silent. A wrong `passes` is as silent: the sweep of the rules finds it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from tinyshard.core.errors import message

Dim = tuple[str, ...]  # its factors, the most significant first; () is a dim that must be whole
Dims = tuple[Dim, ...]
Shape = Sequence[int]
Passes = Literal["", "moved", "summed", "first", "unread"]

SAME = "same"
_SIGNS = {"sum": "+", SAME: "="}


class RuleError(ValueError):
    """A rule that cannot be right: an error for its author."""


class RanksDifferError(RuleError):
    """The text of a rule does not fit the ranks of the tensors."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of one call of an op.

    Attributes:
        operands: for each operand the factors of its dims.
        results: for each result the factors of its dims.
        combined: for each result, factors that are in none of its dims -> how the devices' results are combined: "sum",
            "avg", "max", "min", "product", or "same" where each device computes the whole result.
        sizes: of the factors.
        whole: factors that must be whole.
        passes: which operands may stay partial, so that the results are partial too: "moved" for an op that only moves
            elements, "summed" for one that is linear in all its operands together, "first" for one that is linear in
            its first; "unread" for one that reads no element, whose results are not partial; "" for other ops. Parts of
            integers, and parts that would grow, are combined even so (`layouts`).
        arguments: arguments that are sizes -> the factors whose sizes they multiply; on a shard they are smaller.
        on_shards: another op, and its arguments after the first, for shards; None if it is the same op.

    Raises:
        RuleError: a result does not mention a factor, or a tensor has one twice.
    """

    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    combined: tuple[Mapping[str, str], ...]
    sizes: Mapping[str, int]
    whole: frozenset[str] = frozenset()
    passes: Passes = ""
    arguments: Mapping[str, Dims] = field(default_factory=dict)
    on_shards: tuple[Any, tuple[Any, ...]] | None = None

    def __post_init__(self) -> None:
        for dims in (*self.operands, *self.results):
            factors = [f for dim in dims for f in dim]
            twice = {f for f in factors if factors.count(f) > 1}
            if twice:
                text = f"a tensor has the factor {min(twice)} twice"
                raise RuleError(message(text, got=str(self), rule="each dim of a tensor has its own factors"))
        cut = {f for dims in self.operands for dim in dims for f in dim} - self.whole
        for number, (dims, combined) in enumerate(zip(self.results, self.combined, strict=True)):
            missing = cut - {f for dim in dims for f in dim} - combined.keys()
            if missing:
                f = min(missing)
                text = message(
                    f"result {number} says nothing of the factor {f}",
                    got=str(self),
                    rule="each result has each factor of the operands: in a dim, summed, or as the same on each device",
                    try_=f"+{f} or ={f} in the result, or [{f}] in place of {f}",
                )
                raise RuleError(text)

    def __str__(self) -> str:
        """The text of the rule.

        Example:
            >>> str(parsed("i k, k j -> i j +k", [(2, 3), (3, 4)], [(2, 4)]))
            'i k, k j -> i j +k'
        """

        def factor(f: str) -> str:
            return f"[{f}]" if f in self.whole else f

        def dim(of: Dim) -> str:
            return f"({' '.join(map(factor, of))})" if len(of) > 1 else factor(of[0]) if of else "_"

        def tensor(dims: Dims, combined: Mapping[str, str]) -> str:
            hows = [_SIGNS.get(how, f"{how}:") + f for f, how in combined.items()]
            return " ".join([*map(dim, dims), *hows]) or "()"

        operands = ", ".join(tensor(dims, {}) for dims in self.operands)
        results = ", ".join(tensor(dims, c) for dims, c in zip(self.results, self.combined, strict=True))
        return f"{operands} -> {results}"


# ---- made of factors and shapes -------------------------------------------------------------------------------------


def settled(
    operands: Sequence[Sequence[Dim]],
    results: Sequence[Sequence[Dim]],
    combined: Sequence[Mapping[str, str]],
    shapes: Sequence[Shape],
    result_shapes: Sequence[Shape],
    *,
    sizes: Mapping[str, int] | None = None,
    whole: Iterable[str] = (),
    **more: Any,
) -> Rule:
    """The rule for tensors of these shapes.

    A dim of size 1 has no factor: it is repeated. A factor whose dims have several sizes must be whole. Each device
    computes the same for an empty result.

    Args:
        operands, results, combined, whole: as `Rule` has them.
        shapes: of the operands.
        result_shapes: of the results.
        sizes: of the factors that share a dim.
        **more: other attributes of the rule.
    """
    known = {f: n for f, n in (sizes or {}).items() if n > 1}
    unlike = set(whole)
    for dims, shape in (*zip(operands, shapes, strict=True), *zip(results, result_shapes, strict=True)):
        for dim, n in zip(dims, shape, strict=True):
            if len(dim) == 1 and n > 1 and known.setdefault(dim[0], n) != n:
                unlike.add(dim[0])

    def kept(dims: Sequence[Dim], shape: Shape) -> Dims:
        pairs = zip(dims, shape, strict=True)
        return tuple(() if n <= 1 else tuple(f for f in dim if f in known) for dim, n in pairs)

    kept_operands = tuple(map(kept, operands, shapes))
    kept_results = tuple(map(kept, results, result_shapes))
    factors = dict.fromkeys(f for dims in (*kept_operands, *kept_results) for dim in dims for f in dim)
    cut = [f for dims in kept_operands for dim in dims for f in dim if f not in unlike]
    kept_combined = []
    for dims, given, shape in zip(kept_results, combined, result_shapes, strict=True):
        own = {f for dim in dims for f in dim}
        nothing = dict.fromkeys((f for f in cut if f not in own), SAME) if 0 in shape else {}
        kept_combined.append({f: how for f, how in given.items() if f in cut} | nothing)
    return Rule(
        kept_operands,
        kept_results,
        tuple(kept_combined),
        {f: known[f] for f in factors},
        frozenset(f for f in factors if f in unlike),
        **more,
    )


def letters(count: int, without: Iterable[str] = ()) -> list[str]:
    """This many names of factors.

    Example:
        >>> letters(3, without="b")
        ['a', 'c', 'd']
    """
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    names = itertools.chain(alphabet, (f"{x}{n}" for n in itertools.count(1) for x in alphabet))
    taken = set(without)
    return list(itertools.islice((x for x in names if x not in taken), count))


# ---- made of a text -------------------------------------------------------------------------------------------------


def parsed(text: str, shapes: Sequence[Shape | None], result_shapes: Sequence[Shape | None], **more: Any) -> Rule:
    """Parse the text of a rule, for tensors of these shapes.

    Args:
        text: as above; operands that are not passed are left out from the end.
        shapes: of the operands; None for one that is not passed.
        result_shapes: of the results; None for a result that is None.
        **more: `sizes` of factors that share a dim, and other attributes of the rule.

    Example:
        >>> print(parsed("... [d] -> ... [d]", [(2, 3, 4)], [(2, 3, 4)]))
        a b [d] -> a b [d]
    """
    left, right = _tokens(text)
    operands = [(tokens, shape) for tokens, shape in zip(left, shapes, strict=False) if shape is not None]
    results = [(tokens, shape) for tokens, shape in zip(right, result_shapes, strict=True) if shape is not None]
    count = max((_open_dims(tokens, shape) for tokens, shape in (*operands, *results)), default=0)
    further = letters(count, without=_names(text))
    combined = [{f: how for token in tokens for f, how in _combined(token, further)} for tokens, _ in results]
    return settled(
        [_dims(tokens, shape, further) for tokens, shape in operands],
        [_dims(tokens, shape, further) for tokens, shape in results],
        combined,
        [shape for _, shape in operands],
        [shape for _, shape in results],
        whole=re.findall(r"\[(\w+)\]", text),
        **more,
    )


@lru_cache(maxsize=1024)
def _tokens(text: str) -> tuple[list[list[str]], list[list[str]]]:
    def side(part: str) -> list[list[str]]:
        return [re.findall(r"\([^)]*\)|\S+", tensor) for tensor in part.split(",")]

    left, right = text.split("->")
    return side(left), side(right)


@lru_cache(maxsize=1024)
def _names(text: str) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", text))


def _is_dim(token: str) -> bool:
    return token[0] not in "+=" and ":" not in token


def _open_dims(tokens: Sequence[str], shape: Shape) -> int:
    """How many dims `...` matches in a tensor; 0 where `*` leaves it open."""
    if "..." not in tokens or "*" in tokens:
        return 0
    return max(len(shape) - sum(_is_dim(t) and t != "..." for t in tokens), 0)


def _dims(tokens: Sequence[str], shape: Shape, further: Sequence[str]) -> list[Dim]:
    tokens = [t for t in tokens if _is_dim(t)]
    count = len(shape) - sum(t not in ("...", "*") for t in tokens)
    if count < 0 or (count and not {"...", "*"} & set(tokens)):
        if 0 in shape:
            return [()] * len(shape)  # a result that is left empty
        raise RanksDifferError(
            message("a rule does not fit a tensor", got=f"{' '.join(tokens)} for shape {tuple(shape)}")
        )
    dims: list[Dim] = []
    for token in tokens:
        if token == "...":
            own = min(count, len(further))
            dims += [(f,) for f in further[len(further) - own :]]
            count -= own
        elif token == "*":
            dims += [()] * count
        else:
            dims.append(tuple(re.findall(r"\w+", token)) if token != "_" else ())
    return dims


def _combined(token: str, further: Sequence[str]) -> Iterator[tuple[str, str]]:
    if _is_dim(token):
        return
    how, f = token.split(":") if ":" in token else ({"+": "sum", "=": SAME}[token[0]], token[1:])
    yield from ((name, how) for name in (further if f == "..." else [f]))

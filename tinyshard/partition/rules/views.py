"""Ops that permute, split or join the dims of a tensor, their gradients, and ops that write into a view."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from tinyshard.partition.rule import Dim, Dims, Rule, letters
from tinyshard.partition.rules.call import Call, Family, Row, singles, tail

aten = torch.ops.aten


def moved(places: Callable[[Call], list[int | None]], *whole: str) -> Family:
    """Each dim of a result is one of the operand's, or a new one.

    Args:
        places: for each dim of a result the dim of the operand that it is; None for a new one.
        *whole: arguments that name dims which must be whole.
    """

    def family(call: Call) -> Rule:
        names = letters(len(call.shape))
        gone = {names[d] for argument in whole for d in call.dims(argument)}
        result: list[Dim] = [() if p is None else (names[p],) for p in places(call)]
        return call.rule([singles(names)], [result] * len(call.result_shapes), whole=gone, passes="moved")

    return family


def _permuted(call: Call) -> list[int | None]:
    return [d % len(call.shape) for d in call["dims"]]


def _transposed(call: Call) -> list[int | None]:
    rank = len(call.shape)
    order: list[int | None] = list(range(rank))
    if rank:
        a, b = call.get("dim0", 0) % rank, call.get("dim1", rank - 1) % rank
        order[a], order[b] = order[b], order[a]
    return order


def _unsqueezed(call: Call) -> list[int | None]:
    order: list[int | None] = list(range(len(call.shape)))
    order.insert(call["dim"] % (len(order) + 1), None)
    return order


def _selected(call: Call) -> list[int | None]:
    return [d for d in range(len(call.shape)) if d not in call.dims("dim")]


def _diagonal(call: Call) -> list[int | None]:
    gone = call.dims("dim1") | call.dims("dim2")
    return [*(d for d in range(len(call.shape)) if d not in gone), None]


def _unfolded(call: Call) -> list[int | None]:
    return [*range(len(call.shape)), None]


def rotated(call: Call) -> Rule:
    """rot90 may swap two dims, and may flip one or both of them: these must be whole."""
    names, (a, b) = letters(len(call.shape)), (d % len(call.shape) for d in call["dims"])
    turned = [[], [b], [a, b], [a]][call["k"] % 4]
    result = list(names)
    if call["k"] % 2:
        result[a], result[b] = result[b], result[a]
    return call.rule([singles(names)], [singles(result)], whole=[names[d] for d in turned], passes="moved")


def squeezed(call: Call) -> Rule:
    """On a shard other dims may have size 1, so the squeezed dims are named."""
    names = letters(len(call.shape))
    named = () if call.get("dim") in ([], ()) else call.dims("dim")
    gone = [d for d, n in enumerate(call.shape) if n == 1 and d in named]
    result = singles([f for d, f in enumerate(names) if d not in gone])
    return call.rule([singles(names)], [result], passes="moved", on_shards=(aten.squeeze.dims, (gone,)))


def expanded(call: Call) -> Rule:
    """A dim of size 1 becomes a larger one; each device makes its block of it."""
    dims = singles(letters(len(call.result_shapes[0])))
    rule = call.rule([tail(dims, len(call.shape))], [dims], passes="moved")
    return replace(rule, arguments={"size": rule.results[0]})


def reshaped(call: Call) -> Rule:
    """The sizes of both shapes as products of common factors; where they have none in common, the dims are whole.

    (8, 4, 16) -> (32, 4, 4)    a b (c d) -> (a b) c d      16 is 4 * 4
    (6, 4) -> (4, 6)            (a _) _ -> (a _) _          6 and 4 have the common factor 2, 3 and 2 have none
    """
    have, want = list(call.shape), list(call.result_shapes[0])
    operand: list[list[str]] = [[] for _ in have]
    result: list[list[str]] = [[] for _ in want]
    names, sizes = iter(letters(64)), dict[str, int]()
    i = j = 0
    left = right = 1  # what is left of the dims before i and before j
    while True:
        while left == 1 and i < len(have):
            left, i = have[i], i + 1
        while right == 1 and j < len(want):
            right, j = want[j], j + 1
        if left == 1 or right == 1:
            break
        common = math.gcd(left, right)
        if common > 1:
            name = next(names)
            sizes[name] = common
            operand[i - 1].append(name)
            result[j - 1].append(name)
            left, right = left // common, right // common
            continue
        operand[i - 1].append("")  # no factor can be cut until both products are equal again
        result[j - 1].append("")
        while left != right:
            if left < right:
                left, i = left * have[i], i + 1
                operand[i - 1].append("")
            else:
                right, j = right * want[j], j + 1
                result[j - 1].append("")
        left = right = 1

    def before_gap(dims: list[list[str]]) -> Dims:
        return tuple(tuple(dim[: dim.index("")] if "" in dim else dim) for dim in dims)

    return Rule(
        (before_gap(operand),),
        (before_gap(result),),
        ({},),
        sizes,
        passes="moved",
        arguments={"size": before_gap(result)},
    )


def stacked(call: Call) -> Rule:
    """The new dim must be whole."""
    rank = len(call.result_shapes[0])
    dims = singles(letters(rank - 1))
    result: list[Dim] = list(dims)
    result.insert(call["dim"] % rank, ())
    return call.rule([dims] * len(call.operands), [result], passes="summed")


def diagonal_embedded(call: Call) -> Rule:
    """The last dim becomes the diagonal of two new ones."""
    rank = len(call.result_shapes[0])
    new = call.dims("dim1", rank) | call.dims("dim2", rank)
    names = letters(len(call.shape))
    others = iter(singles(names[:-1]))
    return call.rule([singles(names)], [[() if d in new else next(others) for d in range(rank)]], whole=names[-1:])


def gradient(*named: str, size: str = "input_sizes", windows: bool = False) -> Family:
    """The gradient of a view: the result has the shape of the viewed tensor.

    Args:
        *named: arguments that name the dims along which the view was taken, which must be whole.
        size: the argument that is the shape of the viewed tensor.
        windows: whether the view has one more dim, as the result of unfold does.
    """

    def family(call: Call) -> Rule:
        rank = len(call.result_shapes[0])
        names = letters(rank)
        gone = [names[d] for argument in named for d in sorted(call.dims(argument, rank))]
        operand: list[Dim] = singles(names)
        if windows:
            operand += [()]
        elif len(call.shape) < rank:
            operand = [dim for dim in operand if dim[0] not in gone]
            operand += [()] * (len(call.shape) - len(operand))
        elif call.shape == call.result_shapes[0]:
            gone = []  # a slice of all
        rule = call.rule([operand], [singles(names)], whole=gone, passes="summed")
        return replace(rule, arguments={size: rule.results[0]})

    return family


def scattered(*named: str) -> Family:
    """A tensor with another written into it along dims that arguments name, which must be whole."""

    def family(call: Call) -> Rule:
        names, source = letters(len(call.shape)), call["src"].shape
        gone = [names[d] for argument in named for d in sorted(call.dims(argument))]
        written: list[Dim] = singles(names)
        if len(source) < len(names):
            written = [dim for dim in written if dim[0] not in gone]
            written += [()] * (len(source) - len(written))
        elif source == call.shape:
            gone = []  # a slice of all
        return call.rule([singles(names), written], [singles(names)], whole=gone)

    return family


ROWS: dict[str, Row] = {
    "permute permute_copy": moved(_permuted),
    "t t_copy transpose.int transpose_copy.int": moved(_transposed),
    "unsqueeze unsqueeze_copy": moved(_unsqueezed),
    "select.int unbind.int unbind_copy.int": moved(_selected, "dim"),
    "diagonal diagonal_copy": moved(_diagonal, "dim1", "dim2"),
    "rot90": rotated,
    "unfold unfold_copy": moved(_unfolded, "dimension"),
    "squeeze squeeze.dim squeeze.dims squeeze_copy squeeze_copy.dim squeeze_copy.dims": squeezed,
    "expand expand_copy": expanded,
    "view _unsafe_view _reshape_alias view_copy": reshaped,
    "diag_embed": diagonal_embedded,
    "stack": stacked,
    "select_backward slice_backward": gradient("dim"),
    "unfold_backward": gradient("dim", windows=True),
    "diagonal_backward": gradient("dim1", "dim2"),
    "select_scatter slice_scatter": scattered("dim"),
    "diagonal_scatter": scattered("dim1", "dim2"),
    "view_as_real": "... -> ... _",
    "view_as_complex": "... _ -> ...",
}

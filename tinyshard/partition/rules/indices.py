"""Ops that take elements by index, or write them by index."""

from __future__ import annotations

import torch

from tinyshard.partition.op_table import has_mask
from tinyshard.partition.rule import Dim, Rule, letters
from tinyshard.partition.rules.call import Call, Row, is_tensor, singles, tail

aten = torch.ops.aten


def at_places(call: Call) -> Rule:
    """gather and scatter: along all dims but one an element of the index belongs to the element at its position.

    Where the index is smaller than the tensor along such a dim, their blocks are at different positions.
    """
    rank = len(call.shape)
    others = [call[n].shape for n in ("index", "src") if is_tensor(call.get(n))]
    dim = call["dim"] % max(rank, 1)
    names = letters(rank, without="n")
    dims = singles(names)
    if any(len(s) != rank for s in others):  # a number in place of a tensor of one dim
        return call.rule([[()] * len(s) for s in call.shapes], [[()] * len(s) for s in call.result_shapes])
    unlike = [names[d] for d in range(rank) if d == dim or any(s[d] != call.shape[d] for s in others)]
    if call.op is aten.gather.default:
        index: list[Dim] = [("n",) if d == dim else (f,) for d, f in enumerate(names)]
        return call.rule([dims, index], [index], whole=unlike)
    return call.rule([dims if len(s) == rank else [()] * len(s) for s in call.shapes], [dims], whole=unlike)


def index_selected(call: Call) -> Rule:
    """Rows by number: the tensor of numbers may be cut."""
    names = letters(len(call.shape), without="n")
    gone = [names[d] for d in call.dims("dim")]
    index = [("n",)] * len(call["index"].shape)
    result = [("n",) if f in gone and index else (f,) for f in names]
    return call.rule([singles(names), index], [result], whole=gone)


def index_written(call: Call) -> Rule:
    """index_add, index_copy, index_fill, index_reduce: which device has a row is not known, so rows are whole."""
    names = letters(len(call.shape))
    gone = [names[d] for d in call.dims("dim")]
    operands: list[list[Dim]] = [singles(names), [()] * len(call["index"].shape)]
    for written in (call.get("source"), call.get("value")):
        if is_tensor(written):
            rank = len(written.shape)
            operands.append(singles(names) if rank == len(names) else [()] * rank)
    return call.rule(operands, [singles(names)], whole=gone)


def _places(call: Call) -> tuple[list[str], list[Dim], list[list[Dim]], list[str]] | None:
    """The factors of x, the dims of x[indices] and of each index, and the indexed factors; None for a mask."""
    if has_mask(call["indices"]):
        return None
    given = [i for i in call["indices"] if i is not None]
    positions = [d for d, i in enumerate(call["indices"]) if i is not None]
    names = letters(len(call.shape))
    shared = singles([f"n{k}" for k in range(max(len(i.shape) for i in given))])
    is_one_block = positions == list(range(positions[0], positions[-1] + 1))
    first = positions[0] if is_one_block else 0  # torch puts the dims of separated indices first
    rest = [(d, (f,)) for d, f in enumerate(names) if d not in positions]
    result: list[Dim] = [*(f for d, f in rest if d < first), *shared, *(f for d, f in rest if d >= first)]
    return names, result, [tail(shared, len(i.shape)) for i in given], [names[d] for d in positions]


def indexed(call: Call) -> Rule | None:
    """x[indices]: the indices may be cut, and the dims that are not indexed."""
    places = _places(call)
    if places is None:
        return None
    names, result, indices, gone = places
    return call.rule([singles(names), *indices], [result], whole=gone)


def put_at(call: Call) -> Rule | None:
    """x[indices] = values: which device has an element is not known, so indices are whole, and values along them."""
    places = _places(call)
    if places is None:
        return None
    names, result, indices, gone = places
    along_indices = {f for dims in indices for dim in dims for f in dim}
    values = tail(result, len(call["values"].shape))
    return call.rule([singles(names), *indices, values], [singles(names)], whole=[*gone, *along_indices])


def taken_from_sorted(call: Call) -> Rule:
    """searchsorted: one row for each row of values, or one row for all values."""
    rows = "... [v]" if len(call["sorted_sequence"].shape) > 1 else "[v]"
    values = "... n" if len(call["self"].shape) > 0 else "*"
    sorter = rows if call["sorter"] is not None else "*"
    return call.text(f"{rows}, {values}, {sorter} -> {values}")


def in_list(call: Call) -> Rule:
    """isin: an element is in the list if it is in a block of the list."""
    elements = [(f,) for f in letters(len(call["elements"].shape))]
    tests = [(f"t{k}",) for k in range(len(call["test_elements"].shape))]
    how = "min" if call["invert"] else "max"
    return call.rule([elements, tests], [elements], [{dim[0]: how for dim in tests}])


def embedding_gradient(call: Call) -> Rule:
    """A word may be in all blocks of the indices: with scale_grad_by_freq it is counted in all of them."""
    if call["scale_grad_by_freq"]:
        return call.text("* e, * -> [v] e")
    return call.text("... e, ... -> [v] e +...", passes="first")


ROWS: dict[str, Row] = {
    "gather scatter.src scatter.value scatter.reduce scatter.value_reduce scatter_add scatter_reduce.two": at_places,
    "index_select": index_selected,
    "index_add index_copy index_fill.int_Scalar index_fill.int_Tensor index_reduce": index_written,
    "index.Tensor _unsafe_index.Tensor": indexed,
    "index_put _unsafe_index_put": put_at,
    "take": "*, ... -> ...",
    "isin.Tensor_Tensor": in_list,
    "bucketize.Tensor": "..., v -> ... +v",  # it counts the boundaries below an element
    "searchsorted.Tensor": taken_from_sorted,
    "embedding": "[v] e, ... -> ... e",
    "embedding_dense_backward": embedding_gradient,
}

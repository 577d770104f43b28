"""Indexing by numbers that only the devices know: `x[i]`, `x[(i + 1) % n]`, `y[i] = v`, `x.narrow(0, i, 3)` in a trace,
and under vmap, where `i` differs between examples.

torch would read the value of such an index. Here it becomes an operand of the program:

    x[i]               x.index_select(0, i), without the dim
    x.narrow(0, i, 3)  x.index_select(0, i + [0, 1, 2])
    y[i] = v           y.index_put_((i,), v); under vmap for tensors of indices, too
    y[mask] = v        y.copy_(where(mask, v, y)), if v has no dim for the elements that the mask chooses: their number
                       would be a size of v's gradient

A negative index counts from the end, and one that is out of range is an error on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from tinyshard.core.errors import TracedValueError
from tinyshard.core.thread_state import levels
from tinyshard.core.users_line import users_line

_LISTS = list | range | np.ndarray
# to torch, and to NumPy's arrays in it, an index of uint8 is a mask, as one of bools is
_MASKS = (torch.bool, torch.uint8, np.dtype(bool), np.dtype(np.uint8))


def is_traced_index(x: Any) -> bool:
    """Whether an index is one number that only the devices know."""
    return (
        isinstance(x, torch.Tensor)
        and x.dim() == 0
        and not (x.is_floating_point() or x.is_complex() or x.dtype in _MASKS)
    )


def getitem(x: torch.Tensor, index: Any) -> torch.Tensor:
    """`x[index]`, where traced numbers may be among the entries.

    Raises:
        TracedValueError: a bound of a slice is a traced number: the shape of the result would depend on it.

    Example:
        >>> getitem(torch.arange(6).reshape(2, 3), (torch.tensor(-1), slice(0, 2)))
        tensor([3, 4])
    """
    given = _entries(index)
    entries = _masks_as_indices(x, given)
    traced = _traced_dims(x, entries)
    if not traced:
        return x[index] if entries is given else x[tuple(entries)]
    for dim, place in reversed(traced):
        x = select(x, dim, entries[place])
    places = {place for _, place in traced}
    rest = tuple(e for place, e in enumerate(entries) if place not in places)
    return x[rest] if rest else x


def setitem(x: torch.Tensor, index: Any, value: Any) -> None:
    """`x[index] = value`, where traced numbers may be among the entries. Raises TracedValueError as `getitem`."""
    entries = _entries(index)
    if len(entries) == 1 and _fits_every_mask(x, entries[0], value):
        mask, rest = entries[0], x.dim() - entries[0].dim()
        value = value.reshape(value.shape[max(value.dim() - rest, 0) :])
        x.copy_(torch.where(mask.reshape([*mask.shape, *[1] * rest]), value, x))
        return
    has_traced = bool(_traced_dims(x, entries))
    entries = [torch.as_tensor(e) if isinstance(e, _LISTS) else e for e in _masks_as_indices(x, entries)]
    if not has_traced:
        chosen = [e for e in entries if isinstance(e, torch.Tensor)]
        # torch.func handles a single mask as torch does, and a trace does not know how many elements it chooses
        has_indices = any(e.dtype not in _MASKS for e in chosen)
        if not any(map(is_of_examples, (*chosen, x, value) if has_indices else chosen)):
            x[tuple(entries) if isinstance(value, torch.Tensor) else index] = value
            return
        if isinstance(value, torch.Tensor) and value.dtype != x.dtype:
            what = f"got {x.dtype} for the destination and {value.dtype} for the source"
            raise RuntimeError(f"Index put requires the source and destination dtypes match, {what}.")  # torch's words
    part, dims, indices = _part(x, entries)
    _put_at(part, dims, indices, value)


def _masks_as_indices(x: torch.Tensor, entries: Sequence[Any]) -> Sequence[Any]:
    """The entries, with a mask whose values Python has as the indices that it chooses, which a trace cannot know.

    Raises:
        IndexError: the sizes of such a mask differ from those of the dims of x that it indexes.
    """
    masks = list(map(_known_mask, entries))
    if all(mask is None for mask in masks):
        return entries
    found: list[Any] = []
    dim, taken = 0, sum(map(dims_taken, entries))
    for place, (entry, mask) in enumerate(zip(entries, masks, strict=True)):
        if mask is None:
            found.append(entry)
        elif mask.shape != tuple(x.shape[dim : dim + mask.ndim]):
            what = f"mask {list(mask.shape)} at index {place} does not match the shape of the indexed tensor"
            raise IndexError(f"The shape of the {what} {list(x.shape)} at index {dim}")  # torch's words
        else:
            found.extend(map(torch.as_tensor, np.nonzero(mask)))
        dim += x.dim() - taken if entry is Ellipsis else dims_taken(entry)
    return found


def _known_mask(entry: Any) -> np.ndarray | None:
    """Whether it is a list or tuple of bools, or a NumPy array that is a mask."""
    first = entry
    while isinstance(first, list | tuple) and first:
        first = first[0]
    mask = np.asarray(entry) if isinstance(entry, list | tuple) and isinstance(first, bool | np.bool_) else entry
    return mask if isinstance(mask, np.ndarray) and mask.ndim and mask.dtype in _MASKS else None


def _part(x: torch.Tensor, entries: Sequence[Any]) -> tuple[torch.Tensor, list[int], list[torch.Tensor]]:
    """The view of x by the numbers and slices of an index, and the dims of the view that its tensors index."""
    index_tensors: list[torch.Tensor] = []
    dims: list[int] = []
    static: list[Any] = []
    dims_before = 0  # dims of x[static] that the entries so far make
    for entry in entries:
        if isinstance(entry, torch.Tensor):
            is_mask = entry.dtype in _MASKS
            for indices in entry.nonzero().unbind(1) if is_mask else (entry,):
                dims.append(dims_before)
                index_tensors.append(indices)
                static.append(slice(None))
                dims_before += 1
            continue
        if entry is Ellipsis:
            dims_before += x.dim() - sum(map(dims_taken, entries))
        elif entry is None or isinstance(entry, slice):
            dims_before += 1
        static.append(entry)
    if len({i.dim() == 0 for i in index_tensors}) > 1 or any(isinstance(e, bool) for e in entries):
        raise TracedValueError(
            "a traced number stands beside a list, a mask or a tensor of indices",
            got=f"y[...] = v in {users_line()}",
            rule="beside traced numbers an index has numbers, slices, None and ...",
            try_="y.index_put_((i, j), v) with a tensor of indices for each of the first dims",
        )
    return x[tuple(static)], dims, index_tensors


def _put_at(part: torch.Tensor, dims: Sequence[int], indices: Sequence[torch.Tensor], value: Any) -> None:
    """Write to `part` at indices along some of its dims, which are moved first: torch.func's rule for `index_put_`
    ignores their order, and would write to other positions.

    As in torch the dims of the value are in the order of `part[indices]`: the dims of adjacent indices replace the
    indexed dims; if there are other dims between the indices, they come first.
    """
    others = [n for d, n in enumerate(part.shape) if d not in dims]
    of_at = torch.broadcast_shapes(*(i.shape for i in indices))
    beside = list(dims) == list(range(dims[0], dims[0] + len(dims)))
    first = dims[0] if beside else 0
    shape = (*others[:first], *of_at, *others[first:])
    value = value.to(part.dtype) if isinstance(value, torch.Tensor) else torch.as_tensor(value, dtype=part.dtype)
    while value.dim() > len(shape) and value.shape[0] == 1:  # as torch's own assignment takes it
        value = value.squeeze(0)
    ends = list(range(len(of_at)))
    value = value.expand(shape).movedim([first + d for d in ends], ends)
    places: list[Any] = [_from_front(i, part.shape[d]) for i, d in zip(indices, dims, strict=True)]
    part.movedim(list(dims), list(range(len(dims)))).index_put_(places, value)


def is_of_examples(x: Any) -> bool:
    """Whether it is a tensor that differs between the examples of a vmap."""
    return isinstance(x, torch.Tensor) and any(torch._C._functorch.is_batchedtensor(level) for level in levels(x))


def _fits_every_mask(x: torch.Tensor, mask: Any, value: Any) -> bool:
    """Whether it is a mask of the leading dims of x, and the value fits any number of chosen elements."""
    if not (isinstance(mask, torch.Tensor) and mask.dtype == torch.bool and isinstance(value, torch.Tensor)):
        return False
    rest = x.dim() - mask.dim()
    leading = value.shape[: max(value.dim() - rest, 0)]
    is_of_x = mask.shape == x.shape[: mask.dim()]
    return is_of_x and value.dtype == x.dtype and all(n == 1 for n in leading)


def select(input: torch.Tensor, dim: int, index: Any) -> torch.Tensor:
    """`input.select(dim, index)`, where the index may be a traced number."""
    if not is_traced_index(index):
        return input.select(dim, index)
    return input.index_select(dim, _from_front(index, input.shape[dim]).reshape(1)).squeeze(dim)


def narrow(input: torch.Tensor, dim: int, start: Any, length: int) -> torch.Tensor:
    """`input.narrow(dim, start, length)`, where the start may be a traced number.

    Example:
        >>> narrow(torch.arange(5), 0, torch.tensor(2), 2)
        tensor([2, 3])
    """
    if not isinstance(start, torch.Tensor):
        return input.narrow(dim, start, length)
    return input.index_select(dim, positions(start, input.shape[dim], length))


def positions(start: torch.Tensor, size: int, length: int) -> torch.Tensor:
    """The positions along a dim of this size that `narrow` takes."""
    return _from_front(start, size) + torch.arange(length)


def has_traced_number(index: Any) -> bool:
    """Whether one of the entries of an index is a number that only the devices know."""
    return any(map(is_traced_index, _entries(index)))


def _from_front(index: torch.Tensor, size: int) -> torch.Tensor:
    index = index.to(torch.int64)
    return torch.where(index < 0, index + size, index)


def _entries(index: Any) -> Sequence[Any]:
    of_a_tuple = (slice, list, tuple, torch.Tensor, np.ndarray, type(None), type(...))
    if isinstance(index, list) and len(index) < 32 and any(isinstance(e, of_a_tuple) for e in index):
        return tuple(index)  # torch treats such a list as a tuple
    return index if isinstance(index, tuple) else (index,)


def _traced_dims(x: torch.Tensor, entries: Sequence[Any]) -> list[tuple[int, int]]:
    """The dim of x that each traced number is for, and its place among the entries."""
    for entry in entries:
        if isinstance(entry, slice) and any(isinstance(b, torch.Tensor) for b in (entry.start, entry.stop, entry.step)):
            raise TracedValueError(
                "a bound of a slice is a traced number",
                got=f"x[i:j] in {users_line()}",
                rule="shapes are known when a function is traced, and the length of the slice would not be",
                try_="x.narrow(dim, i, length), whose length is a Python number",
            )
        if isinstance(entry, torch.Tensor) and entry.dim() == 0 and entry.dtype in _MASKS:
            raise TracedValueError(
                f"an index is a traced number of {entry.dtype}",
                got=f"x[i] in {users_line()}",
                rule="to torch it is a mask: x[i] has one element or none along a new dim, as i is True or False",
                try_="x[i.long()] for the element at this place; torch.where(i, x, y) to choose by a mask",
            )
    taken = [dims_taken(e) for e in entries]
    found, dim = [], 0
    for place, entry in enumerate(entries):
        if entry is Ellipsis:
            dim += x.dim() - sum(taken)
        elif is_traced_index(entry):
            found.append((dim, place))
        dim += taken[place]
    return found


def dims_taken(entry: Any) -> int:
    """The number of dims that an entry of an index covers: a mask as many as it has, None and ... none.

    Example:
        >>> dims_taken(torch.zeros(2, 2, dtype=torch.bool)), dims_taken([[True, False]]), dims_taken([1, 0])
        (2, 2, 1)
    """
    if entry is None or entry is Ellipsis or isinstance(entry, bool | np.bool_):
        return 0
    depth = 0
    first = entry
    while isinstance(first, list | tuple) and first:
        first, depth = first[0], depth + 1
    if isinstance(first, torch.Tensor | np.ndarray):
        return depth + first.ndim if first.dtype in _MASKS else 1
    return depth if isinstance(first, bool) else 1


# functions of torch that take an index -> replacements that take a traced one
BY_TRACED_NUMBERS: dict[Any, Callable[..., Any]] = {
    torch.Tensor.__getitem__: getitem,
    torch.Tensor.__setitem__: setitem,
    torch.Tensor.narrow: narrow,
    torch.narrow: narrow,
    torch.Tensor.select: select,
    torch.select: select,
}


def of_examples(func: Any, instead: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Within a transformation: call `instead` where a number among the arguments differs between examples."""
    return (instead if has_of_examples(args, kwargs) else func)(*args, **kwargs)


def has_of_examples(args: Any, kwargs: Any) -> bool:
    """Whether a number among the arguments differs between the examples of a `vmap`."""
    return any(map(is_of_examples, tree_leaves((args, kwargs))))

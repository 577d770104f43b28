"""Read and write blocks of a tensor at positions that are numbers on the devices.

A dim that a block covers whole stays cut; along all other dims a written tensor stays cut, and one that is read is
gathered. A start is clamped so that the block stays inside the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tinyshard.arrays.explicit import called
from tinyshard.arrays.placement import as_tensor
from tinyshard.core.collectives import selected
from tinyshard.core.errors import DtypeError, MappingError
from tinyshard.core.ints import as_int
from tinyshard.core.jax_hints import check_others
from tinyshard.lax.operands import dim_of


def dynamic_slice(operand: Any, start_indices: Any, slice_sizes: Sequence[int], **others: Any) -> Tensor:
    """A block of a tensor, from a start that may be traced.

    Args:
        operand: a tensor.
        start_indices: for each dim an int, or an int[]; or one tensor of them. A negative one counts from the end.
        slice_sizes: the sizes of the block, for each dim an int.
        others: none.

    Returns:
        The block, of shape slice_sizes; its gradient is 0 outside of the block.

    Raises:
        DtypeError: a start that is not an int.
        MappingError: starts or sizes for another number of dims, or a size that the tensor does not have.

    Communication: a cut dim that the block does not cover whole is gathered; other dims stay cut.

    Example:
        >>> dynamic_slice(torch.arange(12).reshape(3, 4), (torch.tensor(1), 2), (2, 2))
        tensor([[ 6,  7],
                [10, 11]])
    """
    check_others(dynamic_slice, others)
    x = as_tensor_here(operand)
    return _taken("dynamic_slice", x, start_indices, slice_sizes)


def dynamic_slice_in_dim(operand: Any, start_index: Any, slice_size: int, axis: int = 0) -> Tensor:
    """A block along one dim, from a start that may be traced.

    Args:
        operand: a tensor.
        start_index: an int, or an int[]. A negative one counts from the end.
        slice_size: the size of the block.
        axis: the dim.

    Returns:
        The block: as the operand, but along the dim of slice_size.

    Raises:
        DtypeError, MappingError: as `dynamic_slice`, or the operand does not have the dim.

    Communication: as `dynamic_slice`.

    Example:
        >>> dynamic_slice_in_dim(torch.arange(5), torch.tensor(4), 2)
        tensor([3, 4])
    """
    x = as_tensor_here(operand)
    dim = dim_of(axis, x.dim(), "axis")
    return _taken("dynamic_slice_in_dim", x, _at(dim, x, start_index), _sized(x, dim, slice_size))


def dynamic_index_in_dim(operand: Any, index: Any, axis: int = 0, keepdims: bool = True) -> Tensor:
    """The slice at an index that may be traced.

    Args:
        operand: a tensor.
        index: an int, or an int[]. A negative one counts from the end, and one that is out of range is the nearest.
        axis: the dim.
        keepdims: keep the dim, of size 1.

    Returns:
        The slice.

    Raises:
        DtypeError, MappingError: as `dynamic_slice`, or the operand does not have the dim.

    Communication: as `dynamic_slice`.

    Example:
        >>> dynamic_index_in_dim(torch.arange(6).reshape(3, 2), torch.tensor(1), keepdims=False)
        tensor([2, 3])
    """
    x = as_tensor_here(operand)
    dim = dim_of(axis, x.dim(), "axis")
    row = _taken("dynamic_index_in_dim", x, _at(dim, x, index), _sized(x, dim, 1))
    return row if keepdims else row.squeeze(dim)


def dynamic_update_slice(operand: Any, update: Any, start_indices: Any, **others: Any) -> Tensor:
    """A copy of a tensor with a block of other values, from a start that may be traced.

    Args:
        operand: a tensor.
        update: the block: a tensor of as many dims, of the same dtype.
        start_indices: as for `dynamic_slice`.
        others: none.

    Returns:
        As the operand; it has gradients with respect to the operand and the block.

    Raises:
        DtypeError: a start that is not an int, or an update of another dtype.
        MappingError: another number of dims, or a block that is larger than the tensor.

    Communication: the block is gathered along a dim that it does not cover whole; the operand stays cut.

    Example:
        >>> dynamic_update_slice(torch.zeros(5), torch.ones(2), (torch.tensor(4),))
        tensor([0., 0., 0., 1., 1.])
    """
    check_others(dynamic_update_slice, others)
    return _written("dynamic_update_slice", as_tensor_here(operand), as_tensor_here(update), start_indices)


def dynamic_update_slice_in_dim(operand: Any, update: Any, start_index: Any, axis: int) -> Tensor:
    """A copy of a tensor with a block of other values along one dim.

    Args:
        operand: a tensor.
        update: the block: a tensor of as many dims, of the same dtype.
        start_index: an int, or an int[].
        axis: the dim; along all other dims the block begins at 0.

    Returns:
        As the operand.

    Raises:
        DtypeError, MappingError: as `dynamic_update_slice`, or the operand does not have the dim.

    Communication: as `dynamic_update_slice`.

    Example:
        >>> dynamic_update_slice_in_dim(torch.zeros(4), torch.ones(2), 1, axis=0)
        tensor([0., 1., 1., 0.])
    """
    x = as_tensor_here(operand)
    starts = _at(dim_of(axis, x.dim(), "axis"), x, start_index)
    return _written("dynamic_update_slice_in_dim", x, as_tensor_here(update), starts)


def dynamic_update_index_in_dim(operand: Any, update: Any, index: Any, axis: int) -> Tensor:
    """A copy of a tensor with other values at one index.

    Args:
        operand: a tensor.
        update: the values: a tensor of the same dtype, with the dim of size 1 or without it.
        index: an int, or an int[].
        axis: the dim.

    Returns:
        As the operand.

    Raises:
        DtypeError, MappingError: as `dynamic_update_slice`, or the operand does not have the dim.

    Communication: as `dynamic_update_slice`.

    Example:
        >>> dynamic_update_index_in_dim(torch.zeros(3), torch.tensor(5.0), torch.tensor(1), axis=0)
        tensor([0., 5., 0.])
    """
    x, values = as_tensor_here(operand), as_tensor_here(update)
    dim = dim_of(axis, x.dim(), "axis")
    if values.dim() == x.dim() - 1:
        values = values.unsqueeze(dim)
    if values.dim() == x.dim() and values.shape[dim] != 1:
        got = f"update of shape {tuple(values.shape)}, axis={axis}"
        raise MappingError("dynamic_update_index_in_dim writes at one index", got=got, rule="its size there is 1")
    return _written("dynamic_update_index_in_dim", x, values, _at(dim, x, index))


def as_tensor_here(value: Any) -> Tensor:
    """The argument as a tensor."""
    return value if isinstance(value, Tensor) else as_tensor(value)


def _at(dim: int, x: Tensor, start: Any) -> list[Any]:
    return [start if d == dim else 0 for d in range(x.dim())]


def _sized(x: Tensor, dim: int, size: int) -> list[int]:
    return [size if d == dim else n for d, n in enumerate(x.shape)]


def _taken(what: str, x: Tensor, starts: Any, sizes: Sequence[int]) -> Tensor:
    with called(what):
        for dim, (start, size) in enumerate(_blocks(what, x, starts, sizes)):
            if size == x.shape[dim]:
                continue
            if isinstance(start, int):
                x = x.narrow(dim, start, size)
            else:
                x = selected(x, dim, start + torch.arange(size))
    return x


def _written(what: str, x: Tensor, update: Tensor, starts: Any) -> Tensor:
    """Write by a mask of the elements in the block, so that a device writes its own part of the tensor."""
    if x.dtype != update.dtype:
        got, try_ = f"{update.dtype} into {x.dtype}", f"update.to({x.dtype})"
        raise DtypeError(f"{what} writes values of another dtype", got=got, try_=try_)
    blocks = _blocks(what, x, starts, update.shape)
    if 0 in update.shape:
        return x.clone()
    inside: Tensor | None = None
    with called(what):
        for dim, (start, size) in enumerate(blocks):
            if size == x.shape[dim]:
                continue
            place = torch.arange(x.shape[dim]) - start
            update = selected(update, dim, place.clamp(0, size - 1))
            is_here = ((place >= 0) & (place < size)).reshape([-1 if d == dim else 1 for d in range(x.dim())])
            inside = is_here if inside is None else inside & is_here
        return update.clone() if inside is None else torch.where(inside, update, x)


def _blocks(what: str, x: Tensor, starts: Any, sizes: Sequence[int]) -> list[tuple[Any, int]]:
    """For each dim the start of the block, clamped to the tensor, and its size."""
    if isinstance(starts, Tensor) and starts.dim() != 1:
        raise MappingError(f"{what} takes a start for each dim", got=f"a tensor of shape {tuple(starts.shape)}")
    given = list(starts.unbind(0)) if isinstance(starts, Tensor) else list(starts)
    counted = [as_int(n) for n in sizes]
    if len(given) != x.dim() or len(counted) != x.dim():
        got = f"{len(given)} starts and {len(counted)} sizes, a tensor of shape {tuple(x.shape)}"
        raise MappingError(f"{what} takes a start and a size for each dim", got=got)
    bounds: list[tuple[Any, int]] = []
    for start, size, whole in zip(given, counted, x.shape, strict=True):
        if size is None or not 0 <= size <= whole:
            got = f"a block of shape {tuple(sizes)}, a tensor of shape {tuple(x.shape)}"
            raise MappingError(f"{what}: the block does not fit into the tensor", got=got)
        bounds.append((_clamped(what, start, whole, whole - size), size))
    return bounds


def _clamped(what: str, start: Any, whole: int, last: int) -> Any:
    """A start, counted from the front, between 0 and `last`: an int, or an int64[] for a tensor."""
    if isinstance(start, Tensor):
        is_int = not (start.is_floating_point() or start.is_complex() or start.dtype == torch.bool)
        if start.dim() or not is_int:
            got = f"a tensor of shape {tuple(start.shape)} and {start.dtype}"
            raise DtypeError(f"a start of {what} is an int", got=got)
        wide = start.long()
        return torch.where(wide < 0, wide + whole, wide).clamp(0, last)
    number = None if isinstance(start, bool) else as_int(start)
    if number is None:
        raise DtypeError(f"a start of {what} is an int", got=f"{start!r} ({type(start).__name__})")
    return min(max(number + whole if number < 0 else number, 0), last)

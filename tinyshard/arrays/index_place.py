"""The place that `x.at[index]` selects: a chain of views, and rows of the last one.

    x.at[1:3, :, 2, i]      x[1:3], of that [..., 2, :] without the dim, and of that rows i along its last dim

Each view can compute the array with other values in the view. Views are made only when their values are needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tinyshard.arrays.array import Array
from tinyshard.core.errors import DtypeError, IndexingError
from tinyshard.core.ints import as_int
from tinyshard.core.thread_state import innermost, is_tracing

View = Callable[[], torch.Tensor]


class Place:
    """The place that an index selects.

    Args:
        x: the array.
        index: as in `x[index]`.
        is_promised: no index is out of bounds.

    Attributes:
        shape: of the last view.
        view: computes it.
        linear: for the index's tensors with dims: the rows that they select, when the dims that they index are
            flattened to one; those out of bounds are the nearest. None if the index has no such tensor.
        inside: which of these are in bounds; None if all are known to be.
        hits: whether all numbers of the index are in bounds: True, False, or a traced bool[].
    """

    def __init__(self, x: torch.Tensor, index: Any, *, is_promised: bool) -> None:
        self.shape = list(x.shape)
        self.view: View = lambda: x
        self.linear: torch.Tensor | None = None
        self.inside: torch.Tensor | None = None
        self.hits: Any = True
        self._links: list[Callable[[torch.Tensor], torch.Tensor]] = []
        self._is_promised = is_promised
        self._dims: list[int] = []  # those that tensors index
        self._insert_at = 0  # position of the tensors' dims among those of the elements
        named: list[tuple[int, torch.Tensor]] = []
        dim = 0
        for entry in _entries(x, index):
            if entry is None:
                self._unsqueeze(dim)
            elif isinstance(entry, slice):
                self._slice(dim, entry)
            elif isinstance(entry, torch.Tensor) and entry.dim():
                named.append((dim, entry))
            else:
                self._select(dim, entry)
                continue
            dim += 1
        if named:
            self._name(named)

    # ---- views --------------------------------------------------------------------------------------------------

    def _enter(self, view: View, shape: list[int], back: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.view, self.shape = functools.cache(view), shape
        self._links.append(back)

    def _unsqueeze(self, dim: int) -> None:
        whole = self.view
        shape = [*self.shape[:dim], 1, *self.shape[dim:]]
        self._enter(lambda: whole().unsqueeze(dim), shape, lambda new: new.squeeze(dim))

    def _select(self, dim: int, at: Any) -> None:
        """Select one row, by a number or by a tensor without dims. The device that has the row changes it locally."""
        whole, size = self.view, self.shape[dim]
        last = max(size - 1, 0)
        ndim = len(self.shape) - dim
        if isinstance(at, torch.Tensor):
            at, hits = self._bounded(at, size)
            view: View = lambda: whole().index_select(dim, at.reshape(1)).squeeze(dim)  # noqa: E731
        else:
            at = at + size if at < 0 else at
            hits, at = 0 <= at < size, min(max(at, 0), last)
            view = lambda: whole().select(dim, at)  # noqa: E731
        if hits is not None:
            self.hits = hits if self.hits is True else self.hits & hits

        def back(new: torch.Tensor) -> torch.Tensor:
            rows = torch.arange(size).reshape([size, *[1] * (ndim - 1)])
            return torch.where(rows == at, new.unsqueeze(dim), whole())

        self._enter(view, [n for d, n in enumerate(self.shape) if d != dim], back)

    def _slice(self, dim: int, entry: slice) -> None:
        whole, size = self.view, self.shape[dim]
        chosen = range(*entry.indices(size))
        if len(chosen) == size and chosen.step > 0:
            return
        rising = chosen if chosen.step > 0 else chosen[::-1]
        start, stop, step = (rising[0], rising[-1] + 1, rising.step) if rising else (0, 0, 1)
        index = (*[slice(None)] * dim, slice(start, stop, step))
        shape = [*self.shape[:dim], len(chosen), *self.shape[dim + 1 :]]
        self._enter(
            lambda: whole()[index], shape, lambda new: torch.slice_scatter(whole(), new, dim, start, stop, step)
        )
        if chosen.step < 0:
            part = self.view
            self._enter(lambda: part().flip(dim), shape, lambda new: new.flip(dim))

    def back(self, view: torch.Tensor) -> torch.Tensor:
        """The array with other values in its last view."""
        for link in reversed(self._links):
            view = link(view)
        return view

    # ---- rows ---------------------------------------------------------------------------------------------------

    def _name(self, named: list[tuple[int, torch.Tensor]]) -> None:
        """Combine the tensors of an index into one of row numbers."""
        self._dims = [dim for dim, _ in named]
        if self._dims == list(range(self._dims[0], self._dims[-1] + 1)):
            self._insert_at = self._dims[0]
        linear: Any = 0
        inside: Any = None
        for dim, at in named:
            bounded, here = self._bounded(at, self.shape[dim])
            inside = here if inside is None else inside if here is None else inside & here
            linear = linear * self.shape[dim] + bounded if dim != self._dims[0] else bounded
        self.linear = linear
        self.inside = None if inside is None else inside.expand(linear.shape)

    def _bounded(self, at: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Indices from the front, clipped to the bounds; and which were in bounds, None if all were."""
        at = at.long()
        at = torch.where(at < 0, at + size, at)
        if self._is_promised or _is_known_inside(at, size):
            return at, None
        return at.clamp(0, max(size - 1, 0)), (at >= 0) & (at < size)

    @property
    def _rest(self) -> list[int]:
        return [n for dim, n in enumerate(self.shape) if dim not in self._dims]

    @property
    def elements_shape(self) -> list[int]:
        """The shape of `x[index]`."""
        among = [] if self.linear is None else list(self.linear.shape)
        return [*self._rest[: self._insert_at], *among, *self._rest[self._insert_at :]]

    def rows(self) -> torch.Tensor:
        """The last view, with the dims that tensors index flattened to dim 0."""
        front = self.view().movedim(self._dims, list(range(len(self._dims))))
        return front.flatten(0, len(self._dims) - 1)

    def from_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """The inverse of `rows`."""
        front = rows.unflatten(0, [self.shape[dim] for dim in self._dims])
        return front.movedim(list(range(len(self._dims))), self._dims)

    def as_rows(self, values: torch.Tensor) -> torch.Tensor:
        """Values of `elements_shape`, a row for each index."""
        assert self.linear is not None
        count = self.linear.dim()
        front = values.movedim(list(range(self._insert_at, self._insert_at + count)), list(range(count)))
        return front.flatten(0, count - 1)

    def as_elements(self, rows: torch.Tensor) -> torch.Tensor:
        """The inverse of `as_rows`."""
        assert self.linear is not None
        count = self.linear.dim()
        front = rows.unflatten(0, self.linear.shape)
        return front.movedim(list(range(count)), list(range(self._insert_at, self._insert_at + count)))


def _is_known_inside(at: torch.Tensor, size: int) -> bool:
    """Whether all of these are known to be in bounds, without waiting for a value."""
    if is_tracing() or isinstance(innermost(at), Array) or torch._C._functorch.is_functorch_wrapped_tensor(at):
        return False
    return at.numel() == 0 or (int(at.min()) >= 0 and int(at.max()) < size)


def _entries(x: torch.Tensor, index: Any) -> list[Any]:
    """An index as numbers, slices, None and tensors of ints, as many as the array has dims, None not counted."""
    given = [as_entry(entry) for entry in (index if isinstance(index, tuple) else (index,))]
    taken = sum(entry.dim() if is_mask(entry) else entry is not None and entry is not Ellipsis for entry in given)
    if taken > x.dim() or sum(entry is Ellipsis for entry in given) > 1:
        raise IndexingError(
            "too many indices for the array",
            got=f"x.at[{index!r}] of shape {tuple(x.shape)}",
            rule=f"at most {x.dim()} beside None, and one `...`",
        )
    if not any(entry is Ellipsis for entry in given):
        given.append(Ellipsis)
    found: list[Any] = []
    for entry in given:
        if entry is Ellipsis:
            found += [slice(None)] * (x.dim() - taken)
        elif is_mask(entry):
            found += entry.nonzero(as_tuple=True)
        else:
            found.append(entry)
    return found


def as_entry(entry: Any) -> Any:
    """An entry of an index as None, `...`, a slice, a number or a tensor. Raises DtypeError for anything else."""
    if entry is None or entry is Ellipsis or isinstance(entry, slice):
        return entry
    if isinstance(entry, list | range | np.ndarray | np.generic):
        entry = torch.as_tensor(
            np.asarray(entry, dtype=np.int64 if len(np.shape(entry)) and not np.size(entry) else None)
        )
    if isinstance(entry, torch.Tensor):
        if entry.is_floating_point() or entry.is_complex():
            raise _no_index(f"a tensor of {entry.dtype}")
        return entry
    number = None if isinstance(entry, bool) else as_int(entry)
    if number is None:
        raise _no_index(f"{entry!r} ({type(entry).__name__})")
    return number


def _no_index(got: str) -> DtypeError:
    rule = "ints, slices, None, `...`, and tensors of ints or bools are"
    return DtypeError("not an index", got=f"x.at[...] with {got}", rule=rule)


def is_mask(entry: Any) -> bool:
    """Whether an entry is a tensor of bools."""
    return isinstance(entry, torch.Tensor) and entry.dtype == torch.bool

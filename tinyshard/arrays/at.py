"""`x.at[i].set(v)`: a new array with some elements changed. JAX's replacement of in-place updates.

`arrays/index_place.py` resolves an index to a view, and to rows of it by tensors. A changed view is written back.

All of this is ordinary torch ops, so it works on plain tensors, Arrays and traced values, under vmap and grad.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tinyshard.arrays.explicit import called, known_as
from tinyshard.arrays.function_overrides.replaced import Replacement
from tinyshard.arrays.index_place import Place, as_entry, is_mask
from tinyshard.core.errors import IndexingError

# how a mode treats an index that is out of bounds: (when values are read, when they are written)
MODES = {
    None: ("clip", "drop"),
    "fill": ("fill", "drop"),
    "drop": ("fill", "drop"),
    "clip": ("clip", "clip"),
    "promise_in_bounds": ("promise", "promise"),
}


class At:
    """The value of `x.at`: indexing it gives the methods that change elements."""

    __slots__ = ("_x",)

    def __init__(self, x: torch.Tensor) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> AtIndex:
        return AtIndex(self._x, index)

    def __repr__(self) -> str:
        return f"{type(self._x).__name__}.at"


@dataclass(frozen=True, slots=True, eq=False)
class AtIndex:
    """The elements of an array at an index. Made by `x.at[index]`; each method returns a new array.

    `x` is an Array, a torch tensor, or a value in a trace or a transformation: `import tinyshard` gives all
    tensors the attribute `at`.

    Args:
        x: the array, which is not changed.
        index: as in `x[index]`: numbers, slices (also with a negative step), None, `...`, tensors and lists of ints,
            and masks. The dims of the elements are in the order of torch's `x[index]`.

    The methods `set`, `add`, `subtract`, `multiply` (`mul`), `divide`, `power`, `min` and `max` take values that
    broadcast to the shape of `x[index]`, and are converted to the dtype of `x`; only `divide` gives a float dtype to
    ints. Where an element is indexed twice, all its values are added, multiplied and so on; `set` keeps one of
    them. `apply` takes a function of the elements, `get` returns them. All take `mode=`, for an index
    that is out of bounds (a negative index: one that is still negative when the size is added):

        None, the default       it is left out when writing, and the nearest element is read
        "fill", "drop"          it is left out when writing, and read as `fill_value`: by default NaN, for ints the
                                smallest, for unsigned ones the largest, for bools True
        "clip"                  it is the nearest element
        "promise_in_bounds"     the caller promises that there is none, which is the fastest

    and `indices_are_sorted=` and `unique_indices=`, which are promises too. As in JAX, the gradient of `multiply` at a
    tensor of indices needs `unique_indices=True` inside of jit.

    Raises:
        IndexingError: more indices than dims, values that do not broadcast, or no such mode.
        DtypeError: an index that is not an int, a slice or a mask.
        RemoteError: "promise_in_bounds" with an index that is out of bounds.

    Communication: none for `set` at numbers and masks, and along dims that are not indexed: every device changes its
    own block. A dim that is indexed by slices or by tensors with dims is gathered, if it is cut.

    In JAX: the order of dims is NumPy's, which differs where a slice is between a number and a tensor. With
    "promise_in_bounds" JAX checks nothing. `apply` calls its function once per occurrence of an element; here once.

    In torch: `x.index_put`, `x.scatter_reduce`, `x.slice_scatter`; or `x[index] = v`, which changes `x`.

    Example:
        >>> x = torch.arange(5.0)
        >>> x.at[1:3].set(9), x.at[[0, 0, 7]].add(1), x.at[7].get(mode="fill")
        (tensor([0., 9., 9., 3., 4.]), tensor([2., 1., 2., 3., 4.]), tensor(nan))
    """

    array: torch.Tensor
    index: Any

    @known_as("x.at[...].set")
    def set(self, values: Any, **promises: Any) -> torch.Tensor:
        """The array with these values at the index."""
        return self._changed("set", values, **promises)

    @known_as("x.at[...].add")
    def add(self, values: Any, **promises: Any) -> torch.Tensor:
        """The array with these values added."""
        return self._changed("add", values, **promises)

    @known_as("x.at[...].subtract")
    def subtract(self, values: Any, **promises: Any) -> torch.Tensor:
        """The array with these values subtracted."""
        return self._changed("add", -_as_values(values, self.array), **promises)

    @known_as("x.at[...].multiply")
    def multiply(self, values: Any, **promises: Any) -> torch.Tensor:
        """The array with the elements multiplied by these values."""
        return self._changed("multiply", values, **promises)

    mul = multiply

    @known_as("x.at[...].divide")
    def divide(self, values: Any, **promises: Any) -> torch.Tensor:
        """The array with the elements divided by these values."""
        return self.array / AtIndex(torch.ones_like(self.array), self.index).multiply(values, **promises)

    @known_as("x.at[...].power")
    def power(self, values: Any, **promises: Any) -> torch.Tensor:
        """The array with the elements raised to the power of these values."""
        return self.array ** AtIndex(torch.ones_like(self.array), self.index).multiply(values, **promises)

    @known_as("x.at[...].min")
    def min(self, values: Any, **promises: Any) -> torch.Tensor:
        """The array with the smaller of each element and its value."""
        return self._changed("min", values, **promises)

    @known_as("x.at[...].max")
    def max(self, values: Any, **promises: Any) -> torch.Tensor:
        """The array with the larger of each element and its value."""
        return self._changed("max", values, **promises)

    def apply(self, function: Callable[[torch.Tensor], torch.Tensor], **promises: Any) -> torch.Tensor:
        """The array with a function applied to the elements, elementwise."""
        mode = promises.get("mode")
        with called("x.at[...].apply"):
            elements = self.get(mode="clip" if mode is None else mode)
        values = function(elements)
        with called("x.at[...].apply"):
            return self._changed("set", values, **promises)

    @known_as("x.at[...].get")
    def get(
        self,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | None = None,
        fill_value: Any = None,
    ) -> torch.Tensor:
        """The elements."""
        reads = _checked(mode)[0]
        place = Place(self.array, self.index, is_promised=reads == "promise")
        filling = _filling(self.array, fill_value) if reads == "fill" else None
        if place.linear is None:
            found = place.view()
        else:
            found = place.rows().index_select(0, place.linear.flatten())
            if filling is not None and place.inside is not None:
                found = torch.where(_beside(place.inside, found), found, filling)
            found = place.as_elements(found)
        return found if filling is None or place.hits is True else torch.where(_tensor(place.hits), found, filling)

    def _changed(
        self,
        how: str,
        values: Any,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: str | None = None,
    ) -> torch.Tensor:
        x, writes = self.array, _checked(mode)[1]
        values = _as_values(values, x)
        mask = _lone_mask(x, self.index, values)
        if mask is not None:
            values = values.reshape(values.shape[max(values.dim() - (x.dim() - mask.dim()), 0) :])
            mask = mask.reshape([*mask.shape, *[1] * (x.dim() - mask.dim())])
            return torch.where(mask, _ELEMENTWISE[how](x, values), x)
        place = Place(x, self.index, is_promised=writes == "promise")
        values = _broadcast(values, place.elements_shape)
        if place.linear is None:
            new = values if how == "set" else _ELEMENTWISE[how](place.view(), values)
        else:
            new = place.from_rows(_scattered(how, place, values, writes == "drop", unique_indices))
        new = place.back(new)
        return new if place.hits is True or writes != "drop" else torch.where(_tensor(place.hits), new, x)


def _scattered(how: str, place: Place, values: torch.Tensor, drops: bool, is_unique: bool) -> torch.Tensor:
    """The rows of a place after a change of those that the index's tensors select.

    Args:
        how: the change.
        place: the place.
        values: of the shape of its elements.
        drops: rows out of bounds are left out.
        is_unique: no row is selected twice.
    """
    assert place.linear is not None
    rows, at, values = place.rows(), place.linear.flatten(), place.as_rows(values)
    size = rows.shape[0]
    if drops and place.inside is not None:  # an additional row receives the values that are left out
        rows = torch.cat([rows, rows.new_zeros([1, *rows.shape[1:]])])
        at = torch.where(place.inside.flatten(), at, size)
    at = _beside(at, values).expand(values.shape)
    if how == "multiply" and (is_unique or at.shape[0] == 1):  # torch's derivative of a product reads values
        rows = rows * torch.scatter(torch.ones_like(rows), 0, at, values)
    else:
        rows = _SCATTER[how](rows, at, values)
    return rows.narrow(0, 0, size)


def _beside(at: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Something of each row, with the dims that rows have."""
    return at.reshape([-1, *[1] * (rows.dim() - 1)])


def _tensor(hits: Any) -> torch.Tensor:
    return hits if isinstance(hits, torch.Tensor) else torch.tensor(hits)


_ELEMENTWISE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "set": lambda x, values: values,
    "add": torch.add,
    "multiply": torch.mul,
    "min": torch.minimum,
    "max": torch.maximum,
}
_SCATTER: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "set": lambda x, at, values: torch.scatter(x, 0, at, values),
    "add": lambda x, at, values: torch.scatter_add(x, 0, at, values),
    "multiply": lambda x, at, values: torch.scatter_reduce(x, 0, at, values, "prod"),
    "min": lambda x, at, values: torch.scatter_reduce(x, 0, at, values, "amin"),
    "max": lambda x, at, values: torch.scatter_reduce(x, 0, at, values, "amax"),
}


def _lone_mask(x: torch.Tensor, index: Any, values: torch.Tensor) -> torch.Tensor | None:
    """The mask, if it is the whole index, and the values fit any number of chosen elements."""
    entry = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if isinstance(entry, np.ndarray | list):
        entry = as_entry(entry)
    if not is_mask(entry) or tuple(entry.shape) != tuple(x.shape[: entry.dim()]):
        return None
    rest = x.dim() - entry.dim()
    return entry if math.prod(values.shape[: max(values.dim() - rest, 0)]) == 1 else None


def _checked(mode: str | None) -> tuple[str, str]:
    if mode not in MODES:
        raise IndexingError("x.at has no such mode", got=f"mode={mode!r}", rule=f"one of {', '.join(map(repr, MODES))}")
    return MODES[mode]


def _as_values(values: Any, x: torch.Tensor) -> torch.Tensor:
    return values.to(x.dtype) if isinstance(values, torch.Tensor) else torch.as_tensor(values).to(x.dtype)


def _broadcast(values: torch.Tensor, shape: list[int]) -> torch.Tensor:
    try:
        return values.expand(shape)
    except RuntimeError as error:
        raise IndexingError(
            "the values do not broadcast to the elements",
            got=f"values of shape {tuple(values.shape)} for elements of shape {tuple(shape)}",
            rule="x.at[index].set(values): values.expand(x[index].shape) must be possible",
        ) from error


def _filling(x: torch.Tensor, fill_value: Any) -> Any:
    if fill_value is not None:
        return fill_value
    if x.is_floating_point() or x.is_complex():
        return math.nan
    if x.dtype == torch.bool:
        return True
    return torch.iinfo(x.dtype).min if x.dtype.is_signed else torch.iinfo(x.dtype).max


# every tensor has `at`: in a trace, and under a transformation, a value is a plain tensor to the user
REPLACED: list[Replacement] = [(torch.Tensor, "at", lambda _: property(At, doc=AtIndex.__doc__))]

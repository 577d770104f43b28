"""How far a value is from the wanted one, in words; values may be Arrays, tensors, NumPy's, lists or numbers."""

from numbers import Integral, Real
from typing import Any

import numpy as np
import torch

import tinyshard as ts

__all__ = ["difference", "number_in", "plain"]

SHOWN = 16  # values up to this many elements are shown whole


def plain(value: Any) -> torch.Tensor:
    """A plain tensor of the values.

    Args:
        value: an Array, a tensor, a NumPy array, a number, or lists of them that stack.

    Raises:
        TypeError, ValueError: it is nothing that has values, such as a function or a ragged list.
    """
    if isinstance(value, torch.Tensor):
        return ts.device_get(value).detach()
    if isinstance(value, list | tuple) and any(isinstance(each, torch.Tensor | list | tuple) for each in value):
        return torch.stack([plain(each) for each in value])
    return torch.as_tensor(np.asarray(value))


def number_in(value: Any) -> int | float | None:
    """The number that a value is, an int where it is whole, of whatever type; None for what is not one real number.

    Example:
        >>> number_in(8), number_in(8.0), number_in(torch.tensor(8)), number_in(np.float64(0.5)), number_in(True)
        (8, 8, 8, 0.5, None)
    """
    if isinstance(value, torch.Tensor) and value.dim() == 0 and not value.is_complex():
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    if isinstance(value, Integral):
        return int(value)
    number = float(value)
    return int(number) if number.is_integer() else number


def difference(got: Any, want: Any, what: str = "it", tolerance: float = 1e-5) -> str:
    """Say what differs; an empty string where nothing does.

    Args:
        got: the learner's value; of any type, also a wrong one.
        want: what it should be.
        what: how to call it.
        tolerance: by how much an element may be off, relative to the wanted one (absolute below 1).

    Returns:
        A line or three.

    Communication: what fetching an Array's values needs.

    Example:
        >>> difference([1.0, 2.0], torch.tensor([1.0, 2.0]))
        ''
        >>> print(difference(torch.tensor([1.0, 5.0]), [1.0, 2.0], "the row"))
        the row differs in 1 of 2 elements
          got:  [1.0, 5.0]
          want: [1.0, 2.0]
        >>> difference(torch.zeros(3), torch.zeros(4))
        'it has the shape (3,), not (4,)'
    """
    if got is None:
        return f"{what} is None"
    wanted = plain(want)
    try:
        values = plain(got)
    except (TypeError, ValueError, RuntimeError):
        return f"{what} is of type {type(got).__name__}, which holds no numbers that could be compared"
    if values.shape != wanted.shape:
        return f"{what} has the shape {tuple(values.shape)}, not {tuple(wanted.shape)}"
    is_off = _is_off(values, wanted, tolerance)
    if not is_off.any():
        return ""
    if wanted.dim() == 0:
        return f"{what} is {_number(values)}, not {_number(wanted)}"
    reported = f"{what} differs in {int(is_off.sum())} of {wanted.numel()} elements"
    if wanted.numel() <= SHOWN:
        return f"{reported}\n  got:  {_rounded(values)}\n  want: {_rounded(wanted)}"
    place = tuple(int(i) for i in is_off.nonzero()[0])
    at = f"[{', '.join(map(str, place))}]"
    return f"{reported}; the first is {at}: {_number(values[place])}, not {_number(wanted[place])}"


def _is_off(values: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> torch.Tensor:
    wide = torch.complex128 if values.is_complex() or wanted.is_complex() else torch.float64
    return ~torch.isclose(values.to(wide), wanted.to(wide), rtol=tolerance, atol=tolerance)


def _number(value: torch.Tensor) -> str:
    return repr(_rounded(value))


def _rounded(value: torch.Tensor) -> Any:
    """Python's numbers, six digits of each: rounding differs from machine to machine, what is printed must not."""
    if value.dim():
        return [_rounded(each) for each in value]
    number = value.item()
    return float(f"{number:.6g}") if isinstance(number, float) else number

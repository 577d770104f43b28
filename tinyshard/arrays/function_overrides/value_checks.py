"""Functions of torch that read a value only to check it, without the check; and some that read strides.

one_hot             refuses a class that is out of range; here the device does
cov                 warns if there are not more observations than `correction`
corrcoef            uses cov
gaussian_nll_loss   refuses a negative variance; here it gives NaN
cross_entropy       takes classes of uint8, and does not on tensors without values; here as int64
nll_loss            likewise
det, slogdet        their derivative reads the strides of the matrix; here it is contiguous
tensor_split        reads the memory of its second operand
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from tinyshard.arrays.function_overrides.traced_index import is_of_examples
from tinyshard.arrays.refusals import Immutable
from tinyshard.core.errors import DtypeError
from tinyshard.core.thread_state import innermost
from tinyshard.core.types import ShapedType
from tinyshard.core.users_line import users_line


def one_hot(input: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """As `torch.nn.functional.one_hot`: [...] to [..., num_classes]; waits only if it must count the classes.

    Example:
        >>> one_hot(torch.tensor([1, 0]), 3)
        tensor([[0, 1, 0],
                [1, 0, 0]])
    """
    if input.dtype != torch.int64:
        rule = "the classes are of torch.int64, as in torch"
        raise DtypeError("one_hot of another dtype", got=str(input.dtype), rule=rule, try_="x.long()")
    count = num_classes if num_classes >= 0 else int(input.max()) + 1
    row = (input.unsqueeze(-1) == torch.arange(count)).to(torch.int64)
    # zeros, and an error on the device for a class that is not below num_classes
    return row + torch.nn.functional.embedding(input, torch.zeros(count, 1, dtype=torch.int64))


def one_hot_of_examples(input: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """`one_hot` within a transformation: torch's own, except for Arrays and numbers that differ between examples."""
    of_torch = not (isinstance(innermost(input), Immutable) or is_of_examples(input))
    return torch.nn.functional.one_hot(input, num_classes) if of_torch else one_hot(input, num_classes)


def one_hot_traced(input: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """`one_hot` in a trace."""
    if num_classes < 0:
        raise DtypeError(
            "one_hot without num_classes in a traced function",
            got=f"one_hot of shape {tuple(input.shape)} in {users_line()}",
            rule="torch then reads the values to find the largest, and a traced value has none",
            try_="one_hot(x, num_classes=n)",
        )
    return one_hot(input, num_classes)


def cov(
    input: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `torch.cov`: rows are variables, columns observations; the result is [rows, rows], or [] for one row."""
    _check_cov(input, fweights, aweights)
    x = input.reshape(1, -1) if input.dim() < 2 else input
    if not (x.is_floating_point() or x.is_complex()):
        x = x.to(torch.get_default_dtype())
    weights: torch.Tensor | None = fweights
    if aweights is not None:
        weights = aweights if fweights is None else fweights * aweights
    if weights is None:
        count: torch.Tensor | float = float(x.shape[1]) - correction
        mean = x.mean(1, keepdim=True)
    else:
        total = weights.sum()
        mean = (x * weights).sum(1, keepdim=True) / total
        count = total - correction * (1 if aweights is None else (weights * aweights).sum() / total)
    deviation = x - mean
    product = (deviation if weights is None else deviation * weights) @ deviation.mH
    return (product / (count.clamp(min=0) if isinstance(count, torch.Tensor) else max(count, 0.0))).squeeze()


def _check_cov(input: torch.Tensor, fweights: torch.Tensor | None, aweights: torch.Tensor | None) -> None:
    """torch's checks of shapes and dtypes. Raises DtypeError."""
    rule = ""
    if input.dim() > 2:
        rule = "rows are variables and columns observations: it has at most two dims"
    for name, weights in (("fweights", fweights), ("aweights", aweights)):
        if weights is None:
            continue
        if tuple(weights.shape) != (input.shape[-1] if input.dim() else 1,):
            rule = f"{name} has one weight for each observation"
        elif (weights.is_floating_point() or weights.is_complex()) != (name == "aweights"):
            rule = f"{name} is of {'floating point' if name == 'aweights' else 'an integral dtype'}, as in torch"
    if rule:
        types = [f"{ShapedType(tuple(x.shape), x.dtype)}" for x in (input, fweights, aweights) if x is not None]
        raise DtypeError("an argument of cov has a wrong shape or dtype", got=", ".join(types), rule=rule)


def corrcoef(input: torch.Tensor) -> torch.Tensor:
    """As `torch.corrcoef`."""
    product = cov(input)
    if product.dim() == 0:
        return product / product
    deviation = product.diagonal().real.sqrt() if product.is_complex() else product.diagonal().sqrt()
    scaled = product / deviation[:, None] / deviation[None, :]
    if scaled.is_complex():
        return torch.complex(scaled.real.clip(-1, 1), scaled.imag.clip(-1, 1))
    return scaled.clip(-1, 1)


def gaussian_nll_loss(
    input: torch.Tensor,
    target: torch.Tensor,
    var: torch.Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:
    """As `torch.nn.functional.gaussian_nll_loss`; the gradient with respect to `var` also flows where it is `eps`."""
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")  # as torch says it
    spread = torch.as_tensor(var, dtype=input.dtype) if not isinstance(var, torch.Tensor) else var
    if isinstance(var, torch.Tensor) and spread.shape != input.shape:
        if spread.shape == input.shape[:-1]:
            spread = spread.unsqueeze(-1)
        elif not _has_one_dim_of_1(spread.shape, input.shape):
            got = f"var of shape {tuple(spread.shape)}, input of shape {tuple(input.shape)}"
            rule = "var has the shape of the input, or of the input without its last dim, or with 1 in one dim"
            raise DtypeError("var is of incorrect size", got=got, rule=rule)
    floor = torch.where(spread < 0, math.nan, spread.clamp(min=eps))
    spread = spread + (floor - spread).detach()
    losses = 0.5 * (spread.log() + (input - target) ** 2 / spread)
    if full:
        losses = losses + 0.5 * math.log(2 * math.pi)
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


def _has_one_dim_of_1(shape: Sequence[int], whole: Sequence[int]) -> bool:
    """Whether a shape is another one with 1 in place of one size."""
    return len(shape) == len(whole) and [n for n, size in zip(shape, whole, strict=True) if n != size] == [1]


def cross_entropy(input: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """As `torch.nn.functional.cross_entropy`."""
    return torch.nn.functional.cross_entropy(input, _classes(target), *args, **kwargs)


def nll_loss(input: torch.Tensor, target: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """As `torch.nn.functional.nll_loss`."""
    return torch.nn.functional.nll_loss(input, _classes(target), *args, **kwargs)


def _classes(target: torch.Tensor) -> torch.Tensor:
    return target.long() if target.dtype == torch.uint8 else target


def of_contiguous(func: Callable[..., Any]) -> Callable[..., Any]:
    """A determinant of a contiguous matrix, as it is on the devices.

    torch factorizes the transpose of a contiguous matrix, and its derivative reads the strides to know whether it did.
    """

    def called(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(torch.Tensor, torch.Tensor.contiguous, (args, kwargs))
        return func(*args, **kwargs)

    return called


def number(func: Any, x: Any) -> Any:
    """`float(x)` and similar. `torch.tensor([x, y])` calls it with subclasses disabled, so it reads the values itself.

    Example:
        >>> number(torch.Tensor.__float__, torch.tensor(2.0))
        2.0
    """
    is_asked = not torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.Python)
    return func(x if is_asked else x._gather())


def second_on_host(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Call a function with the Arrays after its first argument as plain tensors: torch reads their memory. Waits."""

    def plain(x: Any) -> Any:
        return x._gather() if isinstance(x, Immutable) else x

    named = {name: x if name == "input" else plain(x) for name, x in kwargs.items()}
    return func(*args[:1], *map(plain, args[1:]), **named)

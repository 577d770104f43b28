"""Functions of torch that draw a mask on the host for an Array under a transformation: refused, as they are elsewhere.

Within `ts.grad` and `ts.vmap` torch makes the mask of a dropout as a plain tensor of its own, so that no op on the
Array is random: it would be drawn from torch's generator, whose state is not a part of the program.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F

from tinyshard.arrays.array import Array, innermost
from tinyshard.core.errors import StatefulRandomError, message

_DRAWS = {
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    torch.dropout,
    torch.alpha_dropout,
    torch.feature_dropout,
    torch.feature_alpha_dropout,
}


@cache
def _signature(func: Any) -> inspect.Signature:
    try:
        return inspect.signature(func)
    except ValueError:  # a builtin of torch's: (input, p, train)
        return inspect.signature(lambda input, p, train: None)


def refuse_host_draw(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a call of a function of torch that would draw a mask on the host for an Array.

    Raises:
        StatefulRandomError: it is a dropout in training mode.
    """
    if func not in _DRAWS or not isinstance(innermost(args[0] if args else kwargs.get("input")), Array):
        return
    given = _signature(func).bind(*args, **kwargs)
    given.apply_defaults()
    if given.arguments.get("training", given.arguments.get("train")) and given.arguments["p"]:
        raise StatefulRandomError(
            message(
                "a stateful random op on an Array",
                got=f"{getattr(func, '__name__', func)} in training mode",
                rule="its mask would come from torch's own generator, and not from a key",
                try_="x * ts.random.bernoulli(key, 1 - p, x.shape) / (1 - p), or training=False",
            )
        )

"""Finding a key that is used twice, for whoever asks: `ts.config.update("debug_key_reuse", True)`.

Two draws from one key are the same numbers. With the flag, a key that was drawn from or split is remembered, and its
next use is an error that names the first. Making a key (`key`, `split`, `fold_in`) makes it new again: so a cell can be
run twice.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tinyshard.core import config
from tinyshard.core.current_trace import is_tracing
from tinyshard.core.errors import KeyReuseError, message
from tinyshard.runtime.controller.lineage import users_line

_used: dict[tuple[int, ...], Any] = {}  # the words of a key -> the line that used it


def _keys_in(data: Tensor) -> list[tuple[int, ...]]:
    """The keys whose values can be seen now: none in a trace or a transformation."""
    import torch

    if is_tracing() or torch._C._functorch.is_functorch_wrapped_tensor(data):
        return []
    return [tuple(pair) for pair in data.reshape(-1, 2).tolist()]


def made(data: Tensor) -> None:
    """These keys are new."""
    if config.read("debug_key_reuse"):
        for pair in _keys_in(data):
            _used.pop(pair, None)


def consume(function: str, data: Tensor) -> None:
    """A function uses these keys up.

    Raises:
        KeyReuseError: one was used before.
    """
    if not config.read("debug_key_reuse"):
        _used.clear()
        return
    here = f"{function} in {users_line()}"
    for pair in _keys_in(data):
        if pair in _used:
            raise KeyReuseError(
                message(
                    "a key is used a second time",
                    got=f"key {[word & 0xFFFFFFFF for word in pair]}: {_used[pair]}, then {here}",
                    rule="one key gives the same numbers each time: use it once, for one draw or one split",
                    try_="first, second = ts.random.split(key)",
                )
            )
        _used[pair] = here

"""How a view is reached from its root: the ops that make it, one after the other.

w.t()[1]        View(w, (Link(t), Link(select, 0, 1)))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Link:
    """One op that makes a view.

    Attributes:
        op: the op.
        args, kwargs: its arguments after the tensor.
        which: which of its results it is; None if it has one.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    which: int | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The view of `x`."""
        made = self.op(x, *self.args, **self.kwargs)
        view: torch.Tensor = made if self.which is None else made[self.which]
        return view


@dataclass(frozen=True, slots=True)
class View:
    """How a handle is reached from the one whose memory it shares in torch.

    Attributes:
        root: that Array.
        chain: the ops that lead from it.
    """

    root: Any
    chain: tuple[Link, ...]

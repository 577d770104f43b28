"""Which handles share memory in torch: a view made inside a call remembers its root and the ops between them.

    w                       a root: a handle that is not a view
    w.t()[1]                a view of w: View(w, (Link(t), Link(select, 0, 1)))

Only views that a torch call makes of its own values are remembered, since only these are changed in place. A handle
that has an untracked view, or is one, is marked (`_viewed`), and is never changed.

A handle reports that it is contiguous, since it does not know the strides of its shards. So `reshape` makes a view
where torch would copy: a tensor without values shows whether torch would. `contiguous` runs no op: it returns the
handle itself, even where torch would copy. Where the user's function runs inside a call, as under
`grad`, the results of these two are not changed any more (`transform_scope`).
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tinyshard.arrays.array import DEFAULT_ORIGIN, Array, remembered
from tinyshard.core.types import ShapedType
from tinyshard.partition.op_table import AS_RESHAPE

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Link:
    """One op that makes a view.

    Attributes:
        op: the op.
        args, kwargs: its arguments after the tensor.
        which: the number of its result; None if it has one.
    """

    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    which: int | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The view of `x`."""
        result = self.op(x, *self.args, **self.kwargs)
        view: torch.Tensor = result if self.which is None else result[self.which]
        return view


@dataclass(frozen=True, slots=True)
class View:
    """The ops that lead to a handle from the one whose memory it shares in torch.

    Attributes:
        root: that Array.
        chain: the ops that lead from it.
    """

    root: Array
    chain: tuple[Link, ...]


def follow(chain: Sequence[Link], x: torch.Tensor) -> torch.Tensor:
    """The view of `x` that these ops lead to."""
    for link in chain:
        x = link(x)
    return x


def root_of(x: Array) -> Array:
    """The root of this handle; itself, if it is one."""
    return x if x._view is None else x._view.root


def chain_of(x: Array) -> tuple[Link, ...]:
    """The ops that lead to this handle from its root."""
    return () if x._view is None else x._view.chain


def live_views(root: Array) -> list[Array]:
    """The views of a root that are still alive."""
    found = [ref() for ref in root._views or ()]
    return [x for x in found if x is not None and x is not root and root_of(x) is root]


def remember(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], results: Sequence[Array]) -> None:
    """Note that an op made views of its first operand.

    Args:
        op: the op; None for an alias.
        args, kwargs: its arguments.
        results: its results.
    """
    source: Any = args[0]
    if not results or not isinstance(source, Array):
        return
    if root_of(source)._viewed or not source._origin == results[0]._origin != DEFAULT_ORIGIN:
        for x in (root_of(source), source, *results):
            x._viewed = True
        return
    root, chain = root_of(source), chain_of(source)
    if op in AS_RESHAPE:
        op, args, kwargs = aten.view.default, (source, list(results[0]._meta.shape)), {}
        if not _gives_view(root._meta, chain, results[0]._meta.shape):
            return
    root._views = [] if root._views is None else root._views
    for number, x in enumerate(results):
        link = Link(op, tuple(args[1:]), kwargs, number if len(results) > 1 else None)
        x._view = View(root, chain if op is None else (*chain, link))
        root._views.append(weakref.ref(x))
        if x._origin[2]:
            remembered.setdefault(x._origin[2], []).append(root._views[-1])


def _gives_view(meta: ShapedType, chain: Sequence[Link], shape: Sequence[int]) -> bool:
    """Whether torch's reshape of the chain's result to `shape` is a view: else it copies."""
    x = follow(chain, torch.empty(meta.shape, dtype=meta.dtype, device="meta"))
    return bool(torch._C._is_alias_of(x.reshape(shape), x))  # type: ignore[attr-defined]

"""`x[i]`, `x.narrow(0, i, n)` and `x.select(0, i)` are views of `x` for a traced `i` too, as in torch.

The program has a copy (`traced_index` in `arrays.function_overrides`). So a write to the copy is written to `x` at
once, and a copy that is older than a write to `x` is updated before its next use.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tinyshard.arrays.function_overrides import traced_index
from tinyshard.core.errors import TracedValueError
from tinyshard.core.thread_state import current_recorder, is_tracing, levels
from tinyshard.core.users_line import Where, users_line


@dataclass(slots=True, eq=False)
class _View:
    """One copy that represents a view.

    Attributes:
        copy: the copy.
        base: the viewed tensor.
        index: of `x[index]`; None for `narrow` and `select`.
        read: computes the copy from the present base.
        write: writes a value for the copy to the base.
        where: the user's line that made it.
        copy_version, base_version: the versions at which the two last agreed.
    """

    copy: torch.Tensor
    base: torch.Tensor
    index: Any
    read: Callable[[], torch.Tensor]
    write: Callable[[torch.Tensor], object]
    where: Where
    copy_version: int
    base_version: int

    def agree(self) -> None:
        """Note that the two agree now."""
        self.copy_version, self.base_version = _version(self.copy), _version(self.base)


class TracedViews:
    """The views of one trace."""

    def __init__(self) -> None:
        self._views: list[_View] = []

    def call(self, func: Any, instead: Any, args: Any, kwargs: Any) -> Any:
        """Call the replacement of a torch function that may read, write or make views.

        Args:
            func: the function.
            instead: the replacement.
            args, kwargs: its arguments.
        """
        if self._views:
            self._bring_up_to_date(args, kwargs)
            if func is torch.Tensor.__setitem__ and self._is_written(*args):
                return None
        result = instead(*args, **kwargs)
        if self._views:
            if _writes_each(func):  # torch does not count these writes
                torch.autograd.graph.increment_version(args[0] if args else kwargs["self"])
            self._write_back()
        is_new = func in _READERS and result is not (args[0] if args else kwargs.get("input"))
        if is_new and (is_tracing() or traced_index.has_of_examples(args, kwargs)):  # else it is torch's own view
            self._note(func, result, *args, **kwargs)
        return result

    def end(self) -> None:
        """End the trace. Raises TracedValueError if a result is a copy that is out of date."""
        left = [(weakref.ref(view.copy), view.where) for view in self._views if self._is_stale(view)]
        self._views.clear()
        for copy, where in left:
            if copy() is not None:
                raise TracedValueError(
                    "a view by a traced number is returned after what it views was written to",
                    got=f"the view made in {where}",
                    rule="as in torch it would show what was written",
                    try_="x[i].clone() for the values of before, or x[i] once more for those of after",
                )

    def _note(self, func: Any, view: torch.Tensor, input: torch.Tensor, *rest: Any, **named: Any) -> None:
        index: Any = None
        write: Callable[[torch.Tensor], object]
        if func is torch.Tensor.__getitem__:
            index = rest[0]
            if not traced_index.has_traced_number(index):
                return
            write = lambda value: traced_index.setitem(input, index, value)  # noqa: E731
        else:
            dim = named.get("dim", rest[0] if rest else 0) % input.dim()
            start: Any = named.get("index", named.get("start", rest[1] if len(rest) > 1 else None))
            if not traced_index.is_traced_index(start):
                return
            if func in _NARROW:
                places = traced_index.positions(start, input.shape[dim], view.shape[dim])
                write = lambda value: input.movedim(dim, 0).index_put_((places,), value.movedim(dim, 0))  # noqa: E731
            else:
                write = lambda value: traced_index.setitem(input, (*(slice(None),) * dim, start), value)  # noqa: E731
        read = lambda: traced_index.BY_TRACED_NUMBERS[func](input, *rest, **named)  # noqa: E731
        self._views.append(_View(view, input, index, read, write, users_line(), _version(view), _version(input)))

    def _write_back(self) -> None:
        """Write changes of the copies to their bases, the newest first: it may be a view of a view."""
        for view in reversed(self._views):
            if _version(view.copy) != view.copy_version:
                view.write(view.copy)
                view.agree()

    def _is_stale(self, view: _View) -> bool:
        """Whether its base, itself a view, was written to since."""
        outer = (other for other in self._views if other is not view and other.copy is view.base)
        return _version(view.base) != view.base_version or any(map(self._is_stale, outer))

    def _bring_up_to_date(self, args: Any, kwargs: Any) -> None:
        stale = [view for view in self._views if self._is_stale(view)]
        if not stale:
            return
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        used = {id(whole) for x in tensors for level in levels(x) for whole in _wholes(level)}
        for view in stale:
            if any(id(level) in used for level in levels(view.copy)):
                self._refresh(view)

    def _refresh(self, view: _View) -> None:
        for other in self._views:  # a view of a view: the outer one first
            if other is not view and other.copy is view.base:
                self._refresh(other)
        if _version(view.base) != view.base_version:
            view.copy.copy_(view.read())
            view.agree()

    def _is_written(self, x: torch.Tensor, index: Any, value: Any) -> bool:
        """Whether this is the end of `x[i] += 1`: what was added to the copy is in `x` by now."""
        return any(view.copy is value and view.base is x and view.index is index for view in self._views)


def _writes_each(func: Any) -> bool:
    """Whether it is one of `torch._foreach_add_` and its like."""
    name = getattr(func, "__name__", "")
    return name.startswith("_foreach_") and name.endswith("_")


def _version(x: torch.Tensor) -> int:
    """How many times a tensor was written to, at any level of torch.func; inference tensors do not count writes."""
    return sum(0 if level.is_inference() else level._version for level in levels(x))


def _wholes(x: torch.Tensor | None) -> Iterator[torch.Tensor]:
    """A tensor, and those whose memory it shares: as their view, or because the user detached it from them."""
    recorder = current_recorder()
    while x is not None:
        yield x
        x = x._base if x._base is not None or recorder is None else recorder.detached.get(x)


_NARROW = {torch.Tensor.narrow, torch.narrow}
_READERS = {torch.Tensor.__getitem__, torch.Tensor.select, torch.select, *_NARROW}

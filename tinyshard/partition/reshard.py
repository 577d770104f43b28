"""From one layout to another over the same devices: the sequence of collectives that sends the fewest bytes.

A path is a chain of steps, each from one layout to a neighbouring one:

    whole -> rows       local_slice         nothing moves
    rows -> columns     all_to_all          each device keeps 1/n of its block and swaps the rest
    rows -> whole       all_gather          each device collects the rows of all devices
    blocks reordered    collective_permute  equal blocks that only change devices
    partial -> rows     reduce_scatter      the parts are combined, each device gets its block
    partial -> whole    all_reduce          the parts are combined, every device gets all

`_way` is a search for the shortest path over these layouts (A*): a step costs what `nbytes_sent` says, no way sends
less than what a device misses of its new block, and the fewest steps win among equals. It starts from every layout that
the value already has in the program: what was gathered or combined for one op is at hand for the next.

The layouts between are those that the program's axes can express. Mesh axes that all layouts of a program use together
are one of its axes, so no step splits them, although a path that does may send less: on a mesh of 2 x 2 x 2 with axes
a, b, c, P(("a", "b"), "c") to P("c", ("a", "b")) sends 15/8 of a shard, and by way of P("a", ("c", "b")) 12/8.

What shows the dims of another value in another order, as `w.t()`, is brought nowhere itself: the other value is, and is
shown again. So `w` and `w.t()` share what is gathered.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from tinyshard.core.cache import frozen
from tinyshard.core.collectives import COLLECTIVES, group_size, nbytes_sent
from tinyshard.core.layout import Axes, Layout
from tinyshard.core.program import Builder, Value
from tinyshard.core.types import ShapedType

Dims = tuple[Axes, ...]
Partial = tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class ShardedVar:
    """A value of the program being built.

    Attributes:
        number: its number in the program.
        shape: its global shape.
        dims: for each dim the axes of the program that cut it.
        partial: (axis, op) for each axis along which the devices hold parts that still have to be combined.
    """

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    dims: Dims
    partial: Partial = ()

    def local(self, axes: Axes) -> ShapedType:
        """Shape and dtype of one shard."""
        parts = _parts(self.dims, axes)
        return ShapedType(tuple(n // k for n, k in zip(self.shape, parts, strict=True)), self.dtype)

    @property
    def is_whole(self) -> bool:
        """Whether every device holds the whole, final tensor."""
        return not self.partial and not any(self.dims)

    def blocks(self, axes: Axes) -> int:
        """Into how many blocks it is cut."""
        return math.prod(_parts(self.dims, axes))

    @property
    def is_sum(self) -> bool:
        """Whether the devices hold parts whose sum or mean is the value."""
        return bool(self.partial) and all(op in ("sum", "avg") for _, op in self.partial)


def noted(builder: Builder, x: ShardedVar) -> ShardedVar:
    """The same value; how it is cut is noted in the program, for those who draw it."""
    builder.cuts.setdefault(x.number, (x.dims, x.partial))
    return x


@dataclass(frozen=True, slots=True)
class Reordered:
    """How a value of the program shows the dims of another one in another order.

    Attributes:
        root: the other value, which is not such a view.
        ops: those that lead from it to the view: each with its arguments after the first, and with the dims of its
            operand that those of its result are.
    """

    root: ShardedVar
    ops: tuple[tuple[Any, tuple[Any, ...], tuple[int, ...]], ...]

    def of_root(self, dims: Dims) -> Dims:
        """How the root is cut where the view is cut so."""
        for _, _, order in reversed(self.ops):
            cut = dict(zip(order, dims, strict=True))
            dims = tuple(cut[d] for d in range(len(order)))
        return dims

    def shown(self, builder: Builder, root: int) -> int:
        """Emit the ops again, on the root in another layout; returns the number of the view."""
        number = root
        for op, args, order in self.ops:
            type_ = builder.metas[number]
            assert type_ is not None, "a view's root has a known shape"
            result = replace(type_, shape=tuple(type_.shape[d] for d in order))
            key = "shown", number, op, frozen(args)
            if key not in builder.copies:
                builder.copies[key] = builder.emit(str(op), (Value(number), *args), {}, [result])
            (number,) = builder.copies[key]
        return number


def note_reordered(
    builder: Builder, op: Any, args: tuple[Any, ...], order: tuple[int, ...], operand: ShardedVar, result: int
) -> None:
    """Note that a result shows the operand's dims in another order.

    Args:
        args: of the op, after the first.
        order: the dims of the operand that those of the result are.
        operand: as it is in the program.
        result: its number.
    """
    before = builder.reordered.get(operand.number, Reordered(operand, ()))
    builder.reordered[result] = replace(before, ops=(*before.ops, (op, args, order)))


def collective(builder: Builder, name: str, x: int, axes: Axes, **params: Any) -> int:
    """Emit one collective over `axes` of the program; returns the number of its result."""
    before = builder.metas[x]
    assert before is not None, "collectives come after values of known shape"
    named = {"axes": axes, **params}
    result = COLLECTIVES[name].meta(before, group_size(builder.axes, named), params)
    return builder.emit(name, (Value(x),), named, [result])[0]


def reduce_partial(builder: Builder, x: ShardedVar) -> ShardedVar:
    """Combine the partial parts; afterwards every device along those axes holds the result."""
    return reshard(builder, x, x.dims)


def reshard(builder: Builder, x: ShardedVar, dims: Dims, partial: Partial = ()) -> ShardedVar:
    """Emit the collectives that reshard `x` to `dims` and combine its parts.

    Args:
        builder: the program.
        x: the value.
        dims: the axes that should cut each dim.
        partial: those of x's partial axes that stay partial.

    Returns:
        The value in its new layout; the existing one, if the program has it in this layout already.

    Communication: none if every dim only gets more cuts; else the steps named above.
    """
    partial = tuple(p for p in x.partial if p in partial)
    if (x.dims, x.partial) == (dims, partial):
        return x
    known_layouts = _at_hand(builder, x)
    nbytes, way = _way(x.shape, x.dtype, tuple(known_layouts), (dims, partial), builder.axes)
    view = builder.reordered.get(x.number)
    if view is not None and nbytes and partial == () and view.root.partial == x.partial:
        root, there = view.root, view.of_root(dims)
        if _way(root.shape, root.dtype, tuple(_at_hand(builder, root)), (there, ()), builder.axes)[0] <= nbytes:
            number = view.shown(builder, reshard(builder, root, there).number)
            return replace(x, number=number, dims=dims, partial=())
    for step in way:
        if step.result not in known_layouts:
            number = collective(builder, step.name, known_layouts[step.taken], step.axes, **step.params(builder.axes))
            known_layouts[step.result] = number
            builder.cuts[number] = step.result
            builder.copies["at hand", number, x.shape] = known_layouts
    return replace(x, number=known_layouts[dims, partial], dims=dims, partial=partial)


def _at_hand(builder: Builder, x: ShardedVar) -> dict[Placed, int]:
    """The layouts that a value has in the program so far, each with the number of a value.

    One number may stand for a value and for its block in a shard_map over a part of the axes: by their shapes.
    """
    known_layouts: dict[Placed, int] = builder.once(("at hand", x.number, x.shape), dict)
    known_layouts.setdefault((x.dims, x.partial), x.number)
    return known_layouts


def bytes_between(have: ShardedVar, want: ShardedVar, axes: Axes) -> int:
    """Bytes that a device sends to reshard a value; axes that stay partial cost nothing."""
    partial = tuple(p for p in have.partial if p in want.partial)
    return _way(have.shape, have.dtype, ((have.dims, have.partial),), (want.dims, partial), axes)[0]


Placed = tuple[Dims, Partial]


@dataclass(frozen=True, slots=True)
class _Step:
    """One collective, from a layout to a neighbouring one."""

    name: str
    axes: Axes
    taken: Placed
    result: Placed
    named: tuple[tuple[str, Any], ...] = ()

    def params(self, axes: Axes) -> dict[str, Any]:
        """The arguments of the collective, without its axes."""
        if self.name != "collective_permute":
            return dict(self.named)
        devices = tuple(range(math.prod(axes)))
        have, want = (Layout(devices, axes, dims) for dims, _ in (self.taken, self.result))
        beside = sorted(set(have.free_axes) & set(want.free_axes))  # along these each device has its copy, or value
        held, needed = (_by_block(layout, beside) for layout in (have, want))
        pairs = [pair for at, targets in needed.items() for pair in zip(held[at], targets, strict=True)]
        return {"pairs": tuple(sorted(pairs, key=lambda pair: pair[1]))}


def _by_block(layout: Layout, beside: Sequence[int]) -> dict[Any, list[int]]:
    """The devices that hold each block, of each place along axes that cut nothing."""
    found: dict[Any, list[int]] = {}
    for p in layout.devices:
        coordinates = layout.coordinates(p)
        found.setdefault((layout.block(p), *(coordinates[a] for a in beside)), []).append(p)
    return found


@lru_cache(maxsize=4096)
def _way(
    shape: tuple[int, ...], dtype: torch.dtype, known_layouts: tuple[Placed, ...], want: Placed, axes: Axes
) -> tuple[int, tuple[_Step, ...]]:
    """Bytes sent, and the steps, of the cheapest path from one of the known layouts to another."""
    order = itertools.count()  # among equals the one found first
    greed = 1 if len(axes) < 4 else 4  # on many axes a good way found in milliseconds, in place of the best in seconds
    queue: list[tuple[int, int, int, int, Placed, tuple[_Step, ...]]] = []
    queue.extend((0, 0, next(order), 0, here, ()) for here in known_layouts)
    least = dict.fromkeys(known_layouts, 0)
    while queue:
        _, length, _, sent, here, way = heapq.heappop(queue)
        if here == want:
            return sent, way
        if sent > least[here]:
            continue
        operand = ShardedVar(-1, shape, dtype, here[0]).local(axes)
        for step in _steps_from(shape, here, want, axes):
            there = sent + nbytes_sent(step.name, operand, axes, {"axes": step.axes})
            if there < least.get(step.result, math.inf):
                least[step.result] = there
                bound = there + greed * _missing(shape, step.result[0], want[0], axes) * dtype.itemsize
                heapq.heappush(queue, (bound, length + 1, next(order), there, step.result, (*way, step)))
    raise AssertionError("every layout can be gathered, and cut again")


@lru_cache(maxsize=4096)
def _missing(shape: tuple[int, ...], have: Dims, want: Dims, axes: Axes) -> int:
    """The mean number of elements of its new block that a device does not hold: a lower bound of the cost."""
    devices = math.prod(axes)
    common = [_common(n, h, w, axes) for n, h, w in zip(shape, have, want, strict=True)]
    held = sum(map(math.prod, zip(*common, strict=True))) if common else devices
    return math.prod(shape) // math.prod(_parts(want, axes)) - held // devices


@lru_cache(maxsize=4096)
def _common(size: int, have: Axes, want: Axes, axes: Axes) -> list[int]:
    """For each device, how many places along a dim it holds and should hold."""
    both = zip(_held(size, have, axes), _held(size, want, axes), strict=True)
    return [max(0, min(h.stop, w.stop) - max(h.start, w.start)) for h, w in both]


@lru_cache(maxsize=1024)
def _held(size: int, cut: Axes, axes: Axes) -> list[range]:
    """For each device, the places of its block along a dim."""
    layout = Layout(tuple(range(math.prod(axes))), axes, (cut,))
    return [range(size)[layout.index(position, (size,))[0]] for position in layout.devices]


def _steps_from(shape: tuple[int, ...], here: Placed, want: Placed, axes: Axes) -> Iterator[_Step]:
    dims, partial = here
    wanted = {a for cut in want[0] for a in cut}
    left = tuple(p for p in partial if p not in want[1])  # to be combined
    used = {a for cut in dims for a in cut} | {a for a, _ in partial}
    for d in range(len(dims)):
        for axis in sorted(wanted - used):
            cut = _with_cut(dims, d, (*dims[d], axis))
            if _fits(shape, cut, axes):
                yield _Step("local_slice", (axis,), here, (cut, partial), (("dim", d),))
        for op in dict.fromkeys(op for _, op in left if op in ("sum", "avg")):
            for group in _selections([a for a, o in left if o == op and a in wanted]):
                cut = _with_cut(dims, d, (*dims[d], *group))
                rest = tuple(p for p in partial if p[0] not in group)
                if _fits(shape, cut, axes):
                    yield _Step("reduce_scatter", group, here, (cut, rest), (("dim", d), ("op", op)))
        for first in reversed(range(len(dims[d]))):
            group, whole = dims[d][first:], _with_cut(dims, d, dims[d][:first])
            yield _Step("all_gather", group, here, (whole, partial), (("dim", d),))
            for other in range(len(dims)):
                cut = _with_cut(whole, other, (*whole[other], *group))
                if other != d and _fits(shape, cut, axes):
                    yield _Step("all_to_all", group, here, (cut, partial), (("split", other), ("join", d)))
    for op in dict.fromkeys(op for _, op in left):
        group = tuple(a for a, o in left if o == op)
        rest = tuple(p for p in partial if p[0] not in group)
        yield _Step("all_reduce", group, here, (dims, rest), (("op", op),))
    if not partial:  # else blocks that look like copies are parts of a sum, and must not change places
        all_axes = tuple(range(len(axes)))
        for cut in _reordered(dims, want[0], axes):
            yield _Step("collective_permute", all_axes, here, (cut, partial))


def _reordered(dims: Dims, want: Dims, axes: Axes) -> Iterator[Dims]:
    """Layouts of equal blocks: the target, the axes of one dim in another order, two axes of one size exchanged."""
    if _parts(dims, axes) == _parts(want, axes):
        yield want
    for d, cut in enumerate(dims):
        for order in itertools.permutations(cut) if 1 < len(cut) < 4 else ():
            if order != cut:
                yield _with_cut(dims, d, order)
    cutting = [a for cut in dims for a in cut]
    for a, b in itertools.combinations(cutting, 2):
        if axes[a] == axes[b]:
            swap = {a: b, b: a}
            yield tuple(tuple(swap.get(c, c) for c in cut) for cut in dims)


def _selections(of: list[int]) -> Iterator[Axes]:
    """Each choice of one or more, in each order."""
    for count in range(1, len(of) + 1):
        yield from itertools.permutations(of, count)


def _with_cut(dims: Dims, dim: int, cut: Axes) -> Dims:
    return (*dims[:dim], cut, *dims[dim + 1 :])


def _parts(dims: Dims, axes: Axes) -> list[int]:
    return [math.prod(axes[a] for a in cut) for cut in dims]


def _fits(shape: tuple[int, ...], dims: Dims, axes: Axes) -> bool:
    return all(n % k == 0 for n, k in zip(shape, _parts(dims, axes), strict=True))

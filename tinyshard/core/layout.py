"""Where each block of a tensor is: a plain value that every sharding reduces to.

A Layout names the devices in order, splits their number into axes (as 8 = 4 * 2), and says for each dim of a
tensor which axes cut it. Along an axis that cuts no dim there are copies. With devices 0..7, axes (4, 2) and dims
((0,), (1,)):

    rows cut in 4, columns in 2    the device at position 5 = 2 * 2 + 1 is at (2, 1): row block 2, column block 1

This file is arithmetic on plain data: no torch, no processes. Every picture is drawn from a Layout alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

Axes = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tensor of `len(dims)` dims is laid out on devices.

    Args:
        devices: device ids in mesh order (row-major over `axes`).
        axes: sizes whose product is `len(devices)`.
        dims: for each tensor dim, the axes that cut it, most significant first; an axis cuts at most one dim.
        platform: of the devices, for pictures ("cpu", "gpu").

    Example:
        >>> rows = Layout(devices=(0, 1, 2, 3), axes=(2, 2), dims=((0,), ()))
        >>> rows.parts, rows.shard_shape((6, 5)), rows.index(3, (6, 5))
        ((2, 1), (3, 5), (slice(3, 6, None), slice(None, None, None)))
    """

    devices: tuple[int, ...]
    axes: Axes
    dims: tuple[Axes, ...]
    platform: str = "cpu"

    @property
    def ndim(self) -> int:
        """Rank of the tensors that it lays out."""
        return len(self.dims)

    @property
    def parts(self) -> tuple[int, ...]:
        """Number of blocks along each dim."""
        return tuple(math.prod(self.axes[a] for a in cut) for cut in self.dims)

    @property
    def free_axes(self) -> Axes:
        """The axes that cut no dim: along them the devices hold copies."""
        used = {a for cut in self.dims for a in cut}
        return tuple(a for a in range(len(self.axes)) if a not in used)

    @property
    def is_replicated(self) -> bool:
        """Whether every device holds the whole tensor."""
        return all(n == 1 for n in self.parts)

    def shard_shape(self, global_shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of one block. Every dim must be a multiple of its number of parts."""
        return tuple(n // k for n, k in zip(global_shape, self.parts, strict=True))

    def global_shape(self, shard_shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the whole, from that of one block."""
        return tuple(n * k for n, k in zip(shard_shape, self.parts, strict=True))

    def coordinates(self, position: int) -> tuple[int, ...]:
        """Coordinates along the axes of the device at `position` of `devices`."""
        out = []
        for size in reversed(self.axes):
            position, coordinate = divmod(position, size)
            out.append(coordinate)
        return tuple(reversed(out))

    def block(self, position: int) -> tuple[int, ...]:
        """The number of the block along each dim that the device at `position` holds."""
        coordinates = self.coordinates(position)
        return tuple(_digits(coordinates, self.axes, cut) for cut in self.dims)

    def replica_id(self, position: int) -> int:
        """0 for the first device that holds this block, 1 for the second, and so on."""
        return _digits(self.coordinates(position), self.axes, self.free_axes)

    def index(self, position: int, global_shape: Sequence[int]) -> tuple[slice, ...]:
        """The slices of the global tensor that the device at `position` holds; an uncut dim is slice(None)."""
        return tuple(
            slice(None) if k == 1 else slice(b * (n // k), (b + 1) * (n // k))
            for b, k, n in zip(self.block(position), self.parts, global_shape, strict=True)
        )

    def owners(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """Block -> ids of the devices that hold it, ids ascending, blocks in row-major order."""
        found: dict[tuple[int, ...], list[int]] = {}
        for position, device in enumerate(self.devices):
            found.setdefault(self.block(position), []).append(device)
        return {block: tuple(sorted(found[block])) for block in sorted(found)}

    def positions(self) -> dict[tuple[int, ...], int]:
        """Block -> position of the first device that holds it (from which the block is read)."""
        found: dict[tuple[int, ...], int] = {}
        for position in range(len(self.devices)):
            found.setdefault(self.block(position), position)
        return found


def _digits(coordinates: Sequence[int], axes: Axes, cut: Axes) -> int:
    """Read the coordinates along `cut` as one number in mixed radix."""
    value = 0
    for a in cut:
        value = value * axes[a] + coordinates[a]
    return value


def replicated(devices: Sequence[int], ndim: int, platform: str = "cpu") -> Layout:
    """Every device holds the whole tensor.

    Example:
        >>> replicated((0, 1), ndim=1).owners()
        {(0,): (0, 1)}
    """
    return Layout(tuple(devices), (len(devices),), ((),) * ndim, platform)


@lru_cache(maxsize=1024)
def coarsest(layout: Layout) -> Layout:
    """The same placement with as few axes as possible; equal placements over one device order give equal values.

    Example:
        >>> coarsest(Layout((0, 1, 2, 3), (2, 1, 2), ((0, 2),)))
        Layout(devices=(0, 1, 2, 3), axes=(4,), dims=((0,),), platform='cpu')
    """
    return merge_axes([layout])[0]


def merge_axes(layouts: Sequence[Layout]) -> list[Layout]:
    """Join neighbouring axes that every layout uses as one, and drop axes of size 1. All must share their axes."""
    axes = layouts[0].axes
    longer = [a for a, size in enumerate(axes) if size > 1]
    layouts = [replace(x, dims=tuple(tuple(a for a in cut if axes[a] > 1) for cut in x.dims)) for x in layouts]
    groups: list[list[int]] = []
    for a in longer:
        if groups and all(_joined(x, groups[-1][-1], a) for x in layouts):
            groups[-1].append(a)
        else:
            groups.append([a])
    number = {group[0]: i for i, group in enumerate(groups)}
    sizes = tuple(math.prod(axes[a] for a in group) for group in groups)
    return [
        replace(x, axes=sizes, dims=tuple(tuple(number[a] for a in cut if a in number) for cut in x.dims))
        for x in layouts
    ]


def _joined(layout: Layout, a: int, b: int) -> bool:
    for cut in layout.dims:
        if a in cut or b in cut:
            return (a, b) in pairwise(cut)
    return True


def refine(layouts: Sequence[Layout]) -> list[Layout] | None:
    """Write layouts over one device order on common axes: (4, 2) with (2, 4) gives 2 * 2 * 2.

    Returns None where no common axes exist, as for (3, 2) with (2, 3).

    Example:
        >>> a, b = Layout(tuple(range(8)), (4, 2), ((0,),)), Layout(tuple(range(8)), (2, 4), ((0,),))
        >>> [x.axes for x in refine([a, b])], [x.dims for x in refine([a, b])]
        ([(2, 2, 2), (2, 2, 2)], [((0, 1),), ((0,),)])
    """
    if len({x.axes for x in layouts}) == 1 and 1 not in layouts[0].axes:
        return list(layouts)
    edges = sorted({edge for x in layouts for edge in _edges(x.axes)})
    sizes = []
    for low, high in pairwise([1, *edges]):
        if high % low:
            return None
        sizes.append(high // low)
    return [split_axes(x, tuple(sizes)) for x in layouts]


def _edges(axes: Axes) -> Iterable[int]:
    product = 1
    for size in axes:
        product *= size
        if size > 1:
            yield product


def split_axes(layout: Layout, sizes: Axes) -> Layout:
    """Write the layout on finer axes; each of its axes must be a product of neighbouring `sizes`."""
    pieces: list[Axes] = []
    position = 0
    for size in layout.axes:
        first, product = position, 1
        while product < size:
            product *= sizes[position]
            position += 1
        pieces.append(tuple(range(first, position)))
    return replace(layout, axes=sizes, dims=tuple(tuple(p for a in cut for p in pieces[a]) for cut in layout.dims))


def is_same_placement(a: Layout, b: Layout) -> bool:
    """Whether both put the same block on the same device, for every device, in the same device order."""
    return a == b or coarsest(a) == coarsest(b)

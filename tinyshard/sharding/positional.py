"""PositionalSharding: a sharding that is shaped and reshaped like an array of devices.

JAX had it until 0.6, and the seed lesson uses it; NamedSharding expresses the same with names.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tinyshard.core.devices import Device
from tinyshard.core.errors import ShardingError
from tinyshard.core.ints import as_int, one_or_more
from tinyshard.core.jax_hints import check_others
from tinyshard.core.layout import Layout, coarsest, split_axes
from tinyshard.sharding.base import Sharding, rank_error
from tinyshard.sharding.mesh import check_distinct


class PositionalSharding(Sharding):
    """An array whose elements are sets of devices: element [i, j] holds block [i, j] of the tensor.

    Args:
        devices: an array or list of distinct devices; its shape is the sharding's first shape.
        others: JAX's memory_kind may be None.

    Raises:
        DtypeError: another argument.
        MeshError: a duplicate device.
        ShardingError: no devices.

    Communication: none.

    In JAX: `ts.sharding.PositionalSharding` was `jax.sharding.PositionalSharding` until it was removed; here a value of
    lower rank uses the trailing dims, if the leading ones are 1, and a fully replicated sharding fits any rank.

    Example:
        >>> sharding = PositionalSharding([Device(i) for i in range(4)])
        >>> sharding.reshape(2, 2)
        PositionalSharding([[{CPU 0} {CPU 1}]
                            [{CPU 2} {CPU 3}]])
        >>> sharding.reshape(2, 2).replicate(0)
        PositionalSharding([[{CPU 0, 2} {CPU 1, 3}]])
    """

    def __init__(self, devices: Any, **others: Any) -> None:
        if others:
            check_others(PositionalSharding, others)
        grid = np.asarray(devices, dtype=object)
        flat = list(grid.flat)
        if not flat or not all(isinstance(d, Device) for d in flat):
            raise ShardingError(
                "a PositionalSharding is made of devices",
                got=f"{devices!r}",
                try_="PositionalSharding(ts.mesh_utils.create_device_mesh((8,)))",
            )
        check_distinct(flat, "the sharding")
        axes = tuple(range(grid.ndim))
        self._layout = Layout(tuple(d.id for d in flat), tuple(grid.shape), tuple((a,) for a in axes), flat[0].platform)

    @classmethod
    def from_layout(cls, layout: Layout) -> PositionalSharding:
        """The positional sharding with this layout."""
        sharding = cls.__new__(cls)
        sharding._layout = layout
        return sharding

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of parts of each dim."""
        return self._layout.parts

    @property
    def ndim(self) -> int:
        """The rank of the arrays that it fits."""
        return len(self.shape)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices in the order in which they were passed, whatever the shape."""
        return tuple(Device(i, self._layout.platform) for i in self._layout.devices)

    def reshape(self, *shape: Any) -> PositionalSharding:
        """The same sets of devices in another shape, as NumPy reshapes; one size may be -1.

        Raises:
            ShardingError: the sizes do not multiply to the number of elements, or (after a transpose) cut across axes.
        """
        what = "a shape of a sharding"
        sizes = one_or_more(shape[0] if len(shape) == 1 else shape, what, ShardingError, "sharding.reshape(4, 2)")
        sizes = (sizes,) if isinstance(sizes, int) else sizes
        return self.from_layout(_regrid(self, self._layout, sizes))

    def replicate(self, axis: int | Sequence[int] | None = None, keepdims: bool = True) -> PositionalSharding:
        """Unite the sets of devices along an axis, as `sum` adds along one: every device there gets the whole block.

        Args:
            axis: which axis, or axes; None unites all.
            keepdims: keep the united axes with size 1.

        Raises:
            ShardingError: no such axis.
        """
        given = axis if isinstance(axis, list | tuple) else range(self.ndim) if axis is None else (axis,)
        for a in given:
            if as_int(a) is None or not -self.ndim <= a < self.ndim:
                raise ShardingError(
                    f"the sharding has no axis {a!r}",
                    got=f"axis {axis} of a sharding of shape {self.shape}",
                    rule=f"an axis is between {-self.ndim} and {self.ndim - 1}",
                )
        united = {a % self.ndim for a in given} if self.ndim else set()
        cuts = [() if i in united else cut for i, cut in enumerate(self._layout.dims) if keepdims or i not in united]
        return self.from_layout(replace(self._layout, dims=tuple(cuts)))

    def transpose(self, *axes: int) -> PositionalSharding:
        """Permute the dims, as NumPy's `transpose`; without arguments reverse them."""
        order = axes or tuple(reversed(range(self.ndim)))
        if sorted(a + self.ndim if a < 0 else a for a in order) != list(range(self.ndim)):
            raise ShardingError("axes must be a permutation", got=f"{axes} for shape {self.shape}")
        return self.from_layout(replace(self._layout, dims=tuple(self._layout.dims[a] for a in order)))

    @property
    def T(self) -> PositionalSharding:
        """The dims in reversed order."""
        return self.transpose()

    def layout(self, ndim: int) -> Layout:
        """The layout of an array of `ndim` dims. Raises ShardingError if the rank does not fit."""
        own = self._layout
        if own.is_replicated:
            return replace(own, dims=((),) * ndim)
        extra = self.ndim - ndim
        if extra < 0 or any(n > 1 for n in self.shape[:extra]):
            sizes = (math.prod(self.shape), *(1,) * (ndim - 1)) if ndim else ()
            instead = f"sharding.reshape{sizes}, or another shape of {ndim} sizes" if ndim else "sharding.replicate()"
            raise rank_error(self, ndim, f"{self.ndim}-d arrays, cut into {self.shape}", instead)
        return replace(own, dims=own.dims[extra:])

    def _own_layout(self) -> Layout:
        return self._layout

    def _cut_words(self, dim: int, layout: Layout) -> str:
        own = dim + self.ndim - layout.ndim
        return f"the size of dim {own} of the sharding, whose shape is {self.shape}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PositionalSharding) and self._layout == other._layout

    def __hash__(self) -> int:
        return hash((PositionalSharding, self._layout))

    def __repr__(self) -> str:
        name, platform = type(self).__name__, self._layout.platform.upper()
        owners = self._layout.owners()
        cells = np.empty(self.shape, dtype=object)
        for block, ids in owners.items():
            cells[block] = f"{{{platform} {', '.join(map(str, ids))}}}"
        formatter: Any = {"all": str}
        body = np.array2string(cells, prefix=f"{name}(", suffix=")", max_line_width=100, formatter=formatter)
        return f"{name}({body})"


def _regrid(sharding: PositionalSharding, layout: Layout, sizes: tuple[int, ...]) -> Layout:
    """Write the layout's cuts, read as one row-major run of digits, as digits of the new sizes."""
    count = math.prod(layout.parts)
    if any(n < 1 and n != -1 for n in sizes) or sizes.count(-1) > 1:
        raise ShardingError("a shape is made of positive ints, at most one of them -1", got=f"{sizes}")
    known = math.prod(n for n in sizes if n != -1)
    if -1 in sizes and count % known == 0:
        sizes = tuple(count // known if n == -1 else n for n in sizes)
    if math.prod(sizes) != count:
        raise ShardingError(
            "the sharding cannot be reshaped so",
            got=f"shape {sizes} for a sharding of shape {sharding.shape}",
            rule=f"the sizes must multiply to {count}, its number of elements",
        )
    layout = coarsest(replace(layout, dims=(tuple(a for cut in layout.dims for a in cut),)))
    digits = [(a, layout.axes[a]) for a in layout.dims[0]]
    pieces: dict[int, list[int]] = {a: [] for a, _ in digits}
    groups: list[list[tuple[int, int]]] = []  # for each new dim, (axis, number of the piece of that axis)
    for size in sizes:
        group = []
        while size > 1:
            a, left = digits.pop(0)
            taken = math.gcd(size, left)
            if taken not in (size, left):
                raise ShardingError(
                    "the sharding cannot be reshaped so after its transpose",
                    got=f"shape {sizes} for {sharding!r}",
                    rule="each new size takes whole axes, or whole parts of one",
                    try_="PositionalSharding(devices in the order that you want).reshape(...)",
                )
            group.append((a, len(pieces[a])))
            pieces[a].append(taken)
            size //= taken
            if left > taken:
                digits.insert(0, (a, left // taken))
        groups.append(group)
    parts = [pieces.get(a) or [size] for a, size in enumerate(layout.axes)]
    first = [sum(map(len, parts[:a])) for a in range(len(parts))]
    fine = split_axes(replace(layout, dims=()), tuple(n for part in parts for n in part))
    return replace(fine, dims=tuple(tuple(first[a] + k for a, k in group) for group in groups))

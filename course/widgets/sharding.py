"""Lesson 02: choose mesh, array and spec, and see what each device holds, how many bytes, and the line that does it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from course.widgets.base import Choice, Control, Explorer, Options
from course.widgets.card import MUTED, WIDEST, Sheet, beside, inset, paragraph, stack
from tinyshard.core.layout import Layout
from tinyshard.draw import mesh_svg, sharding_svg, sharding_text
from tinyshard.draw.html import human_bytes
from tinyshard.sharding import NamedSharding, P
from tinyshard.sharding.mesh import AbstractMesh

__all__ = ["Placed", "describe", "draw", "look", "sharding_explorer"]

HEADING = "Which device holds which part of the array"

MESHES = ((8,), (4, 2), (2, 4), (2, 2, 2))
SHAPES = ((2048, 2048), (24,), (10, 6), (4, 64, 64), (32, 3, 64, 64))
NAMES = ("a", "b", "c")
ITEM_NBYTES = 4  # of a float32

Entry = str | tuple[str, ...] | None


@dataclass(frozen=True)
class Placed:
    """An array of float32 on a mesh.

    Args:
        mesh_shape: size of each mesh axis; the axes are named a, b, c.
        shape: the global shape.
        entries: for each dim the mesh axis or axes that cut it.
        layout: of the array, from the library.
    """

    mesh_shape: tuple[int, ...]
    shape: tuple[int, ...]
    entries: tuple[Entry, ...]
    layout: Layout

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the mesh axes."""
        return NAMES[: len(self.mesh_shape)]

    @property
    def shard_shape(self) -> tuple[int, ...]:
        """The shape of the block on one device."""
        return self.layout.shard_shape(self.shape)

    @property
    def copies(self) -> int:
        """How many devices hold each block."""
        return len(self.layout.devices) // math.prod(self.layout.parts)


def sharding_explorer() -> Explorer[Placed]:
    """Choose a mesh, an array and for each dim the axes that cut it; see the blocks, the bytes, the line of code.

    Returns:
        The explorer; show it as the last line of a cell.

    Communication: none; nothing is sent, the library only calculates.

    Example:
        >>> print(sharding_explorer().choose(mesh=(2, 4), dim_1=None).text.splitlines()[-2])
        each device: 1024 × 2048 = 8 MiB of 16 MiB; 2 different blocks, 4 copies of each
    """
    dims = [
        Choice(f"dim_{dim}", f"dim {dim} sharded by", lambda chosen, dim=dim: _entries(chosen, dim), start=start)  # type: ignore[misc]
        for dim, start in enumerate(["a", "b", None, None])
    ]
    controls: list[Control] = [
        Choice("mesh", "mesh", [(_words(mesh), mesh) for mesh in MESHES], start=(4, 2)),
        Choice("shape", "array", [(_words(shape), shape) for shape in SHAPES]),
        *dims,
    ]
    return Explorer(HEADING, controls, look, draw, describe)


def look(mesh: tuple[int, ...], shape: tuple[int, ...], **dims: Entry) -> Placed:
    """Ask the library where the blocks are.

    Args:
        mesh: size of each mesh axis.
        shape: the global shape.
        **dims: `dim_0`, `dim_1`, …: what cuts this dim; those beyond the rank are not used.

    Raises:
        ShardingError: a dim is not a multiple of its number of parts, or an axis cuts two dims.

    Communication: none.

    Example:
        >>> look(mesh=(4, 2), shape=(8, 6), dim_0="b", dim_1=None).shard_shape
        (4, 6)
    """
    entries = tuple(dims[f"dim_{dim}"] for dim in range(len(shape)))
    sharding = NamedSharding(AbstractMesh(mesh, NAMES[: len(mesh)]), P(*entries))
    return Placed(mesh, shape, entries, sharding.checked_layout(shape))


def draw(placed: Placed) -> Sheet:
    """The mesh, and beside it the blocks of the array; below them the bytes and the line of code."""
    ids = placed.layout.devices
    mesh = stack([paragraph(["the mesh"], fill=MUTED), inset(mesh_svg(placed.mesh_shape, ids, placed.names, "cpu"))], 2)
    array = stack([paragraph(["the array"], fill=MUTED), inset(sharding_svg(placed.layout, placed.shape))], 2)
    lines = [paragraph(_cost(placed)), paragraph(_code(placed), is_code=True)]
    spec = f"P({', '.join(map(repr, placed.entries))})"
    title = f"array of shape {placed.shape} cut by {spec} on a mesh of {_words(placed.mesh_shape)} devices"
    return Sheet(title, stack([beside([mesh, array]), *lines]))


def describe(placed: Placed) -> str:
    """The boxes of `visualize_sharding`, and the bytes, and the line of code."""
    return "\n".join([sharding_text(placed.layout, placed.shape), *_cost(placed), *_code(placed)])


def _cost(placed: Placed) -> list[str]:
    shard, whole = (math.prod(shape) * ITEM_NBYTES for shape in (placed.shard_shape, placed.shape))
    blocks = math.prod(placed.layout.parts)
    copies = "one copy" if placed.copies == 1 else f"{placed.copies} copies"
    numbers = _words(placed.shard_shape) + (" numbers" if len(placed.shape) == 1 else "")
    held = f"{blocks} different blocks, {copies} of each" if blocks > 1 else f"one block, {copies} of it"
    return [f"each device: {numbers} = {human_bytes(shard)} of {human_bytes(whole)}; {held}"]


def _code(placed: Placed) -> list[str]:
    """One line, or two where one would make the picture too wide."""
    before = "ts.device_put(x, ts.NamedSharding("
    mesh = f"ts.make_mesh({placed.mesh_shape}, {placed.names}),".replace("'", '"')
    spec = f"ts.P({', '.join(map(repr, placed.entries))})))".replace("'", '"')
    whole = [f"{before}{mesh} {spec}"]
    is_narrow = paragraph(whole, is_code=True).width <= WIDEST
    return whole if is_narrow else [f"{before}{mesh}", " " * len(before) + spec]


def _entries(chosen: Mapping[str, Any], dim: int) -> Options:
    """The options to cut this dim: nothing, one axis, or two axes in either order; empty if there is no such dim."""
    if dim >= len(chosen["shape"]):
        return []
    names = NAMES[: len(chosen["mesh"])]
    pairs = [(one, other) for one in names for other in names if one != other]
    return [("None", None), *((name, name) for name in names), *((", ".join(pair), pair) for pair in pairs)]


def _words(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))

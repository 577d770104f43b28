"""Lesson 02: where does the array live?"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

import tinyshard as ts
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.exercises.watching import names_in

__all__ = ["EXERCISES"]

P = ts.P
NAMES = ("a", "b", "c")
PAIRS = [[0, 2], [4, 6], [1, 3], [5, 7]]
# what would let the library compute the bytes
LIBRARYS = {"NamedSharding", "shard_shape", "device_put", "addressable_shards", "make_mesh", "AbstractMesh"}


def _is_no_spec(spec: Any) -> Verdict:
    return differs(f"its type is {type(spec).__name__}, not P")


def judge_picture(spec: Any) -> Verdict:
    """Rows in four parts by c and then a, copies along b."""
    if not isinstance(spec, P):
        return _is_no_spec(spec)
    sharding = ts.NamedSharding(ts.AbstractMesh((2, 2, 2), NAMES), spec)
    parts = sharding.devices_indices_map((8, 8))
    holders: dict[int, list[int]] = {}
    for device, (rows, _) in parts.items():
        holders.setdefault(rows.start or 0, []).append(device.id)
    blocks = [holders[start] for start in sorted(holders)]
    reported = " ".join(map(str, blocks))
    if sharding.shard_shape((8, 8))[1] != 8:
        return differs("the columns are cut as well", "The columns stay together: the second entry is None.")
    if len(holders) != 4:
        count = "is 1 block" if len(holders) == 1 else f"are {len(holders)} different blocks"
        return differs(
            f"there {count}, not 4: {reported}",
            "Four different blocks need two axes of 2 at dim 0, in a tuple. The third axis holds copies.",
        )
    if blocks == PAIRS:
        return PASSED
    if sorted(blocks) == sorted(PAIRS):
        return differs(reported, "The pairs are right, their order is not. The first name of a tuple makes the halves.")
    if holders[0] != [0, 2]:
        return differs(
            reported, "CPU 0 and CPU 2 share a block: a step of 2 is one along which axis? Do not name that one."
        )
    return differs(reported)


def judge_bytes(nbytes_on_a_device: Callable[..., Any]) -> Verdict:
    """On shapes, meshes and specs that the lesson does not show."""
    cases: tuple[tuple[tuple[int, ...], int, dict[str, int], tuple[Any, ...]], ...] = (
        ((2048, 2048), 4, {"a": 4, "b": 2}, ("a", "b")),
        ((2048, 2048), 4, {"a": 4, "b": 2}, (None, "b")),
        ((2048, 2048), 4, {"a": 4, "b": 2}, (("b", "a"),)),
        ((2048, 2048), 4, {"a": 4, "b": 2}, ()),
        ((32, 3, 64, 64), 2, {"n": 4, "h": 2, "w": 8}, ("n", None, ("h", "w"))),
        ((24,), 8, {"i": 3, "j": 5}, ("i",)),
    )
    for shape, itemsize, axes, spec in cases:
        sharding = ts.NamedSharding(ts.AbstractMesh(tuple(axes.values()), tuple(axes)), P(*spec))
        want = itemsize
        for size in sharding.shard_shape(shape):
            want *= size
        got = nbytes_on_a_device(shape, itemsize, axes, spec)
        reported = f"of {shape}, {itemsize} bytes each, cut by {spec} on {axes}: {got} bytes, not {want}"
        whole = want
        for parts, size in zip(sharding.shard_shape(shape), shape, strict=True):
            whole = whole // parts * size
        everything = whole
        for size in axes.values():
            everything //= size
        if got != want and got == everything:
            return differs(reported, "Only the axes that the spec names divide. Along the others there are copies.")
        if got != want and got * itemsize == want:
            return differs(reported, "These are elements. How many bytes does one of them have?")
        if got != want and spec and got * math.prod(shape[len(spec) :]) == want:
            hint = "A dim without an entry stays whole, but it counts. `zip` ends with the shorter one."
            return differs(reported, hint)
        if got != want:
            return differs(reported)
    if names_in(nbytes_on_a_device) & LIBRARYS:
        return differs(
            "the numbers are right, but the library computed them", "Multiply and divide: no sharding is needed."
        )
    return PASSED


def judge_box(stays_in_a_box: Callable[..., Any]) -> Verdict:
    """Every axis of meshes whose devices are in order, and of one whose devices are not."""
    devices = np.array(ts.devices())
    grids = {
        "the mesh of 4 x 2": devices.reshape(4, 2),
        "the mesh of 2 x 4": devices.reshape(2, 4),
        "the mesh of 2 x 2 x 2": devices.reshape(2, 2, 2),
        "a mesh with CPU 4 and CPU 3 exchanged": devices[[0, 1, 2, 4, 3, 5, 6, 7]].reshape(4, 2),
    }
    for name, grid in grids.items():
        mesh = ts.Mesh(grid, NAMES[: grid.ndim])
        for (place, axis), per_box in itertools.product(enumerate(mesh.axis_names), (2, 4, 8)):
            boxes = np.array([device.id // per_box for device in grid.flat]).reshape(grid.shape)
            is_within = bool((boxes == boxes.take([0], axis=place)).all())
            got = stays_in_a_box(mesh, axis, per_box)
            if got is None:
                return differs("it returns None")
            if bool(got) == is_within:
                continue
            reported = f"on {name}, {per_box} devices a box, axis {axis!r}: {got!r}, not {is_within}"
            if "exchanged" in name:
                return differs(reported, "Ask each device for its `id`, and look at all lines along the axis.")
            return differs(reported, "Along `a` of the mesh of 4 x 2 are CPU 0, 2, 4 and 6. In which boxes are these?")
    return PASSED


EXERCISES = (
    Exercise(
        "02.1",
        judge_picture,
        (
            "Four different blocks, two devices in each. Which axis holds the copies?",
            "From the first block to the second the numbers grow by 4: one step along which axis? It changes fastest.",
            "A tuple for dim 0: first the axis that makes the two halves, then the one that changes fastest.",
        ),
        stub=P("a"),
        why="c makes the halves (even and odd numbers), a cuts each half in two, and b is not named: copies along b.",
    ),
    Exercise(
        "02.2",
        judge_bytes,
        (
            "Bytes of the whole array first. By which numbers is it then divided?",
            "Go through the entries of the spec: None divides by nothing, a name by the size of its axis. And a tuple?",
            "Turn each entry into a tuple first: None into an empty one, a name into one with one member.",
        ),
        why="The named axes count the different blocks, and a device holds one of them. An axis that is not named "
        "adds copies, which divide nothing.",
    ),
    Exercise(
        "02.3",
        judge_box,
        (
            "The box of a device is `device.id // per_box`. Which devices must have the same one?",
            "In a line along the axis, all other places are fixed. On 4 × 2 two lines run along `a`, four along `b`.",
            "`mesh.devices.swapaxes(k, -1)`, with k the place of the axis in `mesh.axis_names`, has each line in its "
            "last dim.",
        ),
        why="All devices of a line along the axis are in one box, whatever line it is. The last axis of a mesh in "
        "ascending order changes fastest, so it stays in a box if its size divides the box's. Put there what "
        "communicates most.",
    ),
)

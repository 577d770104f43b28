"""Lesson 02: where does the array live?"""

from collections.abc import Callable
from typing import Any

import tinyshard as ts
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.exercises.watching import names_in

__all__ = ["EXERCISES"]

P = ts.P
NAMES = ("a", "b", "c")
LAYER = {"up": (1024, 8192), "down": (8192, 1024)}
# what would let the library compute the bytes
LIBRARYS = {"NamedSharding", "shard_shape", "device_put", "addressable_shards", "make_mesh", "AbstractMesh"}


def _is_no_spec(spec: Any) -> Verdict:
    return differs(f"it is a {type(spec).__name__}, not a P(...)")


def judge_picture(spec: Any) -> Verdict:
    """Rows in four parts by c and then a, copies along b."""
    if not isinstance(spec, P):
        return _is_no_spec(spec)
    sharding = ts.NamedSharding(ts.AbstractMesh((2, 2, 2), NAMES), spec)
    parts = sharding.devices_indices_map((8, 8))
    holders: dict[int, list[int]] = {}
    for device, (rows, _) in parts.items():
        holders.setdefault(rows.start or 0, []).append(device.id)
    told = " ".join(str(holders[start]) for start in sorted(holders))
    if sharding.shard_shape((8, 8))[1] != 8:
        return differs("the columns are cut as well", "All columns are to stay together: the second entry is None.")
    if len(holders) != 4:
        return differs(
            f"there are {len(holders)} different blocks, not 4: {told}",
            "Four different blocks need two axes of 2 at dim 0, in a tuple. The third axis holds copies.",
        )
    if holders[0] != [0, 2]:
        return differs(
            told, "CPU 0 and CPU 2 share a block: a step of 2 is one along which axis? Do not name that one."
        )
    return PASSED if told == "[0, 2] [4, 6] [1, 3] [5, 7]" else differs(told)


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
        told = f"of {shape}, {itemsize} bytes each, cut by {spec} on {axes}: {got} bytes, not {want}"
        whole = want
        for parts, size in zip(sharding.shard_shape(shape), shape, strict=True):
            whole = whole // parts * size
        everything = whole
        for size in axes.values():
            everything //= size
        if got != want and got == everything:
            return differs(told, "Only the axes that the spec names divide. Along the others there are copies.")
        if got != want and got * itemsize == want:
            return differs(told, "These are elements. How many bytes does one of them have?")
        if got != want:
            return differs(told)
    if names_in(nbytes_on_a_device) & LIBRARYS:
        return differs(
            "the numbers are right, but the library computed them", "Multiply and divide: no sharding is needed."
        )
    return PASSED


def judge_layer(answer: Any) -> Verdict:
    """Sixteen MiB with gradients, whole columns of `up`, and blocks of `down` that match those of `up`."""
    for spec in answer:
        if not isinstance(spec, P):
            return _is_no_spec(spec)
    mesh = ts.AbstractMesh((4, 2), ("data", "model"))
    shardings = {name: ts.NamedSharding(mesh, spec) for name, spec in zip(LAYER, answer, strict=True)}
    shapes = {name: shardings[name].shard_shape(LAYER[name]) for name in LAYER}
    mebibytes = 2 * sum(rows * columns for rows, columns in shapes.values()) * 4 / 2**20
    told = f"shards {shapes['up']} and {shapes['down']}, {mebibytes} MiB with the gradients"
    if shapes["up"][0] != 1024:
        return differs(
            told, "The rows of `up` are cut. A device needs whole columns of it to make its part of `hidden`."
        )
    if mebibytes > 16:
        return differs(told, "Half of the devices hold what others hold, too. Which axis of the mesh cuts nothing?")
    cuts = {name: shardings[name].devices_indices_map(LAYER[name]) for name in LAYER}
    if any(cuts["up"][device][1] != cuts["down"][device][0] for device in cuts["up"]):
        return differs(
            told, "Compare a device's columns of `up` with its rows of `down`: they must be the same numbers."
        )
    return PASSED if mebibytes == 16 else differs(told)


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
            "Make a tuple of each entry first: of None an empty one, of a name one with one member.",
        ),
        why="The named axes count the different blocks, and a device holds one of them. An axis that is not named "
        "adds copies, which divide nothing.",
    ),
    Exercise(
        "02.3",
        judge_layer,
        (
            "Two matrices of 32 MiB and two gradients are 128 MiB. Into how many different blocks must each be cut?",
            "The rows of `up` stay whole. How many axes of the mesh are needed to cut its columns into so many blocks?",
            "Section 5 cuts one dim by two axes. Which dim of `down` meets the columns of `up`, and in which order of "
            "names?",
        ),
        stub=(P(None, "model"), P("model", None)),
        why="Both axes cut, so no device holds copies. The same tuple in both specs gives each device the rows of "
        "`down` that belong to its columns of `up`.",
    ),
)

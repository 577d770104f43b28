"""Lesson 02: answers."""

import math
from typing import Any

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

P = ts.P


def nbytes_on_a_device(shape: tuple[int, ...], itemsize: int, axes: dict[str, int], spec: tuple[Any, ...]) -> int:
    """02.2."""
    nbytes = itemsize
    for size in shape:
        nbytes *= size
    for entry in spec:
        if entry is None:
            continue
        names = (entry,) if isinstance(entry, str) else entry
        for name in names:
            nbytes //= axes[name]
    return nbytes


def divided_by_all(shape: tuple[int, ...], itemsize: int, axes: dict[str, int], spec: tuple[Any, ...]) -> int:
    """Wrong: forgets that there are copies."""
    nbytes = itemsize
    for size in shape:
        nbytes *= size
    for size in axes.values():
        nbytes //= size
    return nbytes


def entries_only(shape: tuple[int, ...], itemsize: int, axes: dict[str, int], spec: tuple[Any, ...]) -> int:
    """Wrong: leaves out the dims for which the spec has no entry."""
    return nbytes_on_a_device(tuple(size for size, _ in zip(shape, spec, strict=False)), itemsize, axes, spec)


def elements(shape: tuple[int, ...], itemsize: int, axes: dict[str, int], spec: tuple[Any, ...]) -> int:
    """Wrong: elements, not bytes."""
    return nbytes_on_a_device(shape, 1, axes, spec)


def by_the_library(shape: tuple[int, ...], itemsize: int, axes: dict[str, int], spec: tuple[Any, ...]) -> int:
    """Wrong: asks the library."""
    sharding = ts.NamedSharding(ts.AbstractMesh(tuple(axes.values()), tuple(axes)), P(*spec))
    nbytes = itemsize
    for size in sharding.shard_shape(shape):
        nbytes *= size
    return nbytes


def stays_in_a_box(mesh: ts.Mesh, axis: str, per_box: int) -> bool:
    """02.3: each line along the axis is in one box."""
    place = mesh.axis_names.index(axis)
    lines = mesh.devices.swapaxes(place, -1).reshape(-1, mesh.shape[axis])
    return all(len({device.id // per_box for device in line}) == 1 for line in lines)


def first_line_only(mesh: ts.Mesh, axis: str, per_box: int) -> bool:
    """Wrong: one line stands for all."""
    place = mesh.axis_names.index(axis)
    line = mesh.devices.swapaxes(place, -1).reshape(-1, mesh.shape[axis])[0]
    return len({device.id // per_box for device in line}) == 1


def by_place(mesh: ts.Mesh, axis: str, per_box: int) -> bool:
    """Wrong: takes it that the devices are in ascending order."""
    inner = math.prod(list(mesh.shape.values())[mesh.axis_names.index(axis) :])
    return inner <= per_box


def by_size(mesh: ts.Mesh, axis: str, per_box: int) -> bool:
    """Wrong: an axis that is no longer than a box."""
    return mesh.shape[axis] <= per_box


ANSWERS = {
    "02.1": Answers(
        solution=P(("c", "a"), None),
        wrong=(
            Wrong(P("c", "a"), "the second entry is None"),
            Wrong(P("c"), "in a tuple"),
            Wrong(P(("a", "b")), "share a block"),
            Wrong(P(("a", "c")), "their order is not"),
            Wrong(P(), "in a tuple"),
        ),
    ),
    "02.2": Answers(
        solution=nbytes_on_a_device,
        wrong=(
            Wrong(divided_by_all, "Only the axes that the spec names divide"),
            Wrong(entries_only, "ends with the shorter one"),
            Wrong(elements, "How many bytes does one of them have"),
            Wrong(by_the_library, "no sharding is needed"),
        ),
    ),
    "02.3": Answers(
        solution=stays_in_a_box,
        wrong=(
            Wrong(first_line_only, "look at all lines"),
            Wrong(by_place, "look at all lines"),
            Wrong(by_size, "In which boxes are these"),
        ),
    ),
}

"""Lesson 02: where does the array live?"""

from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import plain
from course.exercises.exercise import PASSED, Exercise, Verdict, differs

__all__ = ["EXERCISES"]

P = ts.P
SCORES = torch.arange(60.0).reshape(10, 6)


def _sharding(spec: Any) -> ts.NamedSharding | None:
    """The spec on the lesson's mesh of 4 x 2, of which only shape and names matter; None for what is no spec."""
    return ts.NamedSharding(ts.AbstractMesh((4, 2), ("a", "b")), spec) if isinstance(spec, P) else None


def _is_no_spec(spec: Any) -> Verdict:
    return differs(f"it is a {type(spec).__name__}, not a P(...)")


def judge_four_mebibytes(spec: Any) -> Verdict:
    """A quarter of the columns on each device."""
    sharding = _sharding(spec)
    if sharding is None:
        return _is_no_spec(spec)
    shape = sharding.shard_shape((2048, 2048))
    told = f"a shard is {shape[0]} x {shape[1]}, {shape[0] * shape[1] * 4 / 2**20:g} MiB"
    if shape == (512, 2048):
        return differs(told, "The size is right, but rows are cut. Which entry of P stands for the columns?")
    if shape == (2048, 1024):
        return differs(told, "Columns are cut, but in two. Which axis of the mesh has 4 devices?")
    if shape == (2048, 256):
        return differs(told, "Both axes cut the columns. Devices along an axis that is not named hold copies.")
    return PASSED if shape == (2048, 512) else differs(told)


def judge_order(spec: Any) -> Verdict:
    """Rows in eight parts, `b` cutting first."""
    sharding = _sharding(spec)
    if sharding is None:
        return _is_no_spec(spec)
    parts = sharding.devices_indices_map((8, 8))
    order = [device.id for device in sorted(parts, key=lambda device: parts[device][0].start or 0)]
    shape = sharding.shard_shape((8, 8))
    if shape[1] != 8:
        return differs("the columns are cut as well", "All columns are to stay together: the second entry is None.")
    if shape[0] != 1:
        return differs(
            f"there are {8 // shape[0]} parts, not 8", "Eight parts need both axes at dim 0: a tuple of names."
        )
    told = " ".join(map(str, order))
    return PASSED if order == [0, 2, 4, 6, 1, 3, 5, 7] else differs(f"the order is {told}")


def judge_holders(holders: Callable[..., Any]) -> Verdict:
    """First on the lesson's board, then on one whose columns are cut, too."""
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    numbers = torch.arange(32.0).reshape(8, 4)
    board = ts.device_put(numbers, ts.NamedSharding(mesh, P("a")))
    for (row, column), want in {(0, 0): [0, 1], (5, 3): [4, 5], (7, 0): [6, 7]}.items():
        got = holders(board, row, column)
        told = f"holders(board, {row}, {column}) is {got}, not {want}"
        if got == want[:1]:
            return differs(told, "Two devices hold this row. Do not stop at the first one that you find.")
        if got != want:
            return differs(told)
    both = ts.device_put(numbers, ts.NamedSharding(mesh, P("b", "a")))
    for (row, column), want in {(0, 0): [0], (0, 3): [6], (5, 2): [5]}.items():
        got = holders(both, row, column)
        if got != want:
            return differs(
                f"right for the board, but cut by P('b', 'a') ({row}, {column}) is held by {want}, not {got}",
                "`index` has two slices: the element must lie in both of them.",
            )
    return PASSED


def judge_padded(padded: Any) -> Verdict:
    """Twelve rows, the scores all there, zeros beside them."""
    values = plain(padded)
    shape = tuple(values.shape)
    told = f"the shape is {shape}"
    if len(shape) != 2 or shape[0] % 4 or shape[1] % 2:
        hint = "`pad` counts from the last dim: left, right, then top, bottom." if shape != (10, 6) else ""
        return differs(f"{told}, which P('a', 'b') does not fit", hint if len(shape) == 2 else "")
    if shape != (12, 6):
        wanted = "Which axis cuts the rows, and of what is 10 then to be made a multiple? 6 columns: do they need any?"
        return differs(f"{told}: it fits, but with more zeros than needed", wanted)
    if not torch.equal(values.flatten().sort().values, torch.cat([torch.zeros(12), SCORES.flatten()]).sort().values):
        return differs(
            f"the sum is {values.sum().item():g}, not 1770", "Pad with zeros, and leave the scores as they are."
        )
    return PASSED


def judge_pictures(spec: Any) -> Verdict:
    """32 pictures: eight on each device, half of the columns."""
    sharding = _sharding(spec)
    if sharding is None:
        return _is_no_spec(spec)
    try:
        shape = sharding.shard_shape((32, 3, 64, 64))
    except ts.errors.ShardingError as error:
        return differs(str(error).splitlines()[0], "Dim 1 are the three colours, which all are to stay together: None.")
    told = f"a shard has the shape {shape}"
    if shape == (8, 3, 32, 64):
        return differs(told, "Half of the *rows*. Number, colour, row, column: which entry is the last dim's?")
    if shape == (16, 3, 64, 16):
        return differs(told, "Both dims are right. Which axis has 4 devices, and which 2?")
    return PASSED if shape == (8, 3, 64, 32) else differs(told)


EXERCISES = (
    Exercise(
        "02.1",
        judge_four_mebibytes,
        (
            "16 MiB, 4 on each device: into how many different blocks is the array cut?",
            "The mesh has an axis of 4 devices. Which dim is it to cut?",
            "None for the rows, then the name of the axis with 4 devices.",
        ),
        stub=P(),
    ),
    Exercise(
        "02.2",
        judge_order,
        (
            "Going down by one box, the id grows by 2: that is one step along which axis?",
            "This axis changes fastest; the other one cuts first, into an upper and a lower half.",
            'Turn the names round: `("b", "a")`.',
        ),
        stub=P(("a", "b"), None),
    ),
    Exercise(
        "02.3",
        judge_holders,
        (
            "Which of the shards' `index` contain the element?",
            "Go through `array.addressable_shards`; `row in range(array.shape[0])[shard.index[0]]`, and the column?",
            "Collect `shard.device.id` of each shard for which both hold, and sort.",
        ),
    ),
    Exercise(
        "02.4",
        judge_padded,
        (
            "10 rows, cut by an axis of 4: what is the next multiple?",
            "Two rows of zeros below. `torch.cat`, or `torch.nn.functional.pad`.",
            "`torch.nn.functional.pad(scores, (0, 0, 0, 2))`: left, right, top, bottom.",
        ),
        stub=SCORES,
    ),
    Exercise(
        "02.5",
        judge_pictures,
        (
            "There are four dims. Which two are to be cut, and into how many parts each?",
            "8 of 32 pictures are a quarter: the axis of 4 devices. Half of the columns: the axis of 2.",
            "Four entries: the axis of 4, None, None, the axis of 2.",
        ),
        stub=P(),
    ),
)

"""Lesson 03: which device holds which shard, and how does it move?"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import tinyshard as ts
from course.exercises.compare import difference
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.exercises.watching import watched_fetches, watched_waits

__all__ = ["EXERCISES"]

P = ts.P
MIB = 2**20
UP = (1024, 8192)
START, END = P(("a1", "a2"), "b"), P("b", ("a1", "a2"))
BY_THE_LIBRARY = 7.5 * MIB


def _board(*entries: Any, numbers: torch.Tensor | None = None) -> Any:
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    board = torch.arange(32.0).reshape(8, 4) if numbers is None else numbers
    return ts.device_put(board, ts.NamedSharding(mesh, P(*entries)))


def _listed(got: Any) -> Any:
    """A tuple, an array or a tensor holds ids as well as a list does."""
    return np.asarray(got).tolist() if isinstance(got, tuple | np.ndarray | torch.Tensor) else got


def judge_holders(holders: Callable[..., Any]) -> Verdict:
    """First on the lesson's board, then on one of equal numbers whose columns are cut, too."""
    board = _board("a")
    for (row, column), want in {(0, 0): [0, 1], (5, 3): [4, 5], (7, 0): [6, 7]}.items():
        got = _listed(holders(board, row, column))
        reported = f"holders(board, {row}, {column}) is {got}, not {want}"
        if isinstance(got, set):
            return differs(reported, "A set has no order. `sorted(...)` makes a list in ascending order of it.")
        if isinstance(got, list) and any(isinstance(each, ts.Device) for each in got):
            return differs(reported, "These are devices. The id of one is `device.id`.")
        if got == want[:1]:
            return differs(reported, "Two devices hold this row. Do not stop at the first one that you find.")
        if got != want:
            return differs(reported)
    both = _board("b", "a", numbers=torch.zeros(8, 4))  # no element is known by its number
    for (row, column), want in {(0, 0): [0], (0, 3): [6], (5, 2): [5]}.items():
        got = _listed(holders(both, row, column))
        if got != want:
            return differs(
                f"right for the board, but cut by P('b', 'a') ({row}, {column}) is held by {want}, not {got}",
                "`index` has two slices: the row must be in the first one, and the column in the second.",
            )
    return PASSED


class KnownShard:
    """The part of a shard that an answer may use; its data have a separate buffer, which shows if they are fetched."""

    def __init__(self, shard: Any) -> None:
        self.device, self.index, self.replica_id = shard.device, shard.index, shard.replica_id
        self.data = ts.device_put(ts.device_get(shard.data), shard.device)


class KnownArray:
    """What an answer may know of an array: its shape and dtype, and its shards."""

    def __init__(self, array: Any) -> None:
        self.shape, self.dtype, self.ndim, self.sharding = array.shape, array.dtype, array.ndim, array.sharding
        self.size, self.dim, self.numel = array.size, array.dim, array.numel
        self.addressable_shards = [KnownShard(shard) for shard in array.addressable_shards]


def judge_fetch(fetch: Callable[..., Any]) -> Verdict:
    """The whole tensor, from shards: each block is fetched once. To name its data, or to ask their shape, is free."""
    numbers = torch.arange(32.0).reshape(8, 4)
    for entries, blocks in (("a",), 4), (("b", "a"), 8), ((None, "b"), 2), ((), 1):
        of_shards, fetches = list[Any](), list[Any]()
        array = KnownArray(_board(*entries))
        with watched_waits(of_shards.append):
            for shard in array.addressable_shards:
                shard.data.block_until_ready()
        with watched_fetches(fetches.append):
            got = fetch(array)
        spec = P(*entries)
        if isinstance(got, KnownArray):
            return differs(
                "`fetch` asked for the whole array", "Take `addressable_shards`, and fetch the `data` of some."
            )
        reported = difference(got, numbers, f"for {spec}, what `fetch` returns")
        if reported:
            hint = "Blocks need not lie below each other. `index` says where in the whole tensor a block belongs."
            return differs(reported, "" if entries == ("a",) else hint)
        fetched = len(set(map(id, fetches)))
        if not set(map(id, fetches)) <= set(map(id, of_shards)):
            return differs(
                f"right, but it fetches {fetched} arrays for {blocks} blocks, and not all are the `data` of shards",
                "Fetch the `data` of a shard as a whole, and cut what you have got.",
            )
        if fetched < blocks:
            return differs(
                f"right, but of `array` only {fetched} shards were fetched, and it has {blocks} blocks",
                "Take what you fetch from the shards of the argument, `array`.",
            )
        if fetched > blocks:
            return differs(
                f"right, but for {spec} the data of {fetched} shards were fetched, not of {blocks}",
                "Copies of a block are fetched, too. Which number of a shard tells the first copy from the other ones?",
            )
    return PASSED


def judge_stops(stops: Any) -> Verdict:
    """The whole path by the model: collectives, bytes sent, and the most that a device holds."""
    if isinstance(stops, P):
        return differs("it is one P(...), not a list of them", "Also a single stop stands in a list.")
    for spec in stops:
        if not isinstance(spec, P):
            return differs(f"the type of a stop is {type(spec).__name__}, not P")
    mesh = ts.AbstractMesh((2, 2, 2), ("a1", "a2", "b"))
    sent, held, most, have = 0, 0, 0, START
    for want in [*stops, END]:
        like = ts.ShapeDtypeStruct(UP, torch.float32, sharding=ts.NamedSharding(mesh, have))
        compiled = ts.jit(lambda up: up, out_shardings=ts.NamedSharding(mesh, want)).lower(like).compile()
        sent += compiled.cost_analysis().nbytes
        held = max(held, compiled.memory_analysis().peak_nbytes)
        most = max(most, sum(each.count for each in ts.collectives_in(compiled)))
        have = want
    in_a_move = "one collective" if most == 1 else f"up to {most} collectives"
    reported = f"sent {sent / MIB:g} MiB, held up to {held / MIB:g} MiB, {in_a_move} in a move"
    if sent <= 6 * MIB and held <= 16 * MIB and most == 1:
        return PASSED
    shards = [ts.NamedSharding(mesh, spec).shard_shape(UP) for spec in stops]
    if any(rows * columns > UP[0] * UP[1] // 8 for rows, columns in shards):
        return differs(
            reported,
            "At one of the stops devices hold copies. Making copies takes an all-gather: name all three axes.",
        )
    if most > 1:
        return differs(
            reported, "A move that takes several collectives has stops of its own. What does each device hold there?"
        )
    if sent == BY_THE_LIBRARY:
        hint = "That is the library's own path: in its middle all eight devices exchange blocks. Is that needed?"
        return differs(reported, hint)
    return differs(reported, "Some blocks change their shape, or their device, more often than they have to.")


EXERCISES = (
    Exercise(
        "03.1",
        judge_holders,
        (
            "Which of the shards' `index` contain the element?",
            "Go through `array.addressable_shards`: is the row in the first slice, and the column in the second?",
            "A slice has no `in`. `range(array.shape[0])[shard.index[0]]` is a range of the rows, and a range has one.",
        ),
        why="An element is in a shard when its row is in the first slice and its column in the second. Copies have "
        "equal slices, so all holders are found.",
    ),
    Exercise(
        "03.2",
        judge_fetch,
        (
            "`torch.empty(array.shape)` is a tensor to fill in. Where in it does the block of a shard belong?",
            "Go through the shards, and assign the fetched `data` to the place that `index` says.",
            "Before you fetch a shard, look at its `replica_id`, and leave it out if it is not a first copy.",
        ),
        why="`index` puts a block in its place whatever the sharding is, and the shards with `replica_id` 0 are each "
        "block exactly once. `device_get` fetches the same shards.",
    ),
    Exercise(
        "03.3",
        judge_stops,
        (
            "An all-to-all over one axis of 2 sends half a shard. A permutation sends a whole one. Which two add up to "
            "6 MiB?",
            "One stop is enough. One of the two moves makes the shape that a shard has at the end, the other one "
            "brings the blocks to their devices.",
            "An all-to-all takes the last axis from the tuple of one dim, and appends it to the other dim's entry. "
            "Which axis of 2, moved in this way, makes shards of 512 rows?",
        ),
        stub=[],
        why="One move is an all-to-all over a single axis, 2 MiB; the other is a permutation of whole shards, 4 MiB. "
        "The library does not look at such a stop: both ends name `a1` and `a2` together, so they are one axis to it.",
    ),
)

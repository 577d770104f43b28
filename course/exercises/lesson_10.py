"""Lesson 10: random numbers that do not care where they run."""

import math
import re
from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import plain
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.exercises.means import compiled

__all__ = ["EXERCISES"]

P = ts.P


def judge_counters(counters: Any) -> Verdict:
    """The first row of the block of device 3, of 8 x 12 numbers in 4 x 2 blocks."""
    found = [int(each) for each in counters]
    reported = f"these are the counters {found[0]} to {found[-1]}" if found else "there are none"
    if found == list(range(30, 36)):
        return PASSED
    if found == list(range(24, 30)):
        return differs(reported, "The row is right, but that is its left half: device 2 has it.")
    if found == list(range(42, 48)):
        return differs(reported, "The half is right, but that is the *second* row of the block.")
    if found == list(range(18, 24)):
        return differs(reported, "That numbers a block by itself. A counter is 12 times the row, plus the column.")
    return differs(reported)


def identity(key: Any, h: Any) -> Any:
    """The stub of 10.2."""
    return h


def judge_dropout(dropout: Callable[..., Any]) -> Verdict:
    """About half zero, the rest doubled, other elements for other keys; no communication, no equal rows or columns."""
    columns = ts.NamedSharding(ts.make_mesh((8,), ("columns",)), P(None, "columns"))
    x = ts.device_put(torch.arange(1.0, 801.0).reshape(10, 80), columns)
    key = ts.random.key(3)
    jitted = ts.jit(dropout)
    try:
        dropped = plain(jitted(key, x))
    except ts.errors.StatefulRandomError as error:
        hint = "torch's own dropout and rand have a hidden state. Draw the mask with `ts.random`, from the key."
        return differs(str(error).splitlines()[0], hint)
    values = plain(x)
    if tuple(dropped.shape) != (10, 80):
        return differs(f"the shape is {tuple(dropped.shape)}, not (10, 80)")
    kept = dropped != 0
    share = 1 - kept.float().mean().item()
    reported = f"{share:.0%} of the elements are 0"
    if torch.equal(dropped[kept], values[kept]) and 0.4 < share < 0.6:
        hint = "The mean of all must stay what it was. So the kept ones count twice."
        return differs("what is kept is not doubled", hint)
    if not torch.equal(dropped[kept], 2 * values[kept]):
        return differs("an element is neither 0 nor doubled")
    if (kept == kept[0]).all():
        hint = "The mask has one row. Draw one number for each element of `h`."
        return differs("all rows lose the same elements", hint)
    if (kept == kept[:, :1]).all():
        hint = "The mask has one column. Draw one number for each element of `h`."
        return differs("whole rows are lost, and whole rows are kept", hint)
    if not 0.4 < share < 0.6:
        return differs(reported)
    if torch.equal(plain(jitted(ts.random.key(4), x)) != 0, kept):
        return differs("another key drops the same elements", "The mask must come from the key that the caller gives.")
    found = ts.collectives_in(compiled(jitted, key, x))
    if found:
        return differs(str(found), "The mask needs the shape of `h`, and nothing from other devices.")
    return PASSED


def noise_of_device(key: Any, block: Any) -> Any:
    """The stub of 10.3."""
    own_key = ts.random.fold_in(key, ts.lax.axis_index("rows"))
    return block + ts.random.normal(own_key, block.shape)


def _float_shapes(program: str) -> list[tuple[int, ...]]:
    """The shapes of all float32 values in the text of a program."""
    shapes = re.findall(r"f32\[([\d, ]*)\]", program)
    return [tuple(int(size) for size in shape.split(",") if size.strip()) for shape in shapes]


def judge_rows(noise_of_rows: Callable[..., Any]) -> Verdict:
    """A body of shard_map that draws the same 8 x 3 numbers on every mesh, without communication."""
    noise = {}
    for count in (1, 2, 4, 8):
        mesh = ts.make_mesh((count,), ("rows",), devices=ts.devices()[:count])
        mapped = ts.jit(ts.shard_map(noise_of_rows, mesh=mesh, in_specs=(P(), P("rows")), out_specs=P("rows")))
        noise[count] = plain(mapped(ts.random.key(7), torch.zeros(8, 3)))
        if tuple(noise[count].shape) != (8, 3):
            shape = f"{tuple(noise[count].shape)} on {count} devices, not (8, 3)"
            return differs(f"the shape of the whole is {shape}", "The body returns a block as large as its own.")
        program = compiled(mapped, ts.random.key(7), torch.zeros(8, 3))
        if found := ts.collectives_in(program):
            return differs(str(found), "A row's number tells which numbers it needs. Nothing has to be sent.")
        if count == 8 and any(math.prod(shape) >= 8 * 3 for shape in _float_shapes(program.as_text())):
            hint = "Each device makes the numbers of all rows and keeps its own. It should make those of its rows only."
            return differs("with one row on each of 8 devices, each makes 24 numbers", hint)
        other = plain(mapped(ts.random.key(8), torch.zeros(8, 3)))
        if torch.equal(other, noise[count]):
            return differs("another key gives the same noise", "The numbers must come from the key of the caller.")
    for count, values in noise.items():
        distinct = len({tuple(row) for row in values.tolist()})
        reported = f"on {count} devices {distinct} of 8 rows are different"
        if distinct < 8 and count < 8 and len({tuple(row) for row in values[: 8 // count].tolist()}) == 8 // count:
            hint = "Every device draws for its rows 0, 1, …: what is the number of its first row in the whole array?"
            return differs(reported, hint)
        if distinct < 8:
            return differs(reported, "Every row needs a key of its own, or counters of its own.")
        if not all(len(set(row)) == 3 for row in values.tolist()):
            return differs("a row repeats a number", "Draw three numbers for each row, from the row's key.")
    equal = {count: int((noise[count] == noise[1]).all(dim=1).sum()) for count in (2, 4, 8)}
    if all(rows == 8 for rows in equal.values()):
        return PASSED
    reported = ", ".join(f"{rows} of 8 rows on {count} devices" for count, rows in equal.items())
    hint = "The number of the *device* is still in the key. What has the same number on every mesh?"
    return differs(f"equal to one device: {reported}", hint)


EXERCISES = (
    Exercise(
        "10.1",
        judge_counters,
        (
            "4 x 2 blocks of 8 x 12 numbers: how many rows and columns has a block? Which block does device 3 have?",
            "Device 3 has rows 2 and 3, and the right half of the columns.",
            "The counter of row i, column j is 12 · i + j. What are i and j for the first element of the block?",
        ),
        stub=range(6),
        why="A block is not one range of counters: its rows are 12 apart. A device knows its rows and columns, and "
        "with them its counters.",
    ),
    Exercise(
        "10.2",
        judge_dropout,
        (
            "What decides for each element, and in which shape is it drawn?",
            "`ts.random.bernoulli` draws a mask from a key, a probability and a shape; `torch.where` takes it.",
            "How large is the mask? What must an element become where the mask is true, and what where it is not?",
        ),
        stub=identity,
        why="The mask is drawn for `h`, so each device draws the block that it needs. A mask from the host would be "
        "2 MiB of float32 to send in every step.",
    ),
    Exercise(
        "10.3",
        judge_rows,
        (
            "Which number does a row have on every mesh, and how does a device know it?",
            "The first row of a block has the number axis_index times the rows of a block.",
            "One key for each row: `ts.vmap` over the numbers of the rows, and `fold_in` in the mapped function.",
        ),
        stub=noise_of_device,
        why="The number of the row does not depend on the mesh, so neither does its key. In the same way one folds in "
        "the number of an example, or of a token.",
    ),
)

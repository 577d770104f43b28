"""Lesson 06: one function on many devices."""

from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.exercises.lesson_05 import loss, watched
from course.exercises.means import compiled, is_mapped

__all__ = ["EXERCISES"]

P = ts.P
MATRIX = torch.arange(32.0).reshape(8, 4)


def judge_unit_rows(unit_rows: Callable[..., Any]) -> Verdict:
    """Rows of length 1 by blocks of half a row; one all-reduce of a number for each row."""
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    cut = ts.device_put(MATRIX, ts.NamedSharding(mesh, P("a", "b")))
    squares = (MATRIX**2).reshape(8, 2, 2)
    got = unit_rows(cut)
    reported = difference(got, MATRIX / MATRIX.norm(dim=1, keepdim=True), "the result")
    halves = squares.sum(2).sqrt()
    if not difference(got, (MATRIX.reshape(8, 2, 2) / halves[:, :, None]).reshape(8, 4)):
        return differs(reported, "Each half of a row now has the length 1. What does a device need from its neighbour?")
    if not difference(got, MATRIX / halves.sum(1, keepdim=True)):
        return differs(reported, "Lengths do not add: 3 and 4 make 5. What adds is what is under the root.")
    if not difference(got, MATRIX / squares.sum((1, 2))[:, None]):
        return differs(reported, "You divided by the sum of squares: the length is its root.")
    if reported:
        return differs(reported)
    if not is_mapped(unit_rows, cut):
        return differs(
            "the values are right, but no function was mapped over the mesh",
            "Without `shard_map` the library decides what is communicated. Here you do: write what one device runs.",
        )
    nbytes = compiled(unit_rows, cut).cost_analysis().nbytes
    if nbytes > 8:
        return differs(
            f"the values are right, but the busiest device sends {nbytes} bytes, not 8",
            "A device does not need its neighbour's numbers, only one number for each row. Which one?",
        )
    return PASSED


def judge_softmax(softmax_rows: Callable[..., Any]) -> Verdict:
    """The softmax of rows that are cut in two; one number of each row is exchanged twice."""
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    scores = (torch.arange(512.0).reshape(8, 64) * 37 % 101) * 3
    cut = ts.device_put(scores, ts.NamedSharding(mesh, P("a", "b")))
    got = softmax_rows(cut)
    reported = difference(got, torch.softmax(scores, 1), "the softmax of 8 rows")
    halves = scores.reshape(8, 2, 32)
    if reported and torch.isnan(torch.as_tensor(got)).any():
        return differs(reported, "exp(300) is infinite, and inf / inf is nan: subtract the largest first.")
    if not difference(got, torch.softmax(halves, 2).reshape(8, 64)):
        return differs(reported, "Each half of a row adds up to 1. By what must both halves be divided?")
    exponentials = torch.exp(halves - halves.amax(2, keepdim=True))
    if not difference(got, (exponentials / exponentials.sum((1, 2), keepdim=True)).reshape(8, 64)):
        return differs(reported, "Both halves must subtract the same number: the largest of the whole row, `pmax`.")
    if reported:
        return differs(reported)
    if not is_mapped(softmax_rows, cut):
        return differs(
            "the values are right, but no function was mapped over the mesh",
            "Without `shard_map` the library decides what is communicated. Write what one device runs.",
        )
    nbytes = compiled(softmax_rows, cut).cost_analysis().nbytes
    if nbytes > 16:
        return differs(
            f"the values are right, but the busiest device sends {nbytes} bytes, not 16",
            "Of the other half of a row a device needs two numbers only: its largest, and its sum.",
        )
    return PASSED


def judge_pulls(pulls: Callable[..., Any]) -> Verdict:
    """24 gradients' lengths on eight devices, three on each; nothing is sent, `loss` is called once."""
    w = torch.tensor([2.0, 3.0, 4.0])
    examples = torch.arange(5.0) + torch.arange(24.0)[:, None]
    targets = torch.tensor([10.0, 20.0, 30.0]) + 7 * torch.arange(24.0)[:, None]
    noted, seen = watched(loss)
    got = pulls(noted, w, examples, targets)
    each = torch.stack([torch.func.grad(loss)(w, x, target) for x, target in zip(examples, targets, strict=True)])
    reported = difference(got, each.norm(dim=1), "the vector of 24 lengths", tolerance=1e-4)
    if not difference(got, each, tolerance=1e-4):
        return differs(
            "these are the 24 gradients",
            "Nearly. The task asks for the length of each: which dim of (24, 3) must disappear?",
        )
    if not difference(got, each.unflatten(0, (8, 3)).sum(0).norm(dim=1).repeat(8), tolerance=1e-4):
        return differs(
            reported,
            "All devices share one `w`, so a gradient with respect to it is the sum of what each of them finds. "
            "`ts.lax.pcast` turns `w` into a value of each device's own.",
        )
    if reported and tuple(getattr(got, "shape", ())) == (8,):
        return differs(
            reported, "One number a device: the block was taken as a whole. `vmap` takes its three examples apart."
        )
    if reported:
        return differs(reported)
    if not isinstance(got, ts.Array) or len(got.devices()) != 8:
        return differs(
            "the values are right, but the eight devices did not compute them",
            "`vmap` alone runs where its operands are. Which function gives each device a block of the examples?",
        )
    if got.addressable_shards[0].data.shape != (3,):
        return differs(
            "the values are right, but every device has all 24",
            "Cut the examples and the targets by `in_specs`, three for each device, and `out_specs` likewise.",
        )
    if len(seen) != 1 or seen[0] != ((3,), (5,), (3,)):
        return differs(
            f"the values are right, but `loss` was called {len(seen)} times, first with the shapes {seen[0]}",
            "A loop in the block grows with the block. `vmap` of the gradient calls `loss` once, for one example.",
        )
    nbytes = compiled(lambda *args: pulls(loss, *args), w, examples, targets).cost_analysis().nbytes
    if nbytes:
        return differs(
            f"the values are right, but the busiest device sends {nbytes} bytes, not 0",
            "No example needs another one, so no collective is needed: a device has all that its three lengths need.",
        )
    return PASSED


def why_pulls(pulls: Callable[..., Any]) -> str:
    """Of a map over devices, or of arrays that are cut over them."""
    args = torch.ones(3), torch.ones(24, 5), torch.ones(24, 3)
    if is_mapped(lambda *args: pulls(loss, *args), *args):
        return (
            "The outer map is over devices, the inner one over the examples of a device. No example needs another one, "
            "and gradients with respect to a device's own `w` are not added up over the devices: so nothing is sent."
        )
    return (
        "`vmap` runs where its arrays are, and you cut them over the devices: so the library made the program that a "
        "block function of your own would be. No example needs another one, so nothing is sent."
    )


EXERCISES = (
    Exercise(
        "06.1",
        judge_unit_rows,
        (
            "What does a device know of the length of its two rows, and what is missing?",
            "The squares of a row add up over both of its halves, which are neighbours along one axis of the mesh.",
            "Which step towards the length comes before the `psum`, and which after it? `keepdim=True` keeps the shape "
            "(2, 1), by which a block can be divided.",
        ),
        why="A sum over a cut dim is a sum of partial sums: a device sends a number for each of its 2 rows, not its "
        "half of the rows. A layer norm over a cut dim is computed in the same way.",
    ),
    Exercise(
        "06.2",
        judge_softmax,
        (
            "What would you write for a whole row? Which of its steps need numbers of the other half?",
            "Two steps do: the largest number of the row, and the sum of the exponentials.",
            "First `ts.lax.pmax`, then `exp`, then a `psum`. Of which number of each half is each collective?",
        ),
        why="Two numbers a row travel, whatever its length. Attention whose rows are cut over devices does this, "
        "and the ring attention of lesson 18 keeps the same two numbers.",
    ),
    Exercise(
        "06.3",
        judge_pulls,
        (
            "Which function gives the lengths for the three examples that one device holds?",
            "Two maps are nested: one over devices, one over the examples of a block. With respect to which `w` is "
            "each gradient, the one that all devices share, or the device's own?",
            "The block function returns a vector of 3. Each `P` says for one argument whether axis `d` cuts its dim 0: "
            "for `w` it does not, for the others and for the result it does.",
        ),
        why=why_pulls,
    ),
)

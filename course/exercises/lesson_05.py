"""Lesson 05: one function on many examples, and on many devices."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.exercises.means import compiled, is_mapped

__all__ = ["EXERCISES", "convolve", "distance", "loss"]

P = ts.P
MATRIX = torch.arange(32.0).reshape(8, 4)
Shapes = list[tuple[tuple[int, ...], ...]]


def convolve(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The lesson's convolution of one example: x of n numbers, w of 3, n - 2 sums."""
    return torch.stack([torch.dot(x[i - 1 : i + 2], w) for i in range(1, len(x) - 1)])


def loss(w: torch.Tensor, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The lesson's loss of one example."""
    return ((convolve(x, w) - target) ** 2).mean()


def distance(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The lesson's distance between two points."""
    return ((a - b) ** 2).sum().sqrt()


def _watched(function: Callable[..., Any]) -> tuple[Callable[..., Any], Shapes]:
    """The function, and a list to which each of its calls adds the shapes of its arguments."""
    seen: Shapes = []

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        try:
            given = inspect.signature(function).bind(*args, **named)
        except TypeError as error:  # without the lines of `inspect`
            raise TypeError(f"{function.__name__}(): {error}") from None
        seen.append(tuple(tuple(x.shape) for x in given.args))
        return function(*given.args)

    return call, seen


def judge_table(table: Callable[..., Any]) -> Verdict:
    """All pairs of four points; `distance` is called once, for two points."""
    points = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0], [6.0, 8.0]])
    watched, seen = _watched(distance)
    got = table(watched, points)
    if not difference(got, torch.zeros(4)):
        return differs(
            "it has 4 numbers, all of them 0",
            "One vmap pairs point 0 with point 0, 1 with 1. Which one would pair *one* point with all others?",
        )
    if not difference(got, torch.stack([distance(point, points) for point in points])):
        return differs(
            "it has one number for each point",
            "With `None` the inner function gets all points at once, and adds them up. A second vmap takes them apart.",
        )
    wrong = difference(got, torch.cdist(points, points), "the table of 4 points", tolerance=1e-4)
    if wrong:
        return differs(wrong)
    if not seen:
        return differs(
            "the table is right, but `distance` was not called",
            "Another `distance` would need another table. Map the function that you are given.",
        )
    if len(seen) > 1 or seen[0] != ((2,), (2,)):
        return differs(
            f"the table is right, but `distance` was called {len(seen)} times, first with the shapes {seen[0]}",
            "`vmap` calls the function once, with the shapes of one example: here of two points, (2,) and (2,).",
        )
    return PASSED


def judge_unit_rows(unit_rows: Callable[..., Any]) -> Verdict:
    """Rows of length 1 by blocks of half a row; one all-reduce of a number for each row."""
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    cut = ts.device_put(MATRIX, ts.NamedSharding(mesh, P("a", "b")))
    squares = (MATRIX**2).reshape(8, 2, 2)
    got = unit_rows(cut)
    told = difference(got, MATRIX / MATRIX.norm(dim=1, keepdim=True), "the result")
    halves = squares.sum(2).sqrt()
    if not difference(got, (MATRIX.reshape(8, 2, 2) / halves[:, :, None]).reshape(8, 4)):
        return differs(told, "Each half of a row now has the length 1. What does a device need from its neighbour?")
    if not difference(got, MATRIX / halves.sum(1, keepdim=True)):
        return differs(told, "Lengths do not add: 3 and 4 make 5. What adds is what is under the root.")
    if not difference(got, MATRIX / squares.sum((1, 2))[:, None]):
        return differs(told, "You divided by the sum of squares: the length is its root.")
    if tuple(getattr(got, "shape", ())) in ((8, 2), (4, 4), (2, 4), (2, 2)):
        return differs(told, "Each device returns its block: `out_specs` puts it back where `in_specs` took it from.")
    if told:
        return differs(told)
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


def judge_pulls(pulls: Callable[..., Any]) -> Verdict:
    """24 gradients' lengths on eight devices, three on each; nothing is sent, `loss` is called once."""
    w = torch.tensor([2.0, 3.0, 4.0])
    examples = torch.arange(5.0) + torch.arange(24.0)[:, None]
    targets = torch.tensor([10.0, 20.0, 30.0]) + 7 * torch.arange(24.0)[:, None]
    watched, seen = _watched(loss)
    got = pulls(watched, w, examples, targets)
    each = torch.stack([torch.func.grad(loss)(w, x, target) for x, target in zip(examples, targets, strict=True)])
    told = difference(got, each.norm(dim=1), "the vector of 24 lengths", tolerance=1e-4)
    if not difference(got, each, tolerance=1e-4):
        return differs("these are the 24 gradients", "Nearly: take the length of each, inside: `norm(dim=1)`.")
    if told and tuple(getattr(got, "shape", ())) == (3,):
        return differs(told, "`out_specs=P()` takes what one device has. Each has three of the 24.")
    if told and tuple(getattr(got, "shape", ())) == (8,):
        return differs(
            told, "One number a device: the block was taken as a whole. `vmap` takes its three examples apart."
        )
    if told:
        return differs(told)
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
    return PASSED


def judge_bent_log(bent_log: Callable[..., Any]) -> Verdict:
    """Values and gradients under vmap, also where the branch that is not chosen has no finite gradient."""
    v = torch.tensor([-2.0, -1.0, 0.0, 0.5, 1.0, 2.0, 8.0])
    try:
        got = ts.vmap(bent_log)(v)
    except ts.errors.TracedValueError:
        hint = "An `if` needs one answer, and there are seven examples. Which function of torch chooses for each?"
        return differs("Python asks for a value that differs between examples", hint)
    want = torch.where(v > 1, v.clamp(min=1).log(), v - 1)
    told = difference(got, want, "the result for -2, -1, 0, 0.5, 1, 2, 8")
    if told and not difference(got, torch.where(v > 1, v - 1, v.clamp(min=1).log())):
        return differs(told, "The two branches are exchanged: `torch.where(condition, if_true, if_false)`.")
    if told:
        return differs(told)
    slopes = ts.vmap(ts.grad(bent_log))(v)
    told = difference(slopes, torch.where(v > 1, 1 / v.clamp(min=1), 1.0), "the gradient at -2, -1, 0, 0.5, 1, 2, 8")
    if told and torch.isnan(torch.as_tensor(slopes)).any():
        return differs(
            told,
            "`where` computes both branches. The gradient of the one that is not chosen is multiplied by 0, and 0 "
            "times infinity is nan: the logarithm at 0 must never be asked for.",
        )
    return differs(told) if told else PASSED


EXERCISES = (
    Exercise(
        "05.1",
        judge_table,
        (
            "How would you get the distances from *one* point to all others?",
            "`vmap` with one None in `in_axes` gives a function of one point and all others: map that function too.",
            "Two vmaps, one inside the other: the inner one shares its first argument, the outer one its second.",
        ),
        why="Each vmap adds one dim. The function still sees two points; the two dims of the table are the two maps.",
    ),
    Exercise(
        "05.2",
        judge_unit_rows,
        (
            "What does a device know of the length of its two rows, and what is missing?",
            "The squares of a row add up over both of its halves, which are neighbours along one axis of the mesh.",
            "Which step towards the length comes before the `psum`, and which after it? `keepdim=True` keeps the shape "
            "(2, 1), by which a block can be divided.",
        ),
        why="A sum over a cut dim is a sum of partial sums: a device sends 2 numbers of 4 bytes, not its half of the "
        "rows. A layer norm over a cut dim is computed in the same way.",
    ),
    Exercise(
        "05.3",
        judge_pulls,
        (
            "Which function gives the lengths for the three examples that one device holds?",
            "Inside: `vmap` of `ts.grad(loss)`, with `w` shared. Outside: `shard_map`, with `w` whole on every device.",
            "The block function returns a vector of 3. Each `P` says for one argument whether axis `d` cuts its dim 0: "
            "for `w` it does not, for the others and for the result it does.",
        ),
        why="The outer map is over devices, the inner one over the examples of a device. No example needs another one, "
        "so nothing is sent.",
    ),
    Exercise(
        "05.4",
        judge_bent_log,
        (
            "`torch.where` computes both branches for every example. What does `log` give where it is not chosen?",
            "Values can be right and gradients nan. Give `log` an argument that is harmless where it is not chosen.",
            "Choose the argument of the logarithm first, with a second `where` or a `clamp`; then choose the result.",
        ),
        why="A choice element by element computes both sides, so both must be finite, and their gradients too. "
        "In JAX it is the same with jnp.where.",
    ),
)

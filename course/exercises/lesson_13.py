"""Lesson 13: one look over a slow link, a layer that stays inside its host, and an all-reduce in two stages."""

from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.exercises.means import compiled
from course.exercises.watching import names_in, watched_looks
from course.planner import Link, Machine, estimate

__all__ = ["EXERCISES"]

Answer = Callable[..., Any]
P = ts.P


# 13.1's answer cell before it is touched: right, but it looks at each loss
def _looking(w, steps):  # type: ignore[no-untyped-def]
    losses = []
    for _ in range(steps):
        w = w - 0.1 * w
        losses.append(float((w * w).sum()))
    return w, losses


def judge_one_look(train: Answer) -> Verdict:
    """13.1: any number of steps, one wait."""
    for steps in (5, 3):
        start = torch.arange(1.0, 5.0)
        w = ts.device_put(start, ts.devices()[-1]).block_until_ready()
        looks: list[list[object]] = []
        with watched_looks(looks.append):
            got = train(w, steps)
        if not isinstance(got, tuple | list) or len(got) != 2:
            return differs("it does not return two things, w and the losses")
        after, losses = got
        if not isinstance(after, ts.Array):
            return differs("w is not an Array any more", "Fetch the losses only: w stays where it is.")
        if isinstance(losses, ts.Array) or (
            isinstance(losses, list | tuple) and any(isinstance(loss, ts.Array) for loss in losses)
        ):
            hint = (
                "The losses are still on the device: a caller that prints them will wait. Fetch them before you return."
            )
            return differs("the losses are Arrays", hint)
        want, wanted = start, []
        for _ in range(steps):
            want = want - 0.1 * want
            wanted.append(float((want * want).sum()))
        reported = difference(losses, torch.tensor(wanted), "the losses") or difference(after, want, "w")
        if reported:
            return differs(reported)
        if len(looks) == 1:
            continue
        reported = f"for {steps} steps the controller waits {len(looks)} times, not once"
        if names_in(train) & {"stack", "cat", "device_get"}:
            return differs(reported, "All losses in one fetch is right: nothing else may be looked at.")
        hint = "Each loss is fetched separately. What makes one array of them, or fetches a whole list at once?"
        return differs(reported, hint)
    return PASSED


# two hosts of four devices
TWO_HOSTS = Machine("two hosts", 4, 1.0, 10**9, Link(0.0, 100.0), Link(0.0, 12.0))
SHAPES = ((4096, 512), (512, 4096), (4096, 512))  # of x, up and down
MIB = 2**20


def _layer(x: Any, up: Any, down: Any) -> Any:
    return torch.relu(x @ up) @ down


def judge_layer_at_home(specs: object) -> Verdict:
    """13.2: nothing leaves a host, a quarter of the weights on each device, and an eighth of the work."""
    if not isinstance(specs, list | tuple) or len(specs) != 3 or not all(isinstance(spec, P) for spec in specs):
        return differs("it is not three P(...)")
    mesh = ts.AbstractMesh((2, 4), ("host", "device"))
    operands = [
        ts.ShapeDtypeStruct(shape, torch.float32, sharding=ts.NamedSharding(mesh, spec))
        for shape, spec in zip(SHAPES, specs, strict=True)
    ]
    made = compiled(_layer, *operands)
    held = sum(meta.nbytes for meta in made.program.metas[1:3] if meta is not None) / MIB
    flops, leaving = made.cost_analysis().flops, estimate(made, TWO_HOSTS).host_nbytes
    reported = f"{leaving:,} bytes leave each host; {held:g} MiB of weights and {flops / 1e9:.1f} Gflop on each device"
    if leaving and all("host" not in _names_in(spec) for spec in specs[1:]):
        return differs(
            reported, "The weights stay at home, but x does not. Over which dim of x do the products not sum?"
        )
    if leaving:
        return differs(reported, "An all-reduce sums over the axis that cuts the hidden dim. Which axis may that be?")
    if held > 4:
        return differs(reported, "Too many weights: the four devices of a host can share each matrix.")
    if flops > 4.4e9:
        return differs(reported, "Both hosts do the same work. What can they divide between them: which dim of x?")
    return PASSED


def _names_in(spec: Any) -> set[str]:
    entries = [each if isinstance(each, tuple) else (each,) for each in spec]
    return {name for each in entries for name in each if name is not None}


NUMBERS = 100
ONE_RING = 2 * 7 * 4 * NUMBERS // 8  # bytes that leave a host in an all-reduce of eight devices


def judge_two_stages(answer: Answer) -> Verdict:
    """13.3: an all-reduce that sends only a quarter of its bytes between hosts."""
    x = torch.arange(8.0 * NUMBERS).reshape(2, 4, NUMBERS) % 17
    got = ts.vmap(ts.vmap(answer, axis_name="device"), axis_name="host")(x)
    if got is None:
        return differs("it returns None")
    reported = difference(
        got, x.sum((0, 1)).expand(2, 4, NUMBERS), f"for eight rows of {NUMBERS} numbers, what the devices hold"
    )
    if reported:
        is_quarter = tuple(getattr(got, "shape", ())) == (2, 4, NUMBERS // 4)
        hint = "Each device is left with a quarter of the sums. What joins quarters again?" if is_quarter else ""
        return differs(reported.splitlines()[0], hint)
    mesh = ts.AbstractMesh((2, 4), ("host", "device"))
    both = ts.P(("host", "device"))
    described = ts.ShapeDtypeStruct((8 * NUMBERS,), torch.float32, sharding=ts.NamedSharding(mesh, both))
    compiled = ts.shard_map(answer, mesh=mesh, in_specs=both, out_specs=both).lower(described).compile()
    leaving = estimate(compiled, TWO_HOSTS).host_nbytes
    if leaving <= 4 * NUMBERS:
        return PASSED
    reported = f"the sums are right, but {leaving:,} bytes leave each host; the target is {4 * NUMBERS}"
    if leaving > ONE_RING:
        return differs(
            reported,
            "All four devices of a host send the same sums to the other host. Let each of them send a quarter: "
            "psum_scatter first.",
        )
    if leaving == ONE_RING:
        return differs(
            reported, "One ring through all devices leaves each host once, with nearly twice the bytes of a row."
        )
    return differs(reported)


# 13.3's answer cell before it is touched: right, but one ring through all devices of both hosts
def _one_ring(row):  # type: ignore[no-untyped-def]
    return ts.lax.psum(row, ("host", "device"))


EXERCISES = (
    Exercise(
        "13.1",
        judge_one_look,
        (
            "Which call in the loop needs a number? Can it wait until the loop is over?",
            "Keep the losses as Arrays in the loop. Afterwards each fetch is a round trip: how many?",
            "`torch.stack` makes one Array of a list of them, on their device. `ts.device_get` fetches a list at once.",
        ),
        stub=_looking,
        why="All steps were dispatched without a look. Then one fetch brought all losses: one round trip, however many "
        "steps there are.",
    ),
    Exercise(
        "13.2",
        judge_layer_at_home,
        (
            "Tensor parallelism needs one all_reduce, over the devices that share the hidden dim. Where may they be?",
            "`up` by columns and `down` by rows, along `device` alone: now each host has all weights.",
            "The hosts then do the same work twice, unless each has its own rows. Rows of what?",
        ),
        stub=(P("host"), P(None, ("host", "device")), P(("host", "device"))),
        why="Each host has its own rows of x, and all the weights, cut over its four devices: so nothing is added up "
        "or gathered along `host`. In training the gradients would cross the link, once a step.",
    ),
    Exercise(
        "13.3",
        judge_two_stages,
        (
            "The four devices of a host can add up among themselves first, over their fast links.",
            "If each of them then holds a quarter of the sum, it has only that to send to the other host.",
            "Three collectives. After which one does a device have a quarter of the sum of its host, and after which "
            "one a quarter of the sum of both?",
        ),
        stub=_one_ring,
        why="The devices of a host send different quarters of its sum: one row leaves, not four. The cheapest way to "
        "quarters inside a host is a reduce-scatter, and the way back from them is an all-gather.",
    ),
)

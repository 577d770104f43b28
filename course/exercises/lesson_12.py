"""Lesson 12: what an all-reduce takes, how many devices are enough, where the axes lie, and two stages."""

from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.network import step_on
from course.planner import LAPTOPS, Link, Machine, estimate

__all__ = ["EXERCISES"]

Answer = Callable[..., Any]

# (bytes, devices, latency, bandwidth) with round results: 2 (n - 1) rounds, 2 (n - 1) / n of the bytes
WIRES = ((800, 8, 1.0, 100.0), (6400, 64, 0.5, 50.0), (40, 2, 0.0, 12.0))


def judge_all_reduce_seconds(answer: Answer) -> Verdict:
    """12.1: rounds times latency, and bytes over bandwidth."""
    for nbytes, devices, latency_s, bytes_per_s in WIRES:
        rounds, carried_s = 2 * (devices - 1), 2 * nbytes * (devices - 1) / devices / bytes_per_s
        want = rounds * latency_s + carried_s
        got = answer(nbytes, devices, Link(latency_s, bytes_per_s))
        case = f"for {nbytes:,} bytes on {devices} devices, {latency_s:g} s and {bytes_per_s:g} bytes/s it"
        told = difference(got, want, case)
        if not told:
            continue
        hint = ""
        if got == latency_s + carried_s:
            hint = "Each of the steps around the ring waits for the one before. How many steps are there?"
        if got == rounds * latency_s + nbytes / bytes_per_s:
            hint = "What does one device send in an all_reduce of so many bytes? A little less than twice as much."
        return differs(told, hint)
    return PASSED


COUNTS = (8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
EXAMPLES = 65_536


def judge_enough_devices(answer: object) -> Verdict:
    """12.2: the fastest count for data parallelism around a ring."""
    if answer not in COUNTS:
        return differs(f"{answer!r} is none of {', '.join(map(str, COUNTS))}")
    best = min(COUNTS, key=_step_s)
    if answer == best:
        return PASSED
    told = f"with {answer} devices a step takes {_step_s(answer):.1f} s; another number is faster"
    if answer == COUNTS[-1]:
        return differs(told, "More devices share the computing, but the ring gets longer. Which part grows?")
    if answer == COUNTS[0]:
        return differs(told, "On one host nothing goes over the slow wire, but see how long the products take.")
    return differs(told)


def _step_s(devices: object) -> float:
    assert isinstance(devices, int)
    return estimate(step_on("data", devices, EXAMPLES), LAPTOPS).step_s


# two hosts of four devices; 1 s for 100 bytes inside, and for 10 bytes between
TWO_HOSTS = Machine("two hosts", 4, 1.0, 10**9, Link(0.0, 100.0), Link(0.0, 12.0))
NUMBERS = 100


def judge_two_stages(answer: Answer) -> Verdict:
    """12.3: an all-reduce of which only a quarter leaves the hosts."""
    x = torch.arange(8.0 * NUMBERS).reshape(2, 4, NUMBERS) % 17
    got = ts.vmap(ts.vmap(answer, axis_name="device"), axis_name="host")(x)
    if got is None:
        return differs("it returns None")
    told = difference(got, x.sum((0, 1)).expand(2, 4, NUMBERS), "what the devices hold")
    if told:
        return differs(told.splitlines()[0])
    mesh = ts.AbstractMesh((2, 4), ("host", "device"))
    both = ts.P(("host", "device"))
    described = ts.ShapeDtypeStruct((8 * NUMBERS,), torch.float32, sharding=ts.NamedSharding(mesh, both))
    compiled = ts.shard_map(answer, mesh=mesh, in_specs=both, out_specs=both).lower(described).compile()
    leaving = estimate(compiled, TWO_HOSTS).host_nbytes
    if leaving <= 4 * NUMBERS:
        return PASSED
    told = f"the sums are right, but {leaving:,} bytes leave each host; the target is {4 * NUMBERS}"
    if leaving > 8 * NUMBERS - NUMBERS:
        return differs(
            told,
            "All four devices of a host send the same sums to the other host. Let each of them send a quarter: "
            "psum_scatter first.",
        )
    return differs(told, "One ring through all devices leaves each host once, with nearly twice the bytes of a row.")


def judge_axes(answer: object) -> Verdict:
    """12.4: the axis that talks most lies within a host."""
    if not isinstance(answer, ts.Mesh):
        return differs(f"it is {type(answer).__name__}, no mesh")
    names, shape = answer.axis_names, dict(answer.shape)
    if sorted(names) != ["data", "model"]:
        return differs(f"its axes are {', '.join(names)}; the layers want data and model")
    if shape["data"] * shape["model"] != 64:
        return differs(f"it has {shape['data'] * shape['model']} devices, not 64")
    if shape["model"] != 8:
        return differs(f"{shape['model']} devices share a matrix, not 8", "Only the order of the axes may change.")
    if names == ("data", "model"):
        return PASSED
    return differs(
        "eight devices that share a matrix stand on eight hosts",
        "Devices are numbered host by host, and the last axis counts fastest. Which of the two talks more often?",
    )


# 12.3's answer cell before it is touched: right, but one ring through all devices of both hosts
def _one_ring(row):  # type: ignore[no-untyped-def]
    return ts.lax.psum(row, ("host", "device"))


EXERCISES = (
    Exercise(
        "12.1",
        judge_all_reduce_seconds,
        (
            "Two parts: what waiting costs, and what carrying costs. Which of the numbers belong to which part?",
            "A ring of n devices takes n - 1 steps to add up, and as many to tell everybody (lesson 05).",
            "Waiting: 2 (n - 1) times the latency. Carrying: 2 (n - 1) / n of the bytes, divided by the bandwidth.",
        ),
    ),
    Exercise(
        "12.2",
        judge_enough_devices,
        (
            "Computing gets shorter as devices are added, and the ring longer. Where do they meet?",
            "Call step_seconds for every count, and look for the smallest.",
        ),
    ),
    Exercise(
        "12.3",
        judge_two_stages,
        (
            "The four devices of a host can add up among themselves first, over their fast wires.",
            "If each of them then holds a quarter of the sum, it has only that to send to the other host.",
            'psum_scatter over "device", psum over "host", all_gather over "device", all of them with tiled=True.',
        ),
        stub=_one_ring,
    ),
    Exercise(
        "12.4",
        judge_axes,
        (
            "Print which device ids stand in one row of the mesh, and think of 0 to 7 as the first host.",
            "The sizes go with the names: change places of both.",
        ),
        stub=ts.AbstractMesh((8, 8), ("model", "data")),
    ),
)

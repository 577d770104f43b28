"""Lesson 15: Adam and ZeRO."""

from __future__ import annotations

from typing import Any

import torch

import tinyshard as ts
from course.by_kind import each_by_itself
from course.exercises.compare import difference
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.zero import ADAM, LAYOUTS, WIDTH, Layout, Plan, compiled, initial
from tinyshard.compile.compiled import Compiled

__all__ = ["EXERCISES", "HOSTS", "constrained", "loss_of_master", "low_loss", "unmixed_step"]

P = ts.P
MIB = 1 << 20
HOSTS = (2, 4), ("host", "device")


def _counted(program: Compiled) -> tuple[float, float]:
    """MiB at the peak, and MiB sent."""
    return program.memory_analysis().peak_nbytes / MIB, program.cost_analysis().nbytes / MIB


# 15.1


def judge_hosts(answer: Any) -> Verdict:
    """At most 8 MiB held and 7.1 MiB sent, 1.1 MiB of it between two hosts of four devices."""
    specs = list(answer) if isinstance(answer, list | tuple) else []
    if len(specs) != 3 or not all(isinstance(spec, ts.PartitionSpec) or spec is None for spec in specs):
        return differs("it is not three specs, `(P(...), P(...), P(...))`; the second may be None")
    params, grads, state = specs
    program = compiled(Plan(Layout(params or P(), grads, state or P())), ts.AbstractMesh(*HOSTS))
    peak, sent = _counted(program)
    between = sum(each.nbytes for each in ts.collectives_in(program) if "host" in each.axes) / MIB
    reported = f"{peak:.2f} MiB at the peak, {sent:.2f} MiB sent, {between:.2f} MiB of it between hosts"
    if peak <= 8 and sent <= 7.1 and between <= 1.1:
        return PASSED
    if between > 1.1:
        hint = "Whole matrices cross the link. Along which axis can a device find all parts of one on its own host?"
        return differs(reported, hint)
    if sent > 7.1:
        return differs(
            reported, "Weights in parts are gathered twice, forward and backward. Is that memory needed here?"
        )
    return differs(reported, "The link is used well. What is still whole on each device when the backward pass ends?")


# 15.2


def judge_policy(policy: Any) -> Verdict:
    """ZeRO-1 with 4096 examples: at most 20 MiB, and no matrix product is repeated."""
    if not callable(policy):
        return differs("it is not a policy: a function of an op that says whether its result is saved")
    program = compiled(Plan(LAYOUTS["ZeRO-1"], examples=4096, policy=policy))
    peak, work = program.memory_analysis().peak_nbytes / MIB, program.cost_analysis().flops / 1e6
    reported = f"{peak:.2f} MiB at the peak, {work:,.0f} Mflop"
    if peak <= 20 and work <= 3100:
        return PASSED
    if work > 3100:
        return differs(reported, "The product of `up` is computed again: the derivative of gelu needs its result.")
    return differs(
        reported, "Nothing large is computed again. Which of the two wide values is cheap to make from the other?"
    )


# 15.3


def constrained(x: Any, spec: Any) -> Any:
    """The lesson's constraint on its mesh of eight devices."""
    return ts.lax.with_sharding_constraint(x, ts.NamedSharding(ts.make_mesh((8,), ("d",)), spec))


def low_loss(low: Any, batch: Any) -> Any:
    """The lesson's loss of weights in bfloat16."""
    x, wanted = batch
    x = x.bfloat16()
    for weights in low:
        x = x + torch.nn.functional.gelu(x @ weights["up.weight"].T) @ weights["down.weight"].T
    return (x.float() - wanted).square().mean()


def loss_of_master(master: Any, batch: Any) -> Any:
    """The lesson's loss of master weights: the copies are made inside."""
    low = ts.tree.map(lambda w: constrained(w.bfloat16(), P()), master)
    return low_loss(low, batch)


def unmixed_step(master: Any, state: Any, batch: Any) -> Any:
    """The stub of 15.3."""
    value, grads = ts.value_and_grad(loss_of_master)(master, batch)
    return value, *ADAM.update(master, grads, state)


def judge_mixed(step: Any) -> Verdict:
    """Master weights in parts: the right new weights, at most 4 MiB held and 3.6 MiB sent."""
    mesh = ts.make_mesh((8,), ("d",))
    parts = ts.NamedSharding(mesh, P("d"))
    master = ts.device_put(initial(), parts)
    state = ADAM.init(master)
    random = torch.Generator().manual_seed(0)
    batch = tuple(ts.device_put(torch.randn(64, WIDTH, generator=random), parts) for _ in range(2))
    shardings = ts.tree.map(lambda x: x.sharding, (master, state))
    jitted = ts.jit(step, donate_argnums=(0, 1), out_shardings=(None, *shardings))
    with each_by_itself():
        program = jitted.lower(master, state, batch).compile()
    reference = compiled(Plan(LAYOUTS["ZeRO-2"], dtype=torch.bfloat16, is_donated=False), mesh)
    value, new, _ = reference(master, state, batch)
    got_value, got, _ = program(master, state, batch)
    wrong = difference(got_value, value, "the loss", 2e-2) or difference(
        got[0]["up.weight"], new[0]["up.weight"], "the first new weight", 2e-3
    )
    if wrong:
        return differs(wrong)
    if {x.dtype for x in ts.tree.leaves(got)} != {torch.float32}:
        return differs("the new weights are not float32: steps smaller than their last digit would be lost")
    peak, sent = _counted(program)
    reported = f"{peak:.2f} MiB at the peak, {sent:.2f} MiB sent"
    if peak <= 4 and sent <= 3.6:
        return PASSED
    if "bf16" not in program.as_text():
        return differs(reported, "Everything is computed in float32: which values should be half as large?")
    hint = "Each gradient is made whole on every device, and is cut afterwards. Where could it be asked for in parts?"
    return differs(reported, hint)


EXERCISES = (
    Exercise(
        "15.1",
        judge_hosts,
        (
            "Which of the three must be in parts, if 16.5 MiB have to become 8?",
            "Parts along `device` are found on the same host. What then crosses the link, and how large is it?",
            "Four devices share what is in parts: an all_reduce between hosts adds up only a quarter of each gradient.",
        ),
        stub=(P(), None, P()),
        why="Within a host gradients are scattered and weights gathered; between hosts only the quarter of each "
        "gradient that a device keeps is added up. Weights stay whole, so they are gathered once a step.",
    ),
    Exercise(
        "15.2",
        judge_policy,
        (
            "Which values of a layer does the backward pass need: for `down`, for gelu, for `up`?",
            "What is expensive to make again, a matrix product or an elementwise function?",
            "Keep what a product made. Policies of `ts.checkpoint_policies` choose by the kind of op, or by name.",
        ),
        stub=ts.checkpoint_policies.everything_saveable,
        why="gelu is computed again from its saved input, which costs almost nothing. 6 MiB less are held, and no "
        "matrix product is repeated.",
    ),
    Exercise(
        "15.3",
        judge_mixed,
        (
            "There is an all_reduce for each weight. The gradient of a constraint is the same constraint: which line "
            "asks for whole gradients?",
            "Section 4 has a function of a weight whose gradient is in parts. Or differentiate with respect to the "
            "copies, and ask for the parts yourself.",
            "Conversion comes last. Ask for the parts while a gradient is still in bfloat16: if it is converted first, "
            "it is made whole first.",
        ),
        stub=unmixed_step,
        why="Weights are gathered and gradients scattered in 2 bytes a number. Only an eighth of each gradient is "
        "converted, where its master weight is.",
    ),
)

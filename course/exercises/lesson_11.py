"""Lesson 11: train it."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional as F

import tinyshard as ts
from course.exercises.compare import difference, plain
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.patterns import (
    LAYOUTS,
    OPTIMIZERS,
    PATTERNS,
    PIXELS,
    Layout,
    Network,
    Plan,
    loss,
    network,
    operands,
    program_of,
    training_step,
)
from tinyshard.compile.compiled import Compiled

__all__ = ["BY_INPUTS", "BY_OUTPUTS", "EXERCISES", "clip_whole", "loss_of_padded"]

P = ts.P
MIB = 1 << 20
BY_OUTPUTS, BY_INPUTS = P("model"), P(None, "model")


def _initial() -> dict[str, torch.Tensor]:
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(1)
        return {name: p.detach() for name, p in Network().named_parameters()}


# 11.1

ROWS, REST = 320, 310
LEFTOVERS_NBYTES = 21  # three numbers


def loss_of_padded(params: Any, batch: Any, counts: Any) -> Any:
    """The stub of 11.1."""
    return loss(params, batch)


def judge_leftovers(answer: Any) -> Verdict:
    """The loss of 310 examples out of 320 rows; over eight devices a few sums and nothing else is sent."""
    counts, loss_of_rest = answer
    generator = torch.Generator().manual_seed(1)
    params, labels = _initial(), torch.arange(REST) % PATTERNS
    rest = torch.randn(REST, PIXELS, generator=generator), labels
    padded = F.pad(rest[0], (0, 0, 0, ROWS - REST)), F.pad(labels, (0, ROWS - REST))
    marks = plain(counts)
    if tuple(marks.shape) != (ROWS,):
        return differs(f"`counts` has the shape {tuple(marks.shape)}, not ({ROWS},)")
    got, want = plain(loss_of_rest(params, padded, marks.float())), loss(params, rest)
    wrong = difference(got, want, "the loss", tolerance=1e-5)
    if not wrong:
        return _judge_leftovers_bytes(loss_of_rest)
    if not difference(got * ROWS / REST, want, tolerance=1e-5):
        return differs(wrong, "The sum is right, but it is divided by 320. How many examples count?")
    if not difference(got, loss(params, padded), tolerance=1e-5):
        hint = "The padding is in it: rows of zeros give outputs too, because of the biases. What leaves them out?"
        return differs(wrong, hint)
    return differs(wrong)


def _judge_leftovers_bytes(loss_of_rest: Callable[..., Any]) -> Verdict:
    mesh = ts.AbstractMesh((8,), ("data",))
    params, _, batch = operands(Plan(), mesh, _described)
    counts = _described(torch.empty(ROWS), ts.NamedSharding(mesh, P("data")))
    cost = ts.jit(loss_of_rest).lower(params, batch, counts).compile().cost_analysis()
    if cost.nbytes <= LEFTOVERS_NBYTES:
        return PASSED
    reported = f"the loss is right, but a device sends {cost.nbytes:,} bytes"
    return differs(reported, "Rows travel: to slice a sharded dim is to reshard it. Let padded rows count 0, and stay.")


def _described(x: torch.Tensor, sharding: ts.NamedSharding) -> ts.ShapeDtypeStruct:
    return ts.ShapeDtypeStruct(tuple(x.shape), x.dtype, sharding=sharding)


# 11.2

CLIPPED_NBYTES = 2_357_000  # those of FSDP, and a number for each gradient


def clip_whole(grads: Any, places: Any) -> Any:
    """The stub of 11.2."""
    return ts.optim.clip_by_global_norm(grads, 1.0)[0]


def judge_clip(clip: Callable[..., Any]) -> Verdict:
    """Gradients that are clipped by their common norm; under FSDP none of them is made whole."""
    mesh = ts.make_mesh((8,), ("data",))
    generator = torch.Generator().manual_seed(2)
    directions = {"a": torch.randn(16, 3, generator=generator), "b": torch.randn(8, generator=generator)}
    places = dict.fromkeys(directions, ts.NamedSharding(mesh, P("data")))
    for scale in (10.0, 0.01):
        grads = {name: scale * g for name, g in directions.items()}
        got = ts.jit(lambda grads: clip(grads, places))(ts.device_put(grads, ts.NamedSharding(mesh, P())))
        wrong = _difference_of_clipped(got, grads)
        if wrong:
            return wrong
    return _judge_clip_bytes(clip)


def _difference_of_clipped(got: Any, grads: dict[str, torch.Tensor]) -> Verdict | None:
    if not isinstance(got, Mapping) or set(got) != set(grads):
        return differs("it does not return a dict of the gradients, under the names that it got them by")
    norm = torch.cat([g.flatten() for g in grads.values()]).norm()
    words = f"of gradients whose common norm is {norm:.3g}"
    wanted = {name: g / norm.clamp(min=1) for name, g in grads.items()}
    found = [difference(got[name], want, f"{words}, {name!r}", tolerance=1e-4) for name, want in wanted.items()]
    wrong = next(filter(None, found), "")
    if not wrong:
        return None
    one_by_one = {name: g / g.norm().clamp(min=1) for name, g in grads.items()}
    if not any(difference(got[name], each, tolerance=1e-4) for name, each in one_by_one.items()):
        return differs(wrong, "Each gradient is clipped by its own norm: the direction of the step changes.")
    if not any(difference(got[name], g, tolerance=1e-4) for name, g in grads.items()):
        return differs(wrong, "Nothing is clipped.")
    return differs(wrong)


def _judge_clip_bytes(clip: Callable[..., Any]) -> Verdict:
    layout, mesh = LAYOUTS["FSDP"], ts.AbstractMesh((8, 1), ("data", "model"))
    places = ts.shardings(network(), layout.rules, mesh)

    def step(params: Any, state: Any, batch: Any) -> Any:
        value, grads = ts.value_and_grad(loss)(params, batch)
        return value, *OPTIMIZERS["AdamW"].update(params, clip(grads, places), state)

    program = program_of(step, Plan(layout="FSDP"), layout)
    nbytes, kinds = program.cost_analysis().nbytes, {each.kind for each in ts.collectives_in(program)}
    if nbytes <= CLIPPED_NBYTES:
        return PASSED
    reported = f"the gradients are right, but a device sends {nbytes:,} bytes"
    if "reduce_scatter" not in kinds:
        return differs(
            reported,
            "The norm of a partial sum is not a part of the norm, so every gradient is completed on every device "
            "first. Where will the update need it?",
        )
    return differs(reported, "Some gradients are reduce-scattered, others are still made whole.")


# 11.3

MOST_HELD, MOST_SENT = 3.30, 1.14  # MiB


def _program(rules: Any) -> Compiled:
    return program_of(training_step("AdamW"), Plan((4, 2)), Layout(rules))


def judge_rules(rules: Any) -> Verdict:
    """Rules for four layers on 4 x 2: at most 3.30 MiB held at the peak, and 1.14 MiB sent."""
    if not isinstance(rules, Mapping) or not all(isinstance(spec, ts.PartitionSpec) for spec in rules.values()):
        return differs("it is not a dict from patterns of names to specs")
    program = _program(rules)
    held, sent = program.memory_analysis().peak_nbytes / MIB, program.cost_analysis().nbytes / MIB
    reported = f"{held:.2f} MiB held, {sent:.2f} MiB sent"
    if round(held, 2) <= MOST_HELD and round(sent, 2) <= MOST_SENT:
        return PASSED
    weights = ts.shardings(network(), rules, ts.AbstractMesh((4, 2), ("data", "model")))
    specs = [weights[f"layers.{k}.weight"].spec for k in range(4)]
    if specs[0] == P():
        hint = "layers.0.weight has 784 x 256 numbers, more than all others together, and it is still whole."
        return differs(reported, hint)
    if specs[0] == BY_INPUTS:
        hint = "layers.0 by inputs: each of its devices computes with half of the inputs, but has all 784 of them."
        return differs(reported, hint)
    if not any("model" in str(spec) for spec in specs):
        hint = "Nothing is sharded along model: its two devices hold and compute the same."
        return differs(reported, hint)
    if any("data" in str(spec) for spec in specs):
        hint = "What is sharded along data is gathered before its product. Leave data to the batch: model is enough."
        return differs(reported, hint)
    if BY_INPUTS not in specs[1:] and any(spec == BY_OUTPUTS for spec in specs):
        hint = "A layer by outputs leaves half of the values on each device. Which kind of layer can use them there?"
        return differs(reported, hint)
    return differs(reported)


def why_of_rules(rules: Any) -> str:
    """What is true of the rules that passed."""
    program = _program(rules)
    over_model = [each for each in ts.collectives_in(program) if "model" in each.axes]
    nbytes = sum(each.nbytes for each in over_model)
    pairs = all(each.kind == "all_reduce" for each in over_model)
    reported = (
        "Each pair needs one all-reduce of activations forwards, and the second pair one backwards."
        if pairs
        else "Where two layers by outputs meet, activations are gathered and their gradients reduce-scattered: the two "
        "halves of an all-reduce, so the bytes are those of a pair."
    )
    if any("data" in str(spec) for spec in rules.values()):
        reported += " Along data parameters are sharded too: FSDP and tensor parallelism at once."
    return (
        f"{reported} Over model that is {nbytes:,} bytes. It pays, because every gradient of a sharded weight is half "
        "as large, and with 80 examples on a device activations are smaller than weights."
    )


EXERCISES = (
    Exercise(
        "11.1",
        judge_leftovers,
        (
            "Which rows must count, and by how much must the sum be divided?",
            "`counts` is 1 for 310 rows and 0 for ten. Multiply the loss of each *example* by it, before any mean: "
            "`F.cross_entropy` has an argument `reduction`.",
            "A weighted mean: the sum of what counts, divided by how many count. Both are sums over a sharded dim.",
        ),
        stub=(torch.ones(ROWS), loss_of_padded),
        why="Sums over a sharded dim are partial sums, one number a device: all-reduces of 4 bytes. The rows "
        "stay where they are, and the padded ones count 0.",
    ),
    Exercise(
        "11.2",
        judge_clip,
        (
            "What is a gradient when `clip` gets it: whole, a shard, or a partial sum? What does its square need?",
            "The update needs of each gradient the rows of its parameter. Say so before the norm is taken.",
            "A constraint, as in lesson 04: `ts.lax.with_sharding_constraint` takes a tree and a tree of shardings.",
        ),
        stub=clip_whole,
        why="Each gradient is reduce-scattered first. Then a device has an eighth of its numbers, the sum of their "
        "squares is one number, and the eight all-reduces of such numbers send 56 bytes.",
    ),
    Exercise(
        "11.3",
        judge_rules,
        (
            "Which weight is the largest, and what is it now?",
            "Section 5 shards one pair: by outputs, then by inputs. Four layers are two pairs.",
            "Which of the two kinds can follow a layer by outputs without a gather?",
        ),
        stub={"layers.1.*": BY_OUTPUTS, "layers.2.weight": BY_INPUTS},
        why=why_of_rules,
    ),
)

"""Lesson 11: train it."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference, plain
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from tinyshard.compile.compiled import Compiled

__all__ = ["BY_COLUMNS", "BY_ROWS", "EXERCISES", "SIZES", "WHOLE", "loss", "network", "unweighted_loss"]

P = ts.P
SIZES = (784, 256, 256, 256, 10)
WHOLE = (P(), P())
BY_COLUMNS = (P(None, "model"), P("model"))
BY_ROWS = (P("model"), P())
BOTH = P(("host", "device"))


def network(params: Any, inputs: Any) -> Any:
    """The lesson's network: params are pairs of W (m, n) and b (n,), inputs (examples, 784)."""
    for W, b in params:
        outputs = inputs @ W + b
        inputs = outputs.clamp(min=0)
    return outputs


def loss(params: Any, batch: Any) -> Any:
    """The lesson's loss: squared, summed up for each example, averaged over the examples."""
    inputs, targets = batch
    return ((network(params, inputs) - targets) ** 2).sum(-1).mean()


def _described(shape: tuple[int, ...], mesh: ts.AbstractMesh, spec: ts.P) -> ts.ShapeDtypeStruct:
    return ts.ShapeDtypeStruct(shape, torch.float32, sharding=ts.NamedSharding(mesh, spec))


def _described_params(mesh: ts.AbstractMesh, layers: Any) -> Any:
    pairs = zip(pairwise(SIZES), layers, strict=True)
    return [(_described((m, n), mesh, W), _described((n,), mesh, b)) for (m, n), (W, b) in pairs]


def _described_batch(mesh: ts.AbstractMesh, spec: ts.P) -> Any:
    return _described((256, SIZES[0]), mesh, spec), _described((256, SIZES[-1]), mesh, spec)


def _descend(params: Any, grads: Any) -> Any:
    return ts.tree.map(lambda p, g: p - 1e-3 * g, params, grads)


# 11.1

LEFTOVERS_NBYTES = 21  # three numbers


def unweighted_loss(params: Any, batch: Any, counts: Any) -> Any:
    """The stub of 11.1."""
    return loss(params, batch)


def judge_leftovers(answer: Any) -> Verdict:
    """The loss of 250 examples out of 256 rows; over eight devices a few sums and nothing else is sent."""
    counts, loss_of_rest = answer
    generator = torch.Generator().manual_seed(1)
    sizes = (8, 6, 3)
    params = [(torch.randn(m, n, generator=generator), torch.randn(n, generator=generator)) for m, n in pairwise(sizes)]
    rest = torch.randn(250, sizes[0], generator=generator), torch.randn(250, sizes[-1], generator=generator)
    padded = tuple(torch.nn.functional.pad(part, (0, 0, 0, 6)) for part in rest)
    marks = plain(counts)
    if tuple(marks.shape) != (256,):
        return differs(f"`counts` has the shape {tuple(marks.shape)}, not (256,)")
    got, want = plain(loss_of_rest(params, padded, marks.float())), plain(loss(params, rest))
    wrong = difference(got, want, "the loss", tolerance=1e-4)
    if not wrong:
        return _judge_leftovers_bytes(loss_of_rest)
    if not difference(got * 256 / 250, want, tolerance=1e-4):
        return differs(wrong, "The sum is right, but it is divided by 256. How many examples count?")
    if not difference(got, loss(params, padded), tolerance=1e-4):
        hint = "The padding is in it: rows of zeros give outputs too, because of the biases. What leaves them out?"
        return differs(wrong, hint)
    return differs(wrong)


def _judge_leftovers_bytes(loss_of_rest: Callable[..., Any]) -> Verdict:
    mesh = ts.AbstractMesh((8,), ("data",))
    params, batch = _described_params(mesh, [WHOLE] * 4), _described_batch(mesh, P("data"))
    cost = ts.jit(loss_of_rest).lower(params, batch, _described((256,), mesh, P("data"))).compile().cost_analysis()
    if cost.nbytes <= LEFTOVERS_NBYTES:
        return PASSED
    reported = f"the loss is right, but a device sends {cost.nbytes:,} bytes"
    return differs(reported, "Rows travel: to slice a sharded dim is to reshard it. Let padded rows count 0, and stay.")


# 11.2

WEIGHTS_NBYTES = 4 * sum(m * n for m, n in pairwise(SIZES))


def _step_on_hosts(weights: ts.P, batch: ts.P) -> Compiled:
    mesh = ts.AbstractMesh((2, 4), ("host", "device"))

    def laid(x: Any, spec: ts.P) -> Any:
        return ts.lax.with_sharding_constraint(x, ts.NamedSharding(mesh, spec))

    def step(params: Any, batch: Any) -> Any:
        value, grads = ts.value_and_grad(loss)([(laid(W, P()), b) for W, b in params], batch)
        return value, _descend(params, [(laid(dW, weights), db) for dW, db in grads])

    params = _described_params(mesh, [(weights, P())] * 4)
    compiled: Compiled = ts.jit(step).lower(params, _described_batch(mesh, batch)).compile()
    return compiled


def judge_hosts(answer: Any) -> Verdict:
    """Weights sharded along device, copied along host; the batch sharded along both."""
    weights, batch = answer
    if not (isinstance(weights, ts.P) and isinstance(batch, ts.P)):
        return differs("`weights_spec` and `batch_spec` are to be two specs, `P(...)`")
    compiled = _step_on_hosts(weights, batch)
    held, flops = compiled.memory_analysis().argument_nbytes, compiled.cost_analysis().flops
    along_host = sum(each.nbytes for each in ts.collectives_in(compiled) if "host" in each.axes)
    reported = f"{held:,} bytes held when the step begins, {along_host:,} sent along host, {flops / 1e6:.1f} Mflop"
    if held < 600_000 and along_host < 400_000 and flops < 51.4e6:
        return PASSED
    if flops >= 51.4e6:
        return differs(
            reported,
            "Work is done twice: devices with the same examples compute the same. No two should.",
        )
    if held >= 600_000:
        return differs(reported, "Too much is held: along which axis do shards of the weights cost no cable?")
    if any(each.kind == "all_gather" and "host" in each.axes for each in ts.collectives_in(compiled)):
        hint = "Matrices are gathered through the cable. A device should find all pieces of a matrix on its own host."
        return differs(reported, hint)
    return differs(reported)


# 11.3


def _held_and_sent(layers: Any) -> tuple[float, float]:
    """MiB that a device holds, and sends in one step, in the lesson's network on 4 x 2 devices."""
    mesh = ts.AbstractMesh((4, 2), ("data", "model"))

    def step(params: Any, batch: Any) -> Any:
        value, grads = ts.value_and_grad(loss)(params, batch)
        return value, _descend(params, grads)

    compiled = ts.jit(step).lower(_described_params(mesh, layers), _described_batch(mesh, P("data"))).compile()
    return compiled.memory_analysis().argument_nbytes / 2**20, compiled.cost_analysis().nbytes / 2**20


def judge_layers(layers: Any) -> Verdict:
    """Less than 1 MiB held and 1.2 MiB sent."""
    if not isinstance(layers, list | tuple) or len(layers) != 4:
        return differs("it is not a list of four layers")
    held, sent = _held_and_sent(layers)
    reported = f"{held:.2f} MiB held, {sent:.2f} MiB sent"
    if held < 1 and sent < 1.2:
        return PASSED
    if layers[0] == WHOLE:
        return differs(reported, "W1 has 784 x 256 numbers, more than all others together, and it is still whole.")
    if held < 1 and any(b == BY_ROWS and a != BY_COLUMNS for a, b in pairwise([WHOLE, *layers])):
        hint = "A layer that is sharded by rows wants its inputs sharded: the layer before it must be by columns."
        return differs(reported, hint)
    if held < 1:
        return differs(reported, "The memory will do. Two layers by columns in a row: what must happen between them?")
    return differs(reported)


EXERCISES = (
    Exercise(
        "11.1",
        judge_leftovers,
        (
            "Which rows are to count, and by how much is the sum to be divided?",
            "`counts` is 1 for 250 rows and 0 for six. Multiply by it the loss of each *example*, before any mean.",
            "A weighted mean: the sum of what counts, divided by how many count. Both are sums over a sharded dim.",
        ),
        stub=(torch.ones(256), unweighted_loss),
        why="Sums over a sharded dim are partial sums, one number a device: two all-reduces of 4 bytes. The rows "
        "stay where they are, and the padded ones count 0.",
    ),
    Exercise(
        "11.2",
        judge_hosts,
        (
            "Write down for each axis: which devices must have the same weights, and which must have other examples?",
            "A gather along `host` goes through the cable, once for each matrix and step. Which axis is left?",
            "How many copies of the weights are needed, if no gather may leave its host? How many devices may have the "
            "same examples?",
        ),
        stub=(BOTH, BOTH),
        why="Matrices are gathered inside of a host. Through the cable goes one all-reduce of the quarter of each "
        "gradient that a device keeps. PyTorch calls this hybrid sharding (HSDP).",
    ),
    Exercise(
        "11.3",
        judge_layers,
        (
            "Which weight is the largest, and what is it now?",
            "Section 5 shards one pair: columns, then rows. Four layers are two pairs.",
            "Which of the two kinds can follow a layer cut by columns without a gather?",
        ),
        stub=[WHOLE, BY_COLUMNS, BY_ROWS, WHOLE],
        why="Each pair needs one all-reduce of activations in the forward pass, and every gradient of a weight is half "
        "as large. With 64 examples for each device, activations are smaller than weights.",
    ),
)

"""Lesson 08: train it."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference, plain
from course.exercises.exercise import PASSED, Exercise, Verdict, differs

__all__ = ["BY_COLUMNS", "BY_ROWS", "EXERCISES", "SIZES", "WHOLE", "loss", "predict"]

P = ts.P
SIZES = (784, 256, 256, 256, 10)
WHOLE = (P(), P())
BY_COLUMNS = (P(None, "model"), P("model"))
BY_ROWS = (P("model"), P())


def predict(params: Any, inputs: Any) -> Any:
    """The lesson's network: params are pairs of W (m, n) and b (n,), inputs (examples, 784)."""
    for W, b in params:
        outputs = inputs @ W + b
        inputs = outputs.clamp(min=0)
    return outputs


def loss(params: Any, batch: Any) -> Any:
    """The lesson's loss: squared, summed up for each example, averaged over the examples."""
    inputs, targets = batch
    return ((predict(params, inputs) - targets) ** 2).sum(-1).mean()


def _train_step(params: Any, batch: Any) -> Any:
    value, grads = ts.value_and_grad(loss)(params, batch)
    new = [(W - 1e-3 * dW, b - 1e-3 * db) for (W, b), (dW, db) in zip(params, grads, strict=True)]
    return value, new


def _held_and_sent(layers: Any) -> tuple[float, float]:
    """MiB that a device holds, and sends in one step, in the lesson's network on 4 x 2 devices."""
    grid = ts.AbstractMesh((4, 2), ("data", "model"))

    def stand_in(shape: tuple[int, ...], spec: ts.P) -> ts.ShapeDtypeStruct:
        return ts.ShapeDtypeStruct(shape, torch.float32, sharding=ts.NamedSharding(grid, spec))

    pairs = zip(pairwise(SIZES), layers, strict=True)
    params = [(stand_in((m, n), of_weight), stand_in((n,), of_bias)) for (m, n), (of_weight, of_bias) in pairs]
    batch = stand_in((256, SIZES[0]), P("data")), stand_in((256, SIZES[-1]), P("data"))
    compiled = ts.jit(_train_step).lower(params, batch).compile()
    held = sum(meta.nbytes for meta in compiled.program.metas[: compiled.program.num_inputs])
    return held / 2**20, compiled.cost_analysis().nbytes / 2**20


def judge_layers(layers: Any) -> Verdict:
    """Less than 1 MiB held and 1.2 MiB sent."""
    if not isinstance(layers, list | tuple) or len(layers) != 4:
        return differs("it is not a list of four layers")
    held, sent = _held_and_sent(layers)
    told = f"{held:.2f} MiB held, {sent:.2f} MiB sent"
    if held < 1 and sent < 1.2:
        return PASSED
    if layers[0] == WHOLE:
        return differs(told, "W1 has 784 x 256 numbers, more than all others together, and it is still whole.")
    if held < 1 and any(b == BY_ROWS and a != BY_COLUMNS for a, b in pairwise([WHOLE, *layers])):
        return differs(
            told, "A layer that is cut by rows wants its inputs cut: the layer before it must be by columns."
        )
    if held < 1:
        return differs(told, "The memory will do. Two layers by columns in a row: what must happen between them?")
    return differs(told)


def judge_envelope(dp_bytes: Callable[..., Any]) -> Verdict:
    """2 x (n - 1) / n of the parameters' size."""
    count = 335_114
    got = {devices: dp_bytes(count, devices) for devices in (2, 8, 64)}
    want = {devices: 2 * 4 * count * (devices - 1) / devices for devices in got}
    ratios = {devices: got[devices] / want[devices] for devices in got}

    def is_off_by(factor: Callable[[int], float]) -> bool:
        return all(abs(ratio * factor(devices) - 1) < 1e-3 for devices, ratio in ratios.items())

    off = [devices for devices in got if abs(ratios[devices] - 1) >= 1e-3]
    told = "; ".join(f"{devices} devices: {round(got[devices]):,}, not {round(want[devices]):,}" for devices in off)
    if is_off_by(lambda n: 1):
        return PASSED
    if is_off_by(lambda n: 4):
        return differs(told, "These are numbers, not bytes: how large is a 32-bit float?")
    if is_off_by(lambda n: 2):
        return differs(told, "A block is added up, *and* the sum is told to the others: two halves of the job.")
    if is_off_by(lambda n: (n - 1) / n):
        return differs(told, "Nobody sends its own part to itself: of n parts, n - 1 travel.")
    return differs(told)


def unweighted_loss(params: Any, batch: Any, weights: Any) -> Any:
    """The stub of 08.3."""
    return loss(params, batch)


def judge_leftovers(answer: Any) -> Verdict:
    """The loss of 250 examples out of 256 rows."""
    weights, weighted_loss = answer
    generator = torch.Generator().manual_seed(1)
    sizes = (8, 6, 3)
    params = [(torch.randn(m, n, generator=generator), torch.randn(n, generator=generator)) for m, n in pairwise(sizes)]
    rest = torch.randn(250, sizes[0], generator=generator), torch.randn(250, sizes[-1], generator=generator)
    padded = tuple(torch.nn.functional.pad(part, (0, 0, 0, 6)) for part in rest)
    marks = plain(weights)
    if tuple(marks.shape) != (256,):
        return differs(f"the weights have the shape {tuple(marks.shape)}, not (256,)")
    got, want = plain(weighted_loss(params, padded, marks.float())), plain(loss(params, rest))
    wrong = difference(got, want, "the loss", tolerance=1e-4)
    if not wrong:
        return PASSED
    if not difference(got * 256 / 250, want, tolerance=1e-4):
        return differs(wrong, "The sum is right, but it is divided by 256. How many examples count?")
    if not difference(got, loss(params, padded), tolerance=1e-4):
        hint = "The padding is in it: rows of zeros give predictions too, because of the biases. Who leaves them out?"
        return differs(wrong, hint)
    return differs(wrong)


def judge_move(answer: Any) -> Verdict:
    """Two devices along `data`, four along `model`, the same layers cut."""
    params, batch = answer
    shards = [tuple(part.sharding.shard_shape(part.shape)) for layer in params for part in layer]
    rows = [part.addressable_shards[0].data.shape[0] for part in batch]
    told = f"a device holds {shards[2]} of W2, {shards[4]} of W3 and {rows[0]} examples"
    if shards[2] == (256, 128):
        return differs(
            told, "W2 is cut in two, so `model` has two devices. Which is the first number of a mesh's shape?"
        )
    if shards[2] != (256, 64) or shards[3] != (64,) or shards[4] != (64, 256):
        return differs(told)
    if shards[:2] != [(784, 256), (256,)] or shards[6:] != [(256, 10), (10,)]:
        return differs("a layer that was whole is cut", "`place` takes the same four layers as before.")
    if rows != [128, 128]:
        return differs(told, "The parameters have moved. The batch is dealt out over two devices of `data` now, too.")
    meshes = {str(part.sharding.mesh) for part in (*batch, *(part for layer in params for part in layer))}
    if len(meshes) != 1:
        return differs("parameters and batch are on different meshes", "Make one mesh, and put both there.")
    return PASSED


EXERCISES = (
    Exercise(
        "08.1",
        judge_layers,
        (
            "Which weight is the largest, and what is it now?",
            "Section 4 cuts one pair: columns, then rows. Four layers are two pairs.",
            "Begin with `by_columns`, and go on in turns.",
        ),
        stub=[WHOLE, BY_COLUMNS, BY_ROWS, WHOLE],
    ),
    Exercise(
        "08.2",
        judge_envelope,
        (
            "What is summed up over the devices in one step, and how many bytes has it?",
            "Every gradient, 4 bytes a number. Section 3 says which share of a block each device sends for that.",
            "2 × (devices − 1) / devices of the size of all parameters.",
        ),
        stub=lambda count, devices: 0,
    ),
    Exercise(
        "08.3",
        judge_leftovers,
        (
            "Which rows are to count, and by how much is the sum to be divided?",
            "`weights` is 1 for 250 rows and 0 for six. Multiply the loss of each *example* by its weight.",
            "`each = ((predict(params, inputs) - targets) ** 2).sum(-1)`; `(each * weights).sum() / weights.sum()`.",
        ),
        stub=(torch.ones(256), unweighted_loss),
    ),
    Exercise(
        "08.4",
        judge_move,
        (
            "What does a move need: a new mesh, and what else?",
            "`ts.make_mesh((2, 4), ...)` with the same names; then `place` for the parameters and `put` for the batch.",
            '`place(params_tp, mesh_4, [whole, by_columns, by_rows, whole])` and `put(batch, mesh_4, P("data"))`.',
        ),
        stub=(None, None),
    ),
)

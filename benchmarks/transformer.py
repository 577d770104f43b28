"""What both sides of a transformer's training begin with: its sizes, its parameters, its text, and who holds what.

A parameter has the name and the shape that it has in `course.transformer`. NumPy alone: JAX's side has no torch.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.cases import DEVICES

WIDTH, HEADS, DEPTH, LENGTH, VOCABULARY = 128, 4, 4, 64, 64
MICRO_BATCHES, EXAMPLES = 4, 8  # micro-batches a step, and examples in each
# The losses of the first steps, as `losses_by_torch` of tests/training.py has them in float32, and how far both sides,
# which compute in bfloat16, may be from them
LOSSES, TOLERANCE = (4.7086, 3.9058, 3.5703), 1e-2

# Axes of the mesh with their sizes, of which "d" divides the examples; parameters by the pattern of their names.
MEGATRON = {
    **{f"layers.*.{name}.weight": ("m",) for name in ("q", "k", "v", "up")},
    **{f"layers.*.{name}.bias": ("m",) for name in ("q", "k", "v", "up")},
    **{f"layers.*.{name}.weight": (None, "m") for name in ("o", "down")},
}
PLANS = {
    "dp": ({"d": DEVICES}, {}),
    "fsdp": ({"d": DEVICES}, {"*": ("d",)}),
    "tp": ({"m": 4}, MEGATRON),
    "dp x tp": ({"d": 2, "m": 4}, MEGATRON),
}


def shapes() -> dict[str, tuple[int, ...]]:
    """Of the parameters, by name."""
    norm = {"weight": (WIDTH,), "bias": (WIDTH,)}
    layer = {f"{name}.{part}": shape for name in ("before", "after") for part, shape in norm.items()}
    for name, rows, columns in (
        *((name, WIDTH, WIDTH) for name in "qkvo"), ("up", 4 * WIDTH, WIDTH), ("down", WIDTH, 4 * WIDTH),
    ):  # fmt: skip
        layer |= {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}
    return {
        "words.weight": (VOCABULARY, WIDTH),
        "places.weight": (LENGTH, WIDTH),
        **{f"layers.{i}.{name}": shape for i in range(DEPTH) for name, shape in layer.items()},
        **{f"norm.{part}": shape for part, shape in norm.items()},
        "head.weight": (VOCABULARY, WIDTH),
        "head.bias": (VOCABULARY,),
    }


def parameters() -> dict[str, np.ndarray]:
    """At the beginning: normal numbers, narrower the wider a matrix is; norms that change nothing; biases of zero."""
    normal = np.random.default_rng(0).standard_normal
    found = {}
    for name, shape in shapes().items():
        if len(shape) == 2:
            found[name] = normal(shape, np.float32) * np.float32(shape[1] ** -0.5)
        else:
            found[name] = np.full(shape, name.endswith("weight"), np.float32)
    return found


def tokens(step: int) -> np.ndarray:
    """What a step learns from: int64[micro-batches, examples, length + 1], pieces of the text of the course."""
    text = Path(__file__).parents[1].joinpath("course", "text", "coriolanus.txt").read_text("utf-8")
    every = np.unique(np.array(list(text)), return_inverse=True)[1]
    starts = np.random.default_rng(step).integers(len(every) - LENGTH, size=(MICRO_BATCHES, EXAMPLES, 1))
    return every[starts + np.arange(LENGTH + 1)]


def check(step: int, loss: float) -> None:
    """Raise AssertionError for a loss of one of the first steps that is not the wanted one."""
    assert step >= len(LOSSES) or abs(loss - LOSSES[step]) < TOLERANCE, f"loss {loss} of step {step}"

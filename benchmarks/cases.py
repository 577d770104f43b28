"""What is measured: one row a case, with the bars that it is held to."""

from __future__ import annotations

import os
from dataclasses import dataclass

DEVICES = int(os.environ.get("BENCHMARK_DEVICES", "8"))  # benchmarks.scaling starts sides with other numbers
MIB = 1 << 20
LAYERS = (784, 1024, 1024, 1024, 10)
BATCH = 1024
# a transformer layer: examples, positions, width, heads; and its matrices
LAYER = (64, 64, 256, 4)
_WIDTH = LAYER[2]
LAYER_SHAPES = {
    **dict.fromkeys(("q", "k", "v", "o"), (_WIDTH, _WIDTH)),
    "up": (_WIDTH, 4 * _WIDTH),
    "down": (4 * _WIDTH, _WIDTH),
}

# a transformer's training, `benchmarks.transformer`: name of a case -> plan
TRAININGS = {"train_dp": "dp", "train_fsdp": "fsdp", "train_tp": "tp", "train_dp_tp": "dp x tp"}


# why JAX is the faster one, where more than one case has the same reason
PROCESSES = "eight processes are woken and answer; JAX's devices are threads"
PRODUCTS = "torch's product against XLA's: now one is ahead, now the other"
NOT_FUSED = "each elementwise op is a pass over memory; XLA fuses them"
SMALL_SUMS = "80 small sums among eight processes; elementwise ops are not fused"


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table.

    Attributes:
        name: what the sides call it.
        what: what a reader sees.
        to_jax: the most that tinyshard may take, as a ratio to JAX.
        to_gloo: likewise to raw gloo; None where gloo has no such thing.
        first_to_jax: the first call, in a fresh process, is measured too, with what it traces and compiles; the most
            that it may take, as a ratio to JAX.
        why_slower: in ten words, for the cases in which JAX is the faster one.
    """

    name: str
    what: str
    to_jax: float | None = None
    to_gloo: float | None = None
    first_to_jax: float | None = None
    why_slower: str = ""


CASES = [
    Case(
        "start", "start to first result", 3.0, why_slower="to import torch takes most of it; then eight processes start"
    ),
    Case("eager", "eager round trip", 1.6, why_slower=PROCESSES),
    Case("eager_500", "500 dependent eager ops", 0.7),
    Case("jit", "jit round trip", 3.5, why_slower=PROCESSES),
    Case("psum_4k", "psum 4 KB a device", 1.3, 0.02, why_slower=PROCESSES),
    Case("psum_1m", "psum 1 MB", 1.0, why_slower=PROCESSES),
    Case("psum_16m", "psum 16 MB", 0.8),
    Case("psum_64m", "psum 64 MB", 0.2, 0.5),
    Case("all_gather_16m", "all_gather 16 MB", 0.06),
    Case("psum_scatter_16m", "psum_scatter 16 MB", 1.3, why_slower="both read 128 MB once; the rest is not explained"),
    Case("all_to_all_16m", "all_to_all 16 MB", 0.25),
    Case("ppermute_16m", "ppermute 16 MB", 0.15),
    Case(
        "device_put",
        "device_put 256 MB to (4, 2)",
        0.5,
        why_slower="both copy it once: now one is ahead, now the other",
    ),
    Case("device_get", "256 MB back to the host", 0.5),
    Case("reshard", "256 MB (a, b) → (b, a)", 0.7),
    Case("sin", "sin of 8192², sharded", 0.25),
    Case("dot", "dot 2048, rows by columns", 0.9, why_slower=PRODUCTS),
    Case("dot_bf16", "dot 2048 of bfloat16"),
    Case("uniform", "30 M uniform", 0.35),
    Case("normal", "30 M normal", 0.35),
    Case("vmap_dot", "vmap of dot, 10 M rows", 0.9, why_slower=PRODUCTS),
    Case("step_8x1", "gradient step, 8-way data parallel", 0.75, why_slower=NOT_FUSED),
    Case("step_4x2", "gradient step, 4x2", 0.85, why_slower=NOT_FUSED),
    Case("layer", "gradient step of a transformer layer, 8-way", first_to_jax=1.0, why_slower=NOT_FUSED),
    *(
        Case(
            name,
            f"a training's step, {plan.upper()}",
            1.6,
            first_to_jax=1.5,
            why_slower=SMALL_SUMS if "tp" in plan else NOT_FUSED,
        )
        for name, plan in TRAININGS.items()
    ),
    Case("again", "ts.init() again, to a first result"),
]

# bytes of a device's operand in the cases that measure one collective: name -> (collective, bytes)
COLLECTIVES = {
    "psum_4k": ("psum", 4096),
    "psum_1m": ("psum", MIB),
    "psum_16m": ("psum", 16 * MIB),
    "psum_64m": ("psum", 64 * MIB),
    "all_gather_16m": ("all_gather", 16 * MIB),
    "psum_scatter_16m": ("psum_scatter", 16 * MIB),
    "all_to_all_16m": ("all_to_all", 16 * MIB),
    "ppermute_16m": ("ppermute", 16 * MIB),
}

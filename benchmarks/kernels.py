"""What each of the workers' own kernels is worth: torch's and ours, taking turns in one process with one thread.

OPENBLAS_NUM_THREADS=1 python -m benchmarks.kernels    # all rows
python -m benchmarks.kernels --turns 1000
TINYSHARD_PRODUCTS=numpy OPENBLAS_NUM_THREADS=1 python -m benchmarks.kernels

Prints the median and the quartiles of both, and the ratio of the medians. A kernel that saves less than a tenth goes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.report import Spread, processor
from benchmarks.serve import timed
from tinyshard.core.program import Builder, Value, find_op
from tinyshard.core.types import HALVES, ShapedType
from tinyshard.runtime.worker.executor import make_ready
from tinyshard.runtime.worker.products import library

Call = Callable[[], object]
_COMPARISONS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table.

    Attributes:
        op: as it is named.
        what: what a reader sees.
        torchs: torch's own way.
        ours: the workers'.
        times: how many calls are timed together.
    """

    op: str
    what: str
    torchs: Call
    ours: Call
    times: int = 1


class _NoOthers:
    """A communicator, which a program without collectives never asks."""


def _op(what: str, op: str, *args: Any, times: int = 1) -> Row:
    """The op as it is named, and as a worker calls it."""
    builder = Builder((0,), (1,))
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    for x in tensors:
        builder.input(ShapedType(tuple(x.shape), x.dtype))
    numbers = iter(range(len(tensors)))
    named = tuple(Value(next(numbers)) if isinstance(a, torch.Tensor) else a for a in args)
    places = [(i, a.number) for i, a in enumerate(named) if isinstance(a, Value)]
    own = find_op(op)
    wanted = own(*args)
    wanted = [wanted] if isinstance(wanted, torch.Tensor) else list(wanted)
    program = builder.finish(builder.emit(op, named, {}, [ShapedType(tuple(x.shape), x.dtype) for x in wanted]))
    ours = make_ready(program, communicator=_NoOthers()).steps[0].call  # type: ignore[arg-type]
    assert ours is not None
    made, is_product = list(ours([*tensors, None])), op in ("aten.mm.default", "aten.bmm.default")
    near = 1e-2 if wanted[0].dtype in HALVES else 1e-4 if is_product else 0  # products add in another order
    torch.testing.assert_close(made, wanted, rtol=near, atol=near)

    def torchs() -> object:  # a device prepares a call so
        values, filled = [*tensors, None], list(named)
        for i, value in places:
            filled[i] = values[value]
        return (own(*filled),)

    return Row(op, what, torchs, lambda: ours([*tensors, None]), times)


def _attended(dtype: torch.dtype) -> Row:
    """The gradient of causal attention over 64 positions, of four heads of 32 numbers."""
    query, key, value, gradient = torch.randn(4, 1, 4, 64, 32).to(dtype)
    ahead = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    result, logsumexp = ahead(query, key, value, 0.0, True)
    name = "aten._scaled_dot_product_flash_attention_for_cpu_backward.default"
    what = f"gradient of attention, 4 × 64 × 32 of {str(dtype).removeprefix('torch.')}"
    return _op(what, name, gradient, query, key, value, result, logsumexp, 0.0, True)


def rows() -> list[Row]:
    """What is measured: a row for each kernel and each shorter call."""
    torch.manual_seed(0)
    x, mask, few = torch.randn(256, 1024), torch.randn(256, 1024) > 0, torch.ones(8)
    return [
        *(_op(f"x {sign} 0, 256 × 1024", f"aten.{name}.Scalar", x, 0) for name, sign in _COMPARISONS.items()),
        _op("mm, 512 × 256 by 256 × 1024", "aten.mm.default", torch.randn(512, 256), torch.randn(256, 1024)),
        _op(
            "mm of columns, 1024 × 128 by 128 × 256", "aten.mm.default", torch.randn(128, 1024).T, torch.randn(128, 256)
        ),
        _op(
            "bmm, 8 × 256 × 256 by 8 × 256 × 256",
            "aten.bmm.default",
            torch.randn(8, 256, 256),
            torch.randn(8, 256, 256),
        ),
        _op("mm, 128 × 128 by 128 × 128 of bfloat16", "aten.mm.default", *torch.randn(2, 128, 128).bfloat16()),
        _op("bmm, 8 × 64 × 64 by 8 × 64 × 64 of float16", "aten.bmm.default", *torch.randn(2, 8, 64, 64).half()),
        *map(_attended, HALVES),
        _op("mm, 1024 × 128 by 128 × 10", "aten.mm.default", torch.randn(1024, 128), torch.randn(128, 10)),
        _op("where(mask, x, 0), 256 × 1024", "aten.where.self", mask, x, torch.zeros(())),
        _op("x + 1, 8 elements: 1 as a tensor, and torch.add", "aten.add.Tensor", few, 1, times=100),
        _op("x + y, 8 elements: torch.add", "aten.add.Tensor", few, few, times=100),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=200)
    turns = parser.parse_args().turns
    torch.set_num_threads(1)
    print(f"{processor()}; large products by {library()}\n")
    print("| | torch's own | ours | ratio |\n|---|---|---|---|")
    for row in rows():
        taken: list[list[float]] = [[], []]
        for _ in range(turns):
            for seconds, call in zip(taken, (row.torchs, row.ours), strict=True):
                seconds.append(timed(lambda call=call: [call() for _ in range(row.times)])[0] / row.times)
        torchs, ours = map(Spread.of, taken)
        print(f"| {row.what} | {torchs} | {ours} | {ours.median / torchs.median:.2f} |", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()

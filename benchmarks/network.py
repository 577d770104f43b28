"""The seed's network at its own size, a few steps on worker processes: seconds a step, bytes sent, memory.

python -m benchmarks.network                    # 8192 wide, batch 8192: minutes and 16 GB on a 2-core machine
python -m benchmarks.network --width 1024 --batch 1024 --steps 5
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts

Params = list[tuple[Any, Any]]


def loss(params: Params, batch: tuple[Any, Any]) -> torch.Tensor:
    """Mean over the batch of the squared distance, as in the seed."""
    inputs, targets = batch
    for weight, bias in params:
        outputs = inputs @ weight + bias
        inputs = outputs.clamp(min=0)
    return ((outputs - targets) ** 2).sum(-1).mean()


def step(params: Params, batch: tuple[Any, Any]) -> tuple[torch.Tensor, Params]:
    """The loss, and the parameters after one step of gradient descent."""
    value, grads = ts.value_and_grad(loss)(params, batch)
    return value, [(w - 1e-5 * dw, b - 1e-5 * db) for (w, b), (dw, db) in zip(params, grads, strict=True)]


def data_parallel(params: Params, batch: Any) -> tuple[Params, Any]:
    """A part of the batch on each device, parameters on every device."""
    rows = ts.sharding.PositionalSharding(ts.devices()).reshape(-1, 1)
    return ts.device_put(params, rows.replicate()), ts.device_put(batch, rows)


def data_and_tensor_parallel(params: Params, batch: Any) -> tuple[Params, Any]:
    """Four parts of the batch; the middle layers cut in two, columns then rows."""
    grid = ts.sharding.PositionalSharding(ts.devices()).reshape(4, 2)
    whole, columns = grid.replicate(), grid.replicate(0)
    places = [(whole, whole), (columns, columns), (columns.T, whole), (whole, whole)]
    placed = [(ts.device_put(w, p), ts.device_put(b, q)) for (w, b), (p, q) in zip(params, places, strict=True)]
    return placed, ts.device_put(batch, grid.replicate(1))


LAYOUTS: dict[str, Callable[[Params, Any], tuple[Params, Any]]] = {
    "8x1": data_parallel,
    "4x2": data_and_tensor_parallel,
}


def held(tree: Any) -> int:
    """Bytes of one device's shards of all Arrays of a tree."""
    return sum(x.addressable_shards[0].data.nbytes for x in ts.tree.leaves(tree))


def main() -> None:
    """Run and print one line a layout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()
    torch.manual_seed(0)
    sizes = [784, args.width, args.width, args.width, 10]
    params = [(torch.randn(a, b) / a**0.5, torch.randn(b)) for a, b in itertools.pairwise(sizes)]
    batch = (torch.randn(args.batch, sizes[0]), torch.randn(args.batch, sizes[-1]))
    for name, place in LAYOUTS.items():
        ts.init(devices=8)
        placed, data = place(params, batch)
        jitted = ts.jit(step)
        cost = jitted.lower(placed, data).compile().cost_analysis()
        print(f"{name}: {held((placed, data)) / 2**20:,.0f} MiB held a device, {cost}", flush=True)
        for number in range(args.steps):
            start_s = time.perf_counter()
            value, placed = jitted(placed, data)
            ts.block_until_ready(placed)
            print(f"  step {number}: {time.perf_counter() - start_s:.1f} s, loss {float(value):.4f}", flush=True)


if __name__ == "__main__":
    main()

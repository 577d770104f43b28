"""Thirty million random numbers on eight devices, against JAX on the same machine in the same run: ratios.

python -m benchmarks.random_numbers --jax path/to/python/that/has/jax     # or the environment variable JAX_PYTHON
python -m benchmarks.random_numbers --count 3000000

Rounds of both alternate, so that whatever else the machine does strikes both; the best round of each is compared. The
first draw of each (tracing, compiling, loading numba) is told apart.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable

import tinyshard as ts
from tinyshard.primitives.random_bits import is_compiled

KINDS = {"uniform": 0.6, "normal": 1.0}  # what the time is to be at most, in JAX's

_JAX = """
import os, sys, time
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax
from jax.sharding import NamedSharding, PartitionSpec
count = int(sys.argv[1])
rows = NamedSharding(jax.make_mesh((8,), ("a",)), PartitionSpec("a"))
key = jax.random.key(0)
draws = {
    kind: jax.jit(lambda k, draw=getattr(jax.random, kind): draw(k, (count,)), out_shardings=rows)
    for kind in ("uniform", "normal")
}
for line in sys.stdin:
    start = time.perf_counter()
    draws[line.strip()](key).block_until_ready()
    print(time.perf_counter() - start, flush=True)
"""


class Jax:
    """JAX in a process of its own, which draws when it is told to."""

    def __init__(self, python: str, count: int) -> None:
        command = [python, "-c", _JAX, str(count)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def seconds(self, kind: str) -> float:
        """How long one draw took."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(kind + "\n")
        self._process.stdin.flush()
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def ours(count: int) -> Callable[[str], float]:
    """How long one draw takes here."""
    rows = ts.NamedSharding(ts.make_mesh((8,), "a"), ts.P("a"))
    key = ts.random.key(0)
    draws = {
        "uniform": ts.jit(lambda k: ts.random.uniform(k, (count,)), out_shardings=rows),
        "normal": ts.jit(lambda k: ts.random.normal(k, (count,)), out_shardings=rows),
    }

    def seconds(kind: str) -> float:
        start = time.perf_counter()
        draws[kind](key).block_until_ready()
        return time.perf_counter() - start

    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jax", default=os.environ.get("JAX_PYTHON"), help="a Python that has JAX")
    parser.add_argument("--count", type=int, default=30_000_000)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    import torch

    ts.init(devices=8)
    ts.block_until_ready(ts.device_put(torch.zeros(8), ts.sharding.PositionalSharding(ts.devices())))
    print(f"{given.count:,} float32 in eight parts; numba: {is_compiled('uniform', torch.float32)}")
    here, jax = ours(given.count), Jax(given.jax, given.count) if given.jax else None
    for kind, most in KINDS.items():
        first = here(kind), jax.seconds(kind) if jax else 0.0
        best = [float("inf"), float("inf")]
        for _ in range(given.rounds):
            best = [min(best[0], here(kind)), min(best[1], jax.seconds(kind) if jax else 0.0)]
        text = f"{kind}: {best[0] * 1e3:.0f} ms (the first {first[0]:.1f} s)"
        if jax:
            ratio = best[0] / best[1]
            text += f"; JAX {best[1] * 1e3:.0f} ms (the first {first[1]:.1f} s); ratio {ratio:.2f}, wanted <= {most}"
        print(text)
    if jax is None:
        print("not compared: no JAX was named; --jax or JAX_PYTHON takes a Python that has it", file=sys.stderr)
    else:
        jax.close()
    ts.shutdown()


if __name__ == "__main__":
    main()

"""Raw gloo: eight processes that call torch.distributed, and nothing between."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from benchmarks.cases import COLLECTIVES, DEVICES
from benchmarks.serve import Generator, serve, timed

N = DEVICES


def _rank(rank: int, store: str, told: Connection) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=N)
    told.send("up")
    while True:
        asked = told.recv()
        if asked is None:
            return
        name, nbytes, number = asked
        told.send(_once(name, nbytes, number, rank))


def _once(name: str, nbytes: int, number: int, rank: int) -> float:
    """Seconds of one collective, the result checked where it is easily known."""
    x = torch.full((nbytes // 4,), rank + number + 1.0)
    expected = N * (N + 1) / 2 + N * number
    dist.barrier()
    if name == "psum":
        seconds, _ = timed(lambda: dist.all_reduce(x))
        assert x[-1].item() == expected
    elif name == "all_gather":
        out = torch.zeros(x.numel() * N)
        seconds, _ = timed(lambda: dist.all_gather_single(out, x))
        assert out[-1].item() == N + number
    elif name == "all_to_all":
        out = torch.zeros_like(x)
        seconds, _ = timed(lambda: dist.all_to_all_single(out, x))
        assert out[-1].item() == N + number
    elif name == "psum_scatter":
        out = torch.zeros(x.numel() // N)
        seconds, _ = timed(lambda: dist.reduce_scatter_single(out, x))
        assert out[-1].item() == expected
    else:
        out = torch.zeros_like(x)

        def permute() -> None:
            sent = dist.isend(x, (rank + 1) % N)
            dist.recv(out, (rank - 1) % N)
            sent.wait()

        seconds, _ = timed(permute)
        assert out[-1].item() == (rank - 1) % N + number + 1
    return seconds


def collective(ranks: list[Connection], name: str, nbytes: int) -> Generator:
    for number in itertools.count():
        for told in ranks:
            told.send((name, nbytes, number))
        yield max(told.recv() for told in ranks)


def main() -> None:
    """Start the ranks and answer."""
    context = mp.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        pairs = [context.Pipe() for _ in range(N)]
        processes = [
            context.Process(target=_rank, args=(r, f"{folder}/store", theirs)) for r, (_, theirs) in enumerate(pairs)
        ]
        for process in processes:
            process.start()
        ours: Any = [mine for mine, _ in pairs]
        for told in ours:  # before it answers: to load torch eight times takes both cores for many seconds
            told.recv()
        cases: dict[str, Callable[[], Generator]] = {
            name: partial(collective, ours, *of) for name, of in COLLECTIVES.items()
        }
        serve(cases)
        for told in ours:
            told.send(None)
        for process in processes:
            process.join()


if __name__ == "__main__":
    main()

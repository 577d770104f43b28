"""One process of a program, run alone in this one: which collectives it calls, without the other processes.

Its process group is torch's "fake" one: each collective returns at once, with whatever is in its result. So the numbers
are wrong; which collectives are called, and on how many bytes, does not depend on them.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from course.bridge import loop
from course.bridge.setting import examples
from course.bridge.traffic import Traffic
from course.transformer import cross_entropy

__all__ = ["Alone", "run"]


@dataclass(frozen=True)
class Alone:
    """What process 0 did.

    Attributes:
        model: what it passes to `train`.
        place, parts: which of how many parts of the examples it has.
        sent: for each kind of collective of one forward and backward pass how many there were, and the bytes sent.
    """

    model: torch.nn.Module
    place: int
    parts: int
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        """A line for each kind of collective."""
        return "\n".join(f"{kind}: {count} times, {nbytes:,} bytes" for kind, (count, nbytes) in self.sent.items())


def run(script: str, processes: int = 2) -> Alone:
    """Run process 0 of a program up to its `train`, and one forward and backward pass there.

    Args:
        script: the text; its training is that of `course.bridge.loop`.
        processes: how many there would be.

    Returns:
        Its model and what it sent. DistributedDataParallel cannot train alone: `sent` is empty then.

    Raises:
        ValueError: the script does not call `train`.

    Communication: none.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    kept: list[Alone] = []
    starts = dist.init_process_group

    def start(*args: Any, **kwargs: Any) -> None:
        starts("fake", store=FakeStore(), rank=0, world_size=processes)

    def train(model: torch.nn.Module, place: int = 0, parts: int = 1, *args: Any, **kwargs: Any) -> None:
        with Traffic() as traffic:
            if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
                tokens, targets = (each.chunk(parts)[place] for each in examples(0))
                cross_entropy(model(tokens), targets).backward()
        kept.append(Alone(model, place, parts, traffic.sent))

    try:
        with (
            warnings.catch_warnings(),
            mock.patch.object(dist, "init_process_group", start),
            mock.patch.object(loop, "train", train),
        ):
            warnings.simplefilter("ignore")
            exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    if not kept:
        raise ValueError("the script does not call train(model, rank, processes)")
    return kept[0]

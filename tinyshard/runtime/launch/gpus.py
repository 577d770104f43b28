"""Which GPU each device computes on, and what joins the devices: plain arithmetic, on machines with and without GPUs.

NCCL wants every member of a group on a GPU of its own. Where devices share one, gloo joins them: it carries what it is
given through the memory of the host.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence

from tinyshard.errors import RuntimeStateError, message

# what can join devices that are GPUs
COLLECTIVES = ("nccl", "gloo")


def seats(machines: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    """The GPU of each device: those of a machine are dealt out in turn.

    Args:
        machines: by device, the name of its machine and how many GPUs are there.

    Raises:
        RuntimeStateError: a machine has none.

    Example:
        >>> seats([("a", 2), ("a", 2), ("a", 2), ("b", 1)])
        (0, 1, 0, 0)
    """
    dealt: collections.Counter[str] = collections.Counter()
    made = []
    for device, (machine, gpus) in enumerate(machines):
        if gpus < 1:
            raise RuntimeStateError(
                message(
                    "there is no GPU for every device",
                    got=f"none that torch can use on {machine}, for GPU {device}",
                    rule="platform='gpu' wants a CUDA GPU on every machine; devices of one machine share what is there",
                    try_='ts.init(platform="cpu")',
                )
            )
        made.append(dealt[machine] % gpus)
        dealt[machine] += 1
    return tuple(made)


def collectives(machines: Sequence[tuple[str, int]], asked: str | None = None) -> str:
    """What joins these devices: "nccl" if each has a GPU of its own, else "gloo".

    Args:
        machines: as for `seats`.
        asked: what the user wants, if anything.

    Raises:
        RuntimeStateError: it cannot be had.

    Example:
        >>> collectives([("a", 2), ("a", 2)]), collectives([("a", 2), ("a", 2), ("a", 2)])
        ('nccl', 'gloo')
    """
    places = [(machine, gpu) for (machine, _), gpu in zip(machines, seats(machines), strict=True)]
    can = "nccl" if len(set(places)) == len(places) else "gloo"
    if asked not in (None, *COLLECTIVES) or (asked == "nccl" and can == "gloo"):
        raise RuntimeStateError(
            message(
                f"GPUs cannot be joined by {asked!r} here",
                got=f"{len(places)} devices on {len(set(places))} GPUs",
                rule="'nccl' wants a GPU for each device; 'gloo' joins them in any case; they share no memory",
                try_=f"leave collectives out, or ts.init(devices={len(set(places))}, platform='gpu')",
            )
        )
    return asked or can

"""Which core or GPU each device computes on.

Where there are more devices than cores, each may keep to one core: what it keeps in the core's caches stays there, and
the devices that one signal wakes do not all move to the core of the device that sent it. With eight devices on two
cores a small exchange takes a fourth less time.

NCCL wants every member of a group on a GPU of its own. Where devices share one, gloo joins them: it carries what it is
given through the memory of the host.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence

from tinyshard.core.errors import RuntimeStateError

# what can join devices that are GPUs
COLLECTIVES = ("nccl", "gloo")


def cores_of(count: int, cores: Iterable[int]) -> tuple[int, ...]:
    """By device, the core that it keeps to; empty where each goes wherever there is room.

    That is so unless each core gets as many devices, and several: no core should be idle while others have much to do.
    As it may be that only some of the devices have work, those along any axis of a mesh are dealt out evenly too, which
    goes with powers of two: the digits of an id, to the base of the number of cores, are added up.

    Args:
        count: number of devices.
        cores: that this process may use.

    Example:
        >>> cores_of(8, {4, 5})
        (4, 5, 5, 4, 5, 4, 4, 5)
    """
    there = sorted(cores)
    base = len(there)
    if base < 2 or count <= base or count & (count - 1) or base & (base - 1):
        return ()
    places = range(count.bit_length())
    return tuple(there[sum(device // base**place for place in places) % base] for device in range(count))


def deal(machines: Sequence[tuple[str, int]], asked: str | None = None) -> tuple[str, tuple[int, ...]]:
    """What joins the devices, and the GPU of each: the GPUs of a machine are dealt to its devices in turn.

    Args:
        machines: by device, the name of its machine and how many GPUs are there.
        asked: one of `COLLECTIVES`, if the user wants it; by default "nccl" if each device has a GPU of its own, else
            "gloo".

    Raises:
        RuntimeStateError: a machine has no GPU, or what is asked cannot join the devices.

    Example:
        >>> deal([("a", 2), ("a", 2), ("b", 1)])
        ('nccl', (0, 1, 0))
        >>> deal([("a", 2), ("a", 2), ("a", 2)])
        ('gloo', (0, 1, 0))
    """
    devices_on: collections.Counter[str] = collections.Counter()
    dealt = []
    for device, (machine, gpus) in enumerate(machines):
        if gpus < 1:
            raise RuntimeStateError(
                "there is no GPU for every device",
                got=f"none that torch can use on {machine}, for GPU {device}",
                rule="platform='gpu' wants a CUDA GPU on every machine; devices of one machine share what is there",
                try_='ts.init(platform="cpu")',
            )
        dealt.append((machine, devices_on[machine] % gpus))
        devices_on[machine] += 1
    used = len(set(dealt))
    can = "nccl" if used == len(dealt) else "gloo"
    if asked not in (None, *COLLECTIVES) or (asked == "nccl" and can == "gloo"):
        raise RuntimeStateError(
            f"GPUs cannot be joined by {asked!r} here",
            got=f"{len(dealt)} devices on {used} GPUs",
            rule="'nccl' wants a GPU for each device; 'gloo' joins them in any case; they share no memory",
            try_=f"leave collectives out, or ts.init(devices={used}, platform='gpu')",
        )
    return asked or can, tuple(gpu for _, gpu in dealt)

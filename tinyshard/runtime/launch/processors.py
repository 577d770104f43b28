"""The core or GPU of each device.

With more devices than cores, each may be pinned to one core: its data stays in the core's caches, and
the devices that one signal wakes do not all move to the core of the device that sent it. With eight devices on two
cores a small exchange takes a fourth less time.

A small call keeps the controller busy for as long as several devices. So device 0 makes room: while calls are small it
is on another core, and the system, which schedules the controller, moves that to the emptier one. With eight devices on
two cores a call of one op then takes a seventh less time; other numbers were not measured. For calls that compute for
long each core has as many devices.

NCCL requires that every member of a group has its own GPU. If devices share one, they use gloo, which copies through
the memory of the host.
"""

from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Iterable, Sequence

from tinyshard.core.errors import RuntimeStateError

# collectives for devices that are GPUs
COLLECTIVES = ("nccl", "gloo")
# after so many small calls in a row device 0 makes room for the controller
SMALL_CALLS = 16


def cores_of(count: int, cores: Iterable[int]) -> tuple[int, ...]:
    """By device, the core that it is pinned to; empty if the system schedules the devices.

    Devices are pinned only if each core gets the same number, and several: no core should be idle while another is
    busy. Since only some of the devices may have work, those along any axis of a mesh are distributed evenly too, which
    is possible with powers of two: the digits of an id, to the base of the number of cores, are added.

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


class Pinned:
    """A device's core; the device itself calls it.

    Args:
        core: its own.
        other: where it is while calls are small; None if it stays.
    """

    def __init__(self, core: int, other: int | None = None) -> None:
        self._core, self._other = core, other
        self._small_calls = 0
        _pin(core)

    def before(self, *, is_small: bool) -> None:
        """Be on the right core for a call; `is_small` is that of its program."""
        if is_small:
            self._small_calls += 1
            if self._small_calls == SMALL_CALLS and self._other is not None:
                _pin(self._other)
        else:
            if self._small_calls >= SMALL_CALLS and self._other is not None:
                _pin(self._core)
            self._small_calls = 0


def _pin(core: int) -> None:
    with contextlib.suppress(OSError):  # the core may have been taken offline at this moment
        os.sched_setaffinity(0, {core})


def deal(machines: Sequence[tuple[str, int]], asked: str | None = None) -> tuple[str, tuple[int, ...]]:
    """The collectives of the devices, and the GPU of each: the GPUs of a machine are assigned to its devices in turn.

    Args:
        machines: by device, the name of its machine and its number of GPUs.
        asked: one of `COLLECTIVES`, if the user chooses it; by default "nccl" if each device has its own GPU, else
            "gloo".

    Raises:
        RuntimeStateError: a machine does not have a GPU, or the chosen collectives do not support these devices.

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

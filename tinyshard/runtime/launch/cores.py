"""On which core a device runs, where there are more devices than cores.

What the devices of a core keep in its caches stays there. And the devices that one signal wakes do not all move to the
core of the device that sent it, as they otherwise do: with eight devices on two cores a small exchange takes a fourth
less time.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable


def core_of(device: int, count: int, cores: Iterable[int]) -> int | None:
    """The core that a device keeps to; None where it goes wherever there is room.

    That is so unless each core gets as many devices, and several: no core is to be idle while others have much to do.
    As it may be that only some of the devices have work, those along any axis of a mesh are dealt out evenly too, which
    goes with powers of two.

    Args:
        device: its id, of `count`.
        count: number of devices.
        cores: that this process may use.
    """
    there = sorted(cores)
    if len(there) < 2 or count <= len(there) or not (_is_power_of_two(count) and _is_power_of_two(len(there))):
        return None
    digits, rest = 0, device
    while rest:
        rest, digit = divmod(rest, len(there))
        digits += digit
    return there[digits % len(there)]


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def kept(count: int) -> tuple[int, ...]:
    """By device, the core of this process's that each of `count` is to keep to; empty if they are to keep to none."""
    if sys.platform != "linux":
        return ()
    there = os.sched_getaffinity(0)
    cores = (core_of(device, count, there) for device in range(count))
    return tuple(core for core in cores if core is not None)  # of all, or of none


def keep_to(core: int) -> None:
    """Let this thread, and those that it starts, run on one core only."""
    with contextlib.suppress(OSError):  # the core has been taken away at this very moment
        os.sched_setaffinity(0, {core})

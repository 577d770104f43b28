"""The arguments of `init`: checks of them, and functions that start the devices that they describe."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Callable
from platform import machine
from typing import TYPE_CHECKING, Any

import torch

from tinyshard.core import config
from tinyshard.core.errors import RuntimeStateError
from tinyshard.runtime.launch import forkserver, processors

if TYPE_CHECKING:
    from tinyshard.runtime.controller.pool import ProcessPool
    from tinyshard.runtime.local import LocalRuntime

RUNTIMES = ("process", "local")
PLATFORMS = ("cpu", "gpu")
COLLECTIVES = ("shared", "gloo")  # of devices on one machine's CPUs
DEFAULT_DEVICES = 8
_UNITS = {"B": 1, "kB": 10**3, "KiB": 1 << 10, "MB": 10**6, "MiB": 1 << 20, "GB": 10**9, "GiB": 1 << 30, "TB": 10**12}
MOST_WORKERS = 1024  # on one machine: each takes tens of MiB, and 64 GiB of the address space of every process


def count_of(devices: int | None) -> int | None:
    """The number of devices: the argument, TINYSHARD_DEVICES, or None. Raises RuntimeStateError for an invalid one."""
    given: Any = devices if devices is not None else os.environ.get("TINYSHARD_DEVICES") or None
    if given is None:
        return None
    try:
        count = int(given) if int(given) == float(given) else 0
    except (TypeError, ValueError, OverflowError):  # of inf, or of a number that no float has
        count = 0
    if count < 1 or isinstance(devices, bool):
        got = f"{given!r}" if devices is not None else f"the environment variable TINYSHARD_DEVICES={given}"
        raise RuntimeStateError("the number of devices is a positive int", got=got, try_="ts.init(devices=8)")
    return count


def limit_of(memory_per_device: int | str | None) -> int | None:
    """The largest number of bytes of a device: the argument, TINYSHARD_MEMORY_PER_DEVICE, or None for no limit.

    Raises:
        RuntimeStateError: an invalid size.

    Example:
        >>> limit_of("16 MiB"), limit_of("1.5 kB"), limit_of(4096)
        (16777216, 1500, 4096)
    """
    name = "TINYSHARD_MEMORY_PER_DEVICE"
    given: Any = memory_per_device if memory_per_device is not None else os.environ.get(name) or None
    if given is None:
        return None
    by_name = {name.lower(): size for name, size in _UNITS.items()}
    text = re.fullmatch(r"\s*([\d.]+)\s*([a-z]*)\s*", str(given).lower())
    try:
        nbytes = int(float(text[1]) * by_name[text[2] or "b"]) if text and not isinstance(given, bool) else 0
    except (KeyError, ValueError, OverflowError):
        nbytes = 0
    if nbytes < 1:
        got = repr(given) if memory_per_device is not None else f"the environment variable {name}={given}"
        rule = f"bytes as an int, or a number and a unit: {', '.join(_UNITS)}"
        problem = "the memory of a device is a positive number of bytes"
        raise RuntimeStateError(problem, got=got, rule=rule, try_='ts.init(memory_per_device="16 MiB")')
    return nbytes


def collectives_for(given: str | None, count: int) -> str:
    """The collectives for this number of processes: those that are asked for, or the fastest that work here."""
    from tinyshard.runtime.shm import probe

    reason = probe.why_not(count) if given != "gloo" else ""
    if not reason:
        return given or "shared"
    if not given:
        words = f"the devices exchange data over gloo, which is slower, for they cannot share memory here: {reason}"
        warnings.warn(f"{words}. TINYSHARD_COLLECTIVES=gloo chooses gloo without this warning", stacklevel=3)
        return "gloo"
    raise RuntimeStateError(
        "the workers cannot share memory here",
        got=f"collectives='shared' on {sys.platform}, {machine()}",
        rule=reason,
        try_='ts.init(collectives="gloo")',
    )


def check_one_of(what: str, value: str, legal: tuple[str, ...]) -> None:
    """Raise RuntimeStateError for a value that is not one of these."""
    if value not in legal:
        raise RuntimeStateError(f"there is no {what} {value!r}", rule=f"{what} is one of {', '.join(map(repr, legal))}")


# ---- devices that can be started: the arguments are checked now, and the devices started by a call ------------------


def here(
    kind: str, devices: int | None, platform: str, collectives: str | None, limit_nbytes: int | None
) -> Callable[[], ProcessPool | LocalRuntime]:
    """A function that starts devices on this machine."""
    count, asked = devices or DEFAULT_DEVICES, collectives or os.environ.get("TINYSHARD_COLLECTIVES")
    if platform == "cpu":
        check_one_of("collectives", asked or "gloo", COLLECTIVES)
    if kind == "local":
        from tinyshard.runtime.local import LocalRuntime

        return lambda: LocalRuntime(count, limit_nbytes)
    from tinyshard.runtime.controller.pool import ProcessPool
    from tinyshard.runtime.launch.local import Forked

    if platform == "gpu":
        there = torch.cuda.device_count()
        joined, gpus = processors.deal([("this machine", there)] * (devices or there or 1), collectives)
        return lambda: ProcessPool(platform, Forked(len(gpus), joined, gpus, limit_nbytes))
    if count > MOST_WORKERS:
        raise RuntimeStateError(
            "so many devices are not started on one machine",
            got=f"{count} devices",
            rule=f"each is a process with a share of the shared memory: at most {MOST_WORKERS}",
            try_='runtime="local", which has all in this process, or an AbstractMesh, to plan without devices',
        )
    joined = collectives_for(asked, count)
    return lambda: ProcessPool(platform, Forked(count, joined, limit_nbytes=limit_nbytes))


def on_hosts(
    address: str, devices: int | None, platform: str, collectives: str | None, limit_nbytes: int | None
) -> Callable[[], ProcessPool]:
    """As `here`, on the machines whose workers connect to this address."""
    from tinyshard.runtime.controller.pool import ProcessPool
    from tinyshard.runtime.launch import hosts
    from tinyshard.runtime.launch.remote_workers import RemoteWorkers, gather

    possible = processors.COLLECTIVES if platform == "gpu" else ("gloo",)
    check_one_of("collectives between machines", collectives or "gloo", possible)
    agents = gather(hosts.join(address), devices, config.read("hosts_timeout_s"))
    between, gpus = "gloo", tuple[int, ...]()
    if platform == "gpu":
        between, gpus = processors.deal([(agent.host, agent.facts["gpus"]) for agent in agents], collectives)

    def start() -> ProcessPool:
        forkserver.stop()  # no worker is forked here
        hosts.leave(but=address)
        return ProcessPool(platform, RemoteWorkers(agents, platform, between, gpus, limit_nbytes))

    return start

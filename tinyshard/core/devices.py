"""Devices: the slots that shards live in. On CPUs each is one worker process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tinyshard.core.errors import MeshError


@dataclass(frozen=True, order=True)
class Device:
    """One device: a worker process, or a GPU that a worker process drives. Listed by `ts.devices()`.

    Args:
        id: its number, which pictures show.
        platform: "cpu" or "gpu".

    Communication: none.

    In torch: a `torch.device` says on what this process computes; `device=` of torch's functions takes those alone.
    `ts.device_put(torch.randn(3), device)` puts a value on one of these.

    Example:
        >>> Device(3)
        CPU 3
    """

    id: int
    platform: str = "cpu"
    # the process and the machine of the worker with this id; `runtime.lifecycle`, which knows them, puts these here
    _worker_pid: ClassVar[Callable[[int], int | None]]
    _worker_host: ClassVar[Callable[[int], str | None]]

    @property
    def process_index(self) -> int:
        """Number of the worker process that owns it."""
        return self.id

    @property
    def pid(self) -> int | None:
        """The worker's process id; None on the local runtime and on abstract devices, which have no process."""
        return Device._worker_pid(self.id)

    @property
    def host(self) -> str:
        """The machine that its worker runs on: the address from which it came, or "localhost" for this one."""
        return Device._worker_host(self.id) or "localhost"

    def __repr__(self) -> str:
        return f"{self.platform.upper()} {self.id}"


def check_distinct(devices: Sequence[Device], what: str) -> None:
    """Raise MeshError if a device stands twice in `devices`."""
    ids = [d.id for d in devices]
    twice = sorted({i for i in ids if ids.count(i) > 1}) if len(set(ids)) < len(ids) else []
    if twice:
        raise MeshError(
            f"{what} names a device twice",
            got=f"device ids {ids}",
            rule=f"each device appears once; {twice} appear more often",
            try_="ts.devices() lists the distinct devices",
        )

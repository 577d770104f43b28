"""Devices, which hold shards. On CPUs each is one worker process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, order=True)
class Device:
    """One device: a worker process, or a GPU that a worker process drives. Listed by `ts.devices()`.

    Args:
        id: its number, shown in pictures.
        platform: "cpu" or "gpu".

    Communication: none.

    In torch: a `torch.device` says on what this process computes; `device=` of torch's functions takes only those.
    `ts.device_put(torch.randn(3), device)` puts a value on one of these.

    Example:
        >>> Device(3)
        CPU 3
    """

    id: int
    platform: str = "cpu"
    # the current runtime if it has this device, else None; set by `runtime.lifecycle`
    _runtime_of: ClassVar[Callable[[Device], Any]]

    @property
    def process_index(self) -> int:
        """Number of the worker process that owns it."""
        return self.id

    @property
    def pid(self) -> int | None:
        """The worker's process id; None on the local runtime and on abstract devices, which have no process."""
        runtime = Device._runtime_of(self)
        return None if runtime is None else runtime.pid(self.id)

    @property
    def host(self) -> str:
        """The machine that its worker runs on: the address from which it connected, or "localhost" for this one."""
        runtime = Device._runtime_of(self)
        return (runtime and runtime.host(self.id)) or "localhost"

    def memory_stats(self) -> dict[str, int] | None:
        """Bytes that it holds now (`bytes_in_use`), has held at most (`peak_bytes_in_use`), may hold (`bytes_limit`).

        Waits for all dispatched calls. Counts the blocks of Arrays and the values of running programs, each
        storage once for all its views, but not the temporary memory of an op.

        Returns:
            A dict of ints; None where `ts.init(memory_per_device=...)` sets no limit, and for abstract devices.

        Communication: a message to the device and its answer.

        In JAX: the same, of the device's whole allocator; None on CPUs.

        Example:
            >>> import tinyshard as ts, torch
            >>> ts.init(devices=2, runtime="local", memory_per_device="1 MiB")
            >>> x = ts.device_put(torch.zeros(1024), ts.devices()[1]) + 1
            >>> ts.devices()[1].memory_stats()
            {'bytes_in_use': 4096, 'peak_bytes_in_use': 8192, 'bytes_limit': 1048576}
            >>> ts.init(devices=2, runtime="local")
        """
        runtime = Device._runtime_of(self)
        return None if runtime is None else runtime.memory_stats(self.id)

    def __repr__(self) -> str:
        return f"{self.platform.upper()} {self.id}"

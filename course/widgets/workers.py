"""What the operating system and tinyshard say about the devices at this moment, as plain data."""

from __future__ import annotations

import os
from dataclasses import dataclass

import psutil

import tinyshard as ts

__all__ = ["RUNS", "STANDS_STILL", "DeviceNow", "PoolNow", "pool_now"]

RUNS, STANDS_STILL, IS_GONE, HAS_NO_PROCESS = "lives", "stopped", "gone", "no process"


@dataclass(frozen=True, slots=True)
class DeviceNow:
    """One device, as it is at one moment.

    Attributes:
        name: "CPU 3".
        state: "lives", "stopped", "gone", or "no process" on the local runtime.
        pid: of its worker; None where there is none.
        process_nbytes: memory of the worker's process, in bytes, including shared memory; None if there is no
            process.
        array_nbytes: bytes of live Arrays that it keeps, or kept when it died.
        ending: how it ended, in tinyshard's words; empty while it lives.
    """

    name: str
    state: str
    pid: int | None
    process_nbytes: int | None
    array_nbytes: int
    ending: str = ""


@dataclass(frozen=True, slots=True)
class PoolNow:
    """The kernel and all devices, as they are at one moment.

    Attributes:
        kernel_pid: the process that gives the orders.
        devices: ids ascending.
        room_nbytes: the bytes of a full bar; None: as many as the fullest device keeps.
    """

    kernel_pid: int
    devices: tuple[DeviceNow, ...]
    room_nbytes: int | None = None


def pool_now(room_nbytes: int | None = None) -> PoolNow:
    """Look at all devices.

    Args:
        room_nbytes: the bytes of a full bar.

    Returns:
        Each device's state, pid and memory. Devices that were not started are started.

    Communication: none.

    Example:
        >>> ts.init(devices=2, runtime="local")
        >>> [device.name for device in pool_now().devices]
        ['CPU 0', 'CPU 1']
    """
    kept = ts.live_arrays().nbytes
    devices = tuple(_device_now(device, kept.get(device, 0)) for device in ts.devices())
    return PoolNow(os.getpid(), devices, room_nbytes)


def _device_now(device: ts.Device, array_nbytes: int) -> DeviceNow:
    try:
        pid = device.pid
    except ts.DeviceLostError as error:
        ending = str(error).splitlines()[0]
        return DeviceNow(repr(device), IS_GONE, None, None, array_nbytes, ending)
    if pid is None:
        return DeviceNow(repr(device), HAS_NO_PROCESS, None, None, array_nbytes)
    try:
        process = psutil.Process(pid)
        status, process_nbytes = process.status(), process.memory_info().rss
    except psutil.NoSuchProcess:
        status = psutil.STATUS_ZOMBIE
    if status in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD):  # it has ended, but the controller does not know yet
        return DeviceNow(repr(device), IS_GONE, pid, None, array_nbytes)
    state = STANDS_STILL if status == psutil.STATUS_STOPPED else RUNS
    return DeviceNow(repr(device), state, pid, process_nbytes, array_nbytes)

"""Starts, lists and ends the devices."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from tinyshard.core.devices import Device
from tinyshard.core.errors import RuntimeStateError
from tinyshard.core.thread_state import outside_trace
from tinyshard.runtime import options
from tinyshard.runtime.forks import open_standard_descriptors
from tinyshard.runtime.launch import forkserver
from tinyshard.runtime.options import PLATFORMS, RUNTIMES, check_one_of, count_of, limit_of
from tinyshard.runtime.worker.products import LIBRARIES

if TYPE_CHECKING:
    from tinyshard.runtime.controller.pool import ProcessPool
    from tinyshard.runtime.local import LocalRuntime

_runtime: ProcessPool | LocalRuntime | None = None
_at_start: list[Callable[[], None]] = []
_choosing = threading.RLock()  # two threads that use the devices first start one runtime


def init(
    devices: int | None = None,
    platform: str | None = None,
    runtime: str | None = None,
    collectives: str | None = None,
    hosts: str | None = None,
    memory_per_device: int | str | None = None,
) -> None:
    """Start the devices, or restart them; existing arrays are lost. The first use calls it with the defaults.

    Args:
        devices: their number; by default the environment variable TINYSHARD_DEVICES, or 8; with hosts, all their
            workers; on GPUs, one for each; more devices share GPUs.
        platform: "cpu", or "gpu", CUDA; by default TINYSHARD_PLATFORM, or "cpu". On GPUs cuDNN computes float32 in
            float32, not in TF32; an index out of range ends the device that gets it.
        runtime: "process", one worker process per device, or "local", all in this process, in lockstep; by default
            TINYSHARD_RUNTIME, or "process" ("local" on Windows).
        collectives: how the worker processes communicate: "shared", memory of this host, or "gloo"; by default
            TINYSHARD_COLLECTIVES, or "shared" if it works, else "gloo" with a warning. With hosts: "gloo".
            With "shared", and both numbers powers of two, devices that outnumber the cores are pinned to one each;
            device 0 to another one while calls are small.
            GPUs: "nccl" if each device has its own, else "gloo", through the memory of the host.
        hosts: "HOST:PORT", an address of this machine, to take workers of other machines as the devices: torchrun or
            srun starts them there, by `-m tinyshard.worker --controller HOST:PORT` (see `tinyshard.worker`, also for
            the secret by which they are authenticated). It waits for them, prints the command if none connects, and
            gives up after the flag "hosts_timeout_s": then the existing devices stay. By default TINYSHARD_HOSTS, or
            none: all devices on this machine.
        memory_per_device: the limit of each device's memory, in bytes or as "16 MiB" or "2 GB": the blocks of Arrays,
            and the values of a running program, but not the temporary memory of an op. Over it an op, a collective or
            a placement fails with ts.errors.OutOfMemoryError, only on that device, raised where the value is read.
            By default TINYSHARD_MEMORY_PER_DEVICE, or no limit. `Device.memory_stats()` counts if there is one.

    Raises:
        RuntimeStateError: an unsupported platform, runtime, collectives or size of memory, a device count below 1, or
            more than 1024 worker processes on this machine; or not all workers of other machines have connected: the
            message says which have.

    Communication: none; it returns before the workers are up, and the first read of a value waits. With hosts, TCP
        to their workers, after each has proved that it knows the secret.

    In JAX: devices start at first use, their number set by `jax_num_cpu_devices`, or formerly XLA_FLAGS. The memory of
        CPU devices is not limited.

    Example:
        >>> init(devices=2, runtime="local")
        >>> devices()
        [CPU 0, CPU 1]
    """
    global _runtime
    kind = runtime or os.environ.get("TINYSHARD_RUNTIME") or ("local" if sys.platform == "win32" else "process")
    where = platform or (os.environ.get("TINYSHARD_PLATFORM") if kind == "process" else None) or "cpu"
    check_one_of("runtime", kind, RUNTIMES)
    check_one_of("platform", where, PLATFORMS)
    if hosts is not None and kind == "local":
        raise RuntimeStateError("the local runtime has no workers on other machines", try_="leave hosts out")
    address = (hosts or os.environ.get("TINYSHARD_HOSTS")) if kind == "process" else None
    wanted = count_of(devices)
    if kind == "local":
        check_one_of("platform of the local runtime", where, ("cpu",))
    limit_nbytes = limit_of(memory_per_device)
    check_one_of("TINYSHARD_PRODUCTS", os.environ.get("TINYSHARD_PRODUCTS") or LIBRARIES[0], LIBRARIES)
    start: Callable[[], ProcessPool | LocalRuntime]
    if kind == "process":
        open_standard_descriptors()
    with outside_trace():  # a traced function may be the first to use the devices
        with _choosing:
            if address:
                start = options.on_hosts(address, wanted, where, collectives, limit_nbytes)
            else:
                start = options.here(kind, wanted, where, collectives, limit_nbytes)
            _end_runtime()  # only now: if the preparation fails, the existing devices stay
            _runtime = start()
        for prepare in _at_start:
            prepare()


def at_start(function: Callable[[], None]) -> Callable[[], None]:
    """Call a function whenever devices have been started, while their workers get ready."""
    _at_start.append(function)
    return function


def shutdown() -> None:
    """End the devices, and the processes that they were forked from, also on other machines: no process is left.

    Using an Array of these devices is then an error; the next use of devices starts new ones.

    Communication: none.

    Example:
        >>> init(devices=2, runtime="local")
        >>> shutdown()
    """
    with _choosing:
        _end_runtime()
        forkserver.stop()
        if "tinyshard.runtime.launch.hosts" in sys.modules:
            sys.modules["tinyshard.runtime.launch.hosts"].leave()


def _end_runtime() -> None:
    """End the devices; the fork server stays, so that the next ones start at once."""
    global _runtime
    ending, _runtime = _runtime, None
    if ending is not None:
        ending.shutdown()


def running() -> ProcessPool | LocalRuntime | None:
    """The current runtime; None if there is none. Does not start one."""
    return _runtime


def current() -> ProcessPool | LocalRuntime:
    """The current runtime; started with the defaults if there is none."""
    runtime = _runtime
    if runtime is None:
        with _choosing:
            if _runtime is None:
                init()
            runtime = _runtime
    assert runtime is not None
    return runtime


def _start_afresh() -> None:
    """In a process that user code has forked from this one: the devices belong to the parent."""
    global _runtime, _choosing
    _choosing = threading.RLock()
    if _runtime is not None and _runtime.kind == "process":
        _runtime = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)


def devices() -> list[Device]:
    """All devices, ids ascending. Starts them if necessary.

    Returns:
        A list of `Device`s.

    Raises:
        RuntimeStateError: they cannot be started; as `init`.

    Communication: none.

    In JAX: of one backend, which may be named.

    Example:
        >>> init(devices=2, runtime="local")
        >>> devices()[0].id
        0
    """
    return list(current().devices)


def local_devices() -> list[Device]:
    """The devices that this process drives: all of them, on whichever machine they are.

    Returns:
        A list of `Device`s, as `devices`.

    Raises:
        RuntimeStateError: as `devices`.

    Communication: none.

    In JAX: each process of several drives only its own devices.

    Example:
        >>> init(devices=2, runtime="local")
        >>> local_devices()
        [CPU 0, CPU 1]
    """
    return devices()


def device_count() -> int:
    """The number of devices. Starts them if necessary.

    Returns:
        An int.

    Raises:
        RuntimeStateError: as `devices`.

    Communication: none.

    Example:
        >>> init(devices=2, runtime="local")
        >>> device_count()
        2
    """
    return len(current().devices)


def _runtime_of(device: Device) -> ProcessPool | LocalRuntime | None:
    """The current runtime if it has this device, which may be an abstract one."""
    return _runtime if _runtime is not None and device.id < len(_runtime.devices) else None


Device._runtime_of = staticmethod(_runtime_of)

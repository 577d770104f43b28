"""Which devices there are: starting them, listing them, ending them."""

from __future__ import annotations

import os
import sys
import threading
from platform import machine
from typing import TYPE_CHECKING, Any

from tinyshard.devices import Device
from tinyshard.errors import RuntimeStateError, message

if TYPE_CHECKING:
    from tinyshard.runtime.local import LocalRuntime
    from tinyshard.runtime.pool import ProcessPool

RUNTIMES = ("process", "local")
PLATFORMS = ("cpu",)
COLLECTIVES = ("shared", "gloo")
DEFAULT_DEVICES = 8

_runtime: ProcessPool | LocalRuntime | None = None
_choosing = threading.RLock()  # two threads that use the devices first start one runtime


def init(
    devices: int | None = None, platform: str | None = None, runtime: str | None = None, collectives: str | None = None
) -> None:
    """Start the devices, or start them afresh; arrays made before are gone. First use calls it with the defaults.

    Args:
        devices: how many; by default the environment variable TINYSHARD_DEVICES, or 8.
        platform: "cpu"; by default TINYSHARD_PLATFORM, or "cpu".
        runtime: "process", one worker process a device, or "local", all in this process, in lockstep; by default
            TINYSHARD_RUNTIME, or "process" ("local" on Windows).
        collectives: what joins the worker processes: "shared", memory of this host, or "gloo"; by default
            TINYSHARD_COLLECTIVES, or "shared" where it can be had (Linux on x86-64), else "gloo".

    Raises:
        RuntimeStateError: no such platform, runtime or collectives here, or a device count below 1.

    Communication: none; it returns before the workers are up, and whoever first needs a value waits.

    In JAX: devices are there on import, as many as XLA_FLAGS said.

    Example:
        >>> init(devices=2, runtime="local")
        >>> devices()
        [CPU 0, CPU 1]
    """
    global _runtime
    count = _count(devices)
    kind = runtime or os.environ.get("TINYSHARD_RUNTIME") or ("local" if sys.platform == "win32" else "process")
    where = platform or os.environ.get("TINYSHARD_PLATFORM") or "cpu"
    _check_one_of("runtime", kind, RUNTIMES)
    _check_one_of("platform", where, PLATFORMS)
    joined = _collectives(collectives or os.environ.get("TINYSHARD_COLLECTIVES"), count)
    with _choosing:
        _end_runtime()
        if kind == "local":
            from tinyshard.runtime.local import LocalRuntime

            _runtime = LocalRuntime(count, where)
        else:
            from tinyshard.runtime.pool import ProcessPool

            _runtime = ProcessPool(count, where, joined)
    _load_rules()


def _load_rules() -> None:
    """Load what the first op needs (a second of imports) now, while the workers start, so that no op waits for it."""
    from tinyshard import rules

    rules.warm_up()


def _count(devices: int | None) -> int:
    given: Any = devices if devices is not None else os.environ.get("TINYSHARD_DEVICES") or DEFAULT_DEVICES
    try:
        count = int(given)
    except (TypeError, ValueError):
        count = 0
    if count < 1 or isinstance(devices, bool) or count != float(given):
        raise RuntimeStateError(
            message("the number of devices is a positive int", got=f"{given!r}", try_="ts.init(devices=8)")
        )
    return count


def _collectives(given: str | None, count: int) -> str:
    """What joins so many processes."""
    from tinyshard.runtime import arena

    name = given or ("shared" if arena.is_possible(count) else "gloo")
    _check_one_of("collectives", name, COLLECTIVES)
    if name == "shared" and not arena.is_possible(count):
        raise RuntimeStateError(
            message(
                "the workers cannot share memory here",
                got=f"collectives='shared' on {sys.platform}, {machine()}",
                rule="it needs Linux on x86-64, where stores keep their order, and address space without a limit",
                try_='ts.init(collectives="gloo")',
            )
        )
    return name


def _check_one_of(what: str, value: str, legal: tuple[str, ...]) -> None:
    if value not in legal:
        raise RuntimeStateError(
            message(f"there is no {what} {value!r}", rule=f"{what} is one of {', '.join(map(repr, legal))}")
        )


def shutdown() -> None:
    """End the devices, and the helper process that they were forked from: no process is left.

    Arrays that lived there say so when touched; the next use starts fresh devices.

    Communication: none.
    """
    from tinyshard.runtime import zygote

    with _choosing:
        _end_runtime()
        zygote.stop()


def _end_runtime() -> None:
    """End the devices; the helper stays warm, so that the next ones start at once."""
    global _runtime
    ending, _runtime = _runtime, None
    if ending is not None:
        ending.shutdown()


def current() -> ProcessPool | LocalRuntime:
    """The runtime in use; started with the defaults if there is none."""
    runtime = _runtime
    if runtime is None:
        with _choosing:
            if _runtime is None:
                init()
            runtime = _runtime
    assert runtime is not None
    return runtime


def _start_afresh() -> None:
    """In a process that user code has forked from this one: the devices are the other process's."""
    global _runtime, _choosing
    _choosing = threading.RLock()
    if _runtime is not None and _runtime.kind == "process":
        _runtime = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)


def devices() -> list[Device]:
    """All devices, ids ascending. Starts them if they are not there.

    Communication: none.

    Example:
        >>> init(devices=2, runtime="local")
        >>> devices()[0].id
        0
    """
    return list(current().devices)


def local_devices() -> list[Device]:
    """The devices on this machine: today all of them."""
    return devices()


def device_count() -> int:
    """How many devices there are."""
    return len(current().devices)


def worker_pid(device: int) -> int | None:
    """The process id of a device's worker, or None where it has no process."""
    if _runtime is None or device >= len(_runtime.devices):
        return None
    return _runtime.pid(device)

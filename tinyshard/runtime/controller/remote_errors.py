"""The error that the user's cell raises: one for all devices."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping

from tinyshard.core.errors import (
    CancelledError,
    DeviceLostError,
    NotANumberError,
    OutOfMemoryError,
    RemoteError,
    RuntimeStateError,
)
from tinyshard.runtime.controller.refs import Buffers, alive_text
from tinyshard.runtime.failure import GPU_FAILED, NO_MEMORY, Failure, is_out_of_memory


def ending(status: int | None) -> str:
    """How a process ended, as text, by its wait status; None if that is not known."""
    if status is None:
        return "it ended together with the helper process that started it"
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        names = {int(one): f" ({one.name})" for one in signal.Signals}  # real-time signals have none
        return f"killed by signal {number}{names.get(number, '')}"
    code = os.WEXITSTATUS(status)
    if code == NO_MEMORY:
        return f"it had no memory for its part of an exchange, and ended with exit code {code}"
    if code == GPU_FAILED:
        return (
            f"its GPU computes nothing after such an error as an index out of range, and it ended with exit code {code}"
        )
    if code == 0:  # a worker exits with 0 when its sockets are closed, as at the end of its controller
        return "its connection to the controller ended, and so it did, with exit code 0"
    return f"its process ended with exit code {code}"


def remote_error(failures: Mapping[int, tuple[Failure, object]], platform: str) -> RemoteError:
    """One error for all devices that failed, each with the line that dispatched the call; equal failures are merged.

    Returns:
        DeviceLostError if one of the devices is lost, CancelledError if all were cancelled, else RemoteError.
    """
    for failure, _ in failures.values():
        if failure.lost:
            return lost_error(failure.device, failure.lost, platform)
    failures = {d: f for d, f in failures.items() if not f[0].interrupt} or failures
    failure, where = next(iter(failures.values()))
    if failure.interrupt:
        return CancelledError(
            f"the value was not computed: cancelled by the interrupt at {failure.interrupt}",
            got=f"what was dispatched by {where}",
            rule="an interrupt cancels what is queued and not finished; arrays finished before stay valid",
            try_="compute it again",
        )
    groups: dict[tuple[Failure, object], set[int]] = {}
    for pair in failures.values():
        groups.setdefault(pair, set()).add(pair[0].device)
    parts = []
    for (failure, where), ids in groups.items():
        lines = (failure.call + "\n" + failure.frames).strip().replace("\n", "\n    ")
        op = failure.call.partition("(")[0]
        names = f"{platform.upper()} {','.join(map(str, sorted(ids)))}"
        error = failure.error.replace("\n", "\n  ")
        called = f"\n  called in {failure.line}" if failure.line not in (None, where) else ""
        parts.append(
            f"{op} failed on {names}\n  {error}{called}\n  dispatched by {where}\n  on the device:\n    {lines}"
        )
    kind = NotANumberError if failure.error.startswith(FloatingPointError.__name__) else RemoteError
    return kind("\n".join(parts))


def unknown_op(op: str, where: object) -> RuntimeStateError:
    """The error for an op that workers do not have, called in the user's line `where`."""
    return RuntimeStateError(
        "the devices do not know an op",
        got=f"{op} in {where}",
        rule="workers know the ops that torch itself brings; an op registered in this process is unknown to them",
        try_='ts.init(runtime="local"), where all devices are in this process; or write it as torch ops',
    )


def error_of(failures: Mapping[int, tuple[Failure, object]], platform: str, buffers: Buffers) -> RemoteError:
    """As `remote_error`; if memory ran out, an OutOfMemoryError that lists the values on the device."""
    error = remote_error(failures, platform)
    full = next((failure.device for failure, _ in failures.values() if is_out_of_memory(failure)), None)
    if full is None or type(error) is not RemoteError:
        return error
    held = [buffer for buffer in buffers.held_by(full) if full not in buffer.run.failures]
    alive = alive_text(held).replace("\n", "\n    ")
    return OutOfMemoryError(
        f"{error}\n  alive on {platform.upper()} {full}: {alive}\n"
        "  try:  del what you no longer need (ts.live_arrays() lists it), or cut the array over more devices"
    )


def lost_error(device: int, lost: str, platform: str) -> DeviceLostError:
    """The error for a device whose process has ended."""
    advice = ""
    if "SIGKILL" in lost:
        advice = "; the system sends SIGKILL when memory runs out: ts.live_arrays() lists what is alive"
    elif "no memory" in lost:
        advice = "; ts.live_arrays() lists what is alive"
    return DeviceLostError(
        f"{platform.upper()} {device} is gone: {lost}",
        rule="values that lived on it, and all that waits for it, are lost; other devices keep their own",
        try_="ts.init() starts a fresh pool" + advice,
    )


def unusable(problem: str = "the pool cannot be used any more", got: str = "") -> RuntimeStateError:
    """The error for a pool that has ended or is broken."""
    return RuntimeStateError(
        problem,
        got=got,
        rule="values live in the workers and end with them",
        try_="ts.init() starts a fresh pool; make the arrays again there",
    )


def no_room(got: str) -> OutOfMemoryError:
    """The error for a value for which this process has no memory."""
    return OutOfMemoryError(
        "this process has no memory for the values of an array",
        got=got,
        rule="it shares the machine's memory with the devices; nothing was placed or fetched",
        try_="del what you no longer need (ts.live_arrays() lists it), or move less at a time",
    )

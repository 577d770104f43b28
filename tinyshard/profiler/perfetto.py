"""A trace as Chrome's trace events, the JSON that Perfetto opens.

One process is the controller, another the devices, with a thread for each. A call of a program encloses its steps, an
exchange its wait; an arrow goes from the controller's dispatch to the calls on the devices. Times are in microseconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from tinyshard.profiler.events import Events

_CONTROLLER, _DEVICES = 1, 2  # processes


def trace_events(events: Events) -> dict[str, Any]:
    """The JSON object format of Chrome's trace events."""
    entries = [*_names(events), *_of_controller(events), *_of_devices(events)]
    return {"traceEvents": entries, "displayTimeUnit": "ms", "otherData": {"notes": "; ".join(events.notes)}}


def written(data: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Write it to a file."""
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file, separators=(",", ":"))


def _names(events: Events) -> Iterator[dict[str, Any]]:
    def named(kind: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
        return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}

    yield named("process_name", _CONTROLLER, 0, name="controller")
    yield named("process_sort_index", _CONTROLLER, 0, sort_index=0)
    yield named("thread_name", _CONTROLLER, 0, name="controller")
    yield named("process_name", _DEVICES, 0, name="devices")
    yield named("process_sort_index", _DEVICES, 0, sort_index=1)
    for device in events.devices:
        yield named("thread_name", _DEVICES, device, name=events.name(device))
        yield named("thread_sort_index", _DEVICES, device, sort_index=device)


def _complete(pid: int, tid: int, category: str, name: str, start_ns: int, end_ns: int, **args: Any) -> dict[str, Any]:
    at = {"ts": start_ns / 1e3, "dur": max(0, end_ns - start_ns) / 1e3}
    return {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, **at, "args": args}


def _arrow(phase: str, pid: int, tid: int, call: int, ns: int) -> dict[str, Any]:
    ends = {"bp": "e"} if phase == "f" else {}  # it ends at the slice around it
    return {"ph": phase, "name": "call", "cat": "call", "id": call, "pid": pid, "tid": tid, "ts": ns / 1e3, **ends}


def _of_controller(events: Events) -> Iterator[dict[str, Any]]:
    called = {call.number for call in events.calls}
    for span in events.spans:
        name = f"{span.kind} {span.name}".strip()
        yield _complete(_CONTROLLER, 0, span.kind, name, span.start_ns, span.end_ns, line=str(span.where))
        if span.call in called:
            yield _arrow("s", _CONTROLLER, 0, span.call, span.start_ns)


def _of_devices(events: Events) -> Iterator[dict[str, Any]]:
    dispatched = {span.call for span in events.spans}
    for call in events.calls:
        yield _complete(_DEVICES, call.device, "call", call.name, call.start_ns, call.end_ns, line=call.line)
        if call.number in dispatched:
            yield _arrow("f", _DEVICES, call.device, call.number, call.start_ns)
    for step in events.steps:
        kind = "exchange" if step.is_exchange else "compute"
        args = {"line": step.line, "flops": step.flops, "bytes": step.nbytes}
        yield _complete(_DEVICES, step.device, kind, step.op, step.start_ns, step.end_ns, **args)
        if step.wait_ns:
            end_ns = step.start_ns + step.wait_ns
            yield _complete(_DEVICES, step.device, "wait", "wait", step.start_ns, end_ns)

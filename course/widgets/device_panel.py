"""Lesson 00: a lamp for each device, its pid and its memory; stop it, let it go on, kill it, start afresh."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import psutil

import tinyshard as ts
from course.widgets.base import Choice, Control, Explorer, Press
from course.widgets.card import INK, MUTED, Piece, Sheet, beside, paragraph, stack
from course.widgets.workers import HAS_NO_PROCESS, IS_GONE, RUNS, STANDS_STILL, DeviceNow, PoolNow, pool_now
from tinyshard.draw.cell import number

__all__ = ["describe", "device_panel", "draw"]

HEADING = "The devices: state, process, and bytes of Arrays"

COLUMNS = 4
WIDTH, BAR_HEIGHT = 148.0, 8.0  # px
MIB = 2**20
# the system needs a moment to carry out a signal
CARRIED_OUT_S = 5.0

# Okabe and Ito's colours, which colour-blind readers tell apart; each lamp also has a shape and a word of its own.
_FILLS = {RUNS: "#009E73", STANDS_STILL: "#E69F00", IS_GONE: "none", HAS_NO_PROCESS: "#56B4E9"}


def draw(now: PoolNow) -> Sheet:
    """The panel: a lamp, the pid, the memory of the process, and a bar for the bytes of Arrays of each device.

    Args:
        now: what was found.

    Returns:
        The sheet.

    Communication: none.

    Example:
        >>> draw(PoolNow(1, (DeviceNow("CPU 0", "lives", 7, 150 * MIB, 0),))).piece.svg.count("<circle")
        1
    """
    most = now.room_nbytes or max([device.array_nbytes for device in now.devices] + [1])
    cells = [_cell(device, most) for device in now.devices]
    rows = [beside(cells[k : k + COLUMNS], gap=16) for k in range(0, len(cells), COLUMNS)]
    lines = [f"the kernel is pid {now.kernel_pid}; it gives orders to {len(cells)} devices"]
    if now.room_nbytes:
        lines.append(f"a full bar is {now.room_nbytes / MIB:g} MiB of Arrays")
    heading = paragraph(lines, fill=MUTED)
    endings = [device.ending for device in now.devices if device.ending]
    return Sheet(_title(now), stack([heading, *rows, *([paragraph(endings)] if endings else [])], gap=14))


def describe(now: PoolNow) -> str:
    """The panel in words, a line for each device.

    Args:
        now: what was found.

    Communication: none.

    Example:
        >>> print(describe(PoolNow(1, (DeviceNow("CPU 0", "lives", 7, 150 * MIB, 4096),))))
        kernel  pid 1
        CPU 0   lives    4,096 B of Arrays, pid 7, process of 150 MiB
    """
    width = max(len(device.name) for device in now.devices) + 2
    lines = [f"{'kernel':<{width}} pid {now.kernel_pid}"]
    for device in now.devices:
        words = [f"{device.array_nbytes:,} B of Arrays" + (", lost" if device.state == IS_GONE else "")]
        words += [f"pid {device.pid}"] if device.pid else []
        words += [f"process of {device.process_nbytes // MIB} MiB"] if device.process_nbytes is not None else []
        lines.append(f"{device.name:<{width}} {device.state:<8} {', '.join(words)}")
    return "\n".join([*lines, *(device.ending for device in now.devices if device.ending)])


def device_panel(room_nbytes: int | None = None) -> Explorer[PoolNow]:
    """The panel of the devices that there are, with controls that do what the lesson does in code.

    Args:
        room_nbytes: the bytes of a full bar, such as the limit of a device; None: as many as the fullest keeps.

    Returns:
        An Explorer: *refresh*; a device to choose, and buttons *stop*, *resume* and *kill* for it; and *restart all*.

    Communication: none.

    Example:
        >>> ts.init(devices=2, runtime="local")
        >>> [control.partition(" ")[0] for control in device_panel().choices]
        ['looks', 'device', 'stops', 'continues', 'kills', 'starts']
    """
    pressed: dict[str, int] = {}

    def act(name: str, presses: int, what: Callable[[], None]) -> None:
        """Perform a button's action once, even if it fails, if it was pressed since the last check."""
        is_new = presses > pressed.get(name, 0)
        pressed[name] = presses
        if is_new:
            what()

    def look(looks: int, device: int, stops: int, continues: int, kills: int, starts: int) -> PoolNow:
        act("starts", starts, ts.init)
        act("stops", stops, lambda: _send(device, signal.SIGSTOP))
        act("continues", continues, lambda: _send(device, signal.SIGCONT))
        act("kills", kills, lambda: _send(device, signal.SIGKILL))
        return pool_now(room_nbytes)

    controls: list[Control] = [
        Press("looks", "refresh"),
        Choice("device", "device", lambda _: [(repr(device), device.id) for device in ts.devices()]),
        Press("stops", "stop"),
        Press("continues", "resume"),
        Press("kills", "kill"),
        Press("starts", "restart all"),
    ]
    return Explorer(HEADING, controls, look, draw, describe)


def _send(device: int, what: signal.Signals) -> None:
    """Send a signal to a device's worker, and wait until it shows. A device without a process is left alone."""
    try:
        pid = ts.devices()[device].pid
    except ts.DeviceLostError:
        return
    if pid is None:
        return
    os.kill(pid, what)
    end_s = time.monotonic() + CARRIED_OUT_S
    while not _shows(device, pid, what) and time.monotonic() < end_s:
        time.sleep(0.01)


def _shows(device: int, pid: int, what: signal.Signals) -> bool:
    """Whether the signal has been carried out, and the kernel knows of a death."""
    try:
        is_stopped = psutil.Process(pid).status() == psutil.STATUS_STOPPED
        return what != signal.SIGKILL and is_stopped == (what == signal.SIGSTOP) and bool(ts.devices()[device].pid)
    except (psutil.NoSuchProcess, ts.DeviceLostError):
        return _is_lost(device)


def _is_lost(device: int) -> bool:
    try:
        return ts.devices()[device].pid is None
    except ts.DeviceLostError:
        return True


def _title(now: PoolNow) -> str:
    return "; ".join(f"{device.name} {device.state}" for device in now.devices)


def _cell(device: DeviceNow, most: int) -> Piece:
    """One device: the lamp with name and state, the pid, the memory of the process, the bytes and their bar."""
    words = paragraph([f"{device.name}: {device.state}"])
    head = beside([_lamp(device.state), words], gap=8)
    lines = [f"pid {device.pid}" if device.pid else "no pid"]
    if device.process_nbytes is not None:
        lines.append(f"process of {device.process_nbytes // MIB} MiB")
    elif device.state == IS_GONE:
        lines.append("no memory")
    else:
        lines.append("no memory of its own")
    lines.append(f"{device.array_nbytes:,} B of Arrays")
    piece = stack([head, paragraph(lines, size=12), _bar(device, most)], gap=4)
    return Piece(piece.svg, WIDTH, piece.height)


def _lamp(state: str) -> Piece:
    """A disc that lives; with two bars, as on a pause button, that is stopped; empty and crossed out that is gone."""
    marks = {
        STANDS_STILL: "M 7 5 V 13 M 11 5 V 13",
        IS_GONE: "M 5 5 L 13 13 M 13 5 L 5 13",
    }
    disc = f'<circle cx="9" cy="9" r="8" fill="{_FILLS[state]}" stroke="{INK}"/>'
    colour = "#000000" if state == STANDS_STILL else INK
    mark = f'<path d="{marks[state]}" stroke="{colour}" stroke-width="2" fill="none"/>' if state in marks else ""
    return Piece(disc + mark, 18, 18)


def _bar(device: DeviceNow, most: int) -> Piece:
    """How many bytes of Arrays it keeps, the whole width being `most`; lost ones are hollow."""
    width = (WIDTH - 8) * min(device.array_nbytes / most, 1)
    frame = f'<rect width="{number(WIDTH - 8)}" height="{number(BAR_HEIGHT)}" fill="none" stroke="{MUTED}"/>'
    fill = "none" if device.state == IS_GONE else "#0072B2"
    filled = f'<rect width="{number(width)}" height="{number(BAR_HEIGHT)}" fill="{fill}" stroke="{INK}"/>'
    return Piece(frame + (filled if device.array_nbytes else ""), WIDTH - 8, BAR_HEIGHT)

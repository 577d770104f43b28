"""The way from the controller to a device of the same host: a ring of bytes that both map, and a bell for all devices.

The bytes are those that a socket would carry, so whoever puts messages together (`channel`) sees no difference. What
differs is the price: writing is a copy, and one system call wakes all the devices that were written to, none if no
device sleeps (`yielding`), where sockets take one for each device, of which every one lets the woken device push the
writer from its processor.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any

from tinyshard.runtime.futex import Futex, fence
from tinyshard.runtime.shm.control_block import STREAM_NBYTES, ControlBlock
from tinyshard.runtime.wire import first_call
from tinyshard.runtime.yielding import LATE_AFTER_NS, YIELD_BETWEEN_CALLS_FOR_NS, YIELD_UNSEEN_FOR_NS, Yielding

# who waits for room is told when there is this much: not at every byte
_ROOM_NBYTES = STREAM_NBYTES // 2


def _bell_bit(device: int) -> int:
    return 1 << device % 32


class Bell:
    """The controller's end: wakes the devices that were written to since it last rang."""

    def __init__(self, control: ControlBlock) -> None:
        self._bell = control.bell.data
        self._sleepers = Futex(control.bell.ctypes.data)
        self._bits = [_bell_bit(device) for device in range(len(control.streams))]
        self._asleep = control.asleep.data
        self._due = 0
        self._bits_of: dict[tuple[int, ...], int] = {}  # of several devices

    def owe(self, devices: tuple[int, ...]) -> None:
        """Note that these devices were written to."""
        bits = self._bits_of.get(devices)
        if bits is None:
            bits = self._bits_of[devices] = reduce(or_, (self._bits[device] for device in devices), 0)
        self._due |= bits

    def ring(self) -> None:
        """Wake those of them that sleep."""
        if self._due:
            due, self._due = self._due, 0
            self._bell[1] = time.monotonic_ns()
            self._bell[0] += 1
            fence()
            if any(self._asleep):
                self._sleepers.wake(due)


class Outbox:
    """The controller's end of one ring. `sendmsg` is that of a socket that does not block.

    Args:
        control: the shared memory's first part.
        device: whose ring it is.
        bell: is to be rung after writing.
    """

    def __init__(self, control: ControlBlock, device: int, bell: Bell) -> None:
        self._ring = control.streams[device].data
        self._written = control.written.data
        self._taken = control.taken.data
        self._wants_room = control.wants_room.data
        self._device = device
        self._bell = bell

    def takes(self, pieces: Sequence[memoryview]) -> bool:
        """Write a message at once, if it is in one piece and there is room for it up to the end of the ring."""
        first, count = pieces[0], self._written[self._device]
        at, after = count % STREAM_NBYTES, count + len(first)
        if len(pieces) > 1 or at + len(first) > STREAM_NBYTES or after > STREAM_NBYTES + self._taken[self._device]:
            return False
        self._ring[at : at + len(first)] = first
        self._written[self._device] = after
        self._bell.owe((self._device,))
        return True

    def sendmsg(self, pieces: Iterable[memoryview]) -> int:
        """Write as much of it as there is room for; how much that was.

        Raises:
            BlockingIOError: there is no room; the device says so when there is.
        """
        device, count = self._device, self._written[self._device]
        room = STREAM_NBYTES - count + self._taken[device]
        if not room:
            self._wants_room[device] += 1
            fence()
            room = STREAM_NBYTES - count + self._taken[device]
            if not room:
                raise BlockingIOError
        at = count % STREAM_NBYTES
        data = b"".join(_within(pieces, room))
        first = min(len(data), STREAM_NBYTES - at)
        self._ring[at : at + first] = data[:first]
        if first < len(data):
            self._ring[: len(data) - first] = data[first:]
        self._written[device] = count + len(data)
        self._bell.owe((device,))
        return len(data)


class Streams:
    """The rings to all devices, for a message that several of them are to find at once.

    Args:
        control: the shared memory's first part.
        count: number of devices.
        bell: is to be rung after writing.
    """

    def __init__(self, control: ControlBlock, count: int, bell: Bell) -> None:
        self._written = control.written[:count].data
        self._taken = control.taken.data
        self._rings = [control.streams[device].data for device in range(count)]
        self._bell = bell
        self._unseen = control.unseen.data

    def counts_after(self, devices: Sequence[int], nbytes: int) -> array[int] | None:
        """How much will have been written to each, after so much to these; None if one of them has no room for it."""
        counts, taken = self._written.tolist(), self._taken.tolist()
        for device in devices:
            before = counts[device]
            counts[device] = after = before + nbytes
            if before % STREAM_NBYTES + nbytes > STREAM_NBYTES or after > STREAM_NBYTES + taken[device]:
                return None
        return array("l", counts)

    def publish(self, message: memoryview, devices: tuple[int, ...], counts: array[int]) -> None:
        """Write a message to these devices, and let them see it all at once. To do it again changes nothing.

        Args:
            message: the bytes.
            devices: their ids.
            counts: as `counts_after` gave them for it.
        """
        rings, nbytes = self._rings, len(message)
        for device in devices:
            at = (counts[device] - nbytes) % STREAM_NBYTES
            rings[device][at : at + nbytes] = message
        self._bell.owe(devices)
        self._unseen[0] = 1
        self._written[:] = counts  # one step, in C; from here on the devices take the processors
        self._bell.ring()


def _within(pieces: Iterable[memoryview], room: int) -> Iterable[memoryview]:
    """The pieces, or their beginnings, as far as there is room."""
    for piece in pieces:
        if room <= 0:
            return
        yield piece[:room]
        room -= piece.nbytes


class Inbox:
    """A device's end of its ring. Has the two methods of a blocking socket that `channel.Reader` uses.

    Args:
        control: the shared memory's first part.
        device: whose ring it is.
        say_room: tells the controller that there is room again.
    """

    def __init__(self, control: ControlBlock, device: int, say_room: Callable[[], object]) -> None:
        self._ring = control.streams[device].data
        self._written = control.written.data
        self._taken = control.taken.data
        self._wants_room = control.wants_room.data
        self._bell, self._unseen = control.bell.data, control.unseen.data
        self._rung = Futex(control.bell.ctypes.data, _bell_bit(device))
        self._asleep = control.asleep.data
        self._yielding = Yielding(control.crowded.data, YIELD_BETWEEN_CALLS_FOR_NS - YIELD_UNSEEN_FOR_NS)
        self._device = device
        self._say_room = say_room
        self._room_said = 0
        self._count = 0

    def next_call(self) -> tuple[Any, ...] | None:
        """Wait until there is something: what `channel.first_call` finds, if it lies there in one piece.

        To be asked between two messages. Of those who want room in a ring that is nearly full, `recv` thinks.
        """
        device = self._device
        if self._written[device] == self._count:
            self._wait()
        at, there = self._count % STREAM_NBYTES, self._written[device] - self._count
        if there >= STREAM_NBYTES - _ROOM_NBYTES:
            return None
        found = first_call(self._ring, at, min(there, STREAM_NBYTES - at))
        if found is None:
            return None
        call, nbytes = found
        self._count += nbytes
        self._taken[device] = self._count
        return call

    def recv(self, most: int) -> bytes:
        """Wait until there is something, and take at most so many bytes of it."""
        device = self._device
        if self._written[device] == self._count:
            self._wait()
        there = self._written[device] - self._count
        at, nbytes = self._count % STREAM_NBYTES, min(most, there)
        data = self._ring[at : at + nbytes].tobytes()
        if len(data) < nbytes:
            data += self._ring[: nbytes - len(data)].tobytes()
        self._count += nbytes
        self._taken[device] = self._count
        # with less in it, whoever found it full before has been told, and who does so now leaves more for next time
        if there >= STREAM_NBYTES - _ROOM_NBYTES:
            self._tell_of_room()
        return data

    def _tell_of_room(self) -> None:
        """Tell who has found the ring full, and waits, as soon as there is room."""
        fence()
        wanted = self._wants_room[self._device]
        if wanted != self._room_said and self._written[self._device] - self._count <= STREAM_NBYTES - _ROOM_NBYTES:
            self._room_said = wanted
            self._say_room()

    def recv_into(self, place: memoryview) -> int:
        """The same, to where it is to be."""
        data = self.recv(place.nbytes)
        place[: len(data)] = data
        return len(data)

    def _wait(self) -> None:
        """Let others run, for a moment or for a while, then sleep, until there is something."""
        until, is_there, is_late = self._yielding.until, self._is_something_there, self._is_late
        if until(is_there, is_late, YIELD_UNSEEN_FOR_NS) or (not self._unseen[0] and until(is_there, is_late)):
            return
        while not is_there():
            self._sleep()

    def _is_something_there(self) -> bool:
        return self._written[self._device] != self._count

    def _is_late(self) -> bool:
        """Whether something has been there for long. (What others did before it was there kept nobody waiting.)"""
        return self._is_something_there() and time.monotonic_ns() - self._bell[1] > LATE_AFTER_NS

    def _sleep(self) -> None:
        """Sleep until the bell rings. It is read before the ring is looked at again: who writes changes it after."""
        self._asleep[self._device] = 1
        fence()
        seen = self._bell[0]
        if not self._is_something_there():
            self._rung.sleep_for_ever(seen)
        self._asleep[self._device] = 0

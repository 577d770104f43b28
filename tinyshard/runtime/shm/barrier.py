"""The barrier that devices of one host pass when they exchange data: a mutex, and a few numbers per device.

Every exchange has a number that all its members know and that increases from one to the next on any device: the call's
number, and the number of earlier exchanges in the call. So one number tells where a device is, and nothing needs a
reset:

    arrived     the last exchange at which the device has arrived
    released    the last exchange that it may leave: all members have arrived, and the action is over
    left        the last exchange whose data it does not read any more

The mutex guards the numbers. Devices sleep, and are woken, by `shm.waking`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tinyshard.runtime.collectives.base import Group, PeerLostError
from tinyshard.runtime.shm.control_block import ControlBlock
from tinyshard.runtime.shm.monitor import SLICE_S
from tinyshard.runtime.shm.waking import LOOK_S

_STEPS = 1 << 28  # a loop may have many; the rest of the 63 bits is enough for 17 billion calls


def exchange_number(call: int, step: int, phase: int = 0) -> int:
    """The number of an exchange: phase 0 or 1 of exchange number `step` of a call."""
    return (call * _STEPS + step) * 2 + phase


class Barrier:
    """One device's end. Plain Python on memoryviews: for a few numbers NumPy is slower."""

    def __init__(self, control: ControlBlock, device: int) -> None:
        rows = control.exchanges
        self._monitor = control.exchange_monitor
        self._waking = control.waking(device)
        self._arrived, self._released, self._left = (rows[name].data for name in ("arrived", "released", "left"))
        self._messages, self._awaits_left = rows["message"], rows["awaits_left"].data
        self._device = device
        self._leaving = 0
        self._is_aborted = False

    def wait(
        self,
        group: Group,
        number: int,
        message: Sequence[int] = (),
        action: Callable[[], object] | None = None,
    ) -> None:
        """Wait until all members of the group have arrived at an exchange.

        Args:
            message: four numbers for the other members, if any: where the operand is, and a block.
            action: called by the last device to arrive before the barrier opens; its error is raised there.

        Raises:
            PeerLostError: a device is gone.
        """
        monitor, arrived, device = self._monitor, self._arrived, self._device
        with monitor:
            self._check()
            if message:
                self._messages[device] = message
            self._left[device] = self._leaving
            arrived[device] = number
            is_last = min(map(arrived.__getitem__, group.members)) >= number
            if is_last and action is None:
                self._release(group, number)
            awaiting = self._devices_that_await_left()
        if awaiting:
            self._waking.wake(awaiting)
        if not is_last:
            released = self._released
            self._wait(lambda: released[device] >= number)
            return
        try:
            if action is not None:
                action()
        finally:
            if action is not None:
                with monitor:
                    self._release(group, number)
            self._waking.wake(group.others)

    def _devices_that_await_left(self) -> list[int]:
        """With the mutex held: the devices that wait until other devices have left."""
        if not any(self._awaits_left):  # as nearly always: without a loop in Python
            return []
        return [device for device, awaits in enumerate(self._awaits_left) if awaits]

    def _release(self, group: Group, number: int) -> None:
        for member in group.members:
            self._released[member] = number

    def messages(self, group: Group) -> list[list[int]]:
        """The messages of the members in the last exchange that this device has passed, which none of them has left."""
        messages = self._messages.tolist()
        return [messages[member] for member in group.members]

    def leave(self, number: int) -> None:
        """Leave an exchange: this device stops reading its data; other devices see it at its next one, or `settle`."""
        self._leaving = number

    def settle(self) -> bool:
        """Publish what this device has left; False if another has the mutex for long: call it again."""
        if self._left[self._device] == self._leaving:
            return True
        if not self._monitor.acquire(SLICE_S):
            return False
        self._left[self._device] = self._leaving
        awaiting = self._devices_that_await_left()
        self._monitor.release()
        if awaiting:
            self._waking.wake(awaiting)
        return True

    def wait_until_left(self, members: Sequence[int], number: int) -> None:
        """Wait until these devices have left an exchange. Raises PeerLostError if one is gone."""
        self.settle()  # they may wait for this device, too
        left, device = self._left, self._device

        def have_left() -> bool:
            return all(left[member] >= number for member in members)

        with self._monitor:
            if have_left():
                return
            self._awaits_left[device] = 1
        try:
            self._wait(have_left)
        finally:
            self._awaits_left[device] = 0

    def abort(self) -> None:
        """From another thread: end each wait, now and later, with an error."""
        self._is_aborted = True
        self._waking.wake((self._device,))

    def _wait(self, is_true: Callable[[], bool]) -> None:
        self._waking.wait(is_true, self._check, LOOK_S)
        if not self._waking.is_ordered:
            with self._monitor:  # now what others wrote before is seen, too
                pass

    def _check(self) -> None:
        if self._is_aborted:
            raise PeerLostError("a device does not come: it, or one that it waits for, is gone")

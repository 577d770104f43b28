"""Sending an item of the queue: first prepared, then sent in steps that may be repeated after a Ctrl-C."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tinyshard.core.types import tensor_bytes
from tinyshard.runtime import wire
from tinyshard.runtime.controller.connection import Calls
from tinyshard.runtime.controller.items import Call, Item, Put, Request, Unsent
from tinyshard.runtime.controller.lineage import Run, settle
from tinyshard.runtime.controller.refs import Buffers, Watch, Watched, by_devices
from tinyshard.runtime.failure import Failure
from tinyshard.runtime.shm.allocator import Arena
from tinyshard.runtime.shm.control_block import LOG_NBYTES
from tinyshard.runtime.shm.log import LARGEST_RECORD_NBYTES, CallLog, Placement

# of an item with so many messages that they would fill the log
LARGEST_OF_MANY_NBYTES = 1 << 10
_BY_SOCKET = b"".join(wire.frame(("by socket",)))

Sends = list[tuple[Sequence[int], list[memoryview]]]


def _values_of(items: Sequence[Item]) -> set[int]:
    """The values that these items use or make; not those that requests read, whose handles are in use meanwhile."""
    numbers: set[int] = set()
    for item in items:
        if isinstance(item, Call):
            numbers.update(item.inputs, item.outputs)
        elif isinstance(item, Put):
            numbers.add(item.value)
        elif isinstance(item, Unsent):
            numbers.update(item.values)
    return numbers


@dataclass(slots=True)
class Delivery:
    """A prepared item: its messages and where they go.

    Attributes:
        item: the item; it stays in the queue until everything else is done.
        placement: where the messages go in the log, if there is one.
        by_socket: messages that go by sockets, each with its devices.
        released: the values that no Buffer refers to any more, which the messages free.
        unused: the programs that will not be called again, which the messages let the devices drop.
    """

    item: Item
    placement: Placement | None
    by_socket: Sends
    released: Sequence[Watch]
    unused: Sequence[Watch]


class Deliveries:
    """Prepares items and sends them. One thread at a time may use it.

    With shared memory `log` carries the messages, and the devices are lent blocks of `arena`; else both are None.
    """

    def __init__(self, calls: Calls, buffers: Buffers, log: CallLog | None, arena: Arena | None) -> None:
        self._calls = calls
        self._buffers = buffers
        self._log = log
        self._arena = arena
        self._programs = Watched()

    @property
    def has_released(self) -> bool:
        """Whether devices have released values or programs."""
        return self._buffers.has_released or self._programs.has_released

    def _prepare_record(self, item: Call, later: Callable[[], Sequence[Item]]) -> Delivery | None:
        """As `prepare`, for a call that is one record, as most are; None for others."""
        run, log = item.run, self._log
        devices = run.devices
        is_known = self._programs.devices_of(item.program.number) == devices
        if log is None or not is_known or self._programs.has_released or self._calls.has_lost:
            return None
        released = self._buffers.released()
        if released and (later() or any(watch.devices != devices for watch in released)):
            return None
        freed = (*item.donated, *[watch.number for watch in released])
        record = wire.call_frame(run.number, item.program.number, item.inputs, item.outputs, freed)
        if len(record) > LARGEST_RECORD_NBYTES:
            return None
        placement = log.place([(devices, record)])
        if placement is None:
            return None
        self._note_run(run)
        return Delivery(item, placement, [], released, [])

    def prepare(self, item: Item, later: Callable[[], Sequence[Item]], *, is_receiver: bool) -> Delivery | None:
        """Make the messages of an item, and note their effects in the links; None if they cannot be sent now.

        Nothing is sent yet, and it is idempotent.

        Args:
            later: the items that have been posted after it.
            is_receiver: this is the I/O thread, the only one that writes to sockets.
        """
        if isinstance(item, Call) and (delivery := self._prepare_record(item, later)):
            return delivery
        released = self._buffers.released()  # before `later`: then all posts that use these values are in the queue
        if released and (waiting := later()):
            used = _values_of(waiting)
            released = list(itertools.takewhile(lambda watch: watch.number not in used, released))
        free, unused = by_devices(released), self._programs.released()
        sends: Sends = []
        if isinstance(item, Call):
            sends = self._sends_of_call(item, free)
        elif isinstance(item, Put):
            for device, (block, place) in item.blocks.items():
                head = ("put", item.run.number, item.value, tuple(block.shape), block.dtype, place)
                sends.append(([device], wire.frame(head, tensor_bytes(block) if place is None else None)))
        elif isinstance(item, Unsent):
            sends = [(item.run.devices, wire.frame(("unsent", item.run.number, item.values, item.failure)))]
        elif isinstance(item, Request):
            sends = [(sorted(item.waiting), wire.frame((item.kind, item.number, item.what)))]
        used = _values_of([item])
        for devices, values in free.items():  # before the item, which may need the memory, if it uses none of them
            at = 0 if used and used.isdisjoint(values) else len(sends)
            sends.insert(at, (devices, wire.frame(("free", values))))
        sends += [(devices, wire.frame(("forget", programs))) for devices, programs in by_devices(unused).items()]
        if self._log is None:
            placement, by_socket = None, sends
        else:
            sizes = [sum(map(len, pieces)) for _, pieces in sends]  # an item is one byte
            # there must be room in the log for all of them at once
            most_nbytes = LARGEST_RECORD_NBYTES if sum(sizes) <= LOG_NBYTES // 4 else LARGEST_OF_MANY_NBYTES
            by_socket = [send for send, nbytes in zip(sends, sizes, strict=True) if nbytes > most_nbytes]
            if by_socket and not is_receiver:
                return None
            records = [
                (devices, _BY_SOCKET if nbytes > most_nbytes else b"".join(pieces))
                for (devices, pieces), nbytes in zip(sends, sizes, strict=True)
            ]
            placement = self._log.place(records)
            if placement is None:
                return None
        self._note(item)
        return Delivery(item, placement, by_socket, released, unused)

    def _sends_of_call(self, item: Call, free: dict[tuple[int, ...], list[int]]) -> Sends:
        run, program = item.run, item.program
        if run.communicates and self._calls.has_lost:
            # no device starts it, even without the lost device: the remaining devices are no longer connected
            return []
        sends: Sends = []
        known = self._programs.devices_of(program.number)
        if known != run.devices and (new := [d for d in run.devices if d not in known]):
            sends.append((new, wire.frame(("program", program.number, program))))
        # the call frees released values: its own operands may be among them, and are freed at their last use
        freed = (*item.donated, *free.pop(run.devices, ()))
        call = wire.call_frame(run.number, program.number, item.inputs, item.outputs, freed)
        return [*sends, (run.devices, [memoryview(call)])]

    def _note(self, item: Item) -> None:
        """Note the messages that are about to be sent. Idempotent until they are sent."""
        links = self._calls.links
        if isinstance(item, Call | Put | Unsent):
            self._note_run(item.run)
        if isinstance(item, Put):
            for device, (_, place) in item.blocks.items():
                if place is not None and self._arena is not None and not links[device].lost:
                    self._arena.lend(place, device)
        elif isinstance(item, Request):
            for device in item.waiting:
                if item.lent is not None and self._arena is not None and not links[device].lost:
                    self._arena.lend(item.lent[1], device)
                links[device].asked[item.number] = item
                if links[device].lost:
                    links[device].fail_asked()

    def _note_run(self, run: Run) -> None:
        lost = [link for link in self._calls.links if link.lost] if self._calls.has_lost else []
        if run.communicates and lost:
            run.failures.update(dict.fromkeys(run.devices, (Failure(lost[0].device, lost=lost[0].lost), run.where)))
            settle(run)
            return
        if not (self._calls.unsettled and self._calls.unsettled[-1] is run):
            self._calls.unsettled.append(run)
        for link in lost:
            if link.device in run.devices:
                run.failures[link.device] = (Failure(link.device, lost=link.lost), run.where)

    def send(self, delivery: Delivery) -> None:
        """Send the messages. Idempotent, except in the I/O thread, which Ctrl-C does not interrupt."""
        item = delivery.item
        if delivery.placement is not None and self._log is not None:
            self._log.publish(delivery.placement)
        for devices, pieces in delivery.by_socket:  # none, if this is not the I/O thread
            for device in devices:
                self._calls.links[device].queue(pieces)
        # only now: a delivery that is prepared again after an interrupt refers to the program again
        if isinstance(item, Call):
            self._programs.watch(item.program, item.program.number, item.run.devices)
        self._buffers.drop(delivery.released)
        self._programs.drop(delivery.unused)

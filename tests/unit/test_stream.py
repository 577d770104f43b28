"""What the controller writes to a device through memory arrives whole and in order; between threads here."""

import os
import socket
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyshard.runtime import stream, wire
from tinyshard.runtime.controller.connection import Link
from tinyshard.runtime.progress import Overview, Progress
from tinyshard.runtime.shm import allocator, control_block
from tinyshard.runtime.shm.control_block import STREAM_NBYTES
from tinyshard.runtime.stream import Bell, Inbox, Outbox, Streams

pytestmark = pytest.mark.skipif(not allocator.is_possible(), reason="shared memory needs Linux on x86-64")


@pytest.fixture(params=[0, stream.YIELD_BETWEEN_CALLS_FOR_NS], ids=["sleeping", "yielding"], autouse=True)
def yields(request, monkeypatch):
    monkeypatch.setattr(stream, "YIELD_BETWEEN_CALLS_FOR_NS", request.param)
    if not request.param:
        monkeypatch.setattr(stream, "YIELD_UNSEEN_FOR_NS", 0)


class Ends:
    """Both ends of the rings of some devices."""

    def __init__(self, count=1):
        self.board = control_block.ControlBlock(np.zeros(control_block.nbytes(count), np.uint8), count)
        self.bell = Bell(self.board)
        self.room = threading.Semaphore(0)
        self.outboxes = [Outbox(self.board, d, self.bell) for d in range(count)]
        self.inboxes = [Inbox(self.board, d, self.room.release) for d in range(count)]

    def write(self, data, device=0):
        """All of it, as the I/O thread does: what finds no room waits until the device says that there is."""
        left = [memoryview(data)]
        while left[0].nbytes:
            try:
                sent = self.outboxes[device].sendmsg(left)
                left = [left[0][sent:]]
                self.bell.ring()
            except BlockingIOError:
                assert self.room.acquire(timeout=20), "the device never says that there is room"


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(1, 2 * STREAM_NBYTES), max_size=6), most=st.integers(1000, 1 << 16))
def test_bytes_come_out_as_they_went_in_also_around_the_end_of_the_ring(sizes, most):
    ends = Ends()
    given = np.random.default_rng(len(sizes)).integers(0, 256, sum(sizes), np.uint8).tobytes()
    got = bytearray()

    def take():
        while len(got) < len(given):
            got.extend(ends.inboxes[0].recv(most))

    reader = threading.Thread(target=take)
    reader.start()
    at = 0
    for size in sizes:
        ends.write(given[at : at + size])
        at += size
    reader.join(20)
    assert got == given


def test_a_full_ring_takes_no_more_until_the_device_has_made_room():
    ends = Ends()
    assert ends.outboxes[0].sendmsg([memoryview(bytes(2 * STREAM_NBYTES))]) == STREAM_NBYTES
    for _ in range(2):
        with pytest.raises(BlockingIOError):
            ends.outboxes[0].sendmsg([memoryview(b"x")])
    assert not ends.outboxes[0].takes([memoryview(b"x")])
    ends.inboxes[0].recv(10)
    assert not ends.room.acquire(blocking=False)  # ten bytes are not worth a message
    ends.inboxes[0].recv(STREAM_NBYTES)
    assert ends.room.acquire(blocking=False)
    assert not ends.room.acquire(blocking=False)
    assert ends.outboxes[0].takes([memoryview(b"x")])
    assert ends.inboxes[0].recv(10) == b"x"


def test_a_message_is_taken_at_once_only_as_a_whole():
    ends = Ends()
    outbox, inbox = ends.outboxes[0], ends.inboxes[0]
    assert not outbox.takes([memoryview(b"head"), memoryview(b"payload")])
    assert outbox.takes([memoryview(bytes(STREAM_NBYTES - 2))])
    inbox.recv(STREAM_NBYTES)
    assert not outbox.takes([memoryview(b"abc")])  # it would go around the end
    assert outbox.takes([memoryview(b"ab")])
    assert outbox.takes([memoryview(b"cd")])
    assert inbox.recv(10) == b"abcd"


def test_one_ring_of_the_bell_wakes_all_that_were_written_to():
    ends = Ends(3)
    got = {}
    readers = [threading.Thread(target=lambda d=d: got.update({d: ends.inboxes[d].recv(10)})) for d in range(3)]
    for reader in readers:
        reader.start()
    for device in (0, 2):
        ends.outboxes[device].takes([memoryview(b"%d" % device)])
    ends.bell.ring()
    for device in (0, 2):
        readers[device].join(20)
    assert got == {0: b"0", 2: b"2"}
    assert readers[1].is_alive()
    ends.write(b"1", device=1)
    readers[1].join(20)
    assert got[1] == b"1"


def test_what_is_published_again_is_there_once():
    ends = Ends(3)
    streams = Streams(ends.board, len(ends.outboxes), ends.bell)
    for message in (b"one", b"two"):
        counts = streams.counts_after((2, 0), 3)
        assert list(counts) == [
            count + 3 * (device != 1) for device, count in enumerate(ends.board.written[:3].tolist())
        ]
        for _ in range(2):
            streams.publish(memoryview(message), (2, 0), counts)
        assert [ends.inboxes[device].recv(10) for device in (0, 2)] == [message, message]
        assert list(ends.board.written[:3]) == [counts[0], 0, counts[2]]


def test_nothing_is_published_where_one_device_has_no_room():
    ends = Ends(2)
    streams = Streams(ends.board, len(ends.outboxes), ends.bell)
    assert ends.outboxes[1].takes([memoryview(bytes(STREAM_NBYTES - 2))])
    assert streams.counts_after((0, 1), 3) is None
    assert list(streams.counts_after((0, 1), 2)) == [2, STREAM_NBYTES]


def test_messages_with_payloads_are_put_together_from_a_ring():
    ends = Ends()
    reader = wire.Reader(ends.inboxes[0])
    payload = torch.arange(100_000)
    sent = [(("run", 1), None), (("put", 2), wire.tensor_bytes(payload)), (("run", 3), None)]

    def send():
        for head, block in sent:
            for piece in wire.frame(head, block):
                ends.write(piece)

    writer = threading.Thread(target=send)
    writer.start()
    got = []
    while len(got) < 3:
        got.extend(reader.read())
    writer.join(20)
    assert [head for head, _ in got] == [head for head, _ in sent]
    assert torch.equal(wire.tensor_of(got[1][1], (100_000,), torch.int64), payload)


# read from the middle, the numbers of these calls look like the beginnings of others
MESSAGES = st.one_of(
    st.builds(lambda count: ("run", 1, 2, (2**31 + 40,) * count, (3,), (), (4, 5)), st.integers(0, 30_000)),
    st.tuples(st.just("put"), st.integers(0, STREAM_NBYTES)),
)


def take_next(inbox, reader):
    """What comes next to a device, as `Worker.serve` takes it; and whether it was read where it lay."""
    call = inbox.next_call() if reader.is_between else None
    return ([(call, None)], True) if call is not None else (reader.read(), False)


@settings(max_examples=50, deadline=None)
@given(messages=st.lists(MESSAGES, max_size=40))
def test_calls_come_in_their_order_between_other_messages_wherever_they_lie_in_a_ring(messages):
    ends = Ends()
    reader, got = wire.Reader(ends.inboxes[0]), []

    def send():
        for message in messages:
            if message[0] == "run":
                ends.write(wire.frame_of_call(*message[1:]))
            else:
                for piece in wire.frame(("put",), memoryview(bytes(message[1]))):
                    ends.write(piece)

    writer = threading.Thread(target=send)
    writer.start()
    while len(got) < len(messages):
        got.extend(take_next(ends.inboxes[0], reader)[0])
    writer.join(20)
    assert [head if head[0] == "run" else ("put", len(payload or b"")) for head, payload in got] == messages


def test_of_calls_in_a_ring_that_is_nearly_full_a_device_says_when_there_is_room():
    ends = Ends()
    call = wire.frame_of_call(1, 2, tuple(range(1000)), (3,), (), ())
    count = STREAM_NBYTES // len(call)
    for _ in range(count):
        assert ends.outboxes[0].takes([call])
    begun = ends.outboxes[0].sendmsg([call])
    with pytest.raises(BlockingIOError):
        ends.outboxes[0].sendmsg([call[begun:]])
    reader, got = wire.Reader(ends.inboxes[0]), []
    while len(got) < count:
        got.extend(take_next(ends.inboxes[0], reader)[0])
    ends.write(call[begun:])
    got.extend(take_next(ends.inboxes[0], reader)[0])
    assert len(got) == count + 1
    assert ends.room.acquire(blocking=False)
    assert {head[1:3] for head, _ in got} == {(1, 2)}
    for data in (wire.frame_of_call(3, 2, (), (), (), ()), *wire.frame(("held",))):
        ends.write(data)
    assert take_next(ends.inboxes[0], reader) == ([(("run", 3, 2, (), (), (), ()), None)], True)
    assert take_next(ends.inboxes[0], reader) == ([(("held",), None)], False)


def test_a_link_keeps_the_order_of_messages_when_the_ring_is_full():
    ours, theirs = socket.socketpair()
    control, other = socket.socketpair()
    output, end = os.pipe()
    ends = Ends()
    link = Link(0, ours, control, output, 0, outbox=ends.outboxes[0])
    try:
        numbers = range(300)
        for number in numbers:
            link.queue(wire.frame(("run", number, b" " * (number % 7) * 1000)))
            link.write()
        assert link.has_output
        assert not link.awaits_socket
        reader, got = wire.Reader(ends.inboxes[0]), []
        while len(got) < len(numbers):
            got.extend(reader.read())
            while ends.room.acquire(blocking=False):
                link.write()
        assert [head[1] for head, _ in got] == list(numbers)
        assert link.nbytes == 0
    finally:
        link.close()
        for each in (theirs, other):
            each.close()
        os.close(end)


def test_the_bell_makes_no_system_call_while_nobody_sleeps(monkeypatch):
    ends = Ends(2)
    woken = []
    monkeypatch.setattr(ends.bell._sleepers, "wake", woken.append)
    ends.write(b"x")
    assert ends.board.bell[0] == 1
    assert not woken
    ends.board.asleep[0] = 1
    ends.write(b"y")
    assert woken == [1]


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_device_soon_sleeps_while_the_controller_has_not_seen_the_end_of_a_call(monkeypatch, is_seen):
    """It may be that it does not get the core. Once it has seen it, it may call again at any moment."""
    monkeypatch.setattr(stream, "YIELD_BETWEEN_CALLS_FOR_NS", 60_000_000_000)
    ends = Ends()
    overview, progress = Overview(ends.board), Progress(ends.board, 0)
    streams = Streams(ends.board, len(ends.outboxes), ends.bell)
    streams.publish(memoryview(b"call"), (0,), streams.counts_after((0,), 4))
    assert ends.inboxes[0].recv(4) == b"call"
    progress.finish(1)
    if is_seen:
        assert overview.wait_a_moment({0: 1}, lambda _: True, 20) == [1]
    device = threading.Thread(target=lambda: ends.inboxes[0].recv(4), daemon=True)
    device.start()
    end_s = time.monotonic() + (0.2 if is_seen else 20)
    while not ends.board.asleep[0] and time.monotonic() < end_s:
        time.sleep(0.001)
    assert bool(ends.board.asleep[0]) is not is_seen
    ends.write(b"more")
    device.join(20)
    assert not device.is_alive()


@pytest.mark.parametrize("count", range(1, 41))
def test_a_control_block_fits_its_memory_and_its_numbers_lie_on_whole_words(count):
    made = control_block.ControlBlock(np.zeros(control_block.nbytes(count), np.uint8), count)
    assert made._at <= control_block.nbytes(count)
    base = made._memory.ctypes.data
    arrays = [x for x in vars(made).values() if isinstance(x, np.ndarray) and x.dtype == np.int64]
    assert len(arrays) >= 10
    assert all((x.ctypes.data - base) % 8 == 0 for x in arrays)

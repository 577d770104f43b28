"""What is sent for a call: prepared as often as an interrupt strikes, and noted as sent only then."""

import gc

import numpy as np
import pytest
import torch

from tinyshard.core.program import Builder
from tinyshard.core.types import ShapedType
from tinyshard.core.users_line import Where
from tinyshard.runtime import wire
from tinyshard.runtime.controller.connection import Calls
from tinyshard.runtime.controller.delivery import Deliveries
from tinyshard.runtime.controller.items import Call, Free, Put, Request
from tinyshard.runtime.controller.lineage import Run
from tinyshard.runtime.controller.refs import Buffers
from tinyshard.runtime.shm import control_block, segment
from tinyshard.runtime.shm.log import LARGEST_RECORD_NBYTES, CallLog, LogReader


class Connection:
    """A link that takes what is queued for it."""

    lost = ""

    def __init__(self):
        self.frames = []

    def queue(self, pieces):
        self.frames.append(wire.parse(b"".join(pieces))[0][0])

    def ask_now_and_then(self):
        pass


def test_a_program_is_sent_with_its_first_call_whose_message_was_sent_and_dropped_with_its_last_reference():
    calls = Calls()
    calls.links.extend([Connection(), Connection()])
    deliveries = Deliveries(calls, Buffers(), None, None)
    builder = Builder((0, 1), (2,))
    x = builder.input(ShapedType((2,), torch.float32))
    program = builder.finish([x])
    item = Call(Run(1, (0, 1), False, Where("here", 1)), program, (), ())
    for _ in range(2):  # Ctrl-C strikes after the first: its delivery is lost
        delivery = deliveries.prepare(item, list, is_receiver=True)
    deliveries.send(delivery)
    later = Call(Run(2, (0, 1), False, Where("here", 2)), program, (), ())
    deliveries.send(deliveries.prepare(later, list, is_receiver=True))
    assert not deliveries.has_released
    del program, item, later, delivery
    gc.collect()
    assert deliveries.has_released
    for _ in range(2):
        delivery = deliveries.prepare(Free(), list, is_receiver=True)
    deliveries.send(delivery)
    assert not deliveries.has_released
    for link in calls.links:
        assert link.frames == ["program", "run", "run", "forget"]


def test_values_that_nobody_needs_are_freed_with_a_call_though_a_request_waits_behind_it():
    calls, buffers = Calls(), Buffers()
    calls.links.append(Connection())
    deliveries = Deliveries(calls, buffers, None, None)
    builder = Builder((0,), (1,))
    program = builder.finish([builder.input(ShapedType((2,), torch.float32))])
    runs = [Run(number, (0,), False, Where("here", 1)) for number in (1, 2)]
    made = [buffers.make(runs[0], None) for _ in range(3)]
    unused, operand, used_later = (x.number for x in made)
    now = Call(runs[0], program, (operand,), (10,))
    waiting = [Call(runs[1], program, (used_later,), (11,)), Request({0}, "fetch", (11, None))]
    while made:
        del made[0]
    delivery = deliveries.prepare(now, lambda: waiting, is_receiver=True)
    assert [watch.number for watch in delivery.released] == [unused, operand]


@pytest.mark.skipif(not segment.is_possible(), reason="this system has no shared memory")
@pytest.mark.parametrize("count, nbytes", [(16, 600_000), (512, 32_000), (9, LARGEST_RECORD_NBYTES - 1000)])
def test_blocks_that_would_fill_the_log_go_by_the_sockets(count, nbytes):
    calls = Calls()
    calls.links.extend(Connection() for _ in range(count))
    memory = np.zeros(control_block.nbytes(count), np.uint8)
    control_block.initialise(memory, count)
    control = control_block.ControlBlock(memory, count)
    deliveries = Deliveries(calls, Buffers(), CallLog(control), None)
    block = torch.zeros(nbytes, dtype=torch.uint8)
    run = Run(1, tuple(range(count)), False, Where("here", 1), computes=False)
    item = Put(run, 1, dict.fromkeys(range(count), (block, None)))
    assert deliveries.prepare(item, list, is_receiver=False) is None, "another thread leaves it to the I/O thread"
    deliveries.send(deliveries.prepare(item, list, is_receiver=True))
    assert [link.frames for link in calls.links] == [["put"]] * count
    for device in (0, count - 1):
        (record,) = LogReader(control, device).take(60)
        assert wire.parse(record)[0][0] == "by socket"

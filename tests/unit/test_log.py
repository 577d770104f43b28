"""The log of calls: every device gets its records in order, once; between threads here."""

import threading

import numpy as np
import pytest

from tinyshard.runtime.shm import allocator, control_block, log
from tinyshard.runtime.shm.control_block import ENTRIES, LOG_NBYTES
from tinyshard.runtime.shm.log import CallLog, LogReader

pytestmark = pytest.mark.skipif(not allocator.is_possible(), reason="this system has no shared memory")
COUNT = 3


@pytest.fixture
def control():
    memory = np.zeros(control_block.nbytes(COUNT), np.uint8)
    control_block.initialise(memory, COUNT)
    return control_block.ControlBlock(memory, COUNT)


@pytest.fixture
def ends(control):
    return CallLog(control), [LogReader(control, device) for device in range(COUNT)]


def publish(writer, *records):
    placement = writer.place(records)
    assert placement is not None
    assert writer.publish(placement)


def test_each_device_gets_what_is_for_it_in_order(ends):
    writer, readers = ends
    publish(writer, ([0, 2], b"one"), ([1], b"two"))
    publish(writer, ([2], b"three"))
    assert [readers[0].take(), readers[1].take()] == [b"one", b"two"]
    assert [readers[2].take(), readers[2].take()] == [b"one", b"three"]


def test_a_device_that_sleeps_is_woken(ends):
    writer, readers = ends
    got = []
    thread = threading.Thread(target=lambda: got.append(readers[1].take()))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    publish(writer, ([1], b"now"))
    thread.join(20)
    assert got == [b"now"]


def test_records_stay_whole_while_the_log_goes_round_many_times(ends):
    writer, readers = ends
    sizes = [1, LOG_NBYTES // 7, 3001, LOG_NBYTES // 11] * 20
    for k, size in enumerate(sizes):
        record = bytes([k]) * size
        publish(writer, ([0, 1], record))
        assert readers[0].take() == record
        assert readers[1].take() == record


def test_what_a_device_has_not_taken_is_not_written_over(ends):
    writer, readers = ends
    size = LOG_NBYTES // 4
    for k in range(3):
        publish(writer, ([0, 1], bytes([k]) * size))
        readers[1].take()
    publish(writer, ([1], b"\3" * size))
    assert writer.place([([1], b"\4" * size)]) is None
    assert readers[0].take() == bytes(size)
    publish(writer, ([1], b"\4" * size))
    assert [readers[0].take()[0], readers[0].take()[0]] == [1, 2]
    assert [readers[1].take()[0], readers[1].take()[0]] == [3, 4]


def test_a_device_that_is_gone_keeps_no_room(ends):
    writer, _ = ends
    size = LOG_NBYTES // 4
    for _ in range(4):
        publish(writer, ([0], bytes(size)))
    assert writer.place([([1], bytes(size))]) is None
    writer.drop(0)
    publish(writer, ([1], bytes(size)))


def test_no_device_is_given_more_records_than_its_list_holds(ends):
    writer, readers = ends
    for _ in range(ENTRIES):
        publish(writer, ([0], b"x"))
    assert writer.place([([0], b"x")]) is None
    publish(writer, ([1], b"for another"))
    readers[0].take()
    publish(writer, ([0], b"x"))


def test_a_device_that_is_stopped_with_its_mutex_is_told_later_and_the_others_at_once(control, ends):
    writer, readers = ends
    monitor = control.call_monitor(1)
    holds, may_end = threading.Event(), threading.Event()

    def hold():
        with monitor:
            holds.set()
            may_end.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait(20)
    placement = writer.place([([0, 1, 2], b"all")])
    assert not writer.publish(placement)
    assert [readers[0].take(), readers[2].take()] == [b"all", b"all"]
    assert not writer.announce()
    may_end.set()
    thread.join(20)
    assert writer.announce()
    assert readers[1].take() == b"all"


def test_to_publish_again_changes_nothing(ends):
    writer, readers = ends
    placement = writer.place([([0, 1], b"once")])
    for _ in range(3):
        assert writer.publish(placement)
        assert readers[0].take() == b"once" if not readers[0]._taken else True
    publish(writer, ([0, 1], b"next"))
    assert readers[0].take() == b"next"
    assert [readers[1].take(), readers[1].take()] == [b"once", b"next"]


def test_the_longest_record_leaves_room_for_others():
    assert 4 * log.LARGEST_RECORD_NBYTES < LOG_NBYTES

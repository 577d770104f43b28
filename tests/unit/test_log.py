"""The log of calls: every device gets its records in order, once; between threads here."""

import threading

import numpy as np
import pytest

from tests.monitors import KINDS, held, ways_of_waking
from tinyshard.runtime.shm import control_block, log, segment
from tinyshard.runtime.shm.control_block import LOG_NBYTES
from tinyshard.runtime.shm.log import CallLog, LogReader

pytestmark = pytest.mark.skipif(not segment.is_possible(), reason="this system has no shared memory")
COUNT = 3


def made(count):
    memory = np.zeros(control_block.nbytes(count), np.uint8)
    control_block.initialise(memory, count)
    return control_block.ControlBlock(memory, count)


@pytest.fixture(params=KINDS)
def control(request, monkeypatch):
    ways_of_waking(monkeypatch, request.param)
    return made(COUNT)


@pytest.fixture
def ends(control):
    return CallLog(control), [LogReader(control, device) for device in range(COUNT)]


def publish(writer, *records):
    placement = writer.place(records)
    assert placement is not None
    assert writer.publish(placement)
    writer.ring()


def take(reader):
    """The next records for this device."""
    while not (taken := reader.take(60)):
        pass
    return taken


def test_each_device_gets_what_is_for_it_in_order(ends):
    writer, readers = ends
    publish(writer, ([0, 2], b"one"), ([1], b"two"))
    publish(writer, ([2], b"three"))
    assert [take(reader) for reader in readers] == [[b"one"], [b"two"], [b"one", b"three"]]
    publish(writer, ([], b"for no device"), ([0, 1], b""))
    assert [take(reader) for reader in readers[:2]] == [[b""], [b""]]


@pytest.mark.parametrize("count", [1, 8, 9, 64])
def test_any_number_of_devices_is_told_apart(count):
    control = made(count)
    writer, readers = CallLog(control), [LogReader(control, device) for device in range(count)]
    publish(writer, *(([device], bytes([device])) for device in range(count)), (range(count), b"all"))
    assert [take(reader) for reader in readers] == [[bytes([device]), b"all"] for device in range(count)]


def test_a_device_that_sleeps_is_woken(ends):
    writer, readers = ends
    got = []
    thread = threading.Thread(target=lambda: got.append(take(readers[1])))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    publish(writer, ([1], b"now"))
    thread.join(20)
    assert got == [[b"now"]]


def test_records_stay_whole_while_the_log_goes_round_many_times(ends):
    writer, readers = ends
    sizes = [1, LOG_NBYTES // 7, 3001, LOG_NBYTES // 11] * 20
    for k, size in enumerate(sizes):
        record = bytes([k]) * size
        publish(writer, (range(COUNT), record))
        assert take(readers[0]) == take(readers[1]) == take(readers[2]) == [record]


def test_what_a_device_has_not_taken_is_not_written_over(ends):
    writer, readers = ends
    size = LOG_NBYTES // 5
    for k in range(4):
        publish(writer, (range(COUNT), bytes([k]) * size))
        take(readers[1])
        take(readers[2])
    assert writer.place([([1], b"\4" * size)]) is None
    assert [record[0] for record in take(readers[0])] == [0, 1, 2, 3]
    publish(writer, ([1], b"\4" * size))
    assert take(readers[1])[0][0] == 4


def test_a_device_passes_over_what_is_for_others_and_is_woken_for_that_when_the_log_is_full(ends):
    writer, readers = ends
    size = LOG_NBYTES // 8
    was_full = 0
    for k in range(40):
        if writer.place([([0], bytes(size))]) is None:
            was_full += 1
            assert readers[1].take(60) == readers[2].take(60) == []
        publish(writer, ([0], bytes([k]) * size))
        assert take(readers[0])[0][0] == k
    assert was_full


def test_a_device_that_is_gone_keeps_no_room(ends):
    writer, readers = ends
    size = LOG_NBYTES // 5
    for _ in range(4):
        publish(writer, ([0], bytes(size)))
    assert writer.place([([1], bytes(size))]) is None
    assert readers[1].take(60) == readers[2].take(60) == []
    assert writer.place([([1], bytes(size))]) is None
    writer.drop(0)
    publish(writer, ([0, 1], bytes(size)))
    assert len(take(readers[1])) == 1


@pytest.mark.parametrize("control", ["monitors"], indirect=True)
def test_a_device_that_is_stopped_with_its_mutex_is_told_later_and_the_others_at_once(control, ends):
    writer, readers = ends
    with held(control.waking(-1)._monitors[1]):
        placement = writer.place([([0, 1, 2], b"all")])
        assert not writer.publish(placement)
        assert take(readers[0]) == take(readers[2]) == [b"all"]
        assert not writer.announce()
    assert writer.announce()
    assert take(readers[1]) == [b"all"]


def test_to_publish_again_changes_nothing(ends):
    writer, readers = ends
    placement = writer.place([([0, 1], b"once")])
    assert writer.publish(placement)
    assert take(readers[0]) == [b"once"]
    assert writer.publish(placement)
    publish(writer, ([0, 1], b"next"))
    assert take(readers[0]) == [b"next"]
    assert take(readers[1]) == [b"once", b"next"]


def test_the_longest_record_leaves_room_for_others():
    assert 4 * log.LARGEST_RECORD_NBYTES < LOG_NBYTES

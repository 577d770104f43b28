"""The controller sees how far devices are, and sleeps once for all of them; between threads here."""

import linecache
import sys
import threading
import time

import numpy as np
import pytest

from tinyshard.runtime import progress
from tinyshard.runtime.progress import Overview, Progress
from tinyshard.runtime.shm import allocator, control_block

pytestmark = pytest.mark.skipif(not allocator.is_possible(), reason="shared memory needs Linux on x86-64")
COUNT = 3


@pytest.fixture
def ends():
    shared = control_block.ControlBlock(np.zeros(control_block.nbytes(COUNT), np.uint8), COUNT)
    return Overview(shared), [Progress(shared, device) for device in range(COUNT)]


def test_who_waits_is_woken_by_the_last_of_those_that_it_needs(ends):
    overview, devices = ends
    got = []
    thread = threading.Thread(target=lambda: got.append(overview.wait_a_moment({0: 5, 2: 7}, lambda _: True, 60)))
    thread.start()
    time.sleep(0.05)  # it is asleep by then
    devices[0].finish(5)
    devices[2].finish(6)
    thread.join(0.2)
    assert thread.is_alive()
    devices[2].finish(7)
    thread.join(20)
    assert got == [[5, 0, 7]]


def test_who_is_woken_before_all_is_over_does_not_wait_longer_for_that(ends):
    overview, devices = ends
    asked_s = []

    def wake_early(_, timeout):
        asked_s.append(timeout._obj.tv_sec + timeout._obj.tv_nsec / 1e9)
        time.sleep(0.1)
        if len(asked_s) == 3:
            devices[0].finish(1)

    overview._own.sleep = wake_early
    assert overview.wait_a_moment({0: 1}, lambda _: True, 60) == [1, 0, 0]
    assert 60 >= asked_s[0] > asked_s[1] + 0.09 > asked_s[2] + 0.18


def test_devices_that_finish_in_any_order_leave_nobody_asleep(ends):
    overview, devices = ends
    begun = threading.Barrier(COUNT + 1)
    numbers = range(1, 300)

    def work(device):
        for number in numbers:
            begun.wait(20)
            devices[device].finish(number)

    threads = [threading.Thread(target=work, args=(d,)) for d in range(COUNT)]
    for thread in threads:
        thread.start()
    for number in numbers:
        begun.wait(20)
        assert overview.wait_a_moment(dict.fromkeys(range(COUNT), number), lambda _: True, 20) == [number] * COUNT
    for thread in threads:
        thread.join(20)


def test_it_does_not_wait_longer_than_it_is_to(ends):
    overview, devices = ends
    devices[0].finish(1)
    start_s = time.monotonic()
    assert overview.wait_a_moment({0: 1, 1: 1}, lambda _: True, 0.05) is None
    assert 0.05 <= time.monotonic() - start_s < 5
    assert overview.wait_a_moment({0: 1}, lambda _: True, 0.05) == [1, 0, 0]


def test_what_is_finished_counts_only_once_all_that_was_said_is_heard(ends):
    overview, devices = ends
    devices[0].finish(1)
    assert overview.wait_a_moment({0: 1}, lambda _: False, 0.05) is None
    looks = iter([False, True])
    assert overview.wait_a_moment({0: 1}, lambda _: next(looks), 0.05) == [1, 0, 0]
    heard = [1, 0, 0]  # the failure is told before the call is noted as over
    devices[0].tell()
    devices[0].finish(2)
    assert overview.wait_a_moment({0: 2}, heard.__eq__, 0.05) == [2, 0, 0]


def test_an_interrupt_at_any_line_of_a_wait_leaves_the_place_to_wait_free(ends):
    overview, _ = ends
    for line in range(1, 200):
        lines = 0

        def strike(frame, event, argument, line=line):
            nonlocal lines
            if frame.f_code.co_filename != progress.__file__:
                return None
            # Python looks for signals after calls; "with" is left in one step, though the line counts once more
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            if event == "line" and not text.strip().startswith("with "):
                lines += 1
                if lines == line:
                    raise KeyboardInterrupt
            return strike

        sys.settrace(strike)
        try:
            overview.wait_a_moment({0: 5}, lambda _: True, 0.001)
            break
        except KeyboardInterrupt:
            assert not overview._waiting.locked(), line
        finally:
            sys.settrace(None)
    assert 20 < line < 199

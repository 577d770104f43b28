"""The controller sees how far devices are, and is woken by those that it waits for; between threads here."""

import functools
import threading
import time

import numpy as np
import pytest

from tests.interrupts import strike_at
from tests.monitors import KINDS, held, ways_of_waking
from tinyshard.runtime.shm import completion, control_block, segment
from tinyshard.runtime.shm.completion import Completion, Completions

pytestmark = pytest.mark.skipif(not segment.is_possible(), reason="this system has no shared memory")
COUNT = 3


@pytest.fixture(params=KINDS)
def control(request, monkeypatch):
    ways_of_waking(monkeypatch, request.param)
    memory = np.zeros(control_block.nbytes(COUNT), np.uint8)
    control_block.initialise(memory, COUNT)
    return control_block.ControlBlock(memory, COUNT)


@pytest.fixture
def ends(control):
    controllers = Completions(control)
    yield controllers, [Completion(control, device, controllers.bell) for device in range(COUNT)]
    controllers.close()


def always(finished):
    return True


class Noted:
    """Takes what is finished, as often as `agrees` says."""

    def __init__(self, *agrees):
        self.agrees = iter(agrees)
        self.finished = None

    def __call__(self, finished):
        self.finished = finished
        return next(self.agrees, True)


def until_asleep(thread, control, device, number):
    """Until the thread has asked the device to ring when it has finished this call, or is over."""
    while thread.is_alive() and control.calls["awaited"][device] != number:
        pass


def test_a_thread_that_waits_is_woken_when_all_that_it_needs_is_finished(control, ends):
    controllers, devices = ends
    got, noted = [], Noted()
    thread = threading.Thread(target=lambda: got.append(controllers.wait({0: 5, 2: 7}, noted, 60)))
    thread.start()
    until_asleep(thread, control, 2, 7)
    devices[0].finish(5)
    devices[2].finish(6)
    thread.join(0.2)
    assert thread.is_alive()
    devices[2].finish(7)
    thread.join(20)
    assert got == [True] and noted.finished == [5, 0, 7]


def test_devices_that_finish_in_any_order_leave_no_thread_asleep(ends):
    controllers, devices = ends
    begun = threading.Barrier(COUNT + 1)
    calls = range(1, 300)

    def work(device):
        for number in calls:
            begun.wait(20)
            devices[device].finish(number)

    threads = [threading.Thread(target=work, args=(d,)) for d in range(COUNT)]
    for thread in threads:
        thread.start()
    for number in calls:
        begun.wait(20)
        start_s = time.monotonic()
        noted = Noted()
        assert controllers.wait(dict.fromkeys(range(COUNT), number), noted, 20)
        assert noted.finished == [number] * COUNT
        assert time.monotonic() - start_s < 10
    for thread in threads:
        thread.join(20)


def test_it_does_not_wait_longer_than_it_is_to(ends):
    controllers, devices = ends
    devices[0].finish(1)
    start_s = time.monotonic()
    assert not controllers.wait({0: 1, 1: 1}, always, 0.05)
    assert 0.05 <= time.monotonic() - start_s < 5
    assert controllers.wait({0: 1}, always, 0.05)


def test_what_is_finished_counts_only_once_all_that_was_sent_is_received(ends):
    controllers, devices = ends
    devices[0].finish(1)
    assert not controllers.wait({0: 1}, lambda finished: False, 0.05)
    noted = Noted(False, True)
    assert controllers.wait({0: 1}, noted, 0.05) and noted.finished == [1, 0, 0]
    devices[0].finish(2)
    assert controllers.wait({0: 2}, always, 0.05)


@pytest.mark.parametrize("control", ["monitors"], indirect=True)
def test_a_device_that_is_stopped_with_its_mutex_is_not_waited_for_without_end(control, ends):
    controllers, devices = ends
    devices[1].finish(1)
    with held(control.waking(-1)._monitors[0]):
        assert not controllers.wait({0: 1}, always, 5)
        assert controllers.read() == [-1, 1, 0]
        assert controllers.wait({1: 1}, always, 5)


def test_an_interrupt_at_any_line_of_a_wait_leaves_the_place_to_wait_free(control, ends):
    controllers, devices = ends
    for line in range(1, 300):
        noted = Noted()
        wait = functools.partial(controllers.wait, {0: line + 5}, noted)
        if not strike_at(line, functools.partial(wait, 0.001), completion.__file__.__eq__):
            break
        got = []
        thread = threading.Thread(target=lambda got=got, wait=wait: got.append(wait(20)))
        thread.start()
        until_asleep(thread, control, 0, line + 5)
        devices[0].finish(line + 5)  # its mutex is free
        thread.join(20)
        assert got == [True] and noted.finished == [line + 5, 0, 0], line
    assert 20 < line < 299

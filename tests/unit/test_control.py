import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tinyshard.runtime.collectives.base import PeerLostError
from tinyshard.runtime.failure import Failure
from tinyshard.runtime.worker.control import CallControl


def spin(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="only some systems tell the processor time of one thread")
def test_a_loop_that_waits_while_other_threads_work_does_not_get_on() -> None:
    call_control = CallControl()
    before_s = call_control.processor_s()
    with ThreadPoolExecutor(1) as another:
        another.submit(spin, 0.3).result()
        assert call_control.processor_s() - before_s < 0.15
        spin(0.1)
        assert another.submit(call_control.processor_s).result() - before_s >= 0.1


def test_no_call_starts_while_it_is_frozen_and_then_those_that_are_left_out_do_not() -> None:
    call_control = CallControl()
    assert call_control.enter(1)
    assert call_control.freeze() == 1
    with ThreadPoolExecutor(1) as loop:
        second = loop.submit(call_control.enter, 2)
        time.sleep(0.05)
        assert not second.done()
        call_control.cancel(3, frozenset({2}), "")
        assert not second.result(20)
        assert loop.submit(call_control.enter, 3).result(20)
    assert call_control.freeze() == 3


def test_an_error_is_told_from_a_lost_peer_by_its_type_not_its_words() -> None:
    call_control, lost = CallControl(), Failure(3, lost="killed")
    with ThreadPoolExecutor(2) as loop:
        other = loop.submit(call_control.why_broken, ValueError("the file gloo.txt is not there"))
        assert other.result(5) is None
        broken = loop.submit(call_control.why_broken, PeerLostError("a connection ended"))
        call_control.lose(lost)
        assert broken.result(20) is lost

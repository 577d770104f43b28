import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tinyshard.runtime.worker.control import Turnstile


def spin(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="only some systems tell the processor time of one thread")
def test_a_loop_that_waits_while_other_threads_work_does_not_get_on() -> None:
    turnstile = Turnstile()
    before_s = turnstile.processor_s()
    with ThreadPoolExecutor(1) as another:
        another.submit(spin, 0.3).result()
        assert turnstile.processor_s() - before_s < 0.15
        spin(0.1)
        assert another.submit(turnstile.processor_s).result() - before_s >= 0.1


def test_no_call_starts_while_it_is_frozen_and_then_those_that_are_left_out_do_not() -> None:
    turnstile = Turnstile()
    assert turnstile.enter(1)
    assert turnstile.freeze() == 1
    with ThreadPoolExecutor(1) as loop:
        second = loop.submit(turnstile.enter, 2)
        time.sleep(0.05)
        assert not second.done()
        turnstile.cancel(3, frozenset({2}), "")
        assert not second.result(20)
        assert loop.submit(turnstile.enter, 3).result(20)
    assert turnstile.freeze() == 3

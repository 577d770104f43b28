import sys
import threading
import time

import pytest

from tinyshard.runtime.turnstile import Turnstile


def spin(seconds: float) -> None:
    end_s = time.thread_time() + seconds
    while time.thread_time() < end_s:
        pass


def in_another_thread(call: object, *args: object) -> list[object]:
    told: list[object] = []
    thread = threading.Thread(target=lambda: told.append(call(*args)))  # type: ignore[operator]
    thread.start()
    thread.join()
    return told


@pytest.mark.skipif(sys.platform != "linux", reason="only some systems tell the processor time of one thread")
def test_a_loop_that_waits_while_other_threads_work_does_not_get_on() -> None:
    turnstile = Turnstile()
    before_s = turnstile.processor_s()
    in_another_thread(spin, 0.3)
    assert turnstile.processor_s() - before_s < 0.15
    spin(0.1)
    (told_s,) = in_another_thread(turnstile.processor_s)
    assert isinstance(told_s, float) and told_s - before_s >= 0.1

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tinyshard.runtime.turnstile import Turnstile


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

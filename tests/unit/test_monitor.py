"""A monitor in shared memory: between threads, and between processes of which one dies with the mutex in its hand."""

import errno
import mmap
import os
import signal
import threading
import time

import numpy as np
import pytest

from tinyshard.runtime.shm import monitor
from tinyshard.runtime.shm.monitor import Monitor


@pytest.fixture
def memory():
    """Shared by this process and its children: a new monitor, and numbers."""
    pages = mmap.mmap(-1, 4096)
    whole = np.frombuffer(pages, np.uint8)
    Monitor(whole[: monitor.NBYTES], is_new=True)
    return whole


def end_of(memory):
    return Monitor(memory[: monitor.NBYTES]), memory[2048:].view(np.int64).data


def in_child(call):
    """Run it in a forked process; the id of that."""
    pid = os.fork()
    if pid == 0:
        try:
            call()
        finally:
            os._exit(1)
    return pid


def test_increments_of_many_processes_are_all_counted(memory):
    def count():
        state, words = end_of(memory)
        for _ in range(2000):
            with state:
                words[0] += 1
        os._exit(0)

    pids = [in_child(count) for _ in range(4)]
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    assert end_of(memory)[1][0] == 8000


def test_a_process_that_sleeps_on_a_condition_is_woken(memory):
    def wait():
        state, words = end_of(memory)
        state.wait_until(lambda: words[0] == 1)
        os._exit(0 if words[0] == 1 else 3)

    pid = in_child(wait)
    state, words = end_of(memory)
    time.sleep(0.05)
    with state:
        words[0] = 1
    state.notify_all()
    assert os.waitpid(pid, 0)[1] == 0


def test_where_a_condition_refuses_to_be_waited_for_it_is_looked_at_again(memory, monkeypatch):
    """As on macOS, where another process, which maps the mutex elsewhere, sleeps on the condition already."""
    wait = "pthread_cond_timedwait_relative_np" if monitor._HAS_RELATIVE_WAIT else "pthread_cond_timedwait"
    monkeypatch.setattr(monitor._library, wait, lambda *_: errno.EINVAL)
    state, words = end_of(memory)
    got = []
    thread = threading.Thread(target=lambda: (state.wait_until(lambda: words[0]), got.append(7)))
    thread.start()
    other, _ = end_of(memory)
    assert other.acquire(20)  # the thread that waits does not keep it
    words[0] = 1
    other.release()
    thread.join(20)
    assert got == [7]
    assert other.acquire(20)
    other.release()


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="robust mutexes are Linux's")
def test_a_process_that_is_killed_with_the_mutex_does_not_keep_it(memory):
    def die():
        state, words = end_of(memory)
        state.acquire()
        words[0] = 7
        os.kill(os.getpid(), signal.SIGKILL)

    os.waitpid(in_child(die), 0)
    state, words = end_of(memory)
    assert state.acquire(1.0)
    assert words[0] == 7
    state.release()
    assert state.acquire(1.0)
    state.release()


@pytest.mark.parametrize("has_clock_lock", [monitor._HAS_CLOCK_LOCK, False])
def test_a_process_that_is_stopped_with_the_mutex_holds_up_nobody_who_gives_a_limit(
    memory, monkeypatch, has_clock_lock
):
    """A library without a timed lock, as macOS's and musl's, tries again and again."""
    monkeypatch.setattr(monitor, "_HAS_CLOCK_LOCK", has_clock_lock)

    def stop():
        state, words = end_of(memory)
        state.acquire()
        words[0] = 1
        os.kill(os.getpid(), signal.SIGSTOP)
        state.release()
        os._exit(0)

    pid = in_child(stop)
    os.waitpid(pid, os.WUNTRACED)
    state, words = end_of(memory)
    assert words[0] == 1
    began_s = time.monotonic()
    assert not state.acquire(0.05)
    assert time.monotonic() - began_s < 5
    os.kill(pid, signal.SIGCONT)
    assert state.acquire(20)
    state.release()
    os.waitpid(pid, 0)


def test_to_release_it_twice_harms_nobody(memory):
    state, _ = end_of(memory)
    state.acquire()
    state.release()
    state.release()
    assert state.acquire(1.0)
    other = []
    thread = threading.Thread(target=lambda: other.append(end_of(memory)[0].acquire(0.05)))
    thread.start()
    thread.join()
    assert other == [False]
    state.release()


def test_what_is_checked_between_sleeps_ends_the_waiting(memory):
    def give_up():
        raise RuntimeError("aborted")

    state, _ = end_of(memory)
    with pytest.raises(RuntimeError, match="aborted"):
        state.wait_until(lambda: False, check=give_up)
    assert state.acquire(1.0)
    state.release()

"""The thread that calls hands out its own calls: at no step is a value lost, or a call half done or done twice."""

import signal
import threading

import pytest
import torch

import tinyshard as ts
from tests.interrupts import strike_at
from tests.workers.limits import outcome
from tinyshard.runtime.controller import connection, delivery, dispatcher, refs
from tinyshard.runtime.shm import log, monitor, segment

FILES = {module.__file__ for module in (connection, delivery, dispatcher, refs, log, monitor)}


def test_what_another_thread_calls_while_a_call_is_handed_out_finds_its_operands(pool, rows, monkeypatch):
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    values = {"v": x + 1}
    (values["v"] * 3).block_until_ready()
    called, threads = [], []

    def call_and_let_go(released=pool._buffers.released):
        found = released()
        if values:
            thread = threading.Thread(target=lambda: called.append(values.pop("v") * 3))
            thread.start()
            thread.join(0.5)  # it has posted its call, and waits until it may hand it out
            threads.append(thread)
        return found

    monkeypatch.setattr(pool._buffers, "released", call_and_let_go)
    y = x + 1
    y.block_until_ready()
    for thread in threads:
        thread.join()
    assert called[0].sum().item() == 96
    assert y.sum().item() == 32


def test_an_interrupt_at_any_step_of_handing_out_leaves_nothing_half_done(pool, rows):
    """Whatever line of it Ctrl-C strikes, the devices stay in step, and what was called is called once."""
    if pool.collectives != "shared":
        pytest.skip("on gloo the I/O thread alone hands out")
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    pool.handed()  # what has been exchanged before
    assert (x.sum() + x)[0, 0].item() == 17
    calm = len(pool.handed()[0])
    made, struck = [], []
    for line in range(1, 1000):
        made.clear()
        where = strike_at(line, lambda: made.append(x.sum()), FILES.__contains__)
        assert (x + 1).tolist() == [[2, 2]] * 8, where
        total = x.sum()
        assert (total + x)[0, 0].item() == 17, where
        exchanged = {device: len(told) for device, told in pool.handed().items()}
        assert len(set(exchanged.values())) == 1, f"{where}: some devices have called it, and some have not"
        assert exchanged[0] in (calm, calm + 1), where
        if where is None:
            assert exchanged[0] == calm + 1
            break
        struck.append(where)
    assert line < 999
    assert len({at for name, at in struck if name == log.__file__}) > 20
    assert len({at for name, at in struck if name == delivery.__file__}) > 20
    made.clear()
    del total
    assert {pool.held(d) for d in range(8)} == {1}


def test_an_interrupt_at_any_step_of_a_question_leaves_no_thread_waiting(pool, rows):
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    for line in range(1, 1000):
        where = strike_at(line, lambda: pool.held(0), FILES.__contains__)
        assert outcome(lambda: pool.held(0))() == 1, where
        if where is None:
            break
    assert line < 999
    assert not any(link.asked for link in pool._dispatcher.links)
    assert x.sum().item() == 16


@pytest.mark.skipif(not segment.is_possible(), reason="this system has no shared memory")
def test_what_a_signals_handler_calls_inside_a_call_is_done_after_it(pool, rows):
    """A handler or a finalizer may run between any two lines, so within the lock that a call of its thread holds."""
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    got = []

    def call(*_):
        y = x * 3
        got.append(y)
        try:
            got.append(y.sum().item())
        except ts.RuntimeStateError as error:
            got.append(error)

    before = signal.signal(signal.SIGUSR1, call)
    try:
        with pool._dispatcher.calls.lock:
            signal.raise_signal(signal.SIGUSR1)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert "a finalizer or a signal's handler cannot wait for a value here" in str(got[1])
    assert got[0].sum().item() == 48
    assert (x + 1).sum().item() == 32

"""A thread that waits hands out its own call: at no step is a value lost, or a call half done or done twice."""

import linecache
import os
import sys
import threading

import pytest
import torch

import tinyshard as ts
from tinyshard.runtime import publication, stream
from tinyshard.runtime.controller import dispatcher, refs


def test_what_another_thread_calls_while_a_call_is_handed_out_finds_its_operands(pool, rows, monkeypatch):
    if pool.collectives != "shared":
        pytest.skip("on gloo the I/O thread alone hands out")
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    monkeypatch.setattr(dispatcher, "LINGER_S", 2.0)  # the I/O thread leaves all to this one
    values = {"v": x + 1}
    (values["v"] * 3).block_until_ready()
    called = []

    def call_and_let_go(released=pool._buffers.released):
        if values and not pool._order.locked():  # a call that comes alone goes out while others may not call
            thread = threading.Thread(target=lambda: called.append(values.pop("v") * 3))
            thread.start()
            thread.join()
        return released()

    monkeypatch.setattr(pool._buffers, "released", call_and_let_go)
    for _ in range(100):  # until it is this thread that hands out, when it is about to wait
        x * 2
        (x * 3).block_until_ready()  # two calls without waiting in between are for the I/O thread, which then lingers
        y = x + 1
        pool._dispatcher.hurry()
        if called:
            break
    assert called
    assert called[0].sum().item() == 96
    assert y.sum().item() == 32


def test_an_interrupt_at_any_step_of_handing_out_leaves_nothing_half_done(pool, rows, monkeypatch):
    """A waiting thread hands out its own call: whatever line of that Ctrl-C strikes, the devices stay in step."""
    if pool.collectives != "shared":
        pytest.skip("on gloo the I/O thread alone hands out")
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    board = pool._dispatcher
    pool.handed()  # what others have exchanged before
    assert (x.sum() + x)[0, 0].item() == 17
    calm = pool.handed()
    files = {module.__file__ for module in (dispatcher, stream, publication, refs)}
    monkeypatch.setattr(dispatcher, "LINGER_S", 2.0)  # the I/O thread leaves all to this one
    struck, lines = [], 0
    for _ in range(1000):
        lines = 0

        def strike(frame, event, argument):
            nonlocal lines
            if frame.f_code.co_filename not in files:
                return None
            # Python looks for signals after calls; "with" is left in one step, though the line counts once more
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            if event == "line" and not text.strip().startswith("with "):
                lines += 1
                if lines > len(struck):
                    struck.append((os.path.basename(frame.f_code.co_filename), frame.f_lineno))
                    raise KeyboardInterrupt
            return strike

        x * 2
        (x * 3).block_until_ready()  # two calls without waiting in between are for it, and from here on it lingers
        y = x.sum()
        sys.settrace(strike)
        try:
            board.hurry()
            is_whole = lines > 60
        except KeyboardInterrupt:
            is_whole = False
        finally:
            sys.settrace(None)
        assert (y + x)[0, 0].item() == 17, struck[-1]
        assert pool.handed() == calm, f"{struck[-1]}: called once, and no more"
        del y
        if is_whole:
            break
    assert is_whole
    assert len({line for name, line in struck if name == "publication.py"}) > 5  # it was this thread that did it
    assert {pool.held(d) for d in range(8)} == {1}

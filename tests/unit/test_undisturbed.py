"""Finalizers and signal handlers use Arrays while a function is traced, or an op is planned: neither sees the other."""

import contextlib
import functools
import gc
import itertools
import os
import signal
import sys
import threading

import numpy as np
import pytest
import torch
from torch import overrides

import tinyshard as ts
from tests.extent import examples, mostly_whole
from tinyshard.core.undisturbed import undisturbed

pytestmark = pytest.mark.usefixtures("local")
# torch, and what it calls between two of its steps: the code that it makes, and blocks of contextlib
TORCHS = (os.path.dirname(torch.__file__), "<string>", contextlib.__file__)


def numbers():
    return ts.device_put(torch.arange(8.0))


class Finalized:
    """Refers to itself, so that only the collector frees it, and then computes."""

    def __init__(self, operand, made):
        self.itself, self.operand, self.made = self, operand, made

    def __del__(self):
        self.made.append(self.operand + 1)


@pytest.fixture
def always_collected():
    """The collector runs whenever something is allocated."""
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(1, 1, 1)
    yield
    gc.set_threshold(*before)


@pytest.fixture
def handled():
    """A function that installs a handler of SIGTERM for this test."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda handler: signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGTERM, before)


def test_a_finalizer_that_computes_does_not_run_within_a_trace(always_collected):
    y, made, within = numbers(), [], []

    def f(v):
        Finalized(y, made)
        at_start = len(made)
        for _ in range(100):
            cycle = []
            cycle.append(cycle)  # the collector runs, if it may
        v = torch.tanh(v) + 1
        within.append(len(made) - at_start)
        return v

    times = examples(3, 10)
    for _ in range(times):
        got = ts.jit(lambda v: f(v))(y)
        np.testing.assert_allclose(np.asarray(got), np.tanh(np.arange(8.0)) + 1, rtol=1e-6)
    gc.collect()
    assert within == [0] * times
    assert len(made) == times
    assert all(x.tolist() == [1, 2, 3, 4, 5, 6, 7, 8] for x in made)


def test_the_collector_is_as_it_was_after_a_trace_also_after_an_error():
    def fails(v):
        assert not gc.isenabled()
        raise KeyError("in the function")

    x = numbers()
    assert gc.isenabled()
    with pytest.raises(KeyError):
        ts.jit(fails)(x)
    assert gc.isenabled()
    gc.disable()
    try:
        ts.jit(lambda v: v * 3)(x)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_signal_handler_within_a_traced_function_computes_outside_of_the_trace(handled):
    y, made = numbers(), []

    def handler(number, frame):
        made.append((y + 1).tolist())

    handled(handler)

    def f(v):
        v = torch.vmap(lambda row: signal.raise_signal(signal.SIGTERM) or row * 2)(v.reshape(2, 4)).reshape(8)
        signal.raise_signal(signal.SIGTERM)
        return v + 1

    jitted = ts.jit(f)
    assert jitted(y).tolist() == [2 * i + 1 for i in range(8)]
    assert made == [[1, 2, 3, 4, 5, 6, 7, 8]] * 2
    assert signal.getsignal(signal.SIGTERM) is handler


def traced():
    """Trace a new function, plan it, call it, check what it makes."""

    def f(v):
        g = torch.func.grad(lambda w: (torch.sin(w) * torch.linspace(0, 1, 8)).sum())(v)
        return torch.cumsum(g + closed, 0)

    x, closed = numbers(), numbers()
    want = np.cumsum(np.cos(np.arange(8.0)) * np.linspace(0, 1, 8) + np.arange(8.0))
    np.testing.assert_allclose(np.asarray(ts.jit(f)(x)), want, rtol=1e-5)


lengths = itertools.count(3)


def planned():
    """Plan an op on Arrays of a new shape, call it, check what it makes."""
    mesh, length = ts.make_mesh((8,), ("i",)), next(lengths)
    x = ts.device_put(torch.ones(8, length), ts.NamedSharding(mesh, ts.P("i")))
    assert torch.logsumexp(x, 0).tolist() == pytest.approx([np.log(8) + 1] * length)


def mapped():
    """Trace a new function of each device, differentiate it, check what it makes."""
    slope = ts.grad(lambda v: ts.pmap(lambda u: ts.lax.psum(u * u, "i"), axis_name="i")(v).sum())(numbers())
    assert slope.tolist() == [16.0 * i for i in range(8)]


def always():
    return True


def at_call(moment, act, function, files="", counts=always):
    """Call the function, and `act` with the frame of one of the calls that it makes, the first being 1.

    Calls of functions of files whose names begin so count, where `counts` is true. Returns how many there were.
    """
    calls = 0

    def count(frame, event, arg):
        nonlocal calls
        if event == "call" and frame.f_code.co_filename.startswith(files) and counts():
            calls += 1
            if calls == moment:
                sys.setprofile(None)
                act(frame)

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


def moments(function, parts, files="", counts=always):
    """The numbers of some of the calls that it makes, at equal distances."""
    at_call(0, None, function)
    count = at_call(0, None, function, files, counts)
    return range(1, count, max(1, count // parts))


INTERRUPTIONS = itertools.product(["signal", "finalizer"], [traced, planned, mapped])


@pytest.mark.parametrize(
    "cause, function", mostly_whole(INTERRUPTIONS, lambda row: row[0] == "signal" or row[1] is traced)
)
def test_at_any_moment_of_a_trace_and_of_planning_an_interruption_computes_apart(function, cause, handled):
    y, made = numbers(), []
    handled(lambda number, frame: made.append(torch.tanh(y + 1)))

    def act(frame):
        if cause == "signal":
            signal.raise_signal(signal.SIGTERM)
            return
        Finalized(y, made)
        before = gc.get_threshold()
        gc.set_threshold(1)
        [[] for _ in range(10)]  # the collector runs, if it may
        gc.set_threshold(*before)

    reached = [moment <= at_call(moment, act, function) for moment in moments(function, examples(5, 25))]
    gc.collect()
    assert len(made) == sum(reached) > 3
    want = np.arange(1, 9.0) if cause == "finalizer" else np.tanh(np.arange(1, 9.0))
    for x in made:
        np.testing.assert_allclose(np.asarray(x), want, rtol=1e-6)


def strike(frame, number=signal.SIGINT):
    """As Python calls the handler between two lines of this frame."""
    signal.getsignal(number)(number, frame)


@pytest.mark.parametrize("function", [traced, planned, mapped])
def test_ctrl_c_at_any_moment_of_a_trace_reaches_the_user_and_leaves_torch_as_it_was(function):
    """While torch begins or ends a mode it would leave the mode on, and the notebook without any real tensor."""
    struck = 0

    def is_undisturbed():  # elsewhere Ctrl-C is Python's own, and strikes between any two lines
        return signal.getsignal(signal.SIGINT) is not signal.default_int_handler

    for moment in moments(function, examples(10, 100), TORCHS, is_undisturbed):
        try:
            assert at_call(moment, strike, function, TORCHS, is_undisturbed) < moment, "it went on"
        except KeyboardInterrupt:
            struck += 1
        assert torch.ones(2).tolist() == [1.0, 1.0]
        assert overrides._len_torch_function_stack() == 0
        assert torch.is_grad_enabled()
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert gc.isenabled()
        with pytest.raises(NameError):
            ts.lax.axis_index("i")
    assert struck > 8
    function()


def test_ctrl_c_as_torch_begins_or_ends_a_transformations_mode_leaves_no_mode():
    x, files = numbers(), overrides.__file__

    def mapped_eagerly():
        assert ts.vmap(lambda v: v * 2)(x).tolist() == [2 * i for i in range(8)]

    count = at_call(0, None, mapped_eagerly, files)
    assert count > 3
    for moment in range(1, count + 1):
        with contextlib.suppress(KeyboardInterrupt):
            at_call(moment, strike, mapped_eagerly, files)
        assert overrides._len_torch_function_stack() == 0


def test_a_handler_that_raises_ends_a_trace(handled):
    """As the handler of an alarm does for a limit of time, and Ctrl-C's."""

    def handler(number, frame):
        raise TimeoutError("too long")

    handled(handler)

    def f(v):
        signal.raise_signal(signal.SIGTERM)
        pytest.fail("the trace went on")

    x = numbers()
    with pytest.raises(TimeoutError, match="too long"):
        ts.jit(f)(x)
    assert signal.getsignal(signal.SIGTERM) is handler
    with pytest.raises(KeyboardInterrupt):
        ts.jit(lambda v: signal.raise_signal(signal.SIGINT) or v)(x)
    assert ts.jit(lambda v: v + 1)(x).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def press(number=signal.SIGINT):
    """Ctrl-C, or another signal, while a line of torch's runs, which the user's line has called."""
    at_call(1, lambda frame: strike(frame, number), functools.partial(torch.is_tensor, 0))


@pytest.mark.parametrize("is_at_an_op", [True, False])
@pytest.mark.parametrize(
    "signals, error",
    [
        ([signal.SIGINT], KeyboardInterrupt),
        ([signal.SIGTERM], TimeoutError),
        ([signal.SIGTERM, signal.SIGTERM], TimeoutError),
    ],
)
def test_what_a_handler_raises_within_torch_strikes_at_the_next_op_or_at_the_end(signals, error, is_at_an_op, handled):
    def handler(number, frame):
        raise TimeoutError("too long")

    handled(handler)
    reached = []

    def f(v):
        v = v + 1
        for number in signals:
            press(number)
        reached.append("went on")
        if is_at_an_op:
            v = v + 1
            reached.append("went too far")
        return v

    with pytest.raises(error):
        ts.jit(f)(numbers())
    assert reached == ["went on"]
    assert signal.getsignal(signal.SIGTERM) is handler
    assert ts.jit(lambda v: v + 1)(numbers()).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_while_an_error_of_a_handler_waits_strikes_at_once(first, handled):
    def handler(number, frame):
        raise TimeoutError("too long")

    handled(handler)
    reached = []

    def f(v):
        press(first)
        reached.append("went on")
        press()
        reached.append("went too far")
        return v

    with pytest.raises(KeyboardInterrupt):
        ts.jit(f)(numbers())
    assert reached == ["went on"]


@pytest.mark.parametrize("is_in_torch", [True, False])
def test_ctrl_c_that_waits_is_not_lost_where_another_handler_raises(is_in_torch, handled):
    def handler(number, frame):
        raise TimeoutError("too long")

    handled(handler)

    def f(v):
        press()
        press(signal.SIGTERM) if is_in_torch else signal.raise_signal(signal.SIGTERM)
        return v + 1

    with pytest.raises(KeyboardInterrupt):
        ts.jit(f)(numbers())
    assert ts.jit(lambda v: v + 1)(numbers()).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_handler_that_raises_while_the_others_are_put_back_leaves_them_put_back(handled):
    def handler(number, frame):
        raise TimeoutError("too long")

    handled(handler)
    unused = signal.signal(signal.SIGWINCH, lambda *_: None)  # has a higher number, so that it is put back later
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    began = []

    def ring(frame, event, arg):
        is_put = event == "return" and frame.f_code is signal.signal.__code__
        if is_put and began and signal.getsignal(signal.SIGTERM) is handler:
            sys.setprofile(None)
            strike(frame, signal.SIGTERM)

    function = ts.jit(lambda v: began.append(v) or v + 1)
    x = numbers()
    sys.setprofile(ring)
    try:
        with pytest.raises(TimeoutError):
            function(x)
    finally:
        sys.setprofile(None)
    after = {number: signal.getsignal(number) for number in signal.valid_signals()}
    signal.signal(signal.SIGWINCH, unused)
    assert after == before
    assert gc.isenabled()
    assert function(numbers()).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_handler_that_a_traced_function_keeps_and_installs_later_raises_at_once(handled):
    def handler(number, frame):
        raise TimeoutError("too long")

    handled(handler)
    kept = []
    ts.jit(lambda v: kept.append(signal.getsignal(signal.SIGTERM)) or v + 1)(numbers())
    handled(kept[0])
    with pytest.raises(TimeoutError):
        press(signal.SIGTERM)


def test_ctrl_c_strikes_at_once_where_the_users_own_line_waits_in_a_library():
    reached = []

    def f(v):
        at_call(1, strike, threading.Event().is_set)
        reached.append("went on")
        return v + 1

    with pytest.raises(KeyboardInterrupt):
        ts.jit(f)(numbers())
    assert not reached


def test_a_handler_that_a_traced_function_installs_stays(handled):
    handled(lambda *_: None)
    new = lambda *_: None  # noqa: E731

    def f(v):
        signal.signal(signal.SIGTERM, new)
        return v + 1

    ts.jit(f)(numbers())
    assert signal.getsignal(signal.SIGTERM) is new


def test_the_collector_starts_again_when_the_last_of_several_threads_is_done():
    entered, leave = threading.Event(), threading.Event()

    def first():
        with undisturbed():
            entered.set()
            leave.wait(30)

    thread = threading.Thread(target=first)
    thread.start()
    assert entered.wait(30)
    with undisturbed():
        assert not gc.isenabled()
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_an_error_that_is_its_own_cause_ends_a_trace():
    def circular(x):
        try:
            raise ValueError("of the user's")
        except ValueError as error:
            raise error from error

    with pytest.raises(ValueError, match="of the user's"):
        ts.jit(circular)(torch.ones(2))

"""Finalizers and signal handlers use Arrays while a function is traced, or an op is planned: neither sees the other."""

import abc
import contextlib
import gc
import itertools
import signal
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import tinyshard as ts
from tinyshard.core import axis_names
from tinyshard.core.current_trace import is_tracing
from tinyshard.core.undisturbed import raise_waiting, undisturbed

pytestmark = pytest.mark.usefixtures("local")


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

    for _ in range(10):
        got = ts.jit(lambda v: f(v))(y)
        np.testing.assert_allclose(np.asarray(got), np.tanh(np.arange(8.0)) + 1, rtol=1e-6)
    gc.collect()
    assert within == [0] * 10
    assert len(made) == 10
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
        made.append((y + 1, is_tracing()))

    handled(handler)

    def f(v):
        v = torch.vmap(lambda row: signal.raise_signal(signal.SIGTERM) or row * 2)(v.reshape(2, 4)).reshape(8)
        signal.raise_signal(signal.SIGTERM)
        return v + 1

    jitted = ts.jit(f)
    assert jitted(y).tolist() == [2 * i + 1 for i in range(8)]
    assert [(x.tolist(), traced) for x, traced in made] == [([1, 2, 3, 4, 5, 6, 7, 8], False)] * 2
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


def interrupted(function, act, moment):
    """How many functions are called when this one is; `act` is called at the call of this number."""
    calls = 0

    def count(frame, event, arg):
        nonlocal calls
        calls += event == "call"
        if event == "call" and calls == moment:
            act()

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("function", [traced, planned])
@pytest.mark.parametrize("cause", ["signal", "finalizer"])
def test_at_any_moment_of_a_trace_and_of_planning_an_interruption_computes_apart(function, cause, handled):
    y, made = numbers(), []
    handled(lambda number, frame: made.append(torch.tanh(y + 1)))

    def act():
        if cause == "signal":
            signal.raise_signal(signal.SIGTERM)
            return
        Finalized(y, made)
        before = gc.get_threshold()
        gc.set_threshold(1)
        [[] for _ in range(10)]  # the collector runs, if it may
        gc.set_threshold(*before)

    interrupted(function, act, -1)
    count = interrupted(function, act, -1)
    reached = [moment <= interrupted(function, act, moment) for moment in range(1, count, max(1, count // 25))]
    gc.collect()
    assert len(made) == sum(reached) > 20
    want = np.arange(1, 9.0) if cause == "finalizer" else np.tanh(np.arange(1, 9.0))
    for x in made:
        np.testing.assert_allclose(np.asarray(x), want, rtol=1e-6)


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


def press_ctrl_c(*files, number=signal.SIGINT):
    """As Python calls the handler, within a line of the first file, called from the next."""
    frame = None
    for file in reversed(files):
        frame = SimpleNamespace(f_code=SimpleNamespace(co_filename=file), f_globals={}, f_back=frame)
    signal.getsignal(number)(number, frame)


def test_ctrl_c_within_torch_strikes_at_the_next_op_or_at_the_end_and_pressed_again_at_once():
    """While torch begins or ends a mode it would leave the mode on, and the notebook without any real tensor."""
    x, reached = numbers(), []

    def f(v, times):
        y = v + 1
        for _ in range(times):
            reached.append("pressed")
            press_ctrl_c(torch.__file__)
        reached.append("went on")
        return y + 1 if times else press_ctrl_c(torch.__file__) or y

    for times in (1, 2, 0):
        with pytest.raises(KeyboardInterrupt):
            ts.jit(f, static_argnums=1)(x, times)
    assert reached == ["pressed", "went on", "pressed", "pressed", "went on"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert ts.jit(lambda v: v + 1)(x).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_what_a_handler_raises_within_torch_strikes_at_the_next_op_or_at_the_end(handled):
    """As Ctrl-C, also when an alarm rings twice; Ctrl-C meanwhile strikes at once."""
    x, reached = numbers(), []

    def handler(number, frame):
        raise TimeoutError("too long")

    def f(v, numbers):
        y = v + 1
        for number in numbers:
            reached.append(number)
            press_ctrl_c(torch.__file__, number=number)
        reached.append("went on")
        return y + 1 if numbers else press_ctrl_c(torch.__file__, number=signal.SIGTERM) or y

    handled(handler)
    alarm, ctrl_c = signal.SIGTERM, signal.SIGINT
    for numbers_, error in [
        ((alarm,), TimeoutError),
        ((alarm, alarm), TimeoutError),
        ((alarm, ctrl_c, alarm), KeyboardInterrupt),
        ((), TimeoutError),
    ]:
        with pytest.raises(error):
            ts.jit(f, static_argnums=1)(x, numbers_)
    assert reached == [alarm, "went on", alarm, alarm, "went on", alarm, ctrl_c, "went on"]
    assert signal.getsignal(signal.SIGTERM) is handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert ts.jit(lambda v: v + 1)(x).tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_handler_that_raises_where_pmap_binds_its_axes_leaves_none_bound(handled):
    def handler(number, frame):
        raise TimeoutError("too long")

    def ring(frame, event, arg):
        if event == "return" and frame.f_code.co_name == "__enter__" and axis_names.in_scope() and not rung:
            rung.append(frame)
            press_ctrl_c(contextlib.__file__, number=signal.SIGTERM)

    handled(handler)
    rung, x = [], numbers()
    sys.setprofile(ring)
    try:
        with pytest.raises(TimeoutError) as raised:
            ts.pmap(lambda v: ts.lax.psum(v, "i"), axis_name="i")(x)
    finally:
        sys.setprofile(None)
    assert rung and raised.tb  # which keeps what was not left
    assert axis_names.in_scope() == ()
    assert ts.pmap(lambda v: ts.lax.psum(v, "i"), axis_name="i")(x).tolist() == [28] * 8


def test_a_handler_that_raises_while_the_others_are_put_back_leaves_them_put_back(handled, monkeypatch):
    def handler(number, frame):
        raise TimeoutError("too long")

    handled(handler)
    put, unused = signal.signal, signal.getsignal(signal.SIGWINCH)
    put(signal.SIGWINCH, lambda *_: None)  # has a higher number, so that it is put back later
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}

    def put_and_ring(number, new):
        old = put(number, new)
        if new is handler:
            signal.raise_signal(signal.SIGTERM)
        return old

    monkeypatch.setattr(signal, "signal", put_and_ring)
    with pytest.raises(TimeoutError), undisturbed():
        pass
    after = {number: signal.getsignal(number) for number in signal.valid_signals()}
    put(signal.SIGWINCH, unused)
    assert after == before
    raise_waiting()  # nothing is left to be raised
    assert gc.isenabled()


def test_ctrl_c_that_waits_is_not_lost_where_another_handler_raises(handled):
    def handler(number, frame):
        raise TimeoutError("too long")

    handled(handler)

    def f(v):
        press_ctrl_c(torch.__file__)
        signal.raise_signal(signal.SIGTERM)
        return v + 1

    with pytest.raises(KeyboardInterrupt):
        ts.jit(f)(numbers())
    raise_waiting()


def test_a_handler_that_a_traced_function_keeps_and_installs_later_raises_at_once(handled):
    def handler(number, frame):
        raise TimeoutError("too long")

    handled(handler)
    with undisturbed():
        kept = signal.getsignal(signal.SIGTERM)
    handled(kept)
    with pytest.raises(TimeoutError):
        press_ctrl_c(torch.__file__, number=signal.SIGTERM)


@pytest.mark.parametrize(
    "files, waits",
    [
        ((__file__,), False),
        ((threading.__file__, __file__, torch.__file__), False),
        ((torch.__file__, __file__), True),
        ((contextlib.__file__, torch.__file__, __file__), True),
        ((abc.ABCMeta.__instancecheck__.__code__.co_filename, torch.__file__, __file__), True),
        (("<string>", __file__), True),
        ((), True),
    ],
)
def test_ctrl_c_strikes_at_once_where_the_users_own_line_waits_in_a_library(files, waits):
    reached = []

    def f(v):
        press_ctrl_c(*files)
        reached.append("went on")
        return v + 1

    with pytest.raises(KeyboardInterrupt):
        ts.jit(f)(numbers())
    assert bool(reached) is waits


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

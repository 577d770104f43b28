"""Traces and plans run in a thread of their own, with the caller's state; no interruption strikes within torch."""

import contextlib
import contextvars
import gc
import io
import itertools
import os
import pdb
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import overrides
from torch.utils._device import DeviceContext

import tinyshard as ts
from tests.extent import examples
from tinyshard.core.thread_state import this_thread
from tinyshard.core.trace_thread import in_trace_thread, raise_interruption

pytestmark = pytest.mark.usefixtures("local")
ROOT = Path(__file__).parents[2]
WITHIN_S = 60  # how long a test waits for another thread


def numbers():
    return ts.device_put(torch.arange(8.0))


# ---- what the function finds in its thread ------------------------------------------------------------------------


@pytest.mark.parametrize("way", [torch.set_default_device, torch.device])
def test_a_callers_default_device_is_known_in_a_trace_and_stays(way):
    known = []

    def f(v):
        modes = overrides._get_current_function_mode_stack()
        known.extend(str(mode.device) for mode in modes if isinstance(mode, DeviceContext))
        return v + torch.ones(8)

    x = numbers()
    try:
        with way("meta") or contextlib.nullcontext():
            y = ts.jit(f)(x)
            assert torch.ones(2).device.type == torch.get_default_device().type == "meta"
    finally:
        torch.set_default_device(None)
    assert known == ["meta"]
    assert y.tolist() == [i + 1 for i in range(8)]


def test_a_function_mode_of_the_users_sees_what_a_traced_function_calls():
    class Log(overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            called.append(getattr(func, "__name__", ""))
            return func(*args, **(kwargs or {}))

    called = []
    with Log():
        ts.jit(lambda v: torch.tanh(v))(numbers())
    assert "tanh" in called
    assert overrides._len_torch_function_stack() == 0


def test_a_traced_function_has_the_callers_autocast_and_default_dtype():
    seen = []

    def f(v):
        seen.append((torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.get_default_dtype()))
        return v @ v

    x = ts.device_put(torch.ones(2, 2))
    torch.set_default_dtype(torch.float64)
    try:
        with torch.autocast("cpu", dtype=torch.float16):
            assert ts.jit(f)(x).dtype == torch.float16
    finally:
        torch.set_default_dtype(torch.float32)
    assert seen == [(True, torch.float16, torch.float64)]
    assert not torch.is_autocast_enabled("cpu")


def test_context_variables_reach_a_traced_function_and_those_that_it_sets_come_back():
    given, made = contextvars.ContextVar("given"), contextvars.ContextVar("made", default=0)
    given.set(3)

    def f(v):
        made.set(made.get() + given.get())
        return v * given.get()

    assert ts.jit(f)(numbers()).tolist() == [3.0 * i for i in range(8)]
    assert made.get() == 3

    def fails(v):
        made.set(10)
        raise KeyError("mine")

    with pytest.raises(KeyError):
        ts.jit(fails)(numbers())
    assert made.get() == 10


def test_traces_within_a_trace_share_its_thread():
    threads = []

    def note(v):
        threads.append(threading.get_ident())
        return v.sin()

    def f(v):
        note(v)
        inner = ts.jit(lambda u: note(u) * 2)(v)
        slope = ts.grad(lambda u: ts.jit(note)(u).sum())(v)
        ts.jit(lambda u: note(u) + 1).lower(v)
        rows = ts.pmap(note, axis_name="i")(v)
        return inner + slope + rows

    got = ts.jit(f)(numbers())
    x = torch.arange(8.0)
    torch.testing.assert_close(ts.device_get(got), 3 * x.sin() + x.cos())
    assert len(threads) >= 5 and len(set(threads)) == 1
    assert threading.get_ident() not in threads


def test_threads_that_trace_at_the_same_time_take_turns():
    inside, both = [], threading.Barrier(3)

    def traced(number):
        def f(v):
            inside.append(number)
            v = v * number
            time.sleep(0.02)
            inside.append(number)
            return torch.tanh(v)

        both.wait(WITHIN_S)
        got[number] = ts.jit(f)(x).tolist()

    x, got = numbers(), {}
    threads = [threading.Thread(target=traced, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WITHIN_S)
    assert inside[::2] == inside[1::2]
    for number in (1, 2, 3):
        np.testing.assert_allclose(got[number], np.tanh(number * np.arange(8.0)), rtol=1e-6)


def test_the_thread_has_ended_when_the_call_returns():
    before = threading.active_count()
    ts.jit(lambda v: v + 1)(numbers())
    with pytest.raises(KeyError):
        ts.jit(lambda v: {}[0])(numbers())
    assert threading.active_count() == before


def test_a_line_of_the_users_is_found_where_the_thread_runs_none(capsys):
    f = ts.jit(torch.tanh)
    text = str(f.lower(numbers()).as_text())
    assert "threading.py" not in text
    ts.config.update("explain_gathers", True)
    try:
        mesh = ts.make_mesh((8,), ("i",))
        ts.jit(torch.sort)(ts.device_put(torch.ones(8), ts.NamedSharding(mesh, ts.P("i"))))
    finally:
        ts.config.update("explain_gathers", False)
    told = capsys.readouterr()
    assert "test_trace_thread.py" in told.out + told.err and "threading.py" not in told.out + told.err


# ---- errors and debuggers -----------------------------------------------------------------------------------------


def test_an_error_keeps_the_frames_of_both_threads_and_their_locals():
    def f(v):
        mine = "a local"
        raise ValueError(mine)

    def call():
        return ts.jit(f)(numbers())

    with pytest.raises(ValueError, match="a local") as caught:
        call()
    frames = [frame for frame, _ in traceback.walk_tb(caught.tb)]
    names = [frame.f_code.co_name for frame in frames]
    assert names.index("call") < names.index("f")
    assert frames[-1].f_locals["mine"] == "a local"


def test_a_post_mortem_debugger_shows_the_line_of_the_traced_function_and_its_locals():
    def f(v):
        mine = 41
        raise ValueError(f"of the user's: {mine}")

    said = io.StringIO()
    with pytest.raises(ValueError) as caught:
        ts.jit(f)(numbers())
    debugger = pdb.Pdb(stdin=io.StringIO("p mine + 1\nup\nq\n"), stdout=said, nosigint=True, readrc=False)
    debugger.reset()
    debugger.interaction(None, caught.tb)
    assert "raise ValueError(f" in said.getvalue()
    assert "42" in said.getvalue()


def test_an_error_that_is_its_own_cause_ends_a_trace():
    def circular(x):
        try:
            raise ValueError("of the user's")
        except ValueError as error:
            raise error from error

    with pytest.raises(ValueError, match="of the user's"):
        ts.jit(circular)(torch.ones(2))


SCRIPT = """
import torch, tinyshard as ts
def f(v):
    doubled = v * 2
    breakpoint()
    name = input("name? ")
    print("hello", name)
    return doubled
x = ts.array([1., 2.])
print(ts.jit(f)(x).tolist())
"""


def test_breakpoint_and_input_in_a_traced_function_read_what_the_user_types():
    typed = "p tuple(doubled.shape)\np v.dtype\nc\nAda\n"
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=typed,
        capture_output=True,
        text=True,
        timeout=WITHIN_S * 3,
        env={**os.environ, "TINYSHARD_RUNTIME": "local"},
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    for said in ("(2,)", "torch.float32", "name? hello Ada", "[2.0, 4.0]"):
        assert said in done.stdout


def test_a_debugger_of_the_callers_thread_follows_into_a_traced_function():
    lines = []

    def f(v):
        v = v + 1
        return torch.tanh(v)

    def note(frame, event, argument):
        if frame.f_code is f.__code__:
            lines.append(event)
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        ts.jit(f)(numbers())
    finally:
        sys.settrace(before)
    assert lines == ["call", "line", "line", "return"]


# ---- finalizers ---------------------------------------------------------------------------------------------------


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


# ---- signals ------------------------------------------------------------------------------------------------------


@pytest.fixture
def handled() -> Iterator[Callable[[object], object]]:
    """A function that installs a handler of SIGTERM for this test."""
    before = signal.getsignal(signal.SIGTERM)
    yield lambda handler: signal.signal(signal.SIGTERM, handler)
    signal.signal(signal.SIGTERM, before)


def press(number=signal.SIGINT):
    """Ctrl-C, or another signal, as the terminal sends it: to the process."""
    os.kill(os.getpid(), number)


def until(is_so):
    """A user's loop, in Python alone."""
    end_s = time.monotonic() + WITHIN_S
    while time.monotonic() < end_s:
        if is_so():
            return
        time.sleep(0.001)
    pytest.fail("it never was")


def never():
    return False


def still_right():
    """A program of torch alone and one of tinyshard give right numbers, and no mode of a trace is left."""
    assert overrides._len_torch_function_stack() == 0
    assert torch._C._functorch.maybe_current_level() is None
    assert torch.is_grad_enabled() and gc.isenabled() and not torch.compiler.is_compiling()
    assert torch.nn.Module.__call__ is torch.fx._symbolic_trace._orig_module_call
    assert torch.get_default_dtype() == torch.float32
    w = torch.ones(2, requires_grad=True)
    (w * w).sum().backward()
    assert w.grad.tolist() == [2.0, 2.0]
    with torch.inference_mode():
        assert torch.ones(2).is_inference()
    with pytest.raises(NameError):
        ts.lax.axis_index("i")
    for function in (traced, planned, mapped):
        function()


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


def test_a_signal_handler_computes_outside_of_the_trace_that_it_interrupts(handled):
    y, made = numbers(), []
    handled(lambda number, frame: made.append((torch.tanh(y) * 0 + 1).tolist()))

    def f(v):
        press(signal.SIGTERM)
        until(lambda: made)
        return v + 1

    assert ts.jit(f)(y).tolist() == [i + 1 for i in range(8)]
    assert made == [[1.0] * 8]


def test_a_signal_handler_that_traces_waits_for_the_trace_that_it_interrupts(handled):
    y, made = numbers(), []
    handled(lambda number, frame: made.append(ts.jit(lambda v: v * 2)(y).tolist()))

    def f(v):
        press(signal.SIGTERM)
        for _ in range(20):
            v = v + 1
        return v

    assert ts.jit(f)(y).tolist() == [i + 20 for i in range(8)]
    assert made == [[2.0 * i for i in range(8)]]


@pytest.mark.parametrize("number, error", [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, TimeoutError)])
def test_what_a_handler_raises_is_raised_in_the_users_line(number, error, handled):
    """As Ctrl-C's does, and that of an alarm for a limit of time."""

    def handler(number, frame):
        raise TimeoutError("too long")

    handled(handler)
    caught = []

    def f(v):
        try:
            press(number)
            until(never)
        except error as raised:
            caught.append(raised)
            raise

    with pytest.raises(error) as raised:
        ts.jit(f)(numbers())
    assert caught and "until" in [frame.f_code.co_name for frame, _ in traceback.walk_tb(raised.tb)]
    assert str(raised.value) == ("too long" if error is TimeoutError else "")
    still_right()


def test_a_traced_function_may_catch_ctrl_c_and_go_on():
    def f(v):
        with contextlib.suppress(KeyboardInterrupt):
            press()
            until(never)
        return v + 1

    assert ts.jit(f)(numbers()).tolist() == [i + 1 for i in range(8)]


def test_ctrl_c_while_no_line_of_the_users_runs_is_raised_at_the_next_op():
    reached = []

    def f(v):
        this_thread.task.interruption = KeyboardInterrupt()
        v = v + 1
        reached.append("went too far")
        return v

    with pytest.raises(KeyboardInterrupt):
        ts.jit(f)(numbers())
    assert not reached
    still_right()


def test_ctrl_c_ends_a_plan_at_its_next_node():
    reached = threading.Event()

    @in_trace_thread()
    def plan():
        reached.set()
        while True:
            raise_interruption()

    threading.Thread(target=lambda: reached.wait(WITHIN_S) and press(), daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        plan()
    still_right()


class Held:
    """A lock that is held: one waits for it in C, where no signal handler of the main thread's is heard of."""

    def __init__(self):
        self.lock = threading.Lock()
        self.lock.acquire()

    def wait(self):
        self.lock.acquire()

    def is_waited_for(self):
        return any(frame.f_code is Held.wait.__code__ for frame in sys._current_frames().values())


@pytest.fixture
def pressed_twice():
    """A function that presses Ctrl-C as a lock is waited for, and again when that has been handled."""
    presses = []

    def handler(number, frame):
        presses.append(number)
        raise KeyboardInterrupt

    def press_twice(held):
        until(held.is_waited_for)
        press()
        until(lambda: presses)
        press()

    before = signal.signal(signal.SIGINT, handler)
    yield lambda held: threading.Thread(target=press_twice, args=(held,), daemon=True).start()
    signal.signal(signal.SIGINT, before)


def abandoned():
    """The threads of traces that go on, though nothing waits for them."""
    return [thread for thread in threading.enumerate() if thread.name == "tinyshard trace"]


def test_a_second_ctrl_c_abandons_a_function_that_waits_in_c_and_the_next_trace_works(pressed_twice):
    held, ended = Held(), []

    def f(v):
        try:
            held.wait()
            ended.append("went too far")
            return v
        finally:
            ended.append("ended")

    pressed_twice(held)
    with pytest.raises(KeyboardInterrupt):
        ts.jit(f)(numbers())
    assert not ended
    still_right()  # while it still waits
    (left,) = abandoned()
    held.lock.release()
    left.join(WITHIN_S)
    assert ended == ["ended"]
    still_right()


def test_an_abandoned_function_ends_at_its_next_op_and_not_within_another_trace(pressed_twice):
    held, goes_on, ended = Held(), threading.Event(), []

    def stubborn(v):
        with contextlib.suppress(KeyboardInterrupt):
            held.wait()
        goes_on.set()
        v = v + 1
        ended.append("went too far")
        return v

    pressed_twice(held)
    with pytest.raises(KeyboardInterrupt):
        ts.jit(stubborn)(numbers())
    (left,) = abandoned()
    module = torch.nn.Linear(8, 8)

    def f(v):
        held.lock.release()
        assert goes_on.wait(WITHIN_S)
        for _ in range(20):
            v = torch.tanh(v)
        assert left.is_alive()
        return module(v)

    x = numbers()
    got, wanted = ts.jit(f)(x), torch.arange(8.0)
    for _ in range(20):
        wanted = torch.tanh(wanted)
    torch.testing.assert_close(ts.device_get(got), module(wanted).detach())
    left.join(WITHIN_S)
    assert not left.is_alive() and not ended
    still_right()


def test_an_alarm_while_the_thread_begins_is_raised_as_itself(monkeypatch):
    start, starting = threading.Thread.start, {}

    def start_and_ring(thread):
        start(thread)
        if thread.name == "tinyshard trace":
            monkeypatch.undo()
            try:
                raise TimeoutError("the alarm")
            except TimeoutError:
                del starting[thread]  # as CPython does with a thread that is registered already: a KeyError

    monkeypatch.setattr(threading.Thread, "start", start_and_ring)
    with pytest.raises(TimeoutError, match="the alarm"):
        traced()
    still_right()
    traced()


# where a handler raises in a finalizer of the main thread's, Python drops the error with a warning
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGALRM, signal.SIGINT])
@pytest.mark.parametrize("function", [traced, planned, mapped])
def test_a_signal_at_any_moment_of_a_trace_and_of_a_plan_leaves_torch_and_tinyshard_as_they_were(number, function):
    """The handlers raise, as Ctrl-C's does: between any two lines of what the main thread runs."""
    draw = random.Random(f"{number} {function.__name__}")

    class Rings(Exception):
        pass

    def ring(number, frame):
        raise KeyboardInterrupt if is_ctrl_c else Rings

    is_ctrl_c = number == signal.SIGINT
    before = signal.signal(signal.SIGALRM, ring)
    function()
    began_s = time.monotonic()
    function()
    takes_s = time.monotonic() - began_s
    struck = 0
    try:
        while struck < examples(3, 100):  # of six tests: 300 alarms, 300 Ctrl-Cs
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-4, takes_s))
                function()
                signal.setitimer(signal.ITIMER_REAL, 0)
                takes_s = max(takes_s * 0.7, 2e-4)  # it is faster now: other programs run less
            except (KeyboardInterrupt, Rings, ts.errors.RemoteError) as error:  # the last: where a device computes
                assert not isinstance(error, ts.errors.RemoteError) or "Rings" in str(error)
                takes_s *= 1.2
                struck += 1
            still_right()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)

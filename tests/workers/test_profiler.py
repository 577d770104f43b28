"""Traces of worker processes: a straggler is seen, times add up, and a trace ends whatever happens in it."""

import os
import signal
import threading
import time

import pytest
import torch

import tinyshard as ts
from course.slowing import slowed
from tests.workers.processes import PATIENCE_S, stop
from tinyshard.profiler.events import shares_of
from tinyshard.runtime.controller.pool import ProcessPool


def summed(v: torch.Tensor) -> torch.Tensor:
    return ts.lax.psum(v, "i")


def test_a_device_that_sleeps_is_named_and_for_how_long_it_was_waited_for(pool: ProcessPool) -> None:
    step, x = ts.pmap(summed, axis_name="i"), torch.arange(8.0)
    ts.block_until_ready(step(x))
    pid = pool.pid(3)
    with ts.profiler.trace() as trace:
        stop(pid)
        y = step(x)
        time.sleep(0.3)
        os.kill(pid, signal.SIGCONT)
        ts.block_until_ready(y)
    last = [s for s in trace.events.steps if s.held_up_ns]
    assert [s.device for s in last] == [3]
    assert 0.2 < last[0].held_up_ns / 1e9 < PATIENCE_S
    assert trace.summary().remarks[0].startswith("CPU 3 was waited for ")
    waits = {s.device: s.wait_ns for s in trace.events.steps if s.is_exchange}
    assert waits[3] == 0 and min(ns for device, ns in waits.items() if device != 3) > 0.15e9


@pytest.mark.parametrize("nbytes", [1 << 12, 1 << 22])
def test_the_times_of_a_device_add_up_to_the_wall_time(pool: ProcessPool, nbytes: int) -> None:
    def f(v: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            v = ts.lax.psum(v.sin().cos(), "i") / 8
        return v

    step, x = ts.pmap(f, axis_name="i"), torch.ones(8, nbytes // 4)
    x = ts.block_until_ready(step(x))
    start_ns = time.monotonic_ns()
    with ts.profiler.trace() as trace:
        for _ in range(5):
            x = step(x)
        ts.block_until_ready(x)
    wall_ns = time.monotonic_ns() - start_ns
    assert trace.events.wall_ns <= wall_ns
    for device in range(8):
        steps = [s for s in trace.events.steps if s.device == device]
        assert len(steps) == 5 * (1 + 4 * 4 + 1), "a row is squeezed, and put back"
        shares = shares_of(trace.events, device)
        assert shares.total == pytest.approx(trace.events.wall_ns, rel=0.05)
        assert min(shares.compute, shares.exchange, shares.wait, shares.idle) >= 0
        ops = sum(s.end_ns - s.start_ns for s in steps if not s.is_exchange)
        assert ops <= shares.compute, "what is between the steps of a call counts as computing"


def test_wait_and_exchange_are_told_apart_in_each_group(pool: ProcessPool) -> None:
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    f = ts.shard_map(lambda v: ts.lax.psum(v, "b"), mesh=mesh, in_specs=ts.P("a", "b"), out_specs=ts.P("a"))
    x = ts.device_put(torch.ones(4, 2), ts.NamedSharding(mesh, ts.P("a", "b")))
    ts.block_until_ready(f(x))
    with ts.profiler.trace() as trace:
        ts.block_until_ready(f(x))
    first_of = [s.device for s in trace.events.steps if s.is_exchange and s.wait_ns == 0]
    assert len({device // 2 for device in first_of}) == 4, "in each pair one comes last"


def test_a_trace_ends_with_what_there_is_when_a_device_dies(pool: ProcessPool) -> None:
    step, x = ts.pmap(summed, axis_name="i"), torch.arange(8.0)
    ts.block_until_ready(step(x))
    began_s = time.monotonic()
    with pytest.raises(ts.DeviceLostError), ts.profiler.trace() as trace:
        ts.block_until_ready(step(x))
        os.kill(pool.pid(5), signal.SIGKILL)
        ts.block_until_ready(step(step(x)))
    assert time.monotonic() - began_s < PATIENCE_S
    assert {s.device for s in trace.events.steps} == {0, 1, 2, 3, 4, 6, 7}
    assert any("no records of device 5" in note for note in trace.events.notes)
    assert "all_reduce" in str(trace.summary()) and trace._repr_html_()


def test_a_trace_ends_with_what_there_is_at_ctrl_c(pool: ProcessPool) -> None:
    step, x = ts.pmap(summed, axis_name="i"), torch.arange(8.0)
    ts.block_until_ready(step(x))
    stop(pool.pid(3))
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    threading.Timer(1.0, os.kill, (pool.pid(3), signal.SIGCONT)).start()
    with pytest.raises(KeyboardInterrupt):
        _traced(step, x, traces := [])
    assert len(traces) == 1
    assert {s.device for s in traces[0].events.steps if s.op == "all_reduce"} >= {0, 1, 2, 4, 5, 6, 7}
    assert step(x).tolist() == [28.0] * 8, "the devices go on"
    with ts.profiler.trace() as second:
        ts.block_until_ready(step(x))
    assert len([s for s in second.events.steps if s.op == "all_reduce"]) == 8


def _traced(step: object, x: torch.Tensor, traces: list[ts.profiler.Trace]) -> None:
    """A trace in which device 3 is stopped: as it begins it waits for it, so it is stopped again inside."""
    pool = ts.platform.current()
    os.kill(pool.pid(3), signal.SIGCONT)
    with ts.profiler.trace() as trace:
        traces.append(trace)
        stop(pool.pid(3))
        ts.block_until_ready(step(x))  # type: ignore[operator]


def test_prints_come_by_device_and_before_the_call_returns(
    pool: ProcessPool, capsys: pytest.CaptureFixture[str]
) -> None:
    def f(v: torch.Tensor) -> torch.Tensor:
        ts.debug.print("{}", v)
        return ts.lax.fori_loop(0, 2, lambda i, y: shown(y), v)

    def shown(y: torch.Tensor) -> torch.Tensor:
        ts.debug.print("in {}", y)
        return y + 1

    ts.pmap(f)(torch.arange(8))
    expected = [*(f"{i}" for i in range(8)), *(f"in {i}" for i in range(8)), *(f"in {i + 1}" for i in range(8))]
    assert capsys.readouterr().out.splitlines() == expected


def test_a_print_of_a_device_that_failed_before_is_left_out(
    pool: ProcessPool, capsys: pytest.CaptureFixture[str]
) -> None:
    def f(v: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        x = v.gather(0, at)
        ts.debug.print("{}", x)
        return x

    at = torch.zeros(8, 1, dtype=torch.int64)
    at[2] = 9
    y = ts.pmap(f)(torch.arange(16.0).reshape(8, 2), at)
    assert capsys.readouterr().out.splitlines() == [f"[{2 * i}.]" for i in range(8) if i != 2]
    with pytest.raises(ts.RemoteError, match=r"called in .*x = v\.gather"):
        y.tolist()


def test_a_nan_is_an_error_of_its_device_and_the_others_go_on(pool: ProcessPool) -> None:
    f, x = ts.pmap(lambda v: ts.lax.psum(torch.log(v), "i"), axis_name="i"), torch.arange(8.0) - 0.5
    with ts.debug_nans(), pytest.raises(FloatingPointError, match=r"aten\.log\.default failed on CPU 0\n"):
        f(x)
    assert torch.isnan(torch.as_tensor(f(x).tolist())).all()


def test_a_device_that_is_slowed_is_the_one_that_is_waited_for_and_runs_again_afterwards(pool: ProcessPool) -> None:
    step, x = ts.pmap(summed, axis_name="i"), torch.arange(8.0)
    ts.block_until_ready(step(x))
    with slowed(ts.devices()[6], stopped_ms=60, running_ms=5), ts.profiler.trace() as trace:
        for _ in range(8):
            ts.block_until_ready(step(x))
            time.sleep(0.01)
    late = dict.fromkeys(trace.events.devices, 0)
    for each in trace.events.steps:
        late[each.device] += each.held_up_ns
    assert max(late, key=lambda device: late[device]) == 6
    assert step(x).sum().item() == 8 * 28

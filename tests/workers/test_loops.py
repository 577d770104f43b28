"""Loops on real workers: values, collectives in each round, an error in one round, Ctrl-C, and a device that dies."""

import os
import signal

import pytest
import torch

import tinyshard as ts
from tests.extent import examples
from tests.workers.limits import outcome, wait_until_in_a_collective
from tests.workers.processes import stop
from tests.workers.test_faults_interrupts import cancel_while_stopped

pytestmark = pytest.mark.on_gloo


def sums(rounds):
    """A scan whose rounds add up what all devices hold."""

    def body(c, x):
        c = torch.tanh(c + x.sum())
        return c, x * c

    return ts.jit(lambda c, xs: ts.lax.scan(body, c, xs.expand(rounds, *xs.shape)))


@pytest.mark.parametrize("size", [8, 80_000])  # small operands are exchanged by another protocol than large ones
def test_a_scan_with_a_collective_in_each_round_is_the_loop(pool, size):
    mesh = ts.make_mesh((8,), ("d",))
    xs = torch.randn(5, 8, size, generator=torch.Generator().manual_seed(1))

    def f(c, xs):
        def body(c, x):
            c = torch.tanh(c + ts.lax.psum(x, "d"))
            return c, ts.lax.ppermute(c * x, "d", [(i, (i + 1) % 8) for i in range(8)])

        return ts.lax.scan(body, c, xs)

    specs = {"in_specs": (ts.P(), ts.P(None, "d")), "out_specs": (ts.P(), ts.P(None, "d"))}
    carry, made = ts.shard_map(f, mesh=mesh, **specs)(torch.zeros(1, size), xs)
    expected, rows = torch.zeros(1, size), []
    for x in xs:
        expected = torch.tanh(expected + x.sum(0))
        rows.append((expected * x).roll(1, 0))
    torch.testing.assert_close(torch.as_tensor(carry.numpy()), expected)
    torch.testing.assert_close(torch.as_tensor(made.numpy()), torch.stack(rows))


def test_many_rounds_and_calls_leave_nothing_behind(pool, rows):
    x = ts.device_put(torch.ones(8, 4), rows).block_until_ready()
    f = sums(examples(50, 300))
    f(torch.zeros(()), x)[0].item()
    held = pool.held(3)
    for _ in range(5):
        assert f(torch.zeros(()), x)[0].item() == pytest.approx(1.0)
    assert pool.held(3) <= held + 2


def test_an_error_of_one_device_in_one_round_reaches_the_cell_and_the_others_go_on(pool, rows):
    index = torch.zeros(6, 8, 1, dtype=torch.long)
    index[4, 3, 0] = 9
    cut = ts.NamedSharding(ts.make_mesh((8,), ("d",)), ts.P(None, "d"))
    x = ts.device_put(torch.ones(8, 4), ts.NamedSharding(cut.mesh, ts.P("d")))

    def body(c, i):
        return c + torch.gather(x, 1, i).sum(), None

    total = ts.jit(lambda i: ts.lax.scan(body, torch.zeros(()), i)[0])(ts.device_put(index, cut))
    for _ in range(2):
        with pytest.raises(ts.RemoteError) as caught:
            total.item()
        said = str(caught.value)
        assert said.startswith("aten.gather.default failed on CPU 3\n  RuntimeError: index 9 is out of bounds")
        assert "test_loops.py" in said and "total = ts.jit(" in said
        assert "/tinyshard/runtime/" not in said
    assert x.sum().item() == 32


def test_an_error_in_a_round_of_a_while_loop_ends_it_for_all_devices(pool, rows):
    x = ts.device_put(torch.tensor([0, 0, 0, 7, 0, 0, 0, 0]), ts.NamedSharding(ts.make_mesh((8,), ("d",)), ts.P("d")))

    def body(v):
        return v[0] + 1 + 0 * torch.ones(10).index_select(0, v[1] + v[0]).sum().long(), v[1]

    rounds = ts.jit(lambda x, n: ts.lax.while_loop(lambda v: v[0] < n, body, (torch.tensor(0), x))[0])
    with pytest.raises(ts.RemoteError, match=r"index_select.default failed on CPU 3\n"):
        rounds(x, torch.tensor(5)).item()
    assert rounds(x, torch.tensor(3)).item() == 3


def test_devices_that_go_round_different_numbers_of_times_meet_again_afterwards(pool):
    def f(n):
        def body(v):
            return v[0] - 1, v[1] + ts.lax.axis_index("i")

        return ts.lax.psum(ts.lax.while_loop(lambda v: v[0] > 0, body, (n, torch.tensor(0, dtype=torch.int32)))[1], "i")

    mapped = ts.pmap(f, axis_name="i")
    for _ in range(3):
        assert mapped(torch.arange(8)).tolist() == [sum(i * i for i in range(8))] * 8


def test_ctrl_c_cancels_the_rounds_that_are_left(pool, rows):
    x = ts.device_put(torch.ones(8, 4), rows).block_until_ready()
    f = sums(100)
    f(torch.zeros(()), x)[0].item()
    total = cancel_while_stopped(pool, 3, lambda: f(torch.zeros(()), x)[0])
    error = outcome(total.numpy)()
    assert isinstance(error, ts.CancelledError)
    assert "cancelled by the interrupt at cell.py:3" in str(error)
    assert f(torch.zeros(()), x)[0].item() == pytest.approx(1.0)


def test_a_device_that_dies_in_a_round_is_named_and_nobody_hangs(pool, rows):
    x = ts.device_put(torch.ones(8, 4), rows).block_until_ready()
    f = sums(50)
    f(torch.zeros(()), x)[0].item()
    pid = ts.devices()[5].pid
    stop(pid)
    total = f(torch.zeros(()), x)[0]
    wait_until_in_a_collective(pool, [0])
    os.kill(pid, signal.SIGKILL)
    assert "CPU 5 is gone" in str(outcome(total.block_until_ready)())

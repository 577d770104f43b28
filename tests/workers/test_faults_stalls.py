"""A collective that cannot complete says who reached it; one that others only compute before is waited for."""

import time

import pytest
import torch

import tinyshard as ts
from tests.workers.limits import outcome, wait_until_in_a_collective, wait_until_throttled
from tests.workers.processes import stopped
from tinyshard.core import config

LIMIT_S = 1


@pytest.fixture(autouse=True)
def short_limit():
    before = config.read("collective_timeout_s")
    config.update("collective_timeout_s", LIMIT_S)
    yield
    config.update("collective_timeout_s", before)


@pytest.mark.on_gloo
def test_a_collective_that_cannot_complete_names_who_reached_it_and_who_did_not_and_may_be_asked_again(pool, rows):
    x = ts.device_put(torch.arange(16.0).reshape(8, 2), rows).block_until_ready()
    with stopped(ts.devices()[3].pid):
        total = x.sum()
        wait_until_in_a_collective(pool, [0, 1, 2, 4, 5, 6, 7])
        error = outcome(total.item, LIMIT_S + 4)()
        assert isinstance(error, ts.CollectiveTimeoutError)
        assert "all_reduce cannot complete: none of its devices has made progress for 1 s" in str(error)
        assert "reached by CPU 0,1,2,4,5,6,7; not reached by CPU 3" in str(error)
        assert "CPU 3 does not answer" in str(error)
        assert "total = x.sum()" in str(error)
    assert outcome(total.item, 30)() == 120


def test_a_collective_along_one_axis_names_its_own_devices_alone(pool):
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    x = ts.device_put(torch.ones(8, 8), ts.NamedSharding(mesh, ts.P("a", "b")))
    x.sum(1).block_until_ready()
    with stopped(ts.devices()[3].pid):
        total = x.sum(1)
        wait_until_in_a_collective(pool, [2])
        error = outcome(total.addressable_shards[2].data.tolist, LIMIT_S + 4)()
        assert "reached by CPU 2; not reached by CPU 3" in str(error)


@pytest.mark.on_gloo
def test_who_waits_for_a_device_that_waits_for_another_is_told_of_the_first_collective(pool):
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    x = ts.device_put(torch.ones(8, 8), ts.NamedSharding(mesh, ts.P("a", "b")))
    ts.block_until_ready([x.sum(1), x.sum(0)])
    with stopped(ts.devices()[3].pid):
        x.sum(1)  # 2 waits for 3
        total = x.sum(0)  # 0 waits for 2
        wait_until_in_a_collective(pool, [0, 2])
        error = outcome(total.addressable_shards[0].data.tolist, LIMIT_S + 4)()
        assert "reached by CPU 2; not reached by CPU 3" in str(error)


def test_a_shard_of_a_stopped_device_is_not_waited_for_for_ever(rows):
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    with stopped(ts.devices()[3].pid):
        error = outcome(x.addressable_shards[3].data.tolist, LIMIT_S + 4)()
        assert isinstance(error, ts.CollectiveTimeoutError)
        assert "CPU 3 has made no progress for 1 s" in str(error)


def test_a_loop_that_a_stopped_device_holds_back_hears_of_it(pool, rows):
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()

    def dispatch():
        y = x
        while True:
            y = y + 1

    with stopped(ts.devices()[3].pid):
        end = outcome(dispatch, LIMIT_S + 10)
        wait_until_throttled("it is held back")
        assert "CPU 3 does not answer" in str(end())
    assert x.sum().item() == 16


def matrix_that_takes(seconds, device):
    """A matrix on a device that needs about so long for its singular values, however fast or busy the machine is."""
    size = 300
    small = ts.device_put(torch.rand(size, size, dtype=torch.float64), device).block_until_ready()
    torch.linalg.svdvals(small).block_until_ready()
    began_s = time.monotonic()
    torch.linalg.svdvals(small + 1).block_until_ready()
    size = int(size * (seconds / (time.monotonic() - began_s)) ** (1 / 3))
    return ts.device_put(torch.rand(size, size, dtype=torch.float64), device)


def test_devices_that_compute_for_long_before_they_reach_a_collective_are_waited_for(pool):
    """Device 0 computes for several times the limit, in one op and in many, while its peer waits in the collective."""
    mesh = ts.make_mesh((2,), ("a",))
    x = ts.device_put(torch.ones(2, 4), ts.NamedSharding(mesh, ts.P("a")))
    y = torch.linalg.svdvals(matrix_that_takes(3 * LIMIT_S, ts.devices()[0]))
    short = matrix_that_takes(LIMIT_S / 5, ts.devices()[0])
    for _ in range(10):
        y = torch.linalg.svdvals(short + y.amax())
    even = 2 * (len(short) // 2)
    moved = ts.device_put(y[:even], x.sharding)  # device 1 waits here
    wait_until_in_a_collective(pool, [1])
    assert outcome(lambda: (x + moved.sum() * 0).sum().item(), 120)() == 8

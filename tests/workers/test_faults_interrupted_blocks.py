"""Ctrl-C at any line of placing and fetching: no block of shared memory stays held, and no value is wrong."""

import gc
import os
import random
import signal
import threading
import time

import pytest
import torch

import tinyshard as ts
from tests.extent import examples
from tests.interrupts import strike_at
from tests.workers.processes import wait_until
from tinyshard.arrays import placement
from tinyshard.runtime.controller import pool as pool_module
from tinyshard.runtime.shm import allocator, region, segment

FILES = {module.__file__ for module in (allocator, region, segment, placement, pool_module)}
HOST = torch.arange(8.0 * 16_384).reshape(8, -1)


def held_blocks(pool):
    """How many blocks of the controller's anybody holds, once those that nobody needs are let go of."""
    pool._arena.trim()
    return int((~pool._arena._holders.all_free(pool._arena._region.used)).sum())


@pytest.mark.parametrize("is_get", [False, True], ids=["device_put", "device_get"])
def test_ctrl_c_at_any_line_leaves_no_block_held(pool, rows, is_get):
    if pool.collectives != "shared":
        pytest.skip("gloo has no shared memory")
    first = ts.devices()[0]
    x = ts.device_put(HOST, rows).block_until_ready()
    [pool.held(device) for device in range(8)]
    wait_until(lambda: held_blocks(pool) == 8, "the devices hold their shards, and nobody anything else")
    act = (lambda: ts.device_get(x)) if is_get else (lambda: ts.device_put(HOST, first))
    for line in range(1, 1000):
        was_struck = strike_at(line, act, FILES.__contains__)
        assert (x[0, :3] + 1).tolist() == [1, 2, 3], line
        if not was_struck:
            break
    assert 40 < line < 999
    gc.collect()
    [pool.held(device) for device in range(8)]
    wait_until(lambda: held_blocks(pool) == 8, "what was interrupted is let go of")
    assert torch.equal(ts.device_get(ts.device_put(HOST + 2, rows)), HOST + 2)


def test_ctrl_c_at_random_moments_of_large_puts_leaves_no_block_held(pool, rows):
    """`TINYSHARD_FAULTS=40` interrupts forty."""
    if pool.collectives != "shared":
        pytest.skip("gloo has no shared memory")
    large = torch.ones(8, 1 << 23)
    began_s = time.monotonic()
    ts.device_put(large, rows).block_until_ready()
    took_s = time.monotonic() - began_s
    wait_until(lambda: held_blocks(pool) == 0, "the devices have let go of all")
    chance = random.Random(0)
    struck = 0
    for _ in range(int(os.environ.get("TINYSHARD_FAULTS", examples(3, 6)))):
        timer = threading.Timer(chance.random() * took_s, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            ts.device_put(large, rows).block_until_ready()
            timer.join()
            time.sleep(0.01)
        except KeyboardInterrupt:
            struck += 1
        assert ts.device_put(torch.ones(8), ts.devices()[0]).sum().item() == 8
    assert struck
    gc.collect()
    wait_until(lambda: held_blocks(pool) == 0, "what was interrupted is let go of")


def test_an_interrupted_copy_of_a_large_value_gives_its_memory_back(pool, monkeypatch):
    """Ctrl-C strikes as the copy returns, as it does where the copy takes nearly all the time."""
    if pool.collectives != "shared":
        pytest.skip("gloo has no shared memory")
    before = held_blocks(pool)

    class Struck(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            made = super().__torch_function__(func, types, args, kwargs)
            if func is torch.Tensor.copy_:
                raise KeyboardInterrupt
            return made

    host = HOST.as_subclass(Struck)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            pool.snapshot(host)
    gc.collect()
    assert held_blocks(pool) <= before  # devices may have let go of others meanwhile


@pytest.mark.whole
@pytest.mark.skipif(not segment.is_possible(), reason="this system has no shared memory")
def test_what_a_finalizer_or_a_signals_handler_calls_inside_the_allocator_is_over(controller):
    """Either may run between any two lines, so within the lock that a call of the same thread holds."""
    each = controller(
        """
ts.init(collectives="shared")
x = ts.array(torch.ones(20_000)).block_until_ready()
signal.alarm(60)  # ends what hangs
with ts.platform.current()._arena._allocating:
    tell(ts.device_get(x + 1).sum().item())
"""
    )
    assert each.line() == "40000.0"

"""The pool: calls return at once, in one order for all devices, and nothing that nobody needs stays."""

import math
import os
import sys
import threading

import pytest
import torch

import tinyshard as ts
from tests.workers.limits import wait_until_throttled
from tests.workers.processes import stopped, wait_until
from tinyshard.core.program import Builder, Value
from tinyshard.core.types import ShapedType
from tinyshard.core.users_line import users_line
from tinyshard.runtime.controller import dispatcher
from tinyshard.runtime.controller.items import Put
from tinyshard.runtime.controller.lineage import Run
from tinyshard.runtime.launch.processors import SMALL_CALLS, cores_of
from tinyshard.runtime.shm import system


def test_a_thousand_dependent_ops_come_out_right(rows):
    x = ts.device_put(torch.arange(32.0).reshape(8, 4), rows)
    y = x
    for i in range(1000):
        y = y + 1 if i % 2 else y * 1.001
    expected = torch.arange(32.0).reshape(8, 4)
    for i in range(1000):
        expected = expected + 1 if i % 2 else expected * 1.001
    assert torch.equal(ts.device_get(y), expected)


def test_five_thousand_calls_leave_nothing_behind(pool, rows):
    x = ts.device_put(torch.ones(8, 2), rows)
    (x + 1).block_until_ready()
    before = [pool.held(d) for d in range(8)]
    y = x
    for _ in range(5000):
        y = y + 1
    assert y.addressable_shards[7].data.tolist() == [[5001.0, 5001.0]]
    y.block_until_ready()
    del y
    assert [pool.held(d) for d in range(8)] == before
    assert not pool._dispatcher.calls.unsettled and not pool._dispatcher._queue
    assert all(not link.asked and not link.channel.unwritten for link in pool._dispatcher.links)


def test_values_nobody_needs_leave_the_devices(pool, rows):
    before = [pool.held(d) for d in range(8)]
    arrays = [ts.device_put(torch.ones(8, 2), rows) for _ in range(20)] + [ts.array(1.0)]
    assert [pool.held(d) - n for d, n in enumerate(before)] == [21] + [20] * 7
    views = [x[:, 0] for x in arrays[:20]]
    del arrays
    assert [x.tolist() for x in views] == [[1.0] * 8] * 20
    del views
    assert [pool.held(d) for d in range(8)] == before


def test_results_of_a_failed_call_leave_the_devices_too(pool, rows):
    before = [pool.held(d) for d in range(8)]
    bad = torch.gather(ts.device_put(torch.zeros(8, 2), rows), 1, ts.device_put(torch.full((8, 2), 5), rows))
    with pytest.raises(ts.RemoteError):
        (bad + 1).sum().item()
    del bad
    assert [pool.held(d) for d in range(8)] == before


def test_threads_dispatch_at_the_same_time(rows):
    x = ts.device_put(torch.ones(8, 2), rows)
    got = {}

    def count_up(k):
        y = x * k
        for _ in range(100):
            y = y + 1
        got[k] = (y.sum().item(), y.tolist())

    threads = [threading.Thread(target=count_up, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {k: (16.0 * (k + 100), [[k + 100.0] * 2] * 8) for k in range(4)}


def test_a_loop_that_is_too_fast_is_held_back_by_the_number_of_calls(pool, rows):
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    made = []

    def dispatch():
        y = x
        for _ in range(2 * dispatcher.MAX_RUNS_AHEAD):
            y = y + 1
            made.append(y)

    thread = threading.Thread(target=dispatch)
    with stopped(ts.devices()[2].pid):
        thread.start()
        wait_until_throttled("the loop waits")
        count = len(made)  # an assertion that shows `made` would wait for the stopped device
        assert count <= dispatcher.MAX_RUNS_AHEAD + 1
    thread.join()
    assert made[-1].addressable_shards[2].data.tolist() == [[2 * dispatcher.MAX_RUNS_AHEAD + 1.0] * 2]


def test_a_loop_is_held_back_for_a_slow_device_also_if_every_other_call_is_for_a_quick_one(pool):
    slow, quick = ts.devices()[2], ts.devices()[5]
    a, b = ts.device_put(torch.ones(2), slow).block_until_ready(), ts.device_put(torch.ones(2), quick)
    (a + 1, (b + 1).block_until_ready())
    count = 0

    def dispatch():
        nonlocal a, b, count
        for _ in range(2 * dispatcher.MAX_RUNS_AHEAD):
            a, b = a + 1, b + 1
            count += 1

    thread = threading.Thread(target=dispatch)
    with stopped(slow.pid):
        thread.start()
        wait_until_throttled("the loop waits")
        assert count <= dispatcher.MAX_RUNS_AHEAD + 1
    thread.join()
    assert a.tolist() == b.tolist() == [2 * dispatcher.MAX_RUNS_AHEAD + 1.0] * 2


@pytest.mark.on_gloo
def test_a_loop_that_is_too_fast_is_held_back_by_bytes(pool, monkeypatch):
    ts.array(1.0).block_until_ready()  # on gloo no device goes on before all are up
    monkeypatch.setattr(dispatcher, "MAX_NBYTES_AHEAD", 4 << 20)
    block = torch.ones(1 << 18)
    made = []

    def send():
        for _ in range(12):
            made.append(ts.device_put(block, ts.devices()[2]))

    thread = threading.Thread(target=send)
    with stopped(ts.devices()[2].pid):
        thread.start()
        wait_until_throttled("the loop waits")
        count = len(made)
        assert count <= 6
        assert (ts.device_put(block, ts.devices()[1]) + 1)[0].item() == 2  # other devices go on
    thread.join()
    assert [x[0].item() for x in made] == [1.0] * 12


def test_bytes_in_the_queue_and_bytes_for_a_device_count_together(pool, monkeypatch):
    dispatcher_ = pool._dispatcher
    ts.array(1.0).block_until_ready()
    monkeypatch.setattr(dispatcher, "MAX_NBYTES_AHEAD", 4 << 20)
    with stopped(ts.devices()[2].pid):
        handles = [ts.device_put(torch.ones(1 << 18), ts.devices()[2]) for _ in range(3)]
        wait_until(lambda: not dispatcher_._queue, "all is handed out")
        assert not dispatcher_.too_much_before({2})
        with dispatcher_.calls.lock:  # nobody hands it out meanwhile
            dispatcher_._queue.append(Put(Run(1 << 60, (2,), False, users_line(), nbytes=2 << 20), -1, {}))
            assert dispatcher_.too_much_before({2})
            dispatcher_._queue.pop()
    assert [x[0].item() for x in handles] == [1.0] * 3


def test_a_message_counts_while_it_goes_from_the_queue_to_the_device(pool, monkeypatch):
    dispatcher_ = pool._dispatcher
    ts.array(1.0).block_until_ready()
    seen = []

    def look_then_send(delivery, send=dispatcher_._deliveries.send, **options):
        if isinstance(delivery.item, Put):
            seen.append(bool(dispatcher_.too_much_before({2})))
        send(delivery, **options)

    monkeypatch.setattr(dispatcher_._deliveries, "send", look_then_send)
    monkeypatch.setattr(dispatcher, "MAX_NBYTES_AHEAD", 1 << 20)
    assert ts.device_put(torch.ones(1 << 19), ts.devices()[2])[0].item() == 1
    assert seen == [True]


def test_many_releases_do_not_hold_back_the_next_call(pool, rows):
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    for _ in range(3):
        handles = [pool._buffers.make(x._buffer.run, pool) for _ in range(dispatcher.MAX_RUNS_AHEAD)]
        del handles
    assert not pool._dispatcher.too_much_before(set(range(8)))
    assert (x + 1).sum().item() == 32


@pytest.mark.on_gloo
def test_a_message_longer_than_the_socket_takes_arrives_whole(rows):
    host = torch.randn(8, 300_000)
    x = ts.device_put(host, rows)
    assert torch.equal(ts.device_get(x), host)
    assert torch.equal(ts.device_get(ts.device_put(x, ts.devices()[3])), host)


@pytest.mark.on_gloo
def test_more_small_messages_than_the_way_to_a_stopped_device_takes_arrive_in_order(pool):
    ts.array(1.0).block_until_ready()
    blocks = [torch.full((5000,), float(k)) for k in range(600)]  # 20 kB each: they travel as messages
    with stopped(ts.devices()[2].pid):
        made = [ts.device_put(block, ts.devices()[2]) for block in blocks]
        if pool.collectives == "shared":
            wait_until(lambda: bool(pool._dispatcher._queue), "the log is full")
        else:
            wait_until(lambda: bool(pool._dispatcher.links[2].channel.unwritten), "the socket is full")
            assert (ts.device_put(blocks[1], ts.devices()[1]) + 1)[0].item() == 2  # other devices go on
    assert [x[0].item() for x in made] == list(map(float, range(600)))


def test_a_message_too_long_for_the_log_comes_in_its_place(pool):
    x = ts.device_put(torch.ones(3), ts.devices()[0])
    literal = torch.arange(400_000.0)  # a constant of a program, which is part of it
    y = ts.jit(lambda v: (v + 1).sum() + literal)(x)
    assert torch.equal(ts.device_get(y), literal + 6)
    assert (x + 1).tolist() == [2, 2, 2]


def test_a_result_is_told_of_while_what_was_called_after_it_still_waits(pool):
    if pool.collectives != "shared":
        pytest.skip("without shared memory a device answers in the order in which it was asked")
    both = ts.sharding.PositionalSharding(ts.devices()[:2]).reshape(2, 1)
    x = ts.device_put(torch.ones(2, 3), both).block_until_ready()
    first, second = ts.devices()[:2]
    with stopped(second.pid):
        with stopped(first.pid):  # so that all of it comes to the device together
            early = ts.device_put(torch.ones(3), first) + 1
            late = x.sum()
            wait_until(lambda: not pool._dispatcher._queue, "all is handed out")
        assert early.block_until_ready().is_ready()
        assert not late.is_ready()
    assert late.item() == 6


@pytest.mark.whole
def test_memory_of_freed_values_is_given_back_when_nothing_happens(pool):
    if pool._arena is None or system.MADV_REMOVE is None:
        pytest.skip("without shared memory the controller keeps no pages, and on macOS it gives none back")
    x = ts.device_put(torch.ones(1 << 25), ts.devices()[0]).block_until_ready()  # 128 MiB
    region = pool._arena._region
    region._most_kept_idle_nbytes = 1 << 20
    del x
    ts.array(1.0).block_until_ready()

    def is_given_back():
        with pool._arena._allocating:
            return region._kept_nbytes() <= 1 << 20 and len(region._bare) > 0

    wait_until(is_given_back, "it is given back")


def test_two_threads_that_wait_hear_of_their_results(pool, rows):
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    heard = []
    with stopped(ts.devices()[2].pid):
        values = [x + k for k in range(2)]
        threads = [threading.Thread(target=lambda v=v: heard.append(v.block_until_ready())) for v in values]
        for thread in threads:
            thread.start()
        assert not values[0].is_ready()
    for thread in threads:
        thread.join()
    assert len(heard) == 2
    assert values[0].is_ready()


def test_block_until_ready_takes_trees(rows):
    tree = {"a": ts.array(1.0) + 1, "b": [ts.device_put(torch.ones(8, 2), rows) * 2, 5, torch.ones(2)]}
    assert ts.block_until_ready(tree) is tree
    assert tree["a"].is_ready() and tree["b"][0].is_ready()


def test_an_answered_value_is_ready(rows):
    y = ts.device_put(torch.ones(8, 2), rows) + 1
    y.block_until_ready()
    assert y.is_ready()


def test_init_again_ends_the_old_workers(pool):
    old = [d.pid for d in ts.devices()]
    x = ts.array([1.0, 2.0])
    ts.init(devices=8, runtime="process")
    new = [d.pid for d in ts.devices()]
    assert not set(old) & set(new)
    with pytest.raises(ts.RuntimeStateError, match="has been shut down"):
        x.tolist()
    with pytest.raises(ts.RuntimeStateError, match="has been shut down"):
        x.is_ready()


def test_shutdown_twice_is_no_error_and_the_next_use_starts_afresh(pool):
    ts.array(1.0).block_until_ready()
    ts.shutdown()
    pool.shutdown()
    ts.shutdown()
    assert (ts.array(1.0) + 1).item() == 2


def test_shutdown_right_after_init_is_no_error(pool):
    for _ in range(3):
        ts.init(devices=8, runtime="process")
        ts.shutdown()


def test_what_workers_write_is_printed_here_in_device_order(pool, capsys):
    builder = Builder((2, 0, 1), (3,))
    builder.input(ShapedType((1,), torch.float32))
    made = builder.emit("aten.std.correction", (Value(0),), {"correction": 1}, metas=[ShapedType((), torch.float32)])
    x = pool.put({d: torch.zeros(1) for d in (2, 0, 1)})
    (y,) = pool.run(builder.finish(made), [x])
    pool.wait(y, (2, 0, 1))
    lines = [line for line in capsys.readouterr().err.splitlines() if "degrees of freedom" in line]
    assert [line.split("]")[0] for line in lines] == ["[CPU 0", "[CPU 1", "[CPU 2"]
    assert math.isnan(pool.fetch(y, [1])[1].item())


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a process keep to a core")
def test_where_devices_share_cores_each_keeps_to_its_own_but_the_first_while_calls_are_small(pool):
    if pool.collectives != "shared":
        pytest.skip("over gloo devices go wherever there is room")
    cores = os.sched_getaffinity(0)
    ids = [device.id for device in ts.devices()]
    x = ts.device_put(torch.zeros(len(ids)), ts.NamedSharding(ts.make_mesh(len(ids), "d"), ts.P("d")))
    kept = cores_of(len(ids), cores)
    for _ in range(2 * SMALL_CALLS):
        (x + 1).block_until_ready()
    first = os.sched_getaffinity(ts.devices()[0].pid)
    assert first == ({next(core for core in kept if core != kept[0])} if kept else cores)  # room for the controller
    x.sum().block_until_ready()  # an exchange: each is where it belongs
    for device in ts.devices():
        assert os.sched_getaffinity(device.pid) == ({kept[device.id]} if kept else cores)
        assert os.sched_getscheduler(device.pid) == os.sched_getscheduler(0)  # what the user has chosen

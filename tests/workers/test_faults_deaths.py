"""A worker dies: whoever depends on it hears so, by name and signal; whoever does not keeps what it has."""

import itertools
import os
import signal
import subprocess
import sys
import threading

import pytest
import torch

import tinyshard as ts
from tests.extent import mostly_whole
from tests.workers.limits import OVER_WITHIN_S, outcome, wait_until_in_a_collective, wait_until_throttled
from tests.workers.processes import PATIENCE_S, ROOT, stop, stopped, wait_until
from tinyshard.runtime import lifecycle
from tinyshard.runtime.controller import dispatcher
from tinyshard.runtime.launch import forkserver

VICTIM = 5

WAITS = {
    "block_until_ready": lambda x: (x + 1).block_until_ready(),
    "block_until_ready of a tree": lambda x: ts.block_until_ready([x, {"y": x * 2}]),
    "item of a sum": lambda x: x.sum().item(),
    "numpy": lambda x: x.numpy(),
    "print": lambda x: repr(x),
    "device_get": lambda x: ts.device_get({"x": x}),
    "its own shard": lambda x: x.addressable_shards[VICTIM].data.tolist(),
    "another's shard of a sum": lambda x: x.sum(0).addressable_shards[0].data.tolist(),
    "a move to another device": lambda x: ts.device_put(x, ts.devices()[0]).tolist(),
    "jit": lambda x: ts.jit(lambda v: (v @ v.T).sum())(x).item(),
    "a transposed layout": lambda x: ts.device_put(x, x.sharding.reshape(1, 8)).addressable_shards[1].data.numpy(),
}


SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGSEGV": signal.SIGSEGV, "SIGBUS": signal.SIGBUS}


@pytest.mark.on_gloo
@pytest.mark.parametrize(
    "wait, name",
    mostly_whole(itertools.product(WAITS, SIGNALS), lambda row: row[1] == "SIGKILL" or row[0] == "numpy"),
)
def test_every_wait_that_depends_on_a_killed_device_ends_and_names_device_and_signal(rows, wait, name):
    number = SIGNALS[name]
    x = ts.device_put(torch.arange(64.0).reshape(8, 8), rows).block_until_ready()
    pid = ts.devices()[VICTIM].pid
    stop(pid)
    end = outcome(lambda: WAITS[wait](x))
    os.kill(pid, number)
    os.kill(pid, signal.SIGCONT)
    error = end()
    assert isinstance(error, ts.DeviceLostError)
    assert f"CPU {VICTIM} is gone: killed by signal {int(number)} ({name})" in str(error)


def test_who_is_held_back_by_a_device_hears_of_its_death(rows):
    x = ts.device_put(torch.arange(64.0).reshape(8, 8), rows).block_until_ready()
    pid = ts.devices()[VICTIM].pid
    stop(pid)

    def dispatch():
        y = x
        for _ in range(dispatcher.MAX_RUNS_AHEAD + 100):
            y = y + 1
        return y.block_until_ready()

    end = outcome(dispatch)
    wait_until_throttled("it is held back")
    os.kill(pid, signal.SIGKILL)
    assert "CPU 5 is gone: killed by signal 9 (SIGKILL)" in str(end())


@pytest.mark.on_gloo
@pytest.mark.parametrize(
    "exchange",
    [
        lambda x: x.sum(),
        lambda x: ts.device_put(x, x.sharding.reshape(1, 8)),
        lambda x: ts.device_put(x, ts.devices()[0]),
        lambda x: [x := x.T @ x for _ in range(20)][-1],
    ],
    ids=["all_reduce", "all_to_all", "transfer", "many"],
)
def test_arrays_of_unharmed_devices_stay_valid_and_these_devices_go_on(pool, rows, exchange, capsys):
    host = torch.arange(64.0).reshape(8, 8)
    x = ts.device_put(host, rows).block_until_ready()
    whole = ts.device_put(host, rows.replicate()).block_until_ready()
    pid = ts.devices()[VICTIM].pid
    stop(pid)
    total = exchange(x)
    wait_until_in_a_collective(pool, [0])
    queued = x + 1
    os.kill(pid, signal.SIGKILL)
    for device in (0, 1, 4, 6, 7):
        block = x.addressable_shards[device].data
        assert outcome(block.tolist)() == [host[device].tolist()]
        assert outcome((block * 2).tolist)() == [(2 * host[device]).tolist()]
        assert outcome(queued.addressable_shards[device].data.tolist)() == [(host[device] + 1).tolist()]
    assert outcome(whole.addressable_shards[3].data.tolist)() == host.tolist()
    assert "CPU 5 is gone" in str(outcome(total.block_until_ready)())
    assert "CPU 5 is gone" in str(outcome(lambda: (x + 1).sum().addressable_shards[0].data.item())())
    assert "Traceback" not in capsys.readouterr().err  # of a device whose other thread has ended


@pytest.mark.on_gloo
@pytest.mark.parametrize("axis", ["a", "b"])
def test_a_death_while_devices_first_meet_along_an_axis_ends_their_wait(axis):
    ts.init(devices=8, runtime="process")
    pool = lifecycle.current()
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    x = ts.device_put(torch.ones(8, 8), ts.NamedSharding(mesh, ts.P("a", "b"))).block_until_ready()
    pid = ts.devices()[VICTIM].pid
    stop(pid)
    total = x.sum("ab".index(axis))
    peers = {"a": [1, 3, 7], "b": [4]}[axis]
    wait_until_in_a_collective(pool, peers)
    os.kill(pid, signal.SIGKILL)
    assert "CPU 5 is gone" in str(outcome(total.block_until_ready)())
    for device in peers:
        assert outcome(x.addressable_shards[device].data.sum().item)() == 8


@pytest.mark.on_gloo
def test_a_death_before_the_devices_have_met_is_named_to_who_waits_for_another():
    ts.init(devices=8, runtime="process")
    pid = ts.devices()[VICTIM].pid
    stop(pid)
    end = outcome(lambda: ts.device_put(torch.ones(2), ts.devices()[0]).tolist())
    os.kill(pid, signal.SIGKILL)
    error = end()
    # with shared memory the others need not wait for it to come up
    assert error == [1, 1] or "CPU 5 is gone: killed by signal 9 (SIGKILL)" in str(error)
    assert "CPU 5 is gone" in str(outcome(lambda: ts.device_put(torch.ones(2), ts.devices()[VICTIM]).tolist())())


def test_two_deaths_are_heard_of(rows):
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    for device in (2, 6):
        os.kill(ts.devices()[device].pid, signal.SIGKILL)
    for device in (2, 6):
        assert f"CPU {device} is gone" in str(outcome(x.addressable_shards[device].data.tolist)())
    assert outcome(x.addressable_shards[3].data.tolist)() == [[1, 1]]


TOUCHES = {
    "repr": repr,
    "str": str,
    "numpy": lambda x: x.numpy(),
    "item": lambda x: x[0, 0].item(),
    "+": lambda x: x + 1,
    "block_until_ready": lambda x: x.block_until_ready(),
    "is_ready": lambda x: x.is_ready(),
    "device_put": lambda x: ts.device_put(x, ts.devices()[0]),
    "device_get": ts.device_get,
    "jit": ts.jit(lambda x: x * 2),
    "a shard": lambda x: x.addressable_shards[1].data.tolist(),
}


@pytest.mark.on_gloo
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=lambda n: n.name)
def test_init_gives_a_fresh_pool_although_devices_wait_in_a_collective_and_old_arrays_say_so(pool, rows, number):
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    pid = ts.devices()[VICTIM].pid
    stop(pid)
    total = x.sum()
    wait_until_in_a_collective(pool, [0, 1])
    os.kill(pid, number)

    def fresh():
        ts.init(devices=8, runtime="process")
        return ts.array([1.0, 2.0]).tolist()

    assert outcome(fresh)() == [1, 2]
    for touch in TOUCHES.values():
        with pytest.raises(ts.RuntimeStateError, match="has been shut down"):
            touch(x)
    with pytest.raises(ts.RuntimeStateError, match="has been shut down"):
        total.block_until_ready()
    assert (ts.device_put(torch.ones(8, 2), rows) + 1).sum().item() == 32


def test_other_threads_dispatch_while_a_lost_worker_is_reaped(pool, rows, monkeypatch):
    """Over a network that takes up to two seconds."""
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    is_reaping, has_dispatched, reaped = threading.Event(), threading.Event(), []

    def reap(link, end=pool._starter.end):
        is_reaping.set()
        reaped.append(has_dispatched.wait(OVER_WITHIN_S))
        return end(link)

    monkeypatch.setattr(pool._starter, "end", reap)
    os.kill(ts.devices()[VICTIM].pid, signal.SIGKILL)
    assert is_reaping.wait(OVER_WITHIN_S)
    y = x + 1
    has_dispatched.set()
    assert "CPU 5 is gone: killed by signal 9 (SIGKILL)" in str(outcome(y.block_until_ready)())
    assert y.addressable_shards[1].data.tolist() == [[2, 2]]
    assert reaped == [True]


def test_what_was_saved_before_a_death_is_loaded_whole_under_any_sharding(rows, tmp_path):
    file = tmp_path / "tree"
    host = {"w": torch.randn(8, 40_000), "b": torch.arange(8).to(torch.bfloat16), "n": 3}
    columns = rows.reshape(1, 8)
    torch.save(
        {"w": ts.device_put(host["w"], columns), "b": ts.device_put(host["b"], ts.devices()[VICTIM]), "n": 3}, file
    )
    os.kill(ts.devices()[VICTIM].pid, signal.SIGKILL)
    ts.init(devices=4, runtime="process")
    loaded = torch.load(file)
    mesh = ts.make_mesh((2, 2), ("a", "b"))
    for spec in (ts.P("a", "b"), ts.P("b"), ts.P(None, ("b", "a")), ts.P()):
        placed = ts.device_put(loaded["w"], ts.NamedSharding(mesh, spec))
        assert torch.equal(ts.device_get(placed), host["w"])
    assert torch.equal(ts.device_get(ts.device_put(loaded["b"], ts.NamedSharding(mesh, ts.P("a")))), host["b"])
    assert loaded["n"] == 3


BLOCKED = """
import os, signal, sys, threading, time, torch
import torch.distributed as dist
from tests.workers.processes import wait_until
from tinyshard.runtime.collectives.gloo import GlooCommunicator

NBYTES = 256 << 20  # no socket takes so much
folder, *cases = sys.argv[1:]
for what in cases:
    child = os.fork()  # torch is loaded once
    if not child:
        break
    os.waitpid(child, 0)
else:
    sys.exit()
path = folder + "/" + what
torch.set_num_threads(1)  # threads of OpenMP are not in a child
peer = 0 if what == "connect" else os.fork()
if what != "connect" and not peer:
    theirs = GlooCommunicator(dist.FileStore(path, 2), 1, 2)
    block = torch.ones(NBYTES, dtype=torch.uint8)
    if what == "receive":
        theirs._world.send([block], 0, 0).wait()
    else:  # it says that it is ready, and stops before it receives
        work = theirs._world.recv([block], 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)

ours = GlooCommunicator(dist.FileStore(path, 2), 0, 2 if peer else 1)
block = torch.zeros(NBYTES, dtype=torch.uint8)
errors = []
def work():
    try:
        if what == "connect":
            ours.group((0, 1))
        elif what == "send":
            ours.send_and_receive([(block, 1, 0)], [])
        else:
            ours.send_and_receive([], [(block, 1, 0)])
    except RuntimeError as error:
        errors.append(type(error).__name__)

if what == "send":
    os.waitpid(peer, os.WUNTRACED)
thread = threading.Thread(target=work)
thread.start()
if what == "receive":
    wait_until(lambda: block[0], "the first byte is here")
    os.kill(peer, signal.SIGSTOP)
    os.waitpid(peer, os.WUNTRACED)
    assert not block[-1]
time.sleep(0.2)  # what can come has come
ours.abort()
thread.join(5)
print(what, errors, thread.is_alive(), flush=True)
if peer:
    os.kill(peer, signal.SIGKILL)
os._exit(0)
"""


def test_an_abort_ends_whatever_gloo_waits_for(tmp_path):
    """A peer that never connects, one that takes no more of a message, one that sends no more of it."""
    cases = ["connect", "send", "receive"]
    command = [sys.executable, "-c", BLOCKED, str(tmp_path), *cases]
    as_worker = {**os.environ, "TINYSHARD_ROLE": "worker"}  # it starts no process to fork devices from
    ran = subprocess.run(command, cwd=ROOT, env=as_worker, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ran.stdout.splitlines() == [f"{case} ['PeerLostError'] False" for case in cases], ran.stderr


def test_a_call_that_all_devices_have_finished_before_a_death_has_its_result_on_the_others(pool, rows, monkeypatch):
    if pool.collectives != "shared":
        pytest.skip("over gloo the controller does not hear at once of what is finished")
    monkeypatch.setattr(pool._dispatcher, "look_at_progress", lambda: None)  # as when nothing has asked for long
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    total = x.sum(0)
    number = total._buffer.run.number
    wait_until(lambda: min(pool._dispatcher.completions.read()) >= number, "all have finished it")
    monkeypatch.undo()
    os.kill(ts.devices()[VICTIM].pid, signal.SIGKILL)
    wait_until(lambda: pool._dispatcher.calls.has_lost, "the death is noted")
    assert outcome(lambda: total.addressable_shards[0].data.tolist())() == [8, 8]


def test_a_death_is_named_although_the_helper_that_reaps_the_workers_is_stopped(pool, rows):
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    with stopped(forkserver.start().pid):
        os.kill(ts.devices()[VICTIM].pid, signal.SIGKILL)
        error = outcome(lambda: x.sum().item(), OVER_WITHIN_S + 10)()
    assert isinstance(error, ts.DeviceLostError) and f"CPU {VICTIM} is gone" in str(error)
    ts.init(devices=8, runtime="process")
    assert ts.device_put(torch.ones(8), ts.devices()[VICTIM]).sum().item() == 8


def test_a_pool_is_shut_down_although_the_helper_is_stopped(pool):
    with stopped(forkserver.start().pid):
        assert outcome(pool.shutdown, 30)() is None
    ts.init(devices=8, runtime="process")
    assert ts.device_put(torch.ones(8), ts.devices()[VICTIM]).sum().item() == 8

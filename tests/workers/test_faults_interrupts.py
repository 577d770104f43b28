"""Ctrl-C: the cell ends, what is queued is cancelled on all devices alike, and the next cell works."""

import gc
import itertools
import os
import random
import re
import signal
import threading
import time

import pytest
import torch
from jupyter_client.manager import start_new_kernel

import tinyshard as ts
from tests.extent import examples, mostly_whole
from tests.workers.limits import OVER_WITHIN_S, outcome, wait_until_in_a_collective
from tests.workers.processes import PATIENCE_S, ROOT, stopped, wait_until
from tinyshard.core.users_line import Where
from tinyshard.runtime.controller import cancellation

INTERRUPT = Where("cell.py", 3)


def cancel_while_stopped(pool, device, dispatch):
    """Dispatch while a device is stopped, so that nothing that needs it is over; then interrupt and let it go on."""
    interrupts = pool._dispatcher.interrupts
    with stopped(ts.devices()[device].pid), pytest.MonkeyPatch.context() as patch:
        patch.setattr(cancellation, "FREEZES_WITHIN_S", PATIENCE_S)
        made = dispatch()
        pool.cancel(INTERRUPT)
        wait_until(lambda: interrupts.now and interrupts.now.waiting == {device}, "all others hold still")
    return made


@pytest.mark.on_gloo
def test_queued_calls_are_cancelled_and_say_so_and_what_was_there_stays(pool, rows):
    host = torch.arange(16.0).reshape(8, 2)
    x = ts.device_put(host, rows).block_until_ready()

    def dispatch():
        y, made = x, []
        for _ in range(300):
            y = y + y.sum() * 1e-9
            made.append(y)
        return made

    made = cancel_while_stopped(pool, 3, dispatch)
    for y in (made[1], made[50], made[-1], made[-1] * 2, made[-1].sum()):
        error = outcome(y.numpy)()
        assert isinstance(error, ts.CancelledError)
        assert "cancelled by the interrupt at cell.py:3" in str(error)
        assert "test_faults_interrupts.py" in str(error)
    assert torch.equal(ts.device_get(x), host)
    assert (x + 1).sum().item() == host.sum() + 16
    put = ts.device_put(host, rows)
    assert torch.equal(ts.device_get(put.T @ put), host.T @ host)


@pytest.mark.on_gloo
def test_values_that_were_sent_before_the_interrupt_arrive(pool, rows):
    host = torch.arange(16.0).reshape(8, 2)
    x = cancel_while_stopped(pool, 3, lambda: ts.device_put(host, rows))
    assert torch.equal(outcome(lambda: ts.device_get(x))(), host)


@pytest.mark.on_gloo
def test_a_call_that_some_devices_have_started_leaves_no_device_waiting(pool, rows):
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    with stopped(ts.devices()[3].pid):
        total = x.sum()
        later = total + 1
        wait_until_in_a_collective(pool, [0, 1, 2, 4, 5, 6, 7])
        pool.cancel(INTERRUPT)
    for value, right in ((total, 16), (later, 17)):  # the last device may be done before it hears of the interrupt
        ended = outcome(value.item)()
        assert ended == right or isinstance(ended, ts.CancelledError)
    assert x.sum().item() == 16


@pytest.mark.on_gloo
def test_a_stopped_device_keeps_no_other_from_its_cancellation(pool, rows):
    """The others go on after a moment; the stopped device drops its part when it resumes."""
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    block = x.addressable_shards[0].data
    with stopped(ts.devices()[3].pid):
        mine, total = x + 1, x.sum()
        wait_until_in_a_collective(pool, [0])
        pool.cancel(INTERRUPT)
        wait_until(lambda: pool._dispatcher.interrupts.now is None, "it is handled", OVER_WITHIN_S)
        pool.cancel(INTERRUPT)
        after = x * 2
    assert outcome((block + 1).tolist)() == [[2, 2]]
    for value, right in ((mine.addressable_shards[3].data, [[2, 2]]), (total, 16)):
        ended = outcome(value.tolist)()  # the device may be done before it hears of the interrupt
        assert ended == right or isinstance(ended, ts.CancelledError)
    assert outcome(after.tolist)() == [[2, 2]] * 8
    assert (x + 1).sum().item() == 32


@pytest.mark.on_gloo
def test_calls_of_one_device_go_on_after_an_interrupt_while_another_is_stopped(pool):
    x, y = (ts.device_put(torch.ones(2), ts.devices()[device]).block_until_ready() for device in (0, 3))
    with stopped(ts.devices()[3].pid):
        with stopped(ts.devices()[0].pid):
            x + 1, y + 1
            pool.cancel(INTERRUPT)
            wait_until(lambda: pool._dispatcher.interrupts.now is not None, "both are asked to hold still")
        assert outcome((x * 3).tolist)() == [3, 3]
    assert outcome((y * 3).tolist)() == [3, 3]


def test_nothing_queued_means_nothing_cancelled(pool, rows):
    x = ts.device_put(torch.ones(8, 2), rows)
    y = (x + 1).block_until_ready()
    pool.cancel(INTERRUPT)
    pool.cancel(INTERRUPT)
    assert y.sum().item() == 32


@pytest.mark.on_gloo
def test_interrupts_at_any_time_leave_no_device_behind(pool):
    """Random calls on random sets of devices, from one thread, interrupts from another; then everything still works."""
    chance = random.Random(11)
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    specs = [ts.P("a", "b"), ts.P("b", "a"), ts.P("a"), ts.P(None, "b"), ts.P()]
    base = ts.device_put(torch.ones(8, 8), ts.NamedSharding(mesh, specs[0])).block_until_ready()
    gc.collect()
    before = [pool.held(d) for d in range(8)]
    for _ in range(examples(5, 15)):
        going, times = threading.Event(), chance.randrange(1, 6)

        def interrupt(going=going, times=times):
            going.wait()
            for _ in range(times):
                pool.cancel(INTERRUPT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        y = base
        for k in range(60):
            act = chance.randrange(4)
            if act == 0:
                y = ts.device_put(y, ts.NamedSharding(mesh, chance.choice(specs)))
            elif act == 1:
                y = y + y.sum(chance.randrange(2)) / 8 - y
            elif act == 2:
                y = (y @ y) / 8
            else:
                ts.device_put(y, chance.choice(ts.devices())) + 1
            if k == 20:
                going.set()
        ended = outcome(lambda y=y: y.sum().item(), 60)()
        thread.join()
        assert isinstance(ended, float | ts.CancelledError), ended
        assert outcome(lambda: (base @ base).sum().item(), 60)() == 512
    del y, ended
    gc.collect()  # errors hold their frames, and frames hold arrays
    assert [pool.held(d) for d in range(8)] == before


@pytest.fixture(scope="module")
def kernel():
    manager, client = start_new_kernel(env={**os.environ, "PYTHONPATH": str(ROOT), "TINYSHARD_RUNTIME": "process"})
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run_cell(client, code, timeout_s=PATIENCE_S):
    """Run a cell; what it printed, and its error without colours."""
    said = []

    def took(message):
        content = message["content"]
        if message["msg_type"] == "stream":
            said.append(content["text"])
        elif message["msg_type"] == "error":
            said.append(f"{content['ename']}: {content['evalue']}")

    client.execute_interactive(code, output_hook=took, timeout=timeout_s)
    return re.sub(r"\x1b\[[0-9;]*m", "", "".join(said))


# `told.touch()` asks for the interrupt: in print, it would strike the notebook's own code far more often than the cell
# own code sleeps often and not long: a signal between Python's last look for signals and its sleep waits for the sleep
CELLS = {
    "a loop that dispatches": "told.touch()\nwhile True: y = slow(y)",
    "a wait": "for _ in range(200): y = slow(y)\ntold.touch()\ny.block_until_ready()",
    "own code": "import time\nfor _ in range(200): y = slow(y)\ntold.touch()\nwhile True: time.sleep(0.01)",
}
STEPS = {
    "alone": "slow = ts.jit(lambda y: y + torch.linalg.svdvals(m).sum() * 0)",
    "with collectives": "slow = ts.jit(lambda y: y + torch.linalg.svdvals(m).sum() * 0 + y.sum() * 0)",
}


@pytest.mark.on_gloo
@pytest.mark.parametrize(
    "cell, step", mostly_whole(itertools.product(CELLS, STEPS), lambda row: row[1] == "with collectives")
)
def test_an_interrupted_cell_ends_and_the_next_one_works(kernel, tmp_path, cell, step):
    manager, client = kernel
    told = tmp_path / "told"
    start = f"""
import pathlib, tinyshard as ts, torch
told = pathlib.Path({str(told)!r})
rows = ts.sharding.PositionalSharding(ts.devices()).reshape(8, 1)
m = ts.device_put(torch.rand(300, 300), rows.replicate())
x = ts.device_put(torch.ones(8, 2), rows)
{STEPS[step]}
y = early = slow(x).block_until_ready()
print("started")
"""
    assert run_cell(client, start) == "started\n"
    struck_s = []

    def interrupt_when_told():
        wait_until(told.exists, "the cell is about to be interrupted")
        struck_s.append(time.monotonic())
        # what manager.interrupt_kernel() does, which leaves an event loop behind in every thread but the main one
        os.killpg(manager.provisioner.pgid, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt_when_told)
    interrupting.start()
    said = run_cell(client, CELLS[cell])
    ended_s = time.monotonic()
    interrupting.join()
    assert "KeyboardInterrupt" in said
    assert ended_s - struck_s[0] < 2
    said = run_cell(client, "print(early.sum().item(), (x + 1).sum().item())", timeout_s=OVER_WITHIN_S)
    assert said == "16.0 32.0\n"
    said = run_cell(client, "print(y.sum().item())", timeout_s=OVER_WITHIN_S)
    if cell == "a loop that dispatches" and said == "16.0\n":
        return  # it was struck before its first call
    assert said.startswith("CancelledError") and "cancelled by the interrupt at In[" in said

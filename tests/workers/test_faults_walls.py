"""What stands between a pool and the rest of the machine: sockets, other notebooks, memory, shared memory."""

import ast
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from jupyter_client.manager import start_new_kernel

import tinyshard as ts
from tests.extent import mostly_whole
from tests.workers.limits import OVER_WITHIN_S, outcome, wait_until_throttled
from tests.workers.processes import JOINED, PATIENCE_S, ROOT, is_gone, stopped, wait_until
from tinyshard.runtime import lifecycle
from tinyshard.runtime.controller import dispatcher
from tinyshard.runtime.controller.pool import ProcessPool
from tinyshard.runtime.launch import forkserver

SETUP = """
import tinyshard as ts, torch, os
rows = ts.sharding.PositionalSharding(ts.devices()).reshape(8, 1)
x = ts.device_put(torch.arange(32.).reshape(8, 4), rows)
assert (x + 1).sum().item() == 528
"""


def family_of(pid):
    """A controller, its helper process and the workers."""
    controller = psutil.Process(pid)
    return [controller, *controller.children(recursive=True)]


def listening(processes):
    """The listening inet sockets of these processes."""
    return [c for p in processes for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]


# ---- nobody else gets in --------------------------------------------------------------------------------------------


@pytest.fixture(params=JOINED)
def joined(request, _one_pool_a_file):
    """Eight devices, joined in either way, and their rows; whatever was broken before is whole."""
    runtime = lifecycle._runtime
    if not isinstance(runtime, ProcessPool) or not runtime.is_alive or runtime.collectives != request.param:
        ts.init(devices=8, runtime="process", collectives=request.param)
    return request.param, ts.sharding.PositionalSharding(ts.devices()).reshape(8, 1)


def test_the_only_listening_sockets_are_gloos_and_on_the_loopback(joined):
    collectives, _ = joined
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    x = ts.device_put(torch.ones(8, 8), ts.NamedSharding(mesh, ts.P("a", "b")))
    ts.block_until_ready([x.sum(0), x.sum(1), x.sum()])  # groups along both axes
    controller, helper, *workers = family_of(os.getpid())
    assert helper.pid == forkserver.start().pid and len(workers) == 8
    mine = {c.laddr.port for c in listening([controller])}  # of other libraries in this process
    assert listening([helper]) == []
    found = listening(workers)
    assert {c.laddr.ip for c in found} == ({"127.0.0.1"} if collectives == "gloo" else set())
    assert not mine & {c.laddr.port for c in found}
    for process in (helper, *workers):
        assert [c.laddr for c in process.net_connections("unix") if c.laddr] == []


STRANGERS = {
    "nothing": b"",
    "a byte": b"\0",
    "http": b"GET / HTTP/1.1\r\n\r\n",
    "all bytes": bytes(range(256)) * 64,
    "ones": b"\xff" * 8,
    "zeros": b"\0" * 4096,
}
STRANGERS_PART = {("nothing", "stays"), ("http", "leaves"), ("all bytes", "stays")}


@pytest.mark.parametrize(
    "says, then", mostly_whole(itertools.product(STRANGERS, ("leaves", "stays")), STRANGERS_PART.__contains__)
)
@pytest.mark.parametrize("joined", ["gloo"], indirect=True)  # with shared memory there is no port to come to
def test_a_stranger_at_every_port_changes_nothing(joined, says, then):
    rows = joined[1]
    x = ts.device_put(torch.ones(8, 2), rows)
    assert x.sum().item() == 16
    _, _, *workers = family_of(os.getpid())
    ports = {c.laddr.port for c in listening(workers)}
    assert len(ports) >= len(workers)
    strangers = []
    for port in ports:
        stranger = socket.create_connection(("127.0.0.1", port))
        stranger.sendall(STRANGERS[says])
        strangers.append(stranger)
        if then == "leaves":
            stranger.close()
    assert outcome(lambda: (x * 2).sum().item())() == 32
    mesh = ts.make_mesh((2, 4), ("a", "b"), devices=ts.devices()[::-1])
    y = ts.device_put(torch.ones(8, 8), ts.NamedSharding(mesh, ts.P("a", "b")))
    assert outcome(lambda: y.sum(1).tolist())() == [8.0] * 8  # new groups can be made
    for stranger in strangers:
        stranger.close()
    assert outcome(lambda: x.sum().item())() == 16
    assert all(p.is_running() for p in workers)


def test_command_lines_and_environments_of_helper_and_workers_hold_no_secret(pool):
    """There is none to hold: they are given nothing but paths, a descriptor and the role."""
    _, helper, *workers = family_of(os.getpid())
    words = helper.cmdline()
    assert words[:2] == [sys.executable, "-c"] and len(words) == 3
    code = words[2]
    path = ast.literal_eval(code.partition("sys.path[:] = ")[2].partition("\n")[0])
    assert all(os.path.isabs(p) for p in path)
    descriptor = int(code.rpartition("serve(")[2].partition(")")[0])
    assert code == forkserver.SCRIPT.format(path=path, fd=descriptor)
    added = {"TINYSHARD_ROLE", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "THP_MEM_ALLOC_ENABLE"}
    added |= {"LD_PRELOAD", "TCMALLOC_LARGE_ALLOC_REPORT_THRESHOLD"}  # if tcmalloc is installed
    for process in (helper, *workers):
        assert set(process.environ()) - set(os.environ) <= added


# ---- notebooks ------------------------------------------------------------------------------------------------------


@pytest.fixture
def notebook():
    started = []

    def start():
        manager, client = start_new_kernel(env={**os.environ, "PYTHONPATH": str(ROOT), "TINYSHARD_RUNTIME": "process"})
        started.append((manager, client))
        return manager, client

    yield start
    for manager, client in started:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run(client, code):
    """Run a cell; what it printed or raised."""
    said = []

    def hear(message):
        content = message["content"]
        said.append(content.get("text", "") or content.get("evalue", ""))

    client.execute_interactive(code, output_hook=hear, timeout=PATIENCE_S)
    return "".join(said)


def wait_until_gone(processes):
    wait_until(lambda: all(map(is_gone, processes)), f"{processes} ended", OVER_WITHIN_S)


BUSY = {"idle": "", "busy": "y = x\nfor _ in range(500): y = y @ (x.T @ x)"}


@pytest.mark.parametrize("state", mostly_whole(BUSY, lambda state: state == "busy"))
def test_a_restart_of_the_kernel_leaves_nothing_and_the_notebook_starts_afresh(notebook, state):
    manager, client = notebook()
    run(client, SETUP + BUSY[state])
    old = family_of(manager.provisioner.pid)
    assert len(old) >= 10
    manager.restart_kernel(now=False)
    wait_until_gone(old)
    client.wait_for_ready(timeout=PATIENCE_S)
    assert run(client, SETUP + "print('again')") == "again\n"
    now = family_of(manager.provisioner.pid)
    manager.shutdown_kernel()
    wait_until_gone(now)


@pytest.mark.whole
def test_two_notebooks_do_not_see_each_other(notebook):
    (first, one), (_, two) = notebook(), notebook()
    run(one, SETUP)
    run(two, SETUP)
    pids = "print(sorted(d.pid for d in ts.devices()))"
    assert not set(json.loads(run(one, pids))) & set(json.loads(run(two, pids)))
    run(one, "os.kill(ts.devices()[2].pid, 9)")
    assert "CPU 2 is gone" in run(one, "x.sum().item()")
    assert run(two, "print(x.sum().item())") == "496.0\n"
    run(one, "ts.shutdown()")
    assert run(two, "print(x.sum().item())") == "496.0\n"
    first.shutdown_kernel(now=True)
    assert run(two, "print((x @ x.T).sum().item())") == str((ARANGE @ ARANGE.T).sum().item()) + "\n"


ARANGE = torch.arange(32.0).reshape(8, 4)


# ---- memory ---------------------------------------------------------------------------------------------------------


def resident(process):
    return process.memory_info().rss


def test_a_loop_that_dispatches_faster_than_the_workers_compute_does_not_grow_memory(pool, rows):
    """1.2 GB in puts and 20,000 calls, while a device is stopped most of the time."""
    controller, _, *workers = family_of(os.getpid())
    block = torch.ones(1 << 20)
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()

    def dispatch():
        y = x
        for i in range(20_000):
            y = y + 1
            if i % 66 == 0:
                ts.device_put(block, ts.devices()[3]) + 1
        return y.sum().item()

    before = [resident(p) for p in (controller, *workers)]
    end = outcome(dispatch, 120)
    peak = [0] * 9
    for _ in range(3):
        with stopped(ts.devices()[3].pid):
            wait_until_throttled("the loop is held back")
            peak = [max(p, resident(q)) for p, q in zip(peak, (controller, *workers), strict=True)]
    assert end() == 16 * 20_001.0
    peak = [max(p, resident(q)) for p, q in zip(peak, (controller, *workers), strict=True)]
    grown = [p - b for p, b in zip(peak, before, strict=True)]
    assert max(grown) < 2 * dispatcher.MAX_NBYTES_AHEAD, grown


def can_mount():
    """Whether this user may make a mount namespace."""
    if shutil.which("unshare") is None:
        return False
    tried = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


CHANGES = {
    "64 MB": "mount -t tmpfs -o size=64m tmpfs /dev/shm",
    "full": "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/full",
    "none that can be written": (
        "mount -t tmpfs tmpfs /dev/shm && umount /dev/shm && mount --bind /proc/self/fdinfo /dev/shm"
    ),
}


@pytest.mark.whole
@pytest.mark.skipif(not can_mount(), reason="this system lets nobody make a mount namespace")
@pytest.mark.parametrize("change", mostly_whole(CHANGES, lambda name: name == "full"))
def test_it_works_with_little_or_no_shared_memory(change, tmp_path):
    code = SETUP + (
        "big = ts.device_put(torch.ones(8, 4 << 20), rows)\n"  # 128 MiB
        "assert (big + big).sum().item() == 2 * (32 << 20)\n"
        "assert ts.device_put(big, ts.devices()[1])[7, 5].item() == 1\n"
        "ts.shutdown()\nprint('works')"
    )
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f'{CHANGES[change]} && exec "$@"', "sh"]
    done = subprocess.run(
        [*command, sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TINYSHARD_RUNTIME": "process"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout == "works\n", done.stderr
    assert not Path("/dev/shm/full").exists()

"""The devices are real: eight processes, and one that stops holds up its own shard and every collective, no more."""

import os
import signal
import socket
import threading

import psutil
import pytest
import torch

import tinyshard as ts
from tests.workers.processes import stopped
from tinyshard.runtime.launch import forkserver


def test_devices_are_eight_processes_and_none_is_the_controller(pool):
    pids = [d.pid for d in ts.devices()]
    assert len(set(pids)) == 8
    assert os.getpid() not in pids
    assert all(psutil.Process(pid).ppid() == forkserver.start().pid for pid in pids)


def test_devices_are_of_the_controllers_session_and_not_of_its_process_group(pool):
    """By sessions Linux may deal out the cores; a terminal's Ctrl-C goes to a process group."""
    for pid in [d.pid for d in ts.devices()]:
        assert os.getsid(pid) == os.getsid(0)
        assert os.getpgid(pid) != os.getpgid(0)


def test_a_stopped_device_holds_up_its_own_shard_and_nothing_else(rows):
    x = ts.device_put(torch.arange(32.0).reshape(8, 4), rows).block_until_ready()
    with stopped(ts.devices()[3].pid):
        y = x + 1
        assert not y.is_ready()
        assert not y.addressable_shards[3].data.is_ready()
        for i in (0, 1, 2, 4, 5, 6, 7):
            assert y.addressable_shards[i].data.tolist() == [[4.0 * i + 1, 4 * i + 2, 4 * i + 3, 4 * i + 4]]
        assert (ts.device_put(torch.ones(3), ts.devices()[5]) * 2).tolist() == [2, 2, 2]
    assert y.sum().item() == 528


def test_a_stopped_device_holds_up_every_collective(rows):
    x = ts.device_put(torch.arange(32.0).reshape(8, 4), rows).block_until_ready()
    with stopped(ts.devices()[3].pid):
        total = x.sum()
        assert not total.is_ready()
        assert not total.addressable_shards[0].data.is_ready()
    assert total.item() == 496
    assert total.is_ready()


def test_ctrl_c_while_a_value_is_asked_for_does_not_cancel_it(rows):
    y = ts.device_put(torch.zeros(8, 1 << 20), rows).block_until_ready()
    with stopped(ts.devices()[3].pid):
        for _ in range(300):
            y = y + 1
        timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            while not y.is_ready():
                pass
    assert y[3, 0].item() == 300


def test_a_value_is_never_ready_before_its_device_has_said_so(rows):
    x = ts.device_put(torch.zeros(8, 2), rows).block_until_ready()
    with stopped(ts.devices()[0].pid):
        ready = []
        for _ in range(20):
            x = x + 1
            ready.append(x.is_ready())
    assert ready == [False] * 20
    assert x.block_until_ready().is_ready()
    assert x.tolist() == [[20.0, 20.0]] * 8


def test_all_listening_sockets_are_on_the_loopback(pool):
    ts.array(1).block_until_ready()
    helper = psutil.Process(forkserver.start().pid)
    family = [psutil.Process(), helper, *helper.children(recursive=True)]
    listening = [c for p in family for c in p.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert {c.laddr.ip for c in listening} == ({"127.0.0.1"} if pool.collectives == "gloo" else set())
    assert all(c.family == socket.AF_INET for c in listening)

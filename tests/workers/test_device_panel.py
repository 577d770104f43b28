"""The device panel's buttons on real workers."""

import psutil
import torch

import tinyshard as ts
from course.widgets import device_panel
from course.widgets.workers import pool_now


def states() -> list[str]:
    return [device.state for device in pool_now().devices]


def test_a_device_is_stopped_goes_on_is_killed_and_comes_back_afresh(pool: object) -> None:
    ts.block_until_ready([ts.device_put(torch.ones(2), device) for device in ts.devices()])
    kept = ts.device_put(torch.ones(1024), ts.devices()[5]).block_until_ready()
    panel = device_panel()
    assert states() == ["lives"] * 8
    panel.choose(device=5, stops=1)
    assert states() == ["lives"] * 5 + ["stopped"] + ["lives"] * 2
    assert "CPU 5: stopped" in panel.svg and "CPU 5   stopped  4,096 B" in panel.text
    panel.choose(continues=1)
    assert states() == ["lives"] * 8 and kept.sum().item() == 1024
    pids = [device.pid for device in pool_now().devices]
    panel.choose(device=6, kills=1)
    assert states() == ["lives"] * 6 + ["gone", "lives"]
    assert "CPU 6 is gone: killed by signal 9 (SIGKILL)" in panel.text
    panel.choose(kills=2, stops=2)  # of one that is gone: nothing happens
    assert kept.sum().item() == 1024
    panel.choose(starts=1)
    assert states() == ["lives"] * 8
    assert not any(psutil.pid_exists(pid) for pid in pids if pid)


def test_looking_again_does_nothing_else(pool: object) -> None:
    ts.block_until_ready([ts.device_put(torch.ones(2), device) for device in ts.devices()])
    panel = device_panel()
    before = [device.pid for device in pool_now().devices]
    panel.choose(looks=1).choose(looks=2)
    assert [device.pid for device in pool_now().devices] == before and states() == ["lives"] * 8

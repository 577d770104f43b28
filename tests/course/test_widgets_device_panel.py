"""The device panel, drawn from what was found, on the local runtime too; with real workers: tests/workers."""

from collections.abc import Iterator
from xml.etree import ElementTree

import pytest
import torch

import tinyshard as ts
from course.widgets import device_panel
from course.widgets.card import card
from course.widgets.device_panel import MIB, describe, draw
from course.widgets.workers import DeviceNow, PoolNow, pool_now

SVG = "{http://www.w3.org/2000/svg}"
NOW = PoolNow(
    100,
    (
        DeviceNow("CPU 0", "lives", 101, 160 * MIB, 4096),
        DeviceNow("CPU 1", "stopped", 102, 161 * MIB, 0),
        DeviceNow("CPU 2", "gone", None, None, 2048, "CPU 2 is gone: killed by signal 9 (SIGKILL)"),
        DeviceNow("CPU 3", "no process", None, None, 0),
    ),
)


@pytest.fixture
def local() -> Iterator[None]:
    ts.init(devices=4, runtime="local")
    yield
    ts.shutdown()


def test_each_state_has_a_lamp_of_its_own_colour_and_mark_and_a_word() -> None:
    root = ElementTree.fromstring(card("the devices", draw(NOW)))
    lamps = list(root.iter(f"{SVG}circle"))
    assert len({lamp.get("fill") for lamp in lamps}) == 4
    assert len(list(root.iter(f"{SVG}path"))) == 2  # two bars, and a cross
    words = [node.text for node in root.iter(f"{SVG}text")]
    assert {"CPU 0: lives", "CPU 1: stopped", "CPU 2: gone", "CPU 3: no process"} <= set(words)
    assert {"pid 101", "process of 160 MiB", "4,096 B of Arrays"} <= set(words)
    assert "CPU 2 is gone: killed by signal 9 (SIGKILL)" in words


def test_bars_are_as_long_as_the_bytes_and_lost_bytes_are_hollow() -> None:
    root = ElementTree.fromstring(card("the devices", draw(NOW)))
    filled = [node for node in root.iter(f"{SVG}rect") if node.get("height") == "8" and node.get("stroke") is not None]
    by_fill = {}
    for node in filled:
        by_fill.setdefault(node.get("fill"), []).append(float(node.get("width", 0)))
    assert len(by_fill["#0072B2"]) == 1
    whole = by_fill["#0072B2"][0]
    assert by_fill["none"].count(whole) == 4 and whole / 2 in by_fill["none"]


def test_with_a_limit_a_full_bar_is_the_limit_and_the_picture_says_so() -> None:
    half = PoolNow(100, (DeviceNow("CPU 0", "lives", 101, 160 * MIB, 8 * MIB),), room_nbytes=16 * MIB)
    root = ElementTree.fromstring(card("the devices", draw(half)))
    frame, bar = [float(node.get("width", 0)) for node in root.iter(f"{SVG}rect") if node.get("height") == "8"]
    assert bar == frame / 2
    assert "a full bar is 16 MiB of Arrays" in [node.text for node in root.iter(f"{SVG}text")]


def test_the_words_say_the_same() -> None:
    assert describe(NOW) == (
        "kernel  pid 100\n"
        "CPU 0   lives    4,096 B of Arrays, pid 101, process of 160 MiB\n"
        "CPU 1   stopped  0 B of Arrays, pid 102, process of 161 MiB\n"
        "CPU 2   gone     2,048 B of Arrays, lost\n"
        "CPU 3   no process 0 B of Arrays\n"
        "CPU 2 is gone: killed by signal 9 (SIGKILL)"
    )


def test_without_processes_the_bytes_are_told_and_the_buttons_leave_the_devices_alone(
    local: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYSHARD_RUNTIME", "local")
    x = ts.device_put(torch.zeros(4, 4), ts.devices()[2])
    assert [device.array_nbytes for device in pool_now().devices] == [0, 0, 64, 0]
    panel = device_panel().choose(device=2, stops=1, kills=1, continues=1)
    assert "CPU 2   no process 64 B of Arrays" in panel.text
    assert x.sum().item() == 0
    assert "64 B" not in panel.choose(starts=1).text


def test_the_panel_offers_the_devices_that_there_are_when_others_have_been_started(local: None) -> None:
    panel = device_panel().choose(device=3)
    ts.init(devices=2, runtime="local")
    panel.choose(stops=1)
    assert panel.choices["device"] == 0
    assert "CPU 1" in panel.text and "CPU 2" not in panel.text
    ts.init(devices=8, runtime="local")
    assert "CPU 7" in panel.choose(looks=1, device=7).text


def test_a_press_that_fails_is_not_made_good_by_the_next_one(local: None, monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def fail() -> None:
        started.append(1)
        raise ts.errors.RuntimeStateError("no device", got="none", rule="there are some", try_="again")

    monkeypatch.setattr(ts, "init", fail)
    panel = device_panel().choose(starts=1)
    assert "no device" in panel.text
    panel.choose(looks=1)
    assert len(started) == 1
    assert "CPU 3" in panel.text

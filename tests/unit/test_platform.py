"""init, shutdown and the environment variables that give their defaults."""

import threading

import pytest

import tinyshard as ts
from tinyshard.runtime import lifecycle
from tinyshard.runtime.local import LocalRuntime


@pytest.fixture(autouse=True)
def local_by_default(monkeypatch):
    monkeypatch.setenv("TINYSHARD_RUNTIME", "local")
    ts.shutdown()
    yield
    ts.shutdown()


def test_first_use_starts_eight_devices():
    assert ts.device_count() == 8
    assert ts.devices() == ts.local_devices() == [ts.Device(i) for i in range(8)]


def test_the_environment_says_how_many(monkeypatch):
    monkeypatch.setenv("TINYSHARD_DEVICES", "3")
    assert ts.device_count() == 3


@pytest.mark.parametrize("count", [0, -1, 2.5, "many", True])
def test_a_count_that_is_no_positive_int_is_an_error(count):
    with pytest.raises(ts.RuntimeStateError, match="positive int"):
        ts.init(devices=count)


@pytest.mark.parametrize(
    "wrong, words",
    [
        ({"runtime": "threads"}, "'process', 'local'"),
        ({"platform": "tpu"}, "'cpu'"),
        ({"collectives": "mpi"}, "'gloo'"),
    ],
)
def test_a_name_that_is_not_there_lists_those_that_are(wrong, words):
    with pytest.raises(ts.RuntimeStateError, match=words):
        ts.init(**wrong)


def test_a_wrong_init_leaves_the_devices_as_they_were():
    x = ts.array([1.0])
    with pytest.raises(ts.RuntimeStateError):
        ts.init(devices=0)
    assert x.tolist() == [1]


def test_shutdown_twice_is_no_error():
    ts.devices()
    ts.shutdown()
    ts.shutdown()


def test_threads_that_use_the_devices_first_start_one_runtime(monkeypatch):
    started = []
    make = LocalRuntime.__init__

    def count(self, *args):
        started.append(self)
        make(self, *args)

    monkeypatch.setattr(LocalRuntime, "__init__", count)
    threads = [threading.Thread(target=lifecycle.current) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(started) == 1

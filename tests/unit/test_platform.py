"""init, shutdown and the environment variables that give their defaults."""

import threading

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tinyshard as ts
from tinyshard.partition import plan
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
    monkeypatch.setenv("TINYSHARD_DEVICES", "abc")
    with pytest.raises(ts.RuntimeStateError, match="TINYSHARD_DEVICES=abc"):
        ts.init()


@pytest.mark.parametrize(
    "count", [0, -1, 2.5, "many", True, float("inf"), pytest.param(10**400, id="more than a float")]
)
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


def constrained(v):
    sharding = ts.NamedSharding(ts.make_mesh((8,), ("a",)), ts.P("a"))
    return ts.lax.with_sharding_constraint(v * 2, sharding)


def started_again(v):
    ts.init(3, runtime="local")
    return v * 2


FIRST_USES = {
    "a mesh": constrained,
    "a list": lambda v: v * len(ts.devices()) / 4,
    "a device": lambda v: ts.device_put(v, ts.devices()[1]) * 2,
    "init": started_again,
    "a device in vmap": lambda v: torch.vmap(lambda row: row * len(ts.devices()) / 4)(v),
}


@pytest.mark.parametrize("use", FIRST_USES)
def test_devices_may_be_used_first_within_a_trace(use):
    x = torch.arange(8.0)
    for traced in (ts.jit(FIRST_USES[use]), ts.make_graph(FIRST_USES[use])):
        ts.shutdown()
        plan.warm_up.cache_clear()  # as in a new process
        made = traced(x)
    assert "mul" in str(made)
    assert ts.jit(FIRST_USES[use])(x).tolist() == [2 * i for i in range(8)]


def test_devices_may_be_started_under_a_mode_of_torch():
    plan.warm_up.cache_clear()
    with torch.device("meta"), FakeTensorMode():
        ts.init(8, runtime="local")
    assert torch.sin(ts.array([0.0, 0.0])).tolist() == [0, 0]


def test_more_devices_than_one_machine_has_processes_for_are_refused_before_any_is_started():
    ts.init(2, runtime="local")
    with pytest.raises(ts.RuntimeStateError, match=r"(?s)100000.*1024.*AbstractMesh"):
        ts.init(100000, runtime="process")
    assert ts.device_count() == 2

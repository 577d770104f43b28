"""A limit on what a device holds and makes, on worker processes: the count is that of the local runtime."""

import re

import pytest
import torch

import tinyshard as ts
from tests import memory_limits
from tinyshard.runtime import lifecycle

pytestmark = pytest.mark.on_gloo

MIB = 1 << 20


@pytest.fixture(scope="module")
def limited():
    ts.init(devices=8, runtime="process", memory_per_device="16 MiB")
    yield ts.make_mesh((8,), ("d",))
    ts.init(devices=8, runtime="local")


def rows(mesh):
    return ts.NamedSharding(mesh, ts.P("d"))


def stats(device=0):
    return ts.devices()[device].memory_stats()


def test_one_device_has_no_room_where_eight_have(limited):
    host = torch.ones(2048, 2048)
    x = ts.device_put(host, ts.devices()[0])
    y = x + 1
    with pytest.raises(ts.errors.OutOfMemoryError) as caught:
        y.block_until_ready()
    words = str(caught.value)
    assert "aten.add.Tensor failed on CPU 0\n" in words
    assert "16.0 MiB requested while 16.0 MiB are held; the limit of a device is 16.0 MiB" in words
    assert re.search(r"dispatched by \S*test_memory_limit\.py:\d+: y = x \+ 1", words)
    assert "16.0 MiB f32[2048, 2048], a block of f32[2048, 2048] by SingleDeviceSharding(CPU 0) made by" in words
    del x, y, caught
    x = ts.device_put(host, rows(limited))
    assert (x + 1).sum().item() == 2 * 2048**2
    assert stats()["bytes_in_use"] == 2 * MIB


def test_only_the_device_that_is_full_fails_and_all_goes_on_when_there_is_room(limited):
    full = ts.device_put(torch.zeros(15 * MIB, dtype=torch.uint8), ts.devices()[3])
    x = ts.device_put(torch.ones(8, MIB // 2), rows(limited))  # 2 MiB a device
    with pytest.raises(ts.errors.OutOfMemoryError, match=r"placing f32\[1, 524288\] failed on CPU 3\n"):
        x.block_until_ready()
    assert x.addressable_shards[2].data.sum().item() == MIB // 2
    total = x.sum()  # an exchange in which one device has failed
    with pytest.raises(ts.errors.OutOfMemoryError, match="failed on CPU 3"):
        total.block_until_ready()
    assert full[-1].item() == 0
    full.delete()
    assert ts.device_put(torch.ones(8, MIB // 2), rows(limited)).sum().item() == 4 * MIB


def test_a_collective_over_the_limit_on_one_device_keeps_no_other_waiting(limited):
    full = ts.device_put(torch.zeros(13 * MIB, dtype=torch.uint8), ts.devices()[6])
    x = ts.device_put(torch.ones(8, MIB // 8), rows(limited))  # half a MiB a device, 4 MiB gathered
    whole = ts.device_put(x, ts.NamedSharding(limited, ts.P()))
    with pytest.raises(ts.errors.OutOfMemoryError, match=r"all_gather failed on CPU 6\n"):
        whole.block_until_ready()
    del full, whole
    assert ts.device_put(x, ts.NamedSharding(limited, ts.P())).sum().item() == MIB
    assert lifecycle.current().is_alive


def test_files_and_traces_go_on_after_an_error_for_want_of_memory(limited, tmp_path):
    x = torch.arange(2.0 * MIB)  # 8 MiB
    ts.save(ts.device_put(x, rows(limited)), tmp_path / "x")
    full = ts.device_put(torch.zeros(9 * MIB, dtype=torch.uint8), ts.devices()[5])
    with pytest.raises(ts.errors.OutOfMemoryError, match="failed on CPU 5"), ts.profiler.trace() as left:
        ts.load(tmp_path / "x", ts.NamedSharding(limited, ts.P()))
    assert stats(5)["peak_bytes_in_use"] < 11 * MIB
    assert {step.device for step in left.events.steps if step.op == "read_block"} >= {*range(8)} - {5}
    assert not left.events.notes
    full.delete()
    with ts.profiler.trace() as whole:
        again = ts.load(tmp_path / "x", ts.NamedSharding(limited, ts.P()))
    assert {step.device for step in whole.events.steps if step.op == "read_block"} == {*range(8)}
    torch.testing.assert_close(ts.device_get(again), x)


def test_many_calls_that_are_queued_stay_within_the_limit(limited):
    x = ts.device_put(torch.zeros(8, MIB), rows(limited))  # 4 MiB a device
    for _ in range(60):
        x = x + 1  # sent in a burst: each old value is freed all the same
    assert x.amax().item() == 60


def test_a_burst_before_the_workers_are_up_stays_within_the_limit():
    ts.init(devices=8, runtime="process", memory_per_device="16 MiB")
    x = ts.device_put(torch.zeros(8, MIB), rows(ts.make_mesh((8,), ("d",))))
    for _ in range(60):
        x = x + 1
    assert x.amax().item() == 60


def test_donation_frees_before_the_call_ends_and_survives_an_error(limited):
    x = ts.device_put(torch.full((8, MIB), 0.5), rows(ts.make_mesh((8,), ("d",))))  # 4 MiB a device
    f = ts.jit(lambda x: torch.cos(torch.sin(torch.tan(x))), donate_argnums=0)
    for _ in range(4):
        old, x = x, f(x)
        assert old.is_deleted()
    assert x.block_until_ready() is x
    assert stats()["bytes_in_use"] == 4 * MIB
    with pytest.raises(RuntimeError, match=r"Array has been deleted"):
        old.numpy()
    broken = ts.jit(lambda i: torch.gather(i, 1, i), donate_argnums=0)
    i = ts.device_put(torch.full((8, 4), 9), x.sharding)
    result = broken(i)
    with pytest.raises(ts.errors.RemoteError, match=r"aten\.gather"):
        result.block_until_ready()
    assert i.is_deleted() and not x.is_deleted()
    x.delete()
    assert stats()["bytes_in_use"] < MIB


@pytest.mark.parametrize(
    "name", ["a layer, its matrix sharded", "a scan", "a loop", "an update in donated memory", "fsdp"]
)
def test_a_device_counts_what_the_local_runtime_counts(name):
    counts = []
    for runtime in ("local", "process"):
        ts.init(devices=8, runtime=runtime, memory_per_device="4 GiB")
        make = memory_limits.plan if name in memory_limits.PLANS else memory_limits.smaller
        compiled, arguments = make(name)
        counts.append(memory_limits.counted(compiled, arguments))
    assert counts[0] == counts[1] == pytest.approx(compiled.memory_analysis().peak_nbytes, rel=0.1)

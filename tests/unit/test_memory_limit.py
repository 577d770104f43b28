"""A limit on what a device holds and makes, on the local runtime; and what is counted beside what the model says."""

import gc
import re

import pytest
import torch

import tinyshard as ts
from tests import memory_limits
from tests.extent import mostly_whole

MIB = 1 << 20


@pytest.fixture
def limited():
    gc.collect()
    ts.init(devices=8, runtime="local", memory_per_device="16 MiB")
    yield ts.make_mesh((8,), ("d",))
    ts.shutdown()


def rows(mesh):
    return ts.NamedSharding(mesh, ts.P("d"))


def stats(device=0):
    gc.collect()
    return ts.devices()[device].memory_stats()


def test_one_device_has_no_room_where_eight_have(limited):
    host = torch.ones(2048, 2048)  # 16 MiB: it fits one device, and nothing beside it
    x = ts.device_put(host, ts.devices()[0])
    y = x + 1
    with pytest.raises(ts.errors.OutOfMemoryError) as caught:
        y.block_until_ready()
    words = str(caught.value)
    assert "aten.add.Tensor failed on CPU 0\n" in words
    assert "16.0 MiB requested while 16.0 MiB are held; the limit of a device is 16.0 MiB" in words
    assert re.search(r"dispatched by \S*test_memory_limit\.py:\d+: y = x \+ 1", words)
    assert "alive on CPU 0: 16.0 MiB in 1 values\n" in words
    assert "16.0 MiB f32[2048, 2048], a block of f32[2048, 2048] by SingleDeviceSharding(CPU 0) made by" in words
    assert "x = ts.device_put(host, ts.devices()[0])" in words
    del x, y
    x = ts.device_put(host, rows(limited))
    assert (x + 1).sum().item() == 2 * 2048**2
    assert stats()["bytes_in_use"] == 2 * MIB


def test_only_the_device_that_is_full_fails_and_all_goes_on_when_there_is_room(limited):
    full = ts.device_put(torch.zeros(15 * MIB, dtype=torch.uint8), ts.devices()[3])
    x = ts.device_put(torch.ones(8, MIB // 2), rows(limited))  # 2 MiB a device
    with pytest.raises(ts.errors.OutOfMemoryError, match=r"placing f32\[1, 524288\] failed on CPU 3\n"):
        x.block_until_ready()
    assert x.addressable_shards[2].data.sum().item() == MIB // 2
    with pytest.raises(ts.errors.OutOfMemoryError):
        (x.addressable_shards[3].data + 1).block_until_ready()
    assert full.sum().item() == 0
    full.delete()
    assert ts.device_put(torch.ones(8, MIB // 2), rows(limited)).sum().item() == 4 * MIB


def test_a_value_that_is_too_large_is_refused_when_it_is_placed(limited):
    x = ts.device_put(torch.zeros(16 * MIB + 1, dtype=torch.uint8), ts.devices()[5])
    with pytest.raises(ts.errors.OutOfMemoryError, match=r"placing u8.* failed on CPU 5"):
        x.block_until_ready()
    assert stats(5)["bytes_in_use"] == 0
    del x
    assert ts.device_put(torch.ones(16 * MIB, dtype=torch.uint8), ts.devices()[5])[-1].item() == 1


def test_blocks_are_read_from_files_only_where_there_is_room(limited, tmp_path):
    x = torch.arange(2.0 * MIB)  # 8 MiB
    ts.save(ts.device_put(x, rows(limited)), tmp_path / "x")
    full = ts.device_put(torch.zeros(9 * MIB, dtype=torch.uint8), ts.devices()[3])
    with pytest.raises(
        ts.errors.OutOfMemoryError, match=r"^read_block failed on CPU 3\n.*8.0 MiB requested while 9.0 MiB"
    ):
        ts.load(tmp_path / "x", ts.NamedSharding(limited, ts.P()))
    assert stats(3)["peak_bytes_in_use"] < 11 * MIB
    torch.testing.assert_close(ts.device_get(ts.load(tmp_path / "x", rows(limited))), x)
    del full
    torch.testing.assert_close(ts.device_get(ts.load(tmp_path / "x", ts.NamedSharding(limited, ts.P()))), x)


def test_what_a_collective_makes_counts(limited):
    x = ts.device_put(torch.ones(8, MIB), rows(limited))  # 4 MiB a device, 32 MiB gathered
    whole = ts.device_put(x, ts.NamedSharding(limited, ts.P()))
    with pytest.raises(ts.errors.OutOfMemoryError, match=r"all_gather failed on CPU 0,1,2,3,4,5,6,7\n"):
        whole.block_until_ready()
    assert stats()["peak_bytes_in_use"] == 4 * MIB, "what was refused was not held"
    assert (x * 2).sum().item() == 2 * 8 * MIB


def test_the_five_largest_arrays_are_listed(limited):
    held = [ts.device_put(torch.zeros(k, MIB // 4), ts.devices()[0]) for k in range(1, 6)] + [
        ts.device_put(torch.zeros(3), ts.devices()[0])
    ]
    with pytest.raises(ts.errors.OutOfMemoryError) as caught:
        torch.cat(held[:2]).add(1).block_until_ready()
    listed = re.findall(r"^    (\S+ MiB) f32\[", str(caught.value), re.MULTILINE)
    assert listed == ["5.0 MiB", "4.0 MiB", "3.0 MiB", "2.0 MiB", "1.0 MiB"]
    assert "and 1 more" in str(caught.value)


@pytest.mark.parametrize("loop", ["scan", "while", "cond"])
def test_control_flow_is_over_the_limit_within_its_body(limited, loop):
    x = ts.device_put(torch.ones(8, MIB // 4), rows(limited))  # 1 MiB a device

    def body(x):
        return torch.cat([x] * 16, 1).sin()[:, : MIB // 4]

    def f(x):
        if loop == "scan":
            return ts.lax.scan(lambda c, _: (body(c), c.sum()), x, None, length=3)[0]
        if loop == "while":
            return ts.lax.fori_loop(0, 3, lambda i, c: body(c), x)
        return ts.lax.cond(x[0, 0] > 0, body, lambda x: x + 1, x)

    with pytest.raises(ts.errors.OutOfMemoryError, match=r"aten\.cat"):
        ts.jit(f)(x).block_until_ready()
    assert stats()["bytes_in_use"] == MIB
    assert ts.jit(lambda x: ts.lax.fori_loop(0, 50, lambda i, c: c + 1, x))(x)[0, 0].item() == 51


def test_a_long_loop_of_calls_and_its_frees_stay_within_the_limit(limited):
    x = ts.device_put(torch.zeros(8, MIB), rows(limited))  # 4 MiB
    for _ in range(40):
        x = x + 1
    assert x.amax().item() == 40
    assert stats()["peak_bytes_in_use"] <= 3 * 4 * MIB


def test_donation_fits_where_two_copies_do_not(limited):
    x = ts.device_put(torch.zeros(8, 5 * MIB // 4), rows(limited))  # 5 MiB

    def f(x):
        return torch.cos(torch.sin(x) + 1)

    with pytest.raises(ts.errors.OutOfMemoryError):
        g = ts.jit(lambda x: torch.cos(f(x)[:, 1:].cumsum(1)))
        (g(x) + g(x)).block_until_ready()
    for _ in range(3):
        x = ts.jit(f, donate_argnums=0)(x)
    x.block_until_ready()
    assert stats()["bytes_in_use"] == 5 * MIB


@pytest.mark.parametrize(
    "name", mostly_whole([*memory_limits.SMALLER, *memory_limits.PLANS], lambda name: name not in ("dp", "fsdp"))
)
def test_the_model_is_what_a_device_counts_to_ten_percent(name):
    gc.collect()
    ts.init(devices=8, runtime="local", memory_per_device="4 GiB")
    make = memory_limits.plan if name in memory_limits.PLANS else memory_limits.smaller
    compiled, arguments = make(name)
    counted = memory_limits.counted(compiled, arguments)
    assert counted == pytest.approx(compiled.memory_analysis().peak_nbytes, rel=0.1)
    assert counted > compiled.memory_analysis().argument_nbytes * 1.1
    ts.shutdown()


SIZES = {
    4096: 4096,
    "4096": 4096,
    "16 MiB": 16 * MIB,
    "16mib": 16 * MIB,
    "2 GB": 2 * 10**9,
    "1.5 KiB": 1536,
    " 3 kB ": 3000,
    "7 B": 7,
}


@pytest.mark.parametrize("way", ["argument", "environment"])
@pytest.mark.parametrize("given", SIZES)
def test_a_size_is_bytes_or_a_number_and_a_unit(monkeypatch, given, way):
    if way == "environment":
        monkeypatch.setenv("TINYSHARD_MEMORY_PER_DEVICE", str(given))
    ts.init(devices=2, runtime="local", memory_per_device=given if way == "argument" else None)
    assert ts.devices()[1].memory_stats() == {
        "bytes_in_use": 0,
        "peak_bytes_in_use": 0,
        "bytes_limit": SIZES[given],
    }
    ts.shutdown()


@pytest.mark.parametrize("given", [0, -1, True, "16 MiB/s", "many", "", "1.2.3 MB", "nan", 0.5, [16]])
def test_no_other_size_is_taken(given):
    with pytest.raises(ts.errors.RuntimeStateError, match="memory of a device is a positive number of bytes"):
        ts.init(devices=2, runtime="local", memory_per_device=given)


def test_a_wrong_size_in_the_environment_is_named(monkeypatch):
    monkeypatch.setenv("TINYSHARD_MEMORY_PER_DEVICE", "much")
    with pytest.raises(ts.errors.RuntimeStateError, match="TINYSHARD_MEMORY_PER_DEVICE=much"):
        ts.init(devices=2, runtime="local")


def test_without_a_limit_nothing_is_counted():
    ts.init(devices=2, runtime="local")
    assert ts.devices()[0].memory_stats() is None
    ts.shutdown()
    assert ts.core.devices.Device(0).memory_stats() is None

"""Devices that are GPUs. Each expected value comes from torch on the CPU."""

from collections.abc import Iterator

import psutil
import pytest
import torch

import tinyshard as ts
from tests.workers.processes import wait_until

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="torch finds no CUDA GPU here")]


@pytest.fixture(params=["a GPU each", "three share"])
def gpus(request: pytest.FixtureRequest) -> Iterator[list[ts.Device]]:
    """Devices with a GPU each, over NCCL; then more devices than GPUs, over gloo."""
    ts.init(devices=GPUS if request.param == "a GPU each" else 3 * GPUS, platform="gpu", runtime="process")
    yield ts.devices()
    ts.shutdown()


def rows(devices: list[ts.Device]) -> ts.Sharding:
    return ts.sharding.PositionalSharding(devices).reshape(len(devices), 1)


def test_a_gpu_each_is_joined_by_nccl_and_more_by_gloo(gpus: list[ts.Device]) -> None:
    assert repr(gpus[0]) == "GPU 0"
    assert ts.platform.current().collectives == ("nccl" if len(gpus) == GPUS else "gloo")


def test_values_come_back_as_they_were_put(gpus: list[ts.Device]) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64):
        host = torch.arange(24).reshape(6, 4).to(dtype).repeat(len(gpus), 1)
        assert torch.equal(ts.device_get(ts.device_put(host, rows(gpus))), host)


def test_products_and_sums_over_all_gpus_are_those_of_the_cpu(gpus: list[ts.Device]) -> None:
    host = torch.arange(8.0 * len(gpus) * 4).reshape(-1, 4) / 7
    x = ts.device_put(host, rows(gpus))
    torch.testing.assert_close(ts.device_get(x.T @ x), host.T @ host)
    torch.testing.assert_close(ts.device_get(ts.jit(lambda x: torch.softmax(x, 0))(x)), torch.softmax(host, 0))


def test_every_collective_gives_what_it_gives_on_the_cpu(gpus: list[ts.Device]) -> None:
    count = len(gpus)
    host = torch.arange(float(count * count)).reshape(count, count)
    ring = [(i, (i + 1) % count) for i in range(count)]
    x = ts.device_put(host, rows(gpus))

    def mapped(f):
        return ts.device_get(ts.pmap(f, axis_name="i")(x))

    assert torch.equal(mapped(lambda v: ts.lax.psum(v, "i")), host.sum(0).expand(count, count))
    assert torch.equal(mapped(lambda v: ts.lax.pmax(v, "i")), host.amax(0).expand(count, count))
    assert torch.equal(mapped(lambda v: ts.lax.all_gather(v, "i")), host.expand(count, count, count))
    assert torch.equal(mapped(lambda v: ts.lax.ppermute(v, "i", ring)), host.roll(1, 0))
    assert torch.equal(mapped(lambda v: ts.lax.psum_scatter(v, "i")), host.sum(0))
    assert torch.equal(mapped(lambda v: ts.lax.all_to_all(v, "i", 0, 0)), host.T)


def test_random_numbers_are_the_bits_that_the_cpu_draws(gpus: list[ts.Device]) -> None:
    ours = ts.device_get(ts.random.bits(ts.random.key(7), (64,)))
    ts.init(devices=1, runtime="local", platform="cpu")
    assert torch.equal(ours, ts.device_get(ts.random.bits(ts.random.key(7), (64,))))


def test_an_error_on_a_gpu_is_told_and_the_devices_go_on(gpus: list[ts.Device]) -> None:
    x = ts.device_put(torch.ones(len(gpus), 4), rows(gpus))
    with pytest.raises(ts.RemoteError):
        ts.device_get(ts.device_put(torch.ones(4), gpus[0]).gather(0, ts.device_put(torch.tensor([9]), gpus[0])))
    assert float(x.sum()) == 4 * len(gpus)


def test_a_lost_gpu_worker_is_named(gpus: list[ts.Device]) -> None:
    x = ts.device_put(torch.ones(len(gpus), 4), rows(gpus))
    x.block_until_ready()
    victim = gpus[-1]
    assert victim.pid is not None
    psutil.Process(victim.pid).kill()
    wait_until(lambda: not ts.platform.current().is_alive, "the loss is noticed")
    with pytest.raises(ts.DeviceLostError, match=f"GPU {victim.id} is gone: killed by signal 9"):
        (x + x.sum()).block_until_ready()

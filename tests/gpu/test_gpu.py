"""Devices that are GPUs. Each expected value comes from torch on the CPU."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import torch
import torch.nn.functional as F

import tinyshard as ts
from tests.workers.processes import stop, wait_until
from tinyshard.runtime import lifecycle
from tinyshard.runtime.launch import processors

GPUS = torch.cuda.device_count()
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not GPUS, reason="torch finds no CUDA GPU here")]
DTYPES = (
    torch.float32,
    torch.bfloat16,
    torch.float64,
    torch.int64,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
)
# NCCL takes processes with different host ids to be on different machines, where each may have GPU 0
EACH_ON_ITS_OWN_MACHINE = """
import os
os.register_at_fork(after_in_child=lambda: os.environ.update(NCCL_HOSTID=str(os.getpid())))
"""


@pytest.fixture(scope="module", params=["a GPU each", "four share, gloo", "four share, nccl"])
def way(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Devices with a GPU each, over NCCL; then more devices than GPUs, over gloo, and over NCCL's network."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "four share, nccl":
            folder = tmp_path_factory.mktemp("site")
            (folder / "sitecustomize.py").write_text(EACH_ON_ITS_OWN_MACHINE)
            patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
            patch.setenv("NCCL_IB_DISABLE", "1")
            patch.setenv("NCCL_SOCKET_IFNAME", "lo")
            patch.setattr(
                processors, "deal", lambda machines, asked: ("nccl", tuple(i % GPUS for i in range(len(machines))))
            )
        ts.shutdown()  # the process that workers are forked from starts afresh, with this environment
        yield request.param
        ts.shutdown()


@pytest.fixture
def gpus(way: str) -> list[ts.Device]:
    """The devices; started again where a test has ended one."""
    count = GPUS if way == "a GPU each" else 4 * GPUS
    runtime = lifecycle.running()
    if runtime is None or not runtime.is_alive or (len(ts.devices()), ts.devices()[0].platform) != (count, "gpu"):
        ts.init(devices=count, platform="gpu", runtime="process")
    return ts.devices()


def rows(devices: list[ts.Device]) -> ts.Sharding:
    return ts.sharding.PositionalSharding(devices).reshape(len(devices), 1)


def test_what_joins_the_devices(gpus: list[ts.Device], way: str) -> None:
    assert repr(gpus[0]) == "GPU 0"
    assert ts.platform.current().collectives == ("gloo" if "gloo" in way else "nccl")


def test_values_come_back_as_they_were_put(gpus: list[ts.Device]) -> None:
    for dtype in DTYPES:
        host = torch.arange(24).reshape(6, 4).to(dtype).repeat(len(gpus), 1)
        assert torch.equal(ts.device_get(ts.device_put(host, rows(gpus))), host)
        assert torch.equal(ts.device_get(ts.device_put(host.T, gpus[-1])), host.T)
    for empty in (torch.ones(0, 4), torch.ones(())):
        assert torch.equal(ts.device_get(ts.device_put(empty, gpus[0])), empty)


def test_products_and_sums_over_all_gpus_are_those_of_the_cpu(gpus: list[ts.Device]) -> None:
    host = torch.arange(8.0 * len(gpus) * 4).reshape(-1, 4) / 7
    x = ts.device_put(host, rows(gpus))
    torch.testing.assert_close(ts.device_get(x.T @ x), host.T @ host)
    torch.testing.assert_close(ts.device_get(ts.jit(lambda x: torch.softmax(x, 0))(x)), torch.softmax(host, 0))


def test_every_collective_gives_what_it_gives_on_the_cpu(gpus: list[ts.Device]) -> None:
    count = len(gpus)
    ring = [(i, (i + 1) % count) for i in range(count)]
    for dtype in DTYPES:
        host = (torch.arange(count * count).reshape(count, count) % 3).to(dtype)
        x = ts.device_put(host, rows(gpus))

        def mapped(f: Callable[[Any], Any], x: Any = x) -> torch.Tensor:
            return ts.device_get(ts.pmap(f, axis_name="i")(x))

        assert torch.equal(mapped(lambda v: ts.lax.all_gather(v, "i")), host.expand(count, count, count))
        assert torch.equal(mapped(lambda v: ts.lax.ppermute(v, "i", ring)), host.roll(1, 0))
        assert torch.equal(mapped(lambda v: ts.lax.ppermute(v, "i", [(0, 0)]))[0], host[0])
        assert torch.equal(mapped(lambda v: ts.lax.all_to_all(v, "i", 0, 0)), host.T)
        if not dtype.is_complex:
            assert torch.equal(mapped(lambda v: ts.lax.pmax(v, "i")), host.amax(0).expand(count, count))
        if dtype is not torch.bool:
            total = host.sum(0)
            summed = mapped(lambda v: ts.lax.psum(v, "i"))
            assert torch.equal(summed, total.to(summed.dtype).expand(count, count))
            scattered = mapped(lambda v: ts.lax.psum_scatter(v, "i"))
            assert torch.equal(scattered, total.to(scattered.dtype))


def test_a_large_sum_is_the_same_bits_on_every_gpu_and_right(gpus: list[ts.Device]) -> None:
    host = torch.randn(len(gpus), 1_000_003, generator=torch.Generator().manual_seed(0))
    summed = ts.device_get(ts.pmap(lambda v: ts.lax.psum(v, "i"), axis_name="i")(host))
    assert all(torch.equal(row, summed[0]) for row in summed)
    torch.testing.assert_close(summed[0], host.sum(0))


def test_collectives_along_each_axis_of_a_mesh(gpus: list[ts.Device]) -> None:
    if len(gpus) % 2:
        pytest.skip("a mesh of two axes wants an even number of devices")
    mesh = ts.make_mesh((len(gpus) // 2, 2), ("a", "b"))
    host = torch.arange(float(len(gpus) * 8)).reshape(len(gpus) // 2 * 4, 4)
    spec = ts.P("a", "b")

    def along(axis: Any) -> Any:
        return ts.shard_map(lambda v: v + ts.lax.psum(v, axis), mesh=mesh, in_specs=spec, out_specs=spec)

    x = ts.device_put(host, ts.NamedSharding(mesh, spec))
    blocks = host.reshape(len(gpus) // 2, 4, 2, 2)
    for axis, dims in (("a", (0,)), ("b", (2,)), (("a", "b"), (0, 2))):
        expected = (blocks + blocks.sum(dims, keepdim=True)).reshape(host.shape)
        torch.testing.assert_close(ts.device_get(along(axis)(x)), expected)
    for other in (ts.P("b", "a"), ts.P(None, "a"), ts.P(("a", "b")), ts.P()):
        assert torch.equal(ts.device_get(ts.device_put(x, ts.NamedSharding(mesh, other))), host)
    few = ts.device_put(x, gpus[1])
    assert torch.equal(ts.device_get(ts.device_put(few, ts.NamedSharding(mesh, spec))), host)


def test_a_training_step_gives_the_gradients_of_the_cpu(gpus: list[ts.Device]) -> None:
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(4, 8, generator=generator), torch.randn(8, 3, generator=generator)]
    data = torch.randn(8 * len(gpus), 4, generator=generator)
    labels = torch.randint(0, 3, (8 * len(gpus),), generator=generator)

    def loss(weights: list[Any], data: Any, labels: Any) -> Any:
        return F.cross_entropy(torch.tanh(data @ weights[0]) @ weights[1], labels)

    expected = torch.func.grad(loss)(weights, data, labels)
    mesh = ts.make_mesh((len(gpus),), ("batch",))
    sharded = [ts.device_put(part, ts.NamedSharding(mesh, ts.P("batch"))) for part in (data, labels)]
    for step in (ts.grad(loss), ts.jit(ts.grad(loss))):
        for got, want in zip(step(weights, *sharded), expected, strict=True):
            torch.testing.assert_close(ts.device_get(got), want)
    leaf = ts.device_put(weights[0], ts.NamedSharding(mesh, ts.P())).requires_grad_()
    loss([leaf, weights[1]], *sharded).backward()
    torch.testing.assert_close(ts.device_get(leaf.grad), expected[0])


def test_convolutions_and_attention_are_those_of_the_cpu(gpus: list[ts.Device]) -> None:
    generator = torch.Generator().manual_seed(2)
    images = torch.randn(2 * len(gpus), 3, 8, 8, generator=generator)
    kernel = torch.randn(4, 3, 3, 3, generator=generator) / 5
    mesh = ts.make_mesh((len(gpus),), ("batch",))
    batch = ts.NamedSharding(mesh, ts.P("batch"))
    got = ts.jit(lambda x: F.conv2d(x, kernel, padding=1).relu().mean((2, 3)))(ts.device_put(images, batch))
    torch.testing.assert_close(ts.device_get(got), F.conv2d(images, kernel, padding=1).relu().mean((2, 3)))
    q = torch.randn(len(gpus), 2, 16, 8, generator=generator)
    placed = ts.device_put(q, batch)
    attention = ts.device_get(F.scaled_dot_product_attention(placed, placed, placed, is_causal=True))
    torch.testing.assert_close(attention, F.scaled_dot_product_attention(q, q, q, is_causal=True), rtol=1e-5, atol=1e-5)

    def weighed(q: Any) -> Any:
        return (F.scaled_dot_product_attention(q, q * 2, q, is_causal=True) ** 2).sum()

    for gradient in (ts.grad(weighed), ts.jit(ts.grad(weighed))):
        torch.testing.assert_close(ts.device_get(gradient(placed)), torch.func.grad(weighed)(q), rtol=1e-5, atol=1e-5)


def test_recurrent_layers_are_those_of_the_cpu(gpus: list[ts.Device]) -> None:
    torch.manual_seed(3)
    data = torch.randn(2 * len(gpus), 5, 4)
    mesh = ts.make_mesh((len(gpus),), ("batch",))
    placed = ts.device_put(data, ts.NamedSharding(mesh, ts.P("batch")))
    for layer in (torch.nn.LSTM(4, 3, 2, bidirectional=True, batch_first=True), torch.nn.GRU(4, 3, batch_first=True)):
        layer.requires_grad_(False)
        for call in (lambda x: layer(x)[0], ts.jit(lambda x: layer(x)[0])):  # noqa: B023
            torch.testing.assert_close(ts.device_get(call(placed)), layer(data)[0])


def test_random_numbers_are_the_bits_that_the_cpu_draws(gpus: list[ts.Device]) -> None:
    def draw() -> list[torch.Tensor]:
        key = ts.random.key(7)
        drawn = [ts.random.bits(key, (64,)), ts.random.uniform(key, (5, 3)), ts.random.permutation(key, 11)]
        return [ts.device_get(each) for each in drawn]

    ours = draw()
    ts.init(devices=1, runtime="local", platform="cpu")
    for got, expected in zip(ours, draw(), strict=True):
        assert torch.equal(got, expected)


def test_an_error_on_a_gpu_is_told_and_the_devices_go_on(gpus: list[ts.Device]) -> None:
    x = ts.device_put(torch.ones(len(gpus), 4), rows(gpus))
    with pytest.raises(ts.RemoteError):
        ts.device_get(torch.linalg.cholesky(ts.device_put(-torch.ones(2, 2), gpus[0])))
    assert float(x.sum()) == 4 * len(gpus)


def test_an_index_out_of_range_ends_its_device_alone_and_by_name(gpus: list[ts.Device]) -> None:
    """CUDA finds it in a kernel, after which the process computes nothing more; the others wait for it in a sum."""
    x = ts.device_put(torch.ones(len(gpus), 4), rows(gpus))
    where = torch.zeros(len(gpus), 1, dtype=torch.int64)
    where[0] = 9

    def picked(row: Any, index: Any) -> Any:
        return ts.lax.psum(row.gather(0, index), "i")

    with pytest.raises((ts.RemoteError, ts.DeviceLostError), match="GPU 0"):
        ts.device_get(ts.pmap(picked, axis_name="i")(x, where))
    with pytest.raises(ts.DeviceLostError, match="GPU 0 is gone: its GPU computes nothing after such an error"):
        float(x.sum())
    if len(gpus) > 1:
        assert torch.equal(ts.device_get(x.addressable_shards[1].data), torch.ones(1, 4))
    ts.init(devices=len(gpus), platform="gpu", runtime="process")
    assert float(ts.device_put(torch.ones(len(gpus), 4), rows(ts.devices())).sum()) == 4 * len(gpus)


def test_a_gpu_without_room_says_so_and_goes_on(gpus: list[ts.Device]) -> None:
    x = ts.device_put(torch.ones(len(gpus), 4), rows(gpus))
    long = ts.device_put(torch.ones(1 << 20), gpus[0])
    with pytest.raises(ts.RemoteError, match="memory"):
        ts.device_get(torch.outer(long, long))
    assert float(x.sum()) == 4 * len(gpus)


def test_memory_of_values_that_are_gone_is_used_again(gpus: list[ts.Device]) -> None:
    """Each value is a fifth of what is free now: six of them would not fit beside each other."""
    free, _ = torch.cuda.mem_get_info()
    length = free // len(gpus) // 5 // 4
    for number in range(10):
        column = ts.device_put(torch.full((len(gpus), 1), float(number)), rows(gpus))
        x = column.expand(len(gpus), length) + 0
        assert float(x.amax()) == number
        del x


def test_memory_of_values_that_are_gone_goes_back_when_a_device_has_nothing_to_do(gpus: list[ts.Device]) -> None:
    nbytes = 1 << 30
    x = ts.device_put(torch.ones(1), gpus[0]).expand(nbytes // 4) + 0
    x.block_until_ready()
    taken, _ = torch.cuda.mem_get_info()
    del x
    wait_until(lambda: torch.cuda.mem_get_info()[0] >= taken + nbytes * 0.9, "the memory has gone back", within_s=30)


def test_a_dispatch_does_not_wait_for_a_gpu(gpus: list[ts.Device]) -> None:
    x = ts.device_put(torch.ones(len(gpus) * 2048, 2048) / 2048, rows(gpus))
    many = ts.jit(lambda x: sum((x @ torch.ones(2048, 2048) / 2048 for _ in range(60)), x * 0))
    many(x).block_until_ready()
    start_s = time.perf_counter()
    results = [many(x) for _ in range(5)]
    dispatched_s = time.perf_counter() - start_s
    results[-1].block_until_ready()
    done_s = time.perf_counter() - start_s
    assert dispatched_s < done_s / 2, (dispatched_s, done_s)


def test_a_lost_gpu_worker_is_named(gpus: list[ts.Device]) -> None:
    x = ts.device_put(torch.ones(len(gpus), 4), rows(gpus))
    x.block_until_ready()
    victim = gpus[-1]
    assert victim.pid is not None
    psutil.Process(victim.pid).kill()
    wait_until(lambda: not ts.platform.current().is_alive, "the loss is noticed")
    with pytest.raises(ts.DeviceLostError, match=f"GPU {victim.id} is gone: killed by signal 9"):
        (x + x.sum()).block_until_ready()


def test_a_death_in_a_collective_ends_it_within_seconds_and_nothing_is_computed_from_it(gpus: list[ts.Device]) -> None:
    if len(gpus) < 2:
        pytest.skip("a device alone waits for no other")
    x = ts.device_put(torch.ones(len(gpus), 4), rows(gpus))
    total = ts.pmap(lambda v: ts.lax.psum(v, "i"), axis_name="i")
    total(x).block_until_ready()
    victim = gpus[-1]
    assert victim.pid is not None
    stop(victim.pid)
    waits = total(x)
    later = waits.addressable_shards[0].data + 1
    time.sleep(1)  # the others wait on their GPUs
    killer = threading.Timer(0.5, psutil.Process(victim.pid).kill)
    killer.start()
    start_s = time.perf_counter()
    for lost in (waits, later):
        with pytest.raises(ts.DeviceLostError, match=f"GPU {victim.id} is gone: killed by signal 9"):
            ts.device_get(lost)
    assert time.perf_counter() - start_s < 10
    assert torch.equal(ts.device_get(x.addressable_shards[0].data), torch.ones(1, 4)), "what is not lost stays"
    killer.join()
    ts.init(devices=len(gpus), platform="gpu", runtime="process")
    again = ts.device_put(torch.ones(len(gpus), 4), rows(ts.devices()))
    assert float(total(again).sum()) == 4 * len(gpus) ** 2

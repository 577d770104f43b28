"""Memory runs out: an error says where, and what is alive; or the system kills, and the dead is named."""

import gc
import resource
import sys

import pytest
import torch

import tinyshard as ts
from tests.extent import mostly_whole
from tests.memory import CUDA_BUILD_BYTES
from tests.workers import groups
from tests.workers.limits import outcome
from tests.workers.processes import JOINED
from tinyshard.runtime.shm import region, segment, system

# ---- one device ------------------------------------------------------------------------------------------------------


def limit_memory(device, nbytes):
    """Let a worker have so much more memory than it has now."""
    pid = ts.devices()[device].pid
    with open(f"/proc/{pid}/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    before = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (now + nbytes, before[1]))
    return lambda: resource.prlimit(pid, resource.RLIMIT_AS, before)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of another process")
@pytest.mark.parametrize(
    "call, words",
    [
        (lambda x: x.reshape(-1, 1).expand(1 << 20, 256).clone(), "aten.clone.default failed on CPU 1"),
        (
            lambda x: ts.device_put(torch.zeros(1 << 28, dtype=torch.uint8), ts.devices()[1]),
            "placing u8[268435456]",
        ),
        (lambda x: x.numpy(), None),
    ],
    ids=["an op", "a put", "none"],
)
def test_out_of_memory_is_an_error_that_tells_device_and_what_is_alive_and_the_pool_goes_on(pool, call, words):
    gc.collect()  # errors hold their frames, and frames hold arrays
    keep = ts.device_put(torch.ones(1 << 20), ts.devices()[1]).block_until_ready()
    if words is not None and words.startswith("placing") and pool.collectives == "shared":
        words = None  # it is in memory that belongs to all, which a device's own limit does not concern
    lift = limit_memory(1, 128 << 20)
    try:
        end = outcome(lambda: ts.device_get(call(keep)))
        error = end()
        if words is None:
            assert not isinstance(error, Exception)
        else:
            assert isinstance(error, ts.OutOfMemoryError)
            assert words in str(error)
            assert "alive on CPU 1: " in str(error)
            assert "alive on CPU 1: 4.0 MiB in 1 values" in str(error)  # what could not be made is not alive
            block = "4.0 MiB f32[1048576], a block of f32[1048576] by SingleDeviceSharding(CPU 1) made by "
            assert block in str(error) and "keep = ts.device_put" in str(error)
        assert (keep + 1)[5].item() == 2
        assert ts.array(3.0).item() == 3
    finally:
        lift()


def test_memory_that_runs_out_on_one_device_in_a_collective_fails_the_result_alone(rows):
    x = ts.device_put(torch.ones(8, 1 << 18), rows).block_until_ready()
    lift = limit_memory(1, 16 << 20)
    try:
        big = ts.jit(lambda v: (v.unsqueeze(1).expand(8, 64, 1 << 18) * 2.0).sum())(x)
        error = outcome(big.item, 60)()
        assert isinstance(error, ts.OutOfMemoryError) and "failed on CPU 1" in str(error)
        assert x.sum().item() == 8 << 18
    finally:
        lift()


@pytest.mark.on_gloo
def test_a_device_that_failed_for_want_of_memory_holds_up_nobody_in_the_exchange_that_follows(pool, rows):
    """64 MB that could not be made are to be added up. On gloo, who has no memory cannot come, and must go."""
    gc.collect()
    x, y = (ts.device_put(torch.ones(8, n), rows).block_until_ready() for n in (1 << 11, 1 << 13))
    lift = limit_memory(1, 16 << 20)
    error = outcome((x[:, :, None] * y[:, None, :]).sum(0).block_until_ready)()
    if pool.collectives == "shared":
        lift()
        assert isinstance(error, ts.OutOfMemoryError) and "failed on CPU 1" in str(error)
        assert x.sum().item() == 8 << 11
    else:
        assert_it_has_left(error)
        assert outcome(x.addressable_shards[2].data.sum().item)() == 1 << 11


@pytest.mark.on_gloo
def test_a_device_without_memory_of_its_own_for_an_exchange_holds_up_nobody(pool, rows):
    """32 MB are made in the first step, and three times as much is needed for the next; shared memory has it."""
    gc.collect()
    x = ts.device_put(torch.ones(8, 1 << 23), rows).block_until_ready()
    lift = limit_memory(1, 33 << 20)
    moved = outcome(ts.device_put(x * 1.0, x.sharding.reshape(1, 8)).block_until_ready)()
    if pool.collectives == "shared":
        lift()
        assert moved.sum().item() == 8 << 23
    else:
        assert_it_has_left(moved)


def assert_it_has_left(error):
    assert isinstance(error, ts.DeviceLostError), error
    assert "CPU 1 is gone: it had no memory for its part of an exchange" in str(error)
    assert "ts.live_arrays()" in str(error)


# ---- what all share --------------------------------------------------------------------------------------------------

needs_shared_memory = pytest.mark.skipif("shared" not in JOINED, reason="memory cannot be shared so on this system")


@pytest.fixture
def shared_pool(pool):
    if pool.collectives != "shared":
        pytest.skip("TINYSHARD_COLLECTIVES asks for another way than the memory that this is about")
    return pool


def fill(pool, monkeypatch):
    """Leave no room for a block of the controller's own, nor free blocks that could be joined."""
    for name in ("_gaps", "_waiting", "_bare"):
        monkeypatch.setattr(pool._arena._region, name, {})


def let_the_machine_be_full(pool, monkeypatch):
    monkeypatch.setattr(system, "available_nbytes", lambda: 1 << 20)


@needs_shared_memory
@pytest.mark.parametrize("end", [fill, let_the_machine_be_full], ids=["no more shared memory", "a full machine"])
def test_a_put_that_does_not_fit_is_refused_and_all_that_is_there_stays(shared_pool, rows, monkeypatch, end):
    x = ts.device_put(torch.ones(8, 1 << 10), rows).block_until_ready()
    held = [shared_pool.held(device) for device in range(8)]
    with monkeypatch.context() as full:
        end(shared_pool, full)
        with pytest.raises(ts.OutOfMemoryError) as caught:
            ts.device_put(torch.zeros(1).expand(8, 17 << 20), rows)
        assert "f32[1, 17825792] to be placed" in str(caught.value)
        assert "ts.live_arrays()" in str(caught.value)
        assert [shared_pool.held(device) for device in range(8)] == held
        assert (x + 1).sum().item() == 2 * 8 << 10
    assert ts.device_put(torch.ones(8, 1 << 12), rows).sum().item() == 8 << 12


@needs_shared_memory
@pytest.mark.parametrize(
    ("end", "width"),
    [(fill, 9 << 20), (let_the_machine_be_full, 3 << 20)],  # a block that was there before would serve
    ids=["no more shared memory", "a full machine"],
)
def test_values_that_do_not_fit_here_stay_on_their_devices(shared_pool, rows, monkeypatch, end, width):
    x = ts.device_put(torch.zeros(8, 1), rows).expand(8, width)
    with monkeypatch.context() as full:
        end(shared_pool, full)
        with pytest.raises(ts.OutOfMemoryError, match=rf"f32\[8, {width}\]"):
            x.numpy()
        assert x[:, :2].tolist() == [[0, 0]] * 8
    assert x.numpy().shape == (8, width)


@needs_shared_memory
def test_many_puts_that_are_small_each_are_refused_too_when_the_machine_is_full(shared_pool, rows, monkeypatch):
    x = ts.device_put(torch.ones(8, 1 << 10), rows).block_until_ready()
    kept = []
    with monkeypatch.context() as full:
        let_the_machine_be_full(shared_pool, full)
        with pytest.raises(ts.OutOfMemoryError, match="this machine has 1048576 left"):
            for _ in range(region.ASKED_NBYTES >> 20):
                kept.append(ts.device_put(torch.ones(5 << 18), ts.devices()[2]))
        assert x.sum().item() == kept[-1][: 8 << 10].sum().item() == 8 << 10


# ---- a real end of memory --------------------------------------------------------------------------------------------

# a controller and two devices take 0.3 to 0.4 GB of it
WITH_MEMORY_OF = (1540 << 20) + CUDA_BUILD_BYTES
REASON = groups.why_not()
needs_a_group = pytest.mark.skipif(bool(REASON), reason=REASON)

START = """
    devices = ts.devices()
    rows = ts.sharding.PositionalSharding(devices).reshape(2, 1)
    x = ts.device_put(torch.arange(8.0).reshape(2, 4), rows).block_until_ready()
"""


@pytest.fixture
def cramped():
    """What to put before a command, so that it has little memory."""
    with groups.with_memory_of(WITH_MEMORY_OF) as before:
        yield {"before": before, "environment": {"TINYSHARD_DEVICES": "2"}}


@needs_a_group
@pytest.mark.parametrize(
    "asks", mostly_whole(["grown[:2]", "ts.device_put(grown[0], devices[0])"], lambda asks: "device_put" in asks)
)
@pytest.mark.whole
def test_a_device_that_the_system_kills_for_want_of_memory_is_named_and_the_others_keep_what_they_have(
    cramped, controller, asks
):
    code = f"""
    one = ts.device_put(torch.ones(1 << 20), devices[1])
    grown = one.reshape(-1, 1).expand(1 << 20, 1 << 9).clone()  # 2 GB
    try:
        ts.block_until_ready({asks})
    except ts.DeviceLostError as error:
        tell(*str(error).splitlines()[0].split())
        tell("when memory runs out: ts.live_arrays()" in str(error))
    tell(x.addressable_shards[0].data.tolist())
    ts.init()
    tell((ts.array(1.0) + 1).item())
    """
    each = controller(START + code, **cramped)
    assert each.line() == "CPU 1 is gone: killed by signal 9 (SIGKILL)"
    assert each.line() == "True"
    assert each.line() == "[[0.0, 1.0, 2.0, 3.0]]"
    assert each.line() == "2.0"
    _, errors = each.finish()
    assert each.process.returncode == 0, errors


@pytest.mark.whole
@needs_a_group
@pytest.mark.skipif(not segment.is_possible(2), reason="memory cannot be shared so on this system")
def test_what_the_machine_has_no_memory_for_is_refused_before_the_system_must_kill(cramped, controller):
    code = """
    wide = torch.zeros(1).expand(2, 300 << 20)  # 2.5 GB, which lie nowhere yet
    try:
        ts.device_put(wide, rows)
    except ts.OutOfMemoryError as error:
        tell("this machine has" in str(error) and "ts.live_arrays()" in str(error))
    part = ts.device_put(wide[:, :64 << 20], rows)  # 0.5 GB; as much again for its double ...
    try:
        # ... and for what all get: refused also if the other device has not filled its double yet, 0.3 GB
        ts.device_put(ts.jit(lambda v: v * 2)(part), rows.replicate()).block_until_ready()
    except ts.OutOfMemoryError as error:
        tell("this machine has" in str(error) and "alive on CPU" in str(error))
    tell(x.sum().item(), part.addressable_shards[1].data[0, 5].item(), ts.live_arrays().nbytes[devices[0]])
    """
    cramped["environment"]["TINYSHARD_COLLECTIVES"] = "shared"
    each = controller(START + code, **cramped)
    assert each.line() == "True"
    assert each.line() == "True"
    assert each.line() == f"28.0 0.0 {16 + (256 << 20)}"
    _, errors = each.finish()
    assert each.process.returncode == 0, errors

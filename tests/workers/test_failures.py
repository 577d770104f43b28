"""An op that fails on a device reaches the cell that asks for the value, and nothing else."""

import gc
import os
import pickle
import signal
import threading
from contextlib import contextmanager

import psutil
import pytest
import torch

import tinyshard as ts
from tests.extent import mostly_whole
from tests.workers.processes import JOINED, ROOT, is_gone, stop, wait_until
from tinyshard.runtime import lifecycle, wire
from tinyshard.runtime.launch import forkserver


@pytest.fixture(params=["process", "local"])
def either(request, _one_pool_a_file):
    """Rows over eight devices, on each of the two runtimes."""
    runtime = lifecycle._runtime
    if runtime is None or runtime.kind != request.param or not runtime.is_alive:
        ts.init(devices=8, runtime=request.param)
    return ts.sharding.PositionalSharding(ts.devices()).reshape(8, 1)


def gather_out_of_range_on_device_3(rows):
    """x of f32[8, 4] and what gathers from it by an index that is wrong in row 3 only."""
    index = torch.zeros(8, 4, dtype=torch.long)
    index[3, 2] = 9
    x = ts.device_put(torch.arange(32.0).reshape(8, 4), rows)
    return x, torch.gather(x, 1, ts.device_put(index, rows))


def test_an_error_names_device_op_operands_and_dispatching_line(either):
    _, bad = gather_out_of_range_on_device_3(either)
    with pytest.raises(ts.RemoteError) as caught:
        bad.numpy()
    text = str(caught.value)
    assert text.startswith("aten.gather.default failed on CPU 3\n  RuntimeError: index 9 is out of bounds")
    assert "test_failures.py" in text and "torch.gather(x, 1," in text
    assert "on the device:\n    aten.gather.default(f32[1, 4], 1, i64[1, 4])" in text
    assert "worker.py" not in text and "/tinyshard/runtime/" not in text


@pytest.mark.on_gloo
def test_one_failing_device_does_not_stop_the_others_in_a_collective(either):
    x, bad = gather_out_of_range_on_device_3(either)
    total = bad.sum() + 1
    for _ in range(2):  # it says so again, in the same words
        with pytest.raises(ts.RemoteError, match=r"^aten\.gather\.default failed on CPU 3\n"):
            total.item()
    assert x.sum().item() == 496  # the next cell works, and arrays made before are there
    assert (x + 1).tolist()[7] == [29, 30, 31, 32]


def test_the_blocks_of_other_devices_stay_good(either):
    _, bad = gather_out_of_range_on_device_3(either)
    later = bad + 1
    assert later.addressable_shards[2].data.tolist() == [[9, 9, 9, 9]]
    with pytest.raises(ts.RemoteError, match="CPU 3"):
        later.addressable_shards[3].data.block_until_ready()


@pytest.mark.on_gloo
def test_a_device_that_could_not_take_a_result_says_why_though_the_call_counts_as_good(pool, rows):
    """As where another device ended after all had done their part: what it tells of that comes too late."""
    _, bad = gather_out_of_range_on_device_3(rows)
    later = bad + 1
    with pytest.raises(ts.RemoteError):
        later.block_until_ready()
    for value in (bad, later):
        value._buffer.run.failures.clear()
    assert later.addressable_shards[2].data.tolist() == [[9, 9, 9, 9]]
    with pytest.raises(ts.RemoteError, match=r"^aten\.gather\.default failed on CPU 3\n"):
        later.addressable_shards[3].data.tolist()


def test_a_block_moved_from_a_failed_device_is_failed(either):
    _, bad = gather_out_of_range_on_device_3(either)
    moved = ts.device_put(bad, ts.devices()[0])
    with pytest.raises(ts.RemoteError, match="failed on CPU 3"):
        moved.tolist()


def test_an_error_survives_pickling(either):
    _, bad = gather_out_of_range_on_device_3(either)
    with pytest.raises(ts.RemoteError) as caught:
        bad.numpy()
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is ts.RemoteError
    assert str(again) == str(caught.value)


def test_equal_errors_of_several_devices_are_said_once(either):
    x = ts.device_put(torch.zeros(8, 4), either)
    bad = torch.gather(x, 1, ts.device_put(torch.full((8, 4), 9), either))
    with pytest.raises(ts.RemoteError, match=r"failed on CPU 0,1,2,3,4,5,6,7") as caught:
        bad.numpy()
    assert str(caught.value).count("out of bounds") == 1


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: torch.linalg.cholesky(ts.array([[1.0, 0.0], [0.0, -1.0]])), "not positive-definite"),
        (lambda: ts.array([1.0, 2.0, 3.0])[torch.tensor([0, 7])], "index 7 is out of bounds"),
        (lambda: torch.linalg.inv(ts.array([[0.0, 0.0], [0.0, 0.0]])), "singular"),
    ],
)
def test_what_only_running_can_tell_comes_when_the_value_is_asked_for(either, make, words):
    value = make()
    with pytest.raises(ts.RemoteError, match=words):
        value.tolist()
    assert (ts.array([1.0]) + 1).tolist() == [2]


@pytest.mark.on_gloo
def test_a_killed_device_is_named_with_its_signal_to_who_waits(rows):
    x = ts.device_put(torch.ones(8, 2), rows).block_until_ready()
    caught = []

    def wait_for_a_sum():
        try:
            x.sum().block_until_ready()
        except ts.DeviceLostError as error:
            caught.append(str(error))

    pid = ts.devices()[5].pid
    stop(pid)
    waiter = threading.Thread(target=wait_for_a_sum)
    waiter.start()
    os.kill(pid, signal.SIGKILL)
    waiter.join()
    assert "CPU 5 is gone: killed by signal 9 (SIGKILL)" in caught[0]


def test_shards_of_the_living_stay_readable_after_a_death(rows):
    x = ts.device_put(torch.arange(16.0).reshape(8, 2), rows).block_until_ready()
    os.kill(ts.devices()[5].pid, signal.SIGSEGV)
    with pytest.raises(ts.DeviceLostError, match=r"CPU 5 is gone: killed by signal 11 \(SIGSEGV\)"):
        x.numpy()
    with pytest.raises(ts.DeviceLostError, match="CPU 5"):
        x.block_until_ready()
    assert x.addressable_shards[4].data.tolist() == [[8, 9]]
    assert (x.addressable_shards[4].data + 1).tolist() == [[9, 10]]


@pytest.mark.parametrize("is_up", [True, False], ids=["that was up", "that was still to come up"])
def test_after_a_death_init_gives_a_fresh_pool_and_old_arrays_say_so(pool, rows, is_up):
    if not is_up:
        ts.init(devices=8, runtime="process")
        stop(ts.devices()[0].pid)
    x = ts.device_put(torch.ones(8, 2), rows)
    y = x * 2
    if is_up:
        y.block_until_ready()
    os.kill(ts.devices()[0].pid, signal.SIGKILL)
    ts.init(devices=8, runtime="process")
    with pytest.raises(ts.RuntimeStateError, match="has been shut down"):
        y.numpy()
    with pytest.raises(ts.RuntimeStateError, match="has been shut down"):
        y + 1
    z = ts.array([1.0, 2.0])
    del x, y  # their finalizers do not reach the values of the new pool, which has the same numbers
    assert (z + 1).tolist() == [2, 3]


def test_after_the_helper_is_killed_init_gives_a_fresh_pool(pool):
    x = ts.array([1.0]).block_until_ready()
    workers = [psutil.Process(d.pid) for d in ts.devices()]
    os.kill(forkserver.start().pid, signal.SIGKILL)
    wait_until(lambda: all(map(is_gone, workers)), "the workers ended with it")
    with pytest.raises(ts.DeviceLostError, match="together with the helper process"):
        (x + 1).block_until_ready()
    ts.init(devices=8, runtime="process")
    assert (ts.array([1.0]) + 1).tolist() == [2]


REFUSED = """
try:
    print(ts.array(1.0).item())
except ts.RuntimeStateError as error:
    print(str(error).replace("\\n", " "))
os.chdir("/")  # torch itself needs a folder that exists
ts.init(devices=2, runtime="local")
print(ts.array(1.0).item())
"""


REFUSALS = {
    "no folder": (
        "os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); sys.path.insert(0, '')",
        "starts in the current folder",
    ),
    "few descriptors": (
        "resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir('/dev/fd')) + 9,) * 2)",
        "Too many open files",
    ),
    "no Python": ("sys.executable = '/there/is/none'", "'/there/is/none'"),
}


@pytest.mark.whole
@pytest.mark.parametrize("refusal", mostly_whole(REFUSALS, lambda name: name == "few descriptors"))
def test_where_the_system_refuses_what_workers_need_the_error_says_what_it_was(controller, refusal):
    before, words = REFUSALS[refusal]
    out, errors = controller(f"ts.shutdown(); import resource; {before}\n{REFUSED}").finish()
    said, value = out.splitlines()
    assert said.startswith("no worker process could be started") and words in said
    assert (value, errors) == ("1.0", "")


@pytest.mark.whole
def test_a_helper_process_that_may_fork_no_more_says_so(controller, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        """
import os
def fork(): raise BlockingIOError(11, "Resource temporarily unavailable")
if os.environ.get("TINYSHARD_ROLE") == "worker": os.fork = fork
"""
    )
    out, errors = controller(REFUSED, path=f"{tmp_path}{os.pathsep}{ROOT}").finish()
    said, value = out.splitlines()
    assert said.startswith("no worker process could be started") and "Resource temporarily unavailable" in said
    assert (value, errors) == ("1.0", "")


@contextmanager
def no_room_for(kind):
    """Messages of this kind cannot be made."""
    frame, call_frame = wire.frame, wire.call_frame

    def refuse(head, payload=None):
        if head[0] == kind:
            raise MemoryError("no room for the message")
        return frame(head, payload)

    def refuse_call(*numbers):
        if kind == "run":
            raise MemoryError("no room for the message")
        return call_frame(*numbers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "frame", refuse)
        patch.setattr(wire, "call_frame", refuse_call)
        yield


@pytest.mark.on_gloo
@pytest.mark.parametrize(
    ("refused", "act"),
    [
        ("run", lambda x: x + 1),
        ("program", lambda x: x * 3.25),
        ("put", lambda x: ts.device_put(torch.ones(8, 4), x.sharding)),
    ],
    ids=["call", "program", "put"],
)
def test_a_message_that_cannot_be_made_fails_its_own_call_and_what_needs_it(pool, rows, refused, act):
    x = ts.device_put(torch.arange(32.0).reshape(8, 4), rows).block_until_ready()
    with no_room_for(refused):
        bad = act(x)
        wait_until(bad.is_ready, "the call has failed")
    elsewhere = ts.device_put(bad[:4], ts.devices()[5])
    for value in (bad, (bad * 2).sum(), elsewhere):
        with pytest.raises(ts.OutOfMemoryError, match="no room for the message"):
            value.tolist()
    assert (x + 1).sum().item() == 528 and act(x).sum().item() > 0
    assert ts.platform.current() is pool and pool.is_alive


def test_a_request_that_cannot_be_made_is_an_error_of_the_wait_alone(pool, rows):
    x = ts.device_put(torch.arange(32.0).reshape(8, 4), rows).block_until_ready()
    with no_room_for("held"), pytest.raises(MemoryError, match="no room for the message"):
        pool.held(3)
    assert pool.held(3) >= 1 and x.sum().item() == 496


@pytest.mark.whole
@pytest.mark.skipif("shared" not in JOINED, reason="this system has no shared memory")
def test_where_the_system_has_no_more_threads_or_pipes_the_error_says_so_and_nothing_is_left(monkeypatch):
    ts.shutdown()
    forkserver.start().wait_until_ready()
    before = len(os.listdir("/dev/fd"))

    def refuse(*args):
        raise OSError(24, "Too many open files")

    def no_thread(self):
        raise RuntimeError("can't start new thread")

    for where, name, refused, words in [
        (os, "pipe", refuse, "Too many open files"),
        (threading.Thread, "start", no_thread, "can't start new thread"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(where, name, refused)
            with pytest.raises(ts.RuntimeStateError, match=f"no worker process could be started\n.*{words}"):
                ts.init(devices=2, runtime="process", collectives="shared")
        gc.collect()
    assert len(os.listdir("/dev/fd")) <= before
    ts.init(devices=2, runtime="process")
    assert (ts.array([1.0]) + 1).tolist() == [2]


def test_a_fault_in_the_io_thread_reaches_who_waits(pool, monkeypatch):
    x = ts.array([1.0]).block_until_ready()

    def fail(*args):
        raise OSError("out of file descriptors")

    monkeypatch.setattr(pool._receiver, "_take", fail)
    with pytest.raises(ts.RuntimeStateError, match="out of file descriptors"):
        (x + 1).tolist()
    ts.init(devices=8, runtime="process")
    assert (ts.array([1.0]) + 1).tolist() == [2]


@pytest.mark.on_gloo
def test_a_device_killed_inside_a_collective_is_named_at_once_to_who_waits_for_its_peers():
    ts.init(devices=8)
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    x = y = ts.device_put(torch.ones(1024, 1024), ts.NamedSharding(mesh, ts.P("a", "b")))
    for _ in range(8):
        y = (y @ x) / 1024
    os.kill(ts.devices()[2].pid, signal.SIGKILL)
    with pytest.raises(ts.DeviceLostError, match="CPU 2 is gone"):
        y.sum().item()
    with pytest.raises(ts.DeviceLostError, match="CPU 2 is gone"):
        (x + 1).sum().item()
    ts.init(devices=8)
    assert ts.array([1.0]).tolist() == [1.0]


@pytest.fixture(scope="module")
def twice():
    """An op of the user's own, which this process alone knows."""

    @torch.library.custom_op("tests_of_tinyshard::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() * 2)

    twice.register_fake(torch.empty_like)
    return twice


def test_an_op_that_the_workers_do_not_know_is_refused_before_it_is_sent_and_nothing_is_lost(rows, twice):
    x = ts.device_put(torch.arange(8.0).reshape(8, 1), rows)
    f = ts.jit(lambda v: twice(v) + 1)
    region = ts.shard_map(lambda v: twice(v) + 1, mesh=ts.make_mesh((8,), "x"), in_specs=ts.P("x"), out_specs=ts.P("x"))
    for call, line in ((f, "f = ts.jit"), (f, "f = ts.jit"), (twice, r"call\(x\)"), (region, "region = ")):
        with pytest.raises(
            ts.RuntimeStateError, match=rf"got:  tests_of_tinyshard\.twice\.default in .*: {line}"
        ) as error:
            call(x)
        assert "rule: workers know the ops that torch itself brings" in str(error.value)
        assert 'runtime="local"' in str(error.value)
    assert (x + 1).flatten().tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_program_that_a_worker_cannot_make_ready_fails_its_calls_and_ends_no_process(pool, rows, twice, monkeypatch):
    monkeypatch.setattr(pool, "_refuse_unknown", lambda program: None)
    x = ts.device_put(torch.arange(8.0).reshape(8, 1), rows)
    total = ts.jit(lambda v: twice(v).sum())
    for _ in range(2):
        with pytest.raises(ts.RemoteError, match=r"^tests_of_tinyshard\.twice\.default failed on CPU 0,1,2,3,4,5,6,7"):
            total(x).item()
    assert x.sum().item() == 28 and pool.is_alive


def test_an_op_of_ones_own_works_on_the_local_runtime(twice):
    ts.init(devices=8, runtime="local")
    x = ts.device_put(torch.arange(8.0), ts.NamedSharding(ts.make_mesh((8,), "x"), ts.P("x")))
    assert ts.jit(lambda v: twice(v) + 1)(x).tolist() == [1, 3, 5, 7, 9, 11, 13, 15]
    assert twice(x).tolist() == [0, 2, 4, 6, 8, 10, 12, 14]


def test_shutdown_leaves_no_process():
    ts.init(devices=2)
    assert ts.array([1.0]).tolist() == [1.0]
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    assert before
    ts.shutdown()
    assert not before & {p.pid for p in psutil.Process().children(recursive=True)}

"""Children that user code forks beside a pool: DataLoaders of every kind, whatever the pool is doing.

Forked ones run 40 epochs in `make test-all`; with TINYSHARD_TEST_ALL_EPOCHS=1 spawned ones, too, which takes minutes.
"""

import os
import sys

import psutil
import pytest
from jupyter_client.manager import start_new_kernel

from tests.extent import examples, mostly_whole
from tests.workers.limits import OVER_WITHIN_S
from tests.workers.processes import JOINED, ROOT, is_gone, wait_until
from tests.workers.test_failures_notebook import run
from tests.workers.test_pool_endings import assert_nothing_is_left, shared_memory

EPOCHS = examples(4, 40)
ALL_EPOCHS = bool(os.environ.get("TINYSHARD_TEST_ALL_EPOCHS"))
ALL_EPOCHS_WITHIN_S = 3600 if ALL_EPOCHS else 280

# 8 batches of 8 numbers, whose sum is 2016
LOADING = """
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(64.0))
def loader(workers, method, persistent=False):
    return DataLoader(
        data, 8, num_workers=workers, persistent_workers=persistent, multiprocessing_context=method if workers else None
    )
def whole(sharding, batches):
    total = sum(ts.device_put(batch, sharding) for (batch,) in batches)
    return total.sum().item()
def rows():
    return ts.sharding.PositionalSharding(ts.devices())
"""

# the number of workers, and whether they stay from epoch to epoch
LOADERS = [(0, False), (2, False), (2, True), (4, False), (4, True)]

STATES = {
    "idle": """
ts.block_until_ready(ts.array(1.0))
sharding = rows()
sums = [whole(sharding, batches) for _ in range(epochs)]
""",
    "busy": """
sharding = rows()
y = ts.device_put(torch.zeros(8), sharding)
sums = []
for _ in range(epochs):
    for _ in range(8):
        y = y + y.sum() + 1
        y = y - y.sum() / 8  # back to zeros, by a sum over all devices
    sums.append(whole(sharding, batches))
assert y.tolist() == [0.0] * 8
""",
    "starting": """
sums = []
for _ in range(epochs):
    ts.init(devices=2)
    there = iter(batches)
    sums.append(whole(rows(), there))
""",
}


def program(method, runs):
    """What trains from one loader after the other, and tells after each whether every batch came.

    Args:
        runs: state of the pool, number of workers, whether they stay, number of epochs.
    """
    parts = [
        f"batches, epochs = loader({workers}, {method!r}, {persistent}), {epochs}\n{STATES[state]}\n"
        "tell(sums == [2016] * epochs)\n"
        for state, workers, persistent, epochs in runs
    ]
    return LOADING + "".join(parts), ["True"] * len(runs)


# spawned workers load torch anew, seconds each: 40 epochs of every kind would take minutes
FEW = [("idle", 2, True, 2), ("busy", 2, False, 1), ("starting", 4, True, 2)]
PLANS = {f"fork, {state}": ("fork", [(state, *kind, EPOCHS) for kind in LOADERS]) for state in STATES}
for method in ("spawn", "forkserver"):
    PLANS[method] = method, [(s, *kind, EPOCHS) for s in STATES for kind in LOADERS] if ALL_EPOCHS else FEW
FORKED = [("idle", 2, False, EPOCHS), ("busy", 4, True, EPOCHS), ("starting", 2, False, EPOCHS)]
IN_EACH_STATE = "fork, in each state"
PLANS[IN_EACH_STATE] = "fork", FORKED


@pytest.mark.whole
@pytest.mark.parametrize("plan", mostly_whole(PLANS, lambda plan: plan == IN_EACH_STATE))
def test_data_loaders_bring_every_batch_beside_a_pool_and_leave_nothing(controller, plan):
    before = shared_memory()
    code, words = program(*PLANS[plan])
    each = controller(code + "input()")
    assert [each.line() for _ in words] == words
    family = each.family()
    each.release()
    _, errors = each.finish(ALL_EPOCHS_WITHIN_S)
    assert each.process.returncode == 0, errors
    assert "Traceback" not in errors and "ignored" not in errors
    assert_nothing_is_left(each, family, before)


@pytest.mark.whole
def test_data_loaders_bring_every_batch_in_a_kernel_and_leave_nothing():
    manager, client = start_new_kernel(env={**os.environ, "PYTHONPATH": str(ROOT), "TINYSHARD_RUNTIME": "process"})
    try:
        run(client, "import tinyshard as ts\ndef tell(*words): print(*words)")
        for method, runs in [("fork", FORKED), ("spawn", PLANS["spawn"][1][:1])][: examples(1, 2)]:
            code, words = program(method, runs)
            told = run(client, code, ALL_EPOCHS_WITHIN_S)
            assert [line for line in told.split("\n") if line in ("True", "False")] == words, told
        family = psutil.Process(manager.provisioner.pid).children(recursive=True)
        assert len(family) >= 3
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    wait_until(lambda: all(is_gone(p) for p in family), f"{family} ended", OVER_WITHIN_S)


@pytest.mark.whole
def test_nothing_is_left_of_a_killed_controller_whose_loaders_workers_wait(controller):
    before = shared_memory()
    each = controller(LOADING + "there = iter(loader(2, 'fork', True)); tell(whole(rows(), there)); input()")
    assert each.line() == "2016.0"
    family = each.family()
    assert len(family) == 11
    each.process.kill()
    each.process.wait()
    # torch's workers look for their parent every 5 s
    wait_until(lambda: all(is_gone(p) for p in family), f"{family} ended", 3 * OVER_WITHIN_S)
    assert_nothing_is_left(each, family, before)


FORKING = """
import signal
def in_child(act):
    # what a forked child does; the signal says that it hangs
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        torch.set_num_threads(1)  # as torch's own workers: OpenMP's threads are not in a child
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    return pid
def ended_well(pid):
    return os.waitpid(pid, 0)[1] == 0
"""


@pytest.mark.whole
def test_a_fork_at_any_moment_of_a_start_gives_a_child_that_gets_on(controller):
    each = controller(
        FORKING
        + f"STEP = {examples(4, 1)}"
        + """
import time
well = []
for moment in range(0, 40, STEP):
    ts.init(devices=2)
    time.sleep(moment / 1000)
    well.append(ended_well(in_child(lambda: None)))
tell(all(well), ts.array(1.0).item())
"""
    )
    assert each.line() == "True 1.0"
    _, errors = each.finish()
    assert (each.process.returncode, errors) == (0, "")


@pytest.mark.whole
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists what a process has open in /proc")
@pytest.mark.parametrize("joined", mostly_whole(JOINED, lambda joined: joined == JOINED[0]))
def test_a_child_has_no_descriptor_and_no_memory_of_the_pool(controller, joined):
    """At four moments: before the devices are up, after, where they have a large value, and after the end."""
    each = controller(
        FORKING
        + f"""
def look():
    links = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink("/proc/self/fd/" + fd) if int(fd) > 2 else "")
        except FileNotFoundError:
            pass  # of the folder itself, which was open while it was listed
    tell([link for link in links if any(word in link for word in ("socket", "tinyshard a", "eventpoll", "pipe"))])
    tell("memfd:tinyshard" in open("/proc/self/maps").read())
for moment in ("", "ts.array(1.0).item()", "ts.array(torch.ones(20000)).sum()", "ts.shutdown()"):
    ts.init(collectives={joined!r})
    exec(moment)
    tell(ended_well(in_child(look)))
"""
    )
    assert [each.line() for _ in range(4 * 3)] == ["[]", "False", "True"] * 4
    each.finish()


@pytest.mark.whole
def test_what_device_get_gave_is_each_processs_own_after_a_fork(controller):
    """Small and large ones, views, and one that the parent drops while the child still reads it."""
    each = controller(
        FORKING
        + """
x = ts.device_put(torch.arange(80_000.0), ts.sharding.PositionalSharding(ts.devices()))
got, dropped, small = ts.device_get(x), ts.device_get(x), ts.device_get(x[:8])
view, right = got.view(8, -1)[3], torch.arange(80_000.0)
to_child, from_child = os.pipe(), os.pipe()

def child():
    assert torch.equal(got, right) and torch.equal(dropped, right) and torch.equal(small, right[:8])
    for mine in (got, dropped, small):
        mine[0] = -1
    view[0] = -2
    os.write(from_child[1], b"written")
    os.read(to_child[0], 1)
    assert got[0] == -1 and dropped[0] == -1 and got[30_000] == -2 and got[40_001] == 40_001
    assert torch.equal(dropped[1:], right[1:]), "the parent has used its memory again"

pid = in_child(child)
os.close(from_child[1])
os.read(from_child[0], 7)
assert torch.equal(got, right) and torch.equal(small, right[:8])
got[40_001] = 5
del dropped
for number in range(4):
    assert torch.equal(ts.device_get(x + number), right + number)
later = [ts.device_get(x + number) for number in range(4)]
def right_later():
    return all(torch.equal(y, right + number) for number, y in enumerate(later))
os.write(to_child[1], b"x")
tell(ended_well(pid), right_later())
ts.shutdown()
pid = in_child(lambda: [y.fill_(0) for y in [got, *later]])
tell(ended_well(pid), right_later(), got[1].item(), got[40_001].item())
"""
    )
    assert each.line() == "True True"
    assert each.line() == "True True 1.0 5.0"
    _, errors = each.finish()
    assert (each.process.returncode, errors) == (0, "")


@pytest.mark.whole
@pytest.mark.parametrize("moment", mostly_whole(["", "ts.array(1.0).item()"], bool))
def test_a_child_that_uses_the_devices_gets_its_own_and_a_parents_array_says_so(controller, moment):
    each = controller(
        FORKING
        + f"""
ts.init(devices=2)
x = ts.array(torch.ones(20_000))
{moment}
def use():
    try:
        x.sum().item()
    except ts.RuntimeStateError as error:
        tell("forked from" in str(error) and "rule:" in str(error) and "try:" in str(error))
    tell((ts.array(1.0) + 1).item())
    ts.shutdown()
tell(ended_well(in_child(use)))
tell(x.sum().item())
"""
    )
    assert [each.line() for _ in range(4)] == ["True", "2.0", "True", "20000.0"]
    _, errors = each.finish()
    assert (each.process.returncode, errors) == (0, "")


@pytest.mark.whole
def test_an_op_of_a_parents_array_is_refused_in_a_child_before_any_process_is_started(controller):
    each = controller(
        FORKING
        + """
import psutil
x = ts.device_put(torch.arange(8.0))
cut = ts.device_put(torch.arange(8.0), ts.sharding.PositionalSharding(ts.devices()))
add = ts.jit(lambda a, b: a + b)
add(cut, cut).sum().item()
one = torch.ones(8)
tried = {
    "eager": lambda: x + 1,
    "committed": lambda: one + cut,
    "both": lambda: x + cut,
    "grad": lambda: ts.grad(lambda v: v.sum())(x),
    "jit": lambda: add(cut, cut),
    "jit of an uncommitted one": lambda: add(x, one),
    "jit of a tensor first": lambda: add(one, cut),
    "what jit closes over": lambda: ts.jit(lambda a: a + cut)(one),
    "pmap": lambda: ts.pmap(lambda v: v + 1)(x),
    "pmap of a tensor first": lambda: ts.pmap(lambda a, b: a + b)(one, x),
}
def use():
    for name, act in tried.items():
        try:
            act()
            said = "nothing"
        except ts.RuntimeStateError as error:
            said = "forked from" in str(error)
        tell(name, said, psutil.Process().children())
tell(len(tried))
tell(ended_well(in_child(use)))
"""
    )
    count = int(each.line())
    told = [each.line() for _ in range(count)]
    assert [line for line in told if not line.endswith(" True []")] == []
    assert each.line() == "True"
    each.finish()


@pytest.mark.whole
def test_a_spawned_worker_that_imports_tinyshard_starts_no_helper_process(controller, tmp_path):
    (tmp_path / "lesson.py").write_text(
        "import tinyshard as ts, os\ndef helpers(_): return ts.runtime.launch.forkserver._fork_server is None\n"
    )
    each = controller(
        """
import multiprocessing, lesson
import tinyshard.runtime.launch.forkserver
with multiprocessing.get_context("spawn").Pool(1) as pool:
    tell(pool.map(lesson.helpers, [0]))
"""
    )
    assert each.line() == "[True]"
    each.finish()

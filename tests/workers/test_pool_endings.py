"""However the controller ends, no process, no socket and no file of it stays."""

import contextlib
import itertools
import os
import sys
from pathlib import Path

import psutil
import pytest

from tests.extent import examples, mostly_whole
from tests.workers.limits import OVER_WITHIN_S
from tests.workers.processes import JOINED, is_gone, wait_until

STARTED = """
x = ts.device_put(torch.arange(32.).reshape(8, 4), ts.sharding.PositionalSharding(ts.devices()).reshape(8, 1))
assert (x + 1).sum().item() == 528
tell("started")
"""


def shared_memory():
    return set(Path("/dev/shm").iterdir()) if Path("/dev/shm").exists() else set()


def used_by_others(folder):
    """What is mapped there by processes of other tests; a controller's own family has its folder as TMPDIR."""
    used = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get("TMPDIR") != str(folder):
                words = Path(f"/proc/{process.pid}/maps").read_text().split()
                used |= {Path(word) for word in words if word.startswith("/dev/shm/")}
    return used


def assert_nothing_is_left(each, family, before):
    """Call it when the controller has ended."""
    wait_until(lambda: all(is_gone(p) for p in family), f"{family} ended", OVER_WITHIN_S)
    left = {path.name for path in each.folder.iterdir()}
    # torch's own cache, one a user; and what the workers of its DataLoader leave, without a pool too
    assert {name for name in left if not name.startswith(("torchinductor_", "pymp-"))} == set()

    def own():
        new = shared_memory() - before
        return new - used_by_others(each.folder) if new else new

    # others on this machine have files there for a moment before they map them
    wait_until(lambda: not own(), f"nothing of its own is left in shared memory beside {before}", OVER_WITHIN_S)


HELD_UP = "os.kill(ts.devices()[1].pid, signal.SIGSTOP); x.sum(); os.kill(os.getpid(), signal.SIGKILL)"
NO_HELPER = "from tinyshard.runtime.launch import forkserver; os.kill(forkserver.start().pid, signal.SIGKILL)"
ENDINGS = [
    ("", 0),
    ("ts.shutdown()", 0),
    ("ts.shutdown(); ts.shutdown()", 0),
    ("ts.init(); ts.init(devices=3)", 0),
    ("raise SystemExit(3)", 3),
    ("os.kill(os.getpid(), signal.SIGKILL)", -9),
    ("y = x @ x.T; os.kill(ts.devices()[1].pid, signal.SIGKILL)", 0),
    ("os.kill(ts.devices()[1].pid, signal.SIGSTOP)", 0),
    (HELD_UP, -9),
    ("a = ts.array(torch.ones(3000, 3000))\nfor _ in range(9): a @ a\nos.kill(os.getpid(), signal.SIGKILL)", -9),
    (NO_HELPER, 0),
]


@pytest.mark.whole
@pytest.mark.parametrize("ending, code", mostly_whole(ENDINGS, lambda row: row[0] in (HELD_UP, NO_HELPER)))
def test_nothing_is_left(controller, ending, code):
    before = shared_memory()
    each = controller(f"{STARTED}\ninput()\n{ending}")
    assert each.line() == "started"
    family = each.family()
    assert len(family) == 9
    each.release()
    _, errors = each.finish()
    assert each.process.returncode == code
    assert "Traceback" not in errors and "ignored" not in errors
    assert_nothing_is_left(each, family, before)


def test_shutdown_ends_all_workers_at_once(controller):
    each = controller(STARTED + "input(); ts.shutdown(); tell('down'); input()")
    assert each.line() == "started"
    workers = [p for p in each.family() if p.ppid() != each.process.pid]
    assert len(workers) == 8
    each.release()
    assert each.line() == "down"
    assert all(is_gone(p) for p in workers)
    each.release()


STARTS = ["tell('import')", "ts.devices(); tell('init')", "x = ts.array(1.0); tell('put')"]


@pytest.mark.whole
@pytest.mark.parametrize("code", mostly_whole(STARTS, lambda code: "init" in code))
def test_nothing_is_left_of_a_controller_killed_while_it_starts(controller, code):
    before = shared_memory()
    each = controller(code + "\ninput()")
    each.line()
    family = each.family()
    each.process.kill()
    each.process.wait()
    assert_nothing_is_left(each, family, before)


@pytest.mark.whole
def test_a_helper_process_that_still_loads_torch_ends_with_its_controller(controller, tmp_path):
    (tmp_path / "torch.py").write_text("import time\nopen('loading', 'w').close()\nwhile True: time.sleep(0.01)\n")
    each = controller(
        """
from tinyshard.runtime.launch import forkserver
forkserver.stop()
sys.path.insert(0, os.getcwd())
tell(forkserver.start().pid)
input()
""",
        environment={"PYTHONSAFEPATH": "1"},  # the controller itself has the real torch
    )
    helper = psutil.Process(int(each.line()))
    wait_until((tmp_path / "loading").exists, "the helper process loads what it takes for torch")
    each.process.kill()
    each.process.wait()
    try:
        wait_until(lambda: is_gone(helper), f"{helper} ended", OVER_WITHIN_S)
    finally:
        if not is_gone(helper):
            helper.kill()


@pytest.mark.whole
def test_a_forked_child_neither_ends_the_pool_nor_uses_it(controller):
    each = controller(
        STARTED
        + """
pid = os.fork()
if pid == 0:
    try:
        x.sum()
    except ts.RuntimeStateError as error:
        tell("forked from" in str(error))
    tell((ts.array(1.0) + 1).item())
    sys.exit(0)
os.waitpid(pid, 0)
tell(x.sum().item())
"""
    )
    assert [each.line() for _ in range(4)] == ["started", "True", "2.0", "496.0"]
    _, errors = each.finish()
    assert each.process.returncode == 0, errors
    assert errors == ""


@pytest.mark.whole
def test_a_forked_child_that_lives_on_does_not_keep_the_workers(controller):
    before = shared_memory()
    each = controller(STARTED + "pid = os.fork()\nif pid == 0: signal.pause()\ntell(pid)\ninput()")
    assert each.line() == "started"
    child = psutil.Process(int(each.line()))
    family = [p for p in each.family() if p != child]
    each.process.kill()
    each.process.wait()
    try:
        assert_nothing_is_left(each, family, before)
    finally:
        child.kill()


@pytest.mark.whole
def test_multiprocessing_fork_works_beside_the_pool(controller):
    each = controller(
        STARTED
        + """
import multiprocessing
with multiprocessing.get_context("fork").Pool(2) as pool:
    tell(sum(pool.map(abs, [-1, -2])))
tell(x.sum().item())
"""
    )
    assert [each.line() for _ in range(3)] == ["started", "3", "496.0"]
    each.finish()
    assert each.process.returncode == 0


@pytest.mark.whole
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS tells only root of the sockets of all processes")
@pytest.mark.parametrize("collectives", mostly_whole(JOINED, lambda joined: joined == "gloo"))
def test_no_socket_with_a_name_is_opened_and_of_those_with_a_port_none_is_left(controller, collectives):
    each = controller(STARTED + "input()", environment={"TINYSHARD_COLLECTIVES": collectives})
    assert each.line() == "started"
    ports = set()
    for process in [psutil.Process(each.process.pid), *each.family()]:
        assert [c.laddr for c in process.net_connections("unix") if c.laddr] == []
        ports |= {c.laddr.port for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
    assert bool(ports) == (collectives == "gloo")
    each.process.kill()
    each.process.wait()

    def listening():
        return {c.laddr.port for c in psutil.net_connections("inet") if c.status == psutil.CONN_LISTEN}

    wait_until(lambda: not ports & listening(), f"nobody listens at {ports}", OVER_WITHIN_S)


@pytest.mark.whole
def test_it_starts_from_a_folder_without_a_path_to_it(controller, tmp_path):
    os.symlink(Path(__file__).parents[2] / "tinyshard", tmp_path / "tinyshard")
    each = controller("print((ts.array(1.0) + 1).item())", path="")
    out, errors = each.finish()
    assert (out, errors) == ("2.0\n", "")


ACTS = ["y = y + 1", "x.sum().item()", "ts.array(1.0)", "y.block_until_ready()"]
TIMES = examples(20, 60)


@pytest.mark.parametrize("act", mostly_whole(ACTS, lambda act: "sum" in act))
def test_an_interrupt_strikes_anywhere_and_the_next_cell_works(controller, act):
    each = controller(
        STARTED
        + f"""
import random
def interrupt(number, frame):
    raise KeyboardInterrupt
signal.signal(signal.SIGALRM, interrupt)
chance = random.Random(7)
from tinyshard import platform
pool = platform.current()
struck = 0
y = x
for _ in range({TIMES}):
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(0.0005, 0.02))
        while True:
            {act}
    except KeyboardInterrupt:
        struck += 1
    y = x
    assert (x + 1).sum().item() == 528
del y
held = [pool.held(d) for d in range(8)]
tell(struck, held)
"""
    )
    assert each.line() == "started"
    out, errors = each.finish()
    assert each.process.returncode == 0, errors
    assert out.split()[0] == str(TIMES)
    held = [int(word.strip("[],")) for word in out.split()[1:]]
    assert max(held) <= 4


ACTS_OF_TWO = ["x + 1", "x.tolist()", "ts.device_put(torch.ones(9000), ts.devices()[1])"]


@pytest.mark.parametrize(
    "act, collectives",
    mostly_whole(itertools.product(ACTS_OF_TWO, JOINED), lambda row: row == ("x.tolist()", JOINED[0])),
)
@pytest.mark.whole
def test_a_signals_handler_may_shut_down_wherever_it_strikes(controller, act, collectives):
    """The lock that its thread holds is not waited for, and what it interrupted says that the pool has ended."""
    each = controller(
        f"""
from tests.interrupts import strike_at
line, where = 1, "first"
while where is not None:
    ts.init(devices=2)
    x = (ts.array(1.0) + 1).block_until_ready()
    shutdown = ts.platform.current().shutdown  # `ts.shutdown` ends the helper process too, whose start takes a second
    try:
        where = strike_at(line, lambda: {act}, lambda file: "tinyshard/runtime/" in file, shutdown)
    except ts.RuntimeStateError as error:
        assert "has been shut down" in str(error)
    line += 17
tell("over", line > 50)
signal.signal(signal.SIGUSR1, lambda *_: ts.shutdown())
x = ts.array(1.0)
with ts.platform.current()._dispatcher.calls.lock:
    signal.raise_signal(signal.SIGUSR1)
tell((ts.array(1.0) + 1).item())
""",
        environment={"TINYSHARD_COLLECTIVES": collectives},
    )
    out, errors = each.finish()
    assert (out, errors) == ("over True\n2.0\n", "")

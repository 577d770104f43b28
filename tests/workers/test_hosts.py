"""Devices on two machines, four on each: started by torchrun, joined over a network that strangers can reach too."""

import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.extent import IS_WHOLE, examples
from tests.workers.limits import OVER_WITHIN_S
from tests.workers.machines import ADDRESSES, CONTROLLER, WORKERS_EACH, Machines, why_not
from tests.workers.processes import ROOT, Controller, is_gone, wait_until

REASON = why_not()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

LESSONS = sorted(
    str(path)
    for number in (("03", "04", "05", "06", "07", "08", "11") if IS_WHOLE else ("07",))
    for path in (ROOT / "notebooks").glob(f"{number}-*.ipynb")
)

WITHIN_S = 240
FIRST = f"ts.config.update('hosts_timeout_s', {WITHIN_S}); ts.init(); print(len(ts.devices()))"

# an array over all devices, that a sum needs all of
START = """
    import time
    ts.init()
    ids = {host: [d.id for d in ts.devices() if d.host == host] for host in ("10.77.0.1", "10.77.0.2")}
    rows = ts.sharding.PositionalSharding(ts.devices()).reshape(len(ts.devices()), 1)
    x = ts.device_put(torch.arange(32.).reshape(8, 4), rows)
    assert float(x.sum()) == 496
"""
# a device that computes for long, and a sum that waits for it
LONG = """
    long = ts.device_put(torch.ones(900, 900), ts.devices()[{device}])
    for _ in range(200):
        long = (long @ long).clamp(max=1)
"""


def program(*parts: str) -> str:
    """Parts of a program, each indented as it stands here."""
    return "".join(map(textwrap.dedent, parts))


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    made = Machines(tmp_path_factory.mktemp("machines"))
    try:
        # ten processes load torch first, which takes long where others compute
        first = Controller(FIRST, made.folder, before=made.on("a"), environment=made.environment())
        assert first.finish(WITHIN_S)[0] == "8\n", made.said()
        yield made
    finally:
        made.close()


@pytest.fixture
def start(machines: Machines, tmp_path: Path) -> Iterator[Callable[[str], Controller]]:
    """Starts controllers on machine a."""
    started: list[Controller] = []

    def begin(code: str) -> Controller:
        started.append(Controller(code, tmp_path, before=machines.on("a"), environment=machines.environment()))
        return started[-1]

    yield begin
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()


def finished(controller: Controller, machines: Machines) -> str:
    """What it told, after a good end."""
    told, errors = controller.finish()
    assert controller.process.returncode == 0, told + errors + machines.said()
    return told


@pytest.mark.whole
def test_lessons_print_the_same_on_two_machines(machines: Machines) -> None:
    command = [*machines.on("a"), sys.executable, str(ROOT / "tests" / "workers" / "lesson_cells.py"), *LESSONS]
    ran = subprocess.run(command, env=machines.environment(), cwd=machines.folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr + machines.said()
    lines = ran.stdout.splitlines()
    assert len(lines) == len(LESSONS) == examples(1, 7)
    for line in lines:
        assert int(line.split(" cells, ")[1].split()[0]) > 10, line


@pytest.mark.whole
def test_four_devices_are_on_each_machine_and_data_crosses_between_them(
    start: Callable[[str], Controller], machines: Machines
) -> None:
    code = """
    print(sorted(map(len, ids.values())))
    whole = torch.arange(32.).reshape(8, 4)
    print(torch.equal(ts.device_get(x.T @ x), whole.T @ whole))
    print(torch.equal(ts.device_get(ts.device_put(x, ts.devices()[0])), whole))
    """
    assert finished(start(program(START, code)), machines).splitlines() == ["[4, 4]", "True", "True"]


def test_a_killed_worker_is_named_with_its_signal_and_its_machine(
    start: Callable[[str], Controller], machines: Machines
) -> None:
    code = """
    victim = ids["10.77.0.2"][0]
    tell(victim, ts.devices()[victim].pid)
    input()
    try:
        while True:
            x = x + x.sum()
            x.block_until_ready()
    except ts.DeviceLostError as error:
        tell(str(error).splitlines()[0])
    ts.init()
    rows = ts.sharding.PositionalSharding(ts.devices()).reshape(8, 1)
    tell(float(ts.device_put(torch.ones(8, 4), rows).sum()))
    """
    controller = start(program(START, code))
    device, pid = controller.line().split()
    psutil.Process(int(pid)).kill()
    controller.release()
    assert controller.line().startswith(f"CPU {device} is gone: killed by signal 9 (SIGKILL) on {ADDRESSES['b']}")
    assert controller.line() == "32.0"
    finished(controller, machines)


@pytest.mark.whole
def test_the_pool_stays_where_no_other_can_be_made(start: Callable[[str], Controller], machines: Machines) -> None:
    code = """
    ts.config.update("hosts_timeout_s", 1)
    for wrong in ({"devices": 9}, {"hosts": "10.77.0.1:29401"}, {"hosts": "10.77.0.77:29400"}, {"collectives": "nccl"}):
        try:
            ts.init(**wrong)
        except ts.RuntimeStateError as error:
            tell(str(error).splitlines()[0])
        tell(float((x + 1).sum()))
    """
    told = finished(start(program(START, code)), machines).splitlines()
    assert told[::2] == [
        "there are fewer workers than devices",
        "the workers of other machines have not all come to 10.77.0.1:29401 within 1 s",
        "the controller cannot listen for other machines",
        "there is no collectives between machines 'nccl'",
    ]
    assert told[1::2] == [str(496.0 + 32)] * 4


@pytest.mark.whole
def test_no_process_that_forks_workers_is_left_where_all_are_on_other_machines(
    start: Callable[[str], Controller], machines: Machines
) -> None:
    code = """
    from tinyshard.runtime.launch import forkserver
    forkserver.start()  # as an import does that knows of no other machines yet
    ts.init()
    tell(float(ts.array([1.0]).sum()))
    input()
    """
    controller = start(program(code))
    assert controller.line() == "1.0"
    assert controller.family() == []
    controller.release()
    finished(controller, machines)


def test_strangers_are_refused_and_change_nothing(start: Callable[[str], Controller], machines: Machines) -> None:
    controller = start(
        program(START, "tell('up'); input(); tell(float((x + 1).sum())); tell(len(ts.platform.current().devices))")
    )
    assert controller.line() == "up", machines.said()
    stranger = """
import socket, struct, pickle, sys
from tinyshard.runtime.launch import connect
address = connect.parse(sys.argv[1])
class Boom:
    def __reduce__(self): return (print, ("owned",))
def attempt(words):
    with socket.create_connection(address, timeout=20) as sock:
        sock.sendall(words)
        got = b""
        try:
            while part := sock.recv(4096): got += part
        except ConnectionError: pass
        return got
pickled = pickle.dumps(Boom())
print(len(attempt(b"GET / HTTP/1.1\\r\\n\\r\\n" + b" " * 64)))
print(len(attempt(struct.pack("<IQ", len(pickled), 0) + pickled + b" " * 64)))
got = attempt(connect.MAGIC + b"n" * 32 + b"p" * 32)
print(len(got))
try:
    connect.connect(address, b"a wrong secret, long enough", ("agent", 0, {}))
except connect.RefusedError as error:
    print(error)
"""
    tried = subprocess.run(
        [*machines.on("b"), sys.executable, "-c", stranger, CONTROLLER],
        env=machines.environment(), capture_output=True, text=True,
    )  # fmt: skip
    assert tried.stdout.splitlines() == ["0", "0", "64", "the controller does not know the secret"], tried.stderr
    controller.release()
    assert controller.line() == str(496.0 + 32)
    assert controller.line() == "8"
    assert "owned" not in finished(controller, machines)


def test_the_secret_is_in_no_command_line_and_in_no_log(machines: Machines) -> None:
    secret = machines.secret.read_text()
    processes = [p for side in ADDRESSES for p in machines.launchers[side].children(recursive=True)]
    assert len(processes) >= 2 * WORKERS_EACH
    assert not [p for p in processes if secret in " ".join(p.cmdline())]
    assert secret not in machines.said()


@pytest.mark.whole
def test_nothing_listens_beyond_the_addresses_that_were_asked_for(
    start: Callable[[str], Controller], machines: Machines
) -> None:
    controller = start(program(START, "tell('up'); input()"))
    assert controller.line() == "up"
    workers = [w for side in ADDRESSES for w in machines.workers(side)]
    assert len(workers) == 2 * WORKERS_EACH
    for process in [psutil.Process(controller.process.pid), *workers]:
        listening = [c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN]
        assert set(listening) <= set(ADDRESSES.values()), process.cmdline()
    controller.release()
    finished(controller, machines)


@pytest.mark.whole
def test_an_interrupt_ends_a_wait_for_another_machine_and_the_next_call_works(
    start: Callable[[str], Controller], machines: Machines
) -> None:
    code = """
    try:
        # inside, so that a signal that is sent at once meets this block and no other
        tell("waiting")
        long.block_until_ready()
        tell("never interrupted")
    except KeyboardInterrupt:
        tell(float((x + 1).sum()))
    """
    controller = start(program(START, LONG.format(device='ids["10.77.0.2"][0]'), code))
    assert controller.line() == "waiting"
    controller.process.send_signal(signal.SIGINT)
    assert controller.line() == str(496.0 + 32)
    finished(controller, machines)


@pytest.mark.whole
def test_workers_end_with_a_killed_controller_and_serve_the_next(
    start: Callable[[str], Controller], machines: Machines
) -> None:
    # a child that user code has forked outlives the controller, and must not keep its connections
    forked = "child = os.fork()\nif not child: time.sleep(600)\n"
    first = start(program(START, LONG.format(device=7), forked, "tell(child); input()"))
    child = psutil.Process(int(first.line()))
    workers = [w for side in ADDRESSES for w in machines.workers(side)]
    assert len(workers) == 2 * WORKERS_EACH
    try:
        first.process.kill()
        wait_until(lambda: all(map(is_gone, workers)), "the workers are gone", OVER_WITHIN_S)
        assert not is_gone(child)
    finally:
        child.kill()
    assert "good" in finished(start(program(START, "tell('good')")), machines)


def test_a_machine_that_is_cut_off_is_named_in_time_and_the_others_go_on(
    start: Callable[[str], Controller], machines: Machines
) -> None:
    code = """
    kept = ts.device_put(torch.ones(4), ts.devices()[ids["10.77.0.1"][0]])
    kept.block_until_ready()
    tell(*ids["10.77.0.2"])
    input()
    began_s = time.monotonic()
    try:
        while True:
            x = x + x.sum()
            x.block_until_ready()
    except ts.DeviceLostError as error:
        tell(time.monotonic() - began_s)
        tell(str(error).splitlines()[0])
    tell(float(kept.sum()))
    ts.init(devices=4)
    rows = ts.sharding.PositionalSharding(ts.devices()).reshape(4, 1)
    tell(float(ts.device_put(torch.ones(4, 4), rows).sum()), *{d.host for d in ts.devices()})
    input()
    ts.init(devices=8)
    rows = ts.sharding.PositionalSharding(ts.devices()).reshape(8, 1)
    tell(float(ts.device_put(torch.ones(8, 4), rows).sum()))
    """
    controller = start(program(START, code))
    lost = controller.line().split()
    workers = machines.workers("b")
    assert len(lost) == len(workers) == WORKERS_EACH
    machines.cut()
    controller.release()
    assert float(controller.line()) < OVER_WITHIN_S
    problem = controller.line()
    named = f"CPU {lost[0]}-{lost[-1]} there"
    assert problem.split(" is gone: ")[0].removeprefix("CPU ") in lost
    assert "is gone: the connection to its machine 10.77.0.2" in problem and "was lost" in problem and named in problem
    assert controller.line() == "4.0"
    assert controller.line() == "16.0 10.77.0.1"
    wait_until(lambda: all(map(is_gone, workers)), "the workers that were cut off are gone", OVER_WITHIN_S)
    machines.mend()
    controller.release()
    assert controller.line() == "32.0", machines.said()
    finished(controller, machines)


@pytest.mark.whole
def test_shutdown_leaves_no_process_on_either_machine(start: Callable[[str], Controller], machines: Machines) -> None:
    controller = start(program(START, "tell('up'); input(); ts.shutdown(); tell('down'); input()"))
    assert controller.line() == "up"
    family = [p for side in ADDRESSES for p in machines.launchers[side].children(recursive=True)]
    assert len(family) == 2 * 2 * WORKERS_EACH
    controller.release()
    assert controller.line() == "down"
    launchers = list(machines.launchers.values())
    wait_until(lambda: all(map(is_gone, family)), "no process is left", OVER_WITHIN_S)
    wait_until(lambda: all(map(is_gone, launchers)), "torchrun has ended, on both machines together")
    controller.release()
    finished(controller, machines)

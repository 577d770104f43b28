"""A controller that is started with stdin, stdout or stderr closed: its sockets and pipes do not get these numbers."""

import os
import socket
import subprocess
import sys

import pytest

from tests.extent import mostly_whole
from tests.workers.processes import PATIENCE_S, ROOT
from tests.workers.test_pool_endings import assert_nothing_is_left, shared_memory

# its exit code says whether all went well: it may have no stream to tell it by
USE = """
x = ts.device_put(torch.arange(8.0), ts.sharding.PositionalSharding(ts.devices()))
assert x.sum().item() == 28
assert all(os.path.sameopenfile(fd, null) for fd in closed)
for fd in closed:
    os.write(fd, b"as a library in C does")
assert (x + 1).sum().item() == 36
"""


def program(closed: str, before: str = "") -> str:
    return f"closed, null = {closed}, os.open(os.devnull, os.O_RDWR)\n{before}\n{USE}"


CLOSED = [("<&-", "[0]"), (">&-", "[1]"), ("2>&-", "[2]"), ("<&- >&- 2>&-", "[0, 1, 2]")]


@pytest.mark.whole
@pytest.mark.parametrize("redirection, closed", mostly_whole(CLOSED, lambda row: row == CLOSED[-1]))
def test_the_devices_work_where_a_stream_is_closed_from_the_start(controller, redirection, closed):
    before = shared_memory()
    each = controller(program(closed), before=["sh", "-c", f'exec "$@" {redirection}', "sh"])
    _, errors = each.finish()
    assert (each.process.returncode, errors) == (0, "")
    assert_nothing_is_left(each, [], before)


@pytest.mark.whole
def test_the_devices_work_where_the_streams_are_closed_later(controller):
    each = controller(program("[0, 1, 2]", "os.closerange(0, 3)"))
    _, errors = each.finish()
    assert (each.process.returncode, errors) == (0, "")


@pytest.mark.whole
def test_a_worker_of_another_machine_works_where_its_streams_are_closed_from_the_start(controller, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    variables = {"TINYSHARD_SECRET": "a secret of enough characters", "TINYSHARD_HOSTS": address}
    each = controller("tell((ts.array(1.0) + 1).item()); ts.shutdown()", environment=variables)
    worker = subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-m", "tinyshard.worker", "--controller", address],
        cwd=tmp_path,
        env={**os.environ, **variables, "PYTHONPATH": str(ROOT), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"},
    )
    try:
        assert each.line() == "2.0"
        _, errors = each.finish()
        assert (each.process.returncode, errors) == (0, "")
        assert worker.wait(PATIENCE_S) == 0
    finally:
        worker.kill()

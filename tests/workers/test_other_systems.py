"""Devices as on a system that lacks what Linux on x86-64 has: they do the same, and leave nothing."""

import pytest

from tests.extent import mostly_whole
from tests.workers.processes import JOINED
from tests.workers.test_pool_endings import assert_nothing_is_left, shared_memory

pytestmark = pytest.mark.skipif("shared" not in JOINED, reason="this system has no shared memory")

# no memory files and none in /dev/shm, so that a temporary file serves; no copying ahead of use; nothing measured
LACKING = """
from pathlib import Path
from tinyshard.runtime.shm import probe, system
system.HAS_MEMORY_FILES, system._SHARED_FOLDER = False, Path("/nowhere")
system.MADV_POPULATE_WRITE, system.is_measured = None, lambda: False
"""


@pytest.mark.whole
def test_a_temporary_file_joins_the_devices_and_is_gone_with_them(controller):
    before = shared_memory()
    each = controller(
        LACKING
        + """
x = ts.device_put(torch.arange(80_000.0).reshape(8, -1), ts.sharding.PositionalSharding(ts.devices()).reshape(8, 1))
tell(ts.platform.current().collectives, (x + 1).sum(0)[3].item())
got = ts.device_get(x)
pid = os.fork()
if pid == 0:
    got[0] = -1  # threads of OpenMP are not in a child
    os._exit(0)
tell(os.waitpid(pid, 0)[1], torch.equal(got, torch.arange(80_000.0).reshape(8, -1)))
tell(os.listdir(os.environ["TMPDIR"]))
input()
""",
        environment={"TINYSHARD_COLLECTIVES": "shared"},
    )
    assert each.line() == "shared 280032.0"
    assert each.line() == "0 True"
    assert "tmp" not in each.line()
    family = each.family()
    each.release()
    _, errors = each.finish()
    assert (each.process.returncode, errors) == (0, "")
    assert_nothing_is_left(each, family, before)


@pytest.mark.whole
def test_where_the_try_of_it_hangs_the_devices_use_gloo_and_a_warning_says_why(controller):
    each = controller(
        LACKING
        + """
import warnings
probe._START, probe._EXCHANGE_WITHIN_S = "print('up', flush=True); import time; time.sleep(1000)", 0.1
with warnings.catch_warnings(record=True) as warned:
    warnings.simplefilter("always")
    ts.init(devices=2)
tell([str(each.message).split(",")[0] for each in warned])
tell(ts.platform.current().collectives, (ts.array(1.0) + 1).item())
""",
        environment={"TINYSHARD_COLLECTIVES": ""},
    )
    assert each.line() == "['the devices exchange data over gloo']"
    assert each.line() == "gloo 2.0"
    _, errors = each.finish()
    assert (each.process.returncode, errors) == (0, "")


ENDINGS = ["", "ts.init(devices=3)", "os.kill(ts.devices()[1].pid, signal.SIGKILL); ts.shutdown()"]


@pytest.mark.whole
@pytest.mark.parametrize("ending", mostly_whole(ENDINGS, lambda ending: "SIGKILL" in ending))
def test_the_file_in_which_gloo_finds_the_devices_is_gone_with_them(controller, ending):
    before = shared_memory()
    each = controller(
        f"del os.memfd_create\ntell((ts.array(1.0) + 1).item())\ninput()\n{ending}",
        environment={"TINYSHARD_COLLECTIVES": "gloo"},
    )
    assert each.line() == "2.0"
    family = each.family()
    each.release()
    _, errors = each.finish()
    assert (each.process.returncode, errors) == (0, "")
    assert_nothing_is_left(each, family, before)

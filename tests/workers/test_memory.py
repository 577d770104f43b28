"""What a lesson takes before it has any data of its own, and what is left of values that are gone."""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.extent import mostly_whole
from tests.memory import CUDA_BUILD_BYTES, nbytes_of_family
from tests.workers.processes import JOINED, Controller, wait_until
from tinyshard.runtime.launch import forkserver

# what processes share with those of other tests, such as torch's code, would count for less
pytestmark = pytest.mark.alone

# A 2 GB machine must hold a browser's server too (about 0.2 GB) and the lesson's data.
MOST_BYTES = 1_000_000_000 + CUDA_BUILD_BYTES

CODE = """
ts.init(devices=8, runtime="process")
mesh = ts.make_mesh((4, 2), ("a", "b"))
x = ts.device_put(torch.ones(512, 512), ts.NamedSharding(mesh, ts.P("a", "b")))
print((torch.sin(x) @ x.T).sum().item() > 0)
import ipykernel.kernelapp, matplotlib.pyplot, ipywidgets, numba
tell("there")
input()
"""


def test_a_kernel_and_eight_devices_leave_room_on_a_machine_of_two_gigabytes(
    controller: Callable[..., Controller],
) -> None:
    started = controller(CODE)
    assert started.line() == "True"
    assert started.line() == "there"
    nbytes = nbytes_of_family(started.process.pid)
    started.release()
    assert nbytes < MOST_BYTES, f"{nbytes / 1e9:.2f} GB"


FREES = """
ts.init(devices=4, runtime="process", collectives=os.environ["JOINED"])
rows = ts.NamedSharding(ts.make_mesh((4,), ("i",)), ts.P("i"))
x = ts.device_put(torch.ones(4, 1 << 24), rows)
x.block_until_ready()
tell("there")
input()
total = ts.jit(ts.shard_map(lambda x: ts.lax.psum(x, "i"), mesh=rows.mesh, in_specs=ts.P("i"), out_specs=ts.P("i")))
y = [x + k for k in range(2)]
z = [total(each) for each in y * 3]
ts.block_until_ready((y, z))
tell("there")
input()
del y, z
tell("there")
input()
"""


@pytest.mark.parametrize("joined", mostly_whole(JOINED, lambda joined: joined == JOINED[0]))
def test_the_memory_of_values_that_are_gone_goes_back_to_the_system_without_a_further_call(
    joined: str, controller: Callable[..., Controller]
) -> None:
    started = controller(FREES, environment={"JOINED": joined})
    held = []
    for _ in range(2):
        assert started.line() == "there"
        held.append(nbytes_of_family(started.process.pid))
        started.release()
    assert started.line() == "there"
    values = held[1] - held[0]
    assert values > 4 * 2 * (1 << 26) + 6 * (1 << 26)  # two blocks on each device; a sum may be one for all
    most = held[0] + 0.1 * values + psutil.virtual_memory().total / 64  # so much is kept for the next values
    wait_until(lambda: nbytes_of_family(started.process.pid) < most, f"less than {most / 1e6:.0f} MB held", within_s=30)
    started.release()


BETWEEN = """
import time
ts.init(devices=4, runtime="process")
x = ts.device_put(torch.ones(4, 1 << 11), ts.NamedSharding(ts.make_mesh((4,), ("i",)), ts.P("i")))
total = ts.jit(lambda x: (x[:, :, None] * torch.ones(1, 1, {columns})).exp().sum())
total(x).block_until_ready()
time.sleep(1.2)
(x + 1).block_until_ready()  # by now the devices have looked how much they keep, and do not again so soon
total(x).block_until_ready()
tell("there")
input()
"""
MANY = """
import time
ts.init(devices=4, runtime="process")
mesh = ts.make_mesh((4,), ("i",))
x, small = (ts.device_put(torch.ones(4, k), ts.NamedSharding(mesh, ts.P("i"))) for k in (1 << 20, 4))
values = [x + k for k in range(64)]
ts.block_until_ready(values)
time.sleep(1.2)
(small + 1).block_until_ready()  # as above
del values[::2]
(small * 2).block_until_ready()
tell("there")
end_s = time.monotonic() + {seconds}
while time.monotonic() < end_s:
    (small * 2).block_until_ready()
input()
"""
# two values of 128 MiB on each device, or of 8, which are too little to be returned before the device rests
LARGE, MEDIUM = BETWEEN.format(columns=1 << 14), BETWEEN.format(columns=1 << 10)
# 64 values of 4 MiB, every second one freed; then the device is busy, or not
BUSY, IDLE = MANY.format(seconds=8), MANY.format(seconds=0)


@pytest.mark.skipif(sys.platform != "linux", reason="it is looked for on Linux alone")
@pytest.mark.parametrize(
    "variables, code, mebibytes, within_s",
    [
        pytest.param({}, LARGE, 64, 0.8, id="tcmalloc, at once"),  # sooner than the next look
        pytest.param({}, IDLE, 128 + 64, 5, id="tcmalloc, idle"),
        pytest.param({"LD_PRELOAD": ""}, IDLE, 128 + 64, 5, id="libc, idle"),
        pytest.param({"LD_PRELOAD": "", "TINYSHARD_COLLECTIVES": "gloo"}, IDLE, 128 + 64, 5, id="libc, idle, gloo"),
        pytest.param({}, BUSY, 128 + 64, 5, id="tcmalloc, busy"),
        pytest.param({"LD_PRELOAD": ""}, BUSY, 128 + 64, 5, id="libc, busy"),
        pytest.param({}, MEDIUM, 16, 30, id="tcmalloc, at rest"),
        pytest.param({"LD_PRELOAD": ""}, MEDIUM, 16, 30, id="libc, at rest"),
    ],
)
def test_the_memory_of_values_that_a_device_has_freed_goes_back(
    variables: dict[str, str], code: str, mebibytes: int, within_s: float, controller: Callable[..., Controller]
) -> None:
    if not variables and ("LD_PRELOAD" in os.environ or not forkserver.allocator()):
        pytest.skip("tcmalloc is not installed, or something else is to be loaded")
    if variables and code is not MEDIUM and not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("glibc tells what it keeps since version 2.33")
    started = controller(code, environment=variables)
    assert started.line() == "there"
    _, *workers = psutil.Process(started.process.pid).children(recursive=True)
    wait_until(
        lambda: all(worker.memory_full_info().uss < mebibytes << 20 for worker in workers),
        f"less than {mebibytes} MiB held by each",
        within_s=within_s,
    )
    for worker in workers:
        assert ("tcmalloc" in Path(f"/proc/{worker.pid}/maps").read_text()) is (not variables)
    started.release()

"""What a lesson takes before it has any data of its own, and what is left of values that are gone."""

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
ts.init(devices=4, runtime="process")
x = ts.device_put(torch.ones(4, 1 << 11), ts.NamedSharding(ts.make_mesh((4,), ("i",)), ts.P("i")))
total = ts.jit(lambda x: (x[:, :, None] * torch.ones(1, 1, int(os.environ["COLUMNS"]))).exp().sum())
total(x).block_until_ready()
tell("there")
input()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is looked for on Linux alone")
@pytest.mark.parametrize("columns, mebibytes", [(1 << 14, 64), (1 << 11, 16)], ids=["at once", "at rest"])
@pytest.mark.parametrize("variables", [{}, {"LD_PRELOAD": ""}], ids=["tcmalloc", "libc"])
def test_the_memory_of_values_between_two_steps_goes_back_too(
    variables: dict[str, str], columns: int, mebibytes: int, controller: Callable[..., Controller]
) -> None:
    """128 MiB on each device, or 16, twice: the first at once, the second when the device rests."""
    if not variables and ("LD_PRELOAD" in os.environ or not forkserver.allocator()):
        pytest.skip("tcmalloc is not installed, or something else is to be loaded")
    started = controller(BETWEEN, environment={**variables, "COLUMNS": str(columns)})
    assert started.line() == "there"
    _, *workers = psutil.Process(started.process.pid).children(recursive=True)
    within_s = 1 if columns > 1 << 11 else 30
    for worker in workers:
        assert ("tcmalloc" in Path(f"/proc/{worker.pid}/maps").read_text()) is (not variables)
        wait_until(
            lambda worker=worker: worker.memory_full_info().uss < mebibytes << 20,
            f"less than {mebibytes} MiB held",
            within_s=within_s,
        )
    started.release()

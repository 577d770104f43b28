"""What a lesson takes before it has any data of its own: a kernel and eight devices."""

from collections.abc import Callable

from tests.memory import CUDA_BUILD_BYTES, nbytes_of_family
from tests.workers.processes import Controller

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

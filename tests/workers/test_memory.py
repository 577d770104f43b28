"""What a lesson takes before it has any data of its own: a kernel and eight devices."""

from collections.abc import Callable

from tests.memory import nbytes_of_family
from tests.workers.processes import Controller

# Of the 1.5 GB that all may take, a browser's server needs about 0.2. torch built for CUDA takes 0.4 more than the CPU build.
MOST_BYTES = 1_250_000_000

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

"""In a notebook, an error names the cell and the line that dispatched the op."""

import os
import re
import signal

import pytest
from jupyter_client.manager import start_new_kernel

from tests.workers.processes import PATIENCE_S, ROOT


@pytest.fixture(scope="module")
def kernel():
    manager, client = start_new_kernel(env={**os.environ, "PYTHONPATH": str(ROOT)})
    client.manager = manager
    yield client
    client.stop_channels()
    manager.shutdown_kernel()


def run(client, code, within_s=PATIENCE_S):
    """Run a cell; what it printed, and its error without colours."""
    said = []

    def hear(message):
        content = message["content"]
        if message["msg_type"] == "stream":
            said.append(content["text"])
        elif message["msg_type"] == "error":
            said.append(f"{content['ename']}: {content['evalue']}")

    client.execute_interactive(code, output_hook=hear, timeout=within_s)
    return re.sub(r"\x1b\[[0-9;]*m", "", "".join(said))


def test_an_error_names_the_cell_that_dispatched_and_the_next_cell_works(kernel):
    run(kernel, "import tinyshard as ts, torch\nx = ts.array([1., 2.])")
    assert run(kernel, "# the second cell\ny = x[torch.tensor([5])]\nz = y + 1") == ""
    told = run(kernel, "z.tolist()")
    assert told.startswith("RemoteError: aten.index.Tensor failed on CPU 0")
    assert "dispatched by In[2], line 2: y = x[torch.tensor([5])]" in told
    assert run(kernel, "print(x.tolist())") == "[1.0, 2.0]\n"


LONG_CELLS = {
    "a trace": "def f(v):\n    print('go', flush=True)\n    while True:\n        v = v.sin()\n\nts.jit(f)(x)",
    "vmap": "def f(v):\n    print('go', flush=True)\n    time.sleep(60)\n\nts.vmap(f)(x)",
    "grad": "def f(v):\n    print('go', flush=True)\n    while True:\n        v = v.sin()\n\nts.grad(f)(x)",
    # from its print on a cell is one statement: between two of them the kernel's own code runs
    "eager calls": "if True:\n    print('go', flush=True)\n    while True:\n        y = x + 1",
    # not `big = big @ ...`: where the interrupt struck the kernel's print, the cell runs again, with `big` as it was
    "a wait": "y = big\nfor _ in range(99):\n    y = y @ big / 3000\nif True:\n    print('go', flush=True)\n    y.sum().tolist()",
}


@pytest.mark.parametrize("what", LONG_CELLS)
def test_a_cell_that_is_interrupted_shows_the_users_lines_alone(kernel, what):
    """With a real kernel: its interrupt is a signal, which comes at any line."""
    run(kernel, "import time, tinyshard as ts, torch\nx = ts.array([1., 2.])\nbig = ts.array(torch.ones(3000, 3000))")
    shown = ["iostream"]

    def hear(message):
        if message["msg_type"] == "stream" and "go" in message["content"]["text"]:
            os.kill(kernel.manager.provisioner.pid, signal.SIGINT)
        elif message["msg_type"] == "error":
            shown[:] = message["content"]["traceback"]

    while "iostream" in "".join(shown):  # it may strike the kernel's own print
        kernel.execute_interactive(LONG_CELLS[what], output_hook=hear, timeout=PATIENCE_S)
    text = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(shown))
    assert "KeyboardInterrupt" in text and "Cell In[" in text
    assert "tinyshard/" not in text and "site-packages/torch" not in text
    assert len(text.splitlines()) <= 25
    assert run(kernel, "print(x.tolist())") == "[1.0, 2.0]\n"

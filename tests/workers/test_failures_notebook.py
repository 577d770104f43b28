"""In a notebook, an error names the cell and the line that dispatched the op."""

import os
import re

import pytest
from jupyter_client.manager import start_new_kernel

from tests.workers.processes import PATIENCE_S, ROOT


@pytest.fixture(scope="module")
def kernel():
    manager, client = start_new_kernel(env={**os.environ, "PYTHONPATH": str(ROOT)})
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

"""In a notebook, a traced function runs in a thread of its own: what it asks and shows reaches the cell."""

import os
import re
import signal
import threading

import pytest
from jupyter_client.manager import start_new_kernel

from tests.workers.processes import PATIENCE_S, ROOT


@pytest.fixture(scope="module")
def kernel():
    manager, client = start_new_kernel(env={**os.environ, "PYTHONPATH": str(ROOT), "TINYSHARD_RUNTIME": "local"})
    client.manager = manager
    run(client, "import contextlib, time, torch, tinyshard as ts\nx = ts.array([1., 2.])")
    yield client
    client.stop_channels()
    manager.shutdown_kernel()


def run(client, code, typed=(), on_output=lambda text: None):
    """Run a cell, and type an answer to each question; what is shown below it, and its error, without colours."""
    shown, answers = [], list(typed)

    def show(message):
        content = message["content"]
        if message["msg_type"] == "stream":
            shown.append(content["text"])
        elif message["msg_type"] in ("display_data", "execute_result"):
            shown.append(content["data"].get("text/html") or content["data"]["text/plain"])
        elif message["msg_type"] == "error":
            shown.append("\n".join(content["traceback"]))
        on_output("".join(shown))

    def answer(message):
        shown.append(message["content"]["prompt"])
        client.input(answers.pop(0))

    client.execute_interactive(code, output_hook=show, stdin_hook=answer, allow_stdin=True, timeout=PATIENCE_S)
    text = re.sub(r"\x1b\[[0-9;]*m", "", "".join(shown))
    assert not answers, f"not asked for: {answers}, in {text}"
    return text


def test_a_traced_function_asks_prints_and_displays_below_its_cell(kernel):
    shown = run(
        kernel,
        "from IPython.display import HTML, display\n"
        "@ts.jit\n"
        "def f(v):\n"
        "    name = input('name? ')\n"
        "    print('hello', name)\n"
        "    display(HTML('<b>bold</b>'))\n"
        "    return v * 2\n"
        "f(x).tolist()",
        typed=["Ada"],
    )
    assert shown.index("name? ") < shown.index("hello Ada") < shown.index("[2.0, 4.0]")
    assert "<b>bold</b>" in shown


def test_a_debugger_stops_in_a_traced_function(kernel):
    shown = run(
        kernel,
        "import pdb  # breakpoint() is that of JupyterLab's debugger, where it is installed\n"
        "def f(v):\n    doubled = v * 2\n    pdb.set_trace()\n    return doubled\nts.jit(f)(x).tolist()",
        typed=["p tuple(doubled.shape)", "p v.dtype", "c"],
    )
    for words in ("return doubled", "(2,)", "torch.float32", "[2.0, 4.0]"):
        assert words in shown


def test_debug_after_an_error_shows_the_traced_functions_locals(kernel):
    shown = run(kernel, "def f(v):\n    mine = 41\n    raise ValueError('of the user')\nts.jit(f)(x)")
    assert "raise ValueError" in shown and "ts.jit(f)(x)" in shown and len(shown.splitlines()) <= 25
    shown = run(kernel, "%debug", typed=["p mine + 1", "q"])
    assert "42" in shown


def test_ctrl_c_ends_a_traced_function_at_its_line(kernel):
    interrupted = []

    def interrupt(text):
        if "waiting" in text and not interrupted:
            interrupted.append(True)
            kernel.manager.interrupt_kernel()

    shown = run(
        kernel,
        "def f(v):\n    print('waiting', flush=True)\n    while True:\n        time.sleep(0.01)\nts.jit(f)(x)",
        on_output=interrupt,
    )
    assert "KeyboardInterrupt" in shown and "time.sleep(0.01)" in shown
    assert run(kernel, "print(ts.jit(lambda v: v + 1)(x).tolist())") == "[2.0, 3.0]\n"


def test_ctrl_c_at_a_question_of_a_traced_function_ends_it(kernel):
    shown = []

    def show(message):
        if message["msg_type"] == "error":
            shown.append(message["content"]["ename"])

    def interrupt(message):
        kernel.manager.interrupt_kernel()

    kernel.execute_interactive(
        "ts.jit(lambda v: v * float(input('factor? ')))(x)",
        output_hook=show,
        stdin_hook=interrupt,
        allow_stdin=True,
        timeout=PATIENCE_S,
    )
    assert shown == ["KeyboardInterrupt"]
    assert run(kernel, "print(ts.jit(lambda v: v + 1)(x).tolist())") == "[2.0, 3.0]\n"


def test_a_second_ctrl_c_abandons_a_traced_function_that_waits_in_c(kernel):
    # each press a second after the one before: in the handler of another, the two would raise one error
    pressing, is_over = [], threading.Event()

    def press():
        while not is_over.wait(1):
            os.kill(kernel.manager.provisioner.pid, signal.SIGINT)

    def begin(text):
        if "waiting" in text and not pressing:
            pressing.append(threading.Thread(target=press))
            pressing[0].start()
        if "out" in text:
            is_over.set()

    run(
        kernel,
        "import signal, threading\n"
        "before, lock = signal.getsignal(signal.SIGINT), threading.Lock()\n"
        "def handler(number, frame):\n"
        "    print('handled', flush=True)\n"
        "    raise KeyboardInterrupt\n"
        "lock.acquire()\n"
        "def f(v):\n"
        "    print('waiting', flush=True)\n"
        "    lock.acquire()",
    )
    try:
        shown = run(
            kernel,
            "signal.signal(signal.SIGINT, handler)\n"
            "try:\n    ts.jit(f)(x)\nexcept KeyboardInterrupt:\n    print('out', flush=True)\n"
            "finally:\n    signal.signal(signal.SIGINT, before)",
            on_output=begin,
        )
    finally:
        is_over.set()
    assert shown.endswith("out\n") and shown.count("handled") == 2
    assert run(kernel, "print(ts.jit(lambda v: v + 1)(x).tolist())") == "[2.0, 3.0]\n"
    assert run(kernel, "lock.release()") == ""

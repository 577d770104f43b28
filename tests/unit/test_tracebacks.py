"""An uncaught error shows the user's own lines and its parts, in notebooks and terminals; debuggers see all frames."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import traceback
from pathlib import Path
from types import ModuleType

import pytest
import torch

import tinyshard as ts
from tinyshard.core import config, tracebacks

MOST_LINES = 25

# what a user runs → lines of the user's and words of the error that are shown
CASES = {
    "y = x @ x": ["y = x @ x", "a and b must have same reduction dim"],
    "ts.device_put(torch.ones(10, 4), rows)": ["ts.device_put(torch.ones(10, 4), rows)", "  got:", "  rule:", "  try:"],
    "@ts.jit\ndef f(x):\n    if x.sum() > 0:\n        return x\n\nf(x)": ["f(x)", "if x.sum() > 0:", "  try:"],
    "net = torch.nn.Dropout()\nts.jit(lambda v: net(v))(x)": ["ts.jit(lambda v: net(v))(x)", "  rule:", "  try:"],
    "def g(v):\n    raise ValueError('mine')\n\nts.jit(lambda v: g(v))(x)": ["ts.jit(", "raise ValueError", ": mine"],
    "def g(v):\n    raise ValueError('mine')\n\nts.vmap(lambda v: g(v))(x)": ["ts.vmap(", "raise ValueError", ": mine"],
    "def g(v):\n    raise ValueError('mine')\n\nts.grad(lambda v: g(v))(x)": ["ts.grad(", "raise ValueError", ": mine"],
    "ts.jit(lambda a, b: a @ b)(x, x)": ["lambda a, b: a @ b", "a and b must have same reduction dim"],
    "ts.pmap(lambda v: v @ v)(torch.ones(8, 2, 3))": ["lambda v: v @ v", "must have same reduction dim"],
    "ts.shard_map(lambda v: ts.lax.psum(v, 'i'), mesh=mesh, in_specs=ts.P('x'), out_specs=ts.P())(x)": ["  rule:"],
    "y = x[torch.tensor([9])]\ny.tolist()": [
        "y.tolist()",
        "dispatched by",
        "y = x[torch.tensor([9])]",
        "on the device",
    ],
    "import numpy as np\nts.jit(lambda v: np.asarray(v))(x)": ["np.asarray(v)", "  rule:", "  try:"],
    "def f(v):\n    raise KeyboardInterrupt\n\nts.jit(f)(x)": ["ts.jit(f)(x)", "raise KeyboardInterrupt"],
    "def f(v):\n    if v > 0:\n        return v\n\nts.vmap(f)(torch.ones(3))": [
        "ts.vmap(f)",
        "if v > 0:",
        "  got:",
        "  try:",
    ],
    "class N(torch.nn.Module):\n    def forward(self, v):\n        return v @ v\n\nN()(x)": ["N()(x)", "return v @ v"],
    "@torch.no_grad()\ndef f():\n    return x @ x\n\nf()": ["f()", "return x @ x", "must have same reduction dim"],
    "import functools\nfunctools.reduce(lambda a, b: a @ b, [x, x])": ["functools.reduce(", "must have same reduction"],
    "def h(g):\n    raise KeyError\n\np = x + 0\np.requires_grad_().register_hook(h)\np.sum().backward()": [
        "raise KeyError"
    ],
    "f = ts.jit(lambda v: f(v))\nf(x)": ["f(x)", "lambda v: f(v)", "RecursionError"],
    "torch.utils._pytree.tree_map(lambda a: a.foo, [x])": ["lambda a: a.foo", "has no attribute 'foo'"],
    "try:\n    x @ x\nexcept RuntimeError as error:\n    raise ValueError('mine') from error": [
        "x @ x",
        "ValueError: mine",
    ],
    "from course import predict\npredict('00.b', 'z')": ["predict('00.b', 'z')", "  got:", "  try:"],
    "try:\n    x @ x\nexcept RuntimeError:\n    missing": ["x @ x", "same reduction dim", "missing", "NameError"],
    "try:\n    x @ x\nexcept RuntimeError:\n    x[0] = 1": ["x @ x", "same reduction dim", "x[0] = 1", "  try:"],
}

RUN = """
import contextlib, io, json, sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
shell.colors = "nocolor"

import torch, tinyshard as ts  # not in a cell: at its end IPython sets sys.excepthook back

ts.init(devices=8, runtime="local")
mesh = ts.make_mesh((8,), ("x",))
rows = ts.NamedSharding(mesh, ts.P("x"))
x = ts.device_put(torch.ones(8, 4), rows)
shell.user_ns.update(torch=torch, ts=ts, mesh=mesh, rows=rows, x=x)

def in_notebook(source):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        shell.run_cell(source)
    return printed.getvalue()

def in_terminal(source, file):
    file.write_text(source)
    with contextlib.redirect_stderr(io.StringIO()) as printed:
        try:
            exec(compile(source, str(file), "exec"), dict(shell.user_ns))
        except BaseException:
            sys.excepthook(*sys.exc_info())
    return printed.getvalue()

cases = json.loads(sys.stdin.read())
shown = {source: (in_notebook(source), in_terminal(source, Path(f"{i}.py"))) for i, source in enumerate(cases)}
in_notebook("x @ x")
files, trace = [], sys.last_traceback
while trace is not None:
    files.append(trace.tb_frame.f_code.co_filename)
    trace = trace.tb_next
ts.config.update("tracebacks", "full")
print(json.dumps([shown, files, in_notebook("x @ x")]), flush=True)
ts.config.update("tracebacks", "short")
x @ x
"""

Shown = tuple[dict[str, tuple[str, str]], list[str], str, str]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """What a notebook and a terminal print for each case; a debugger's frames; a full traceback; the script's end."""
    asked = json.dumps(list(CASES))
    script = tmp_path_factory.mktemp("user") / "script.py"
    script.write_text(RUN)
    done = subprocess.run(
        [sys.executable, str(script)],
        input=asked,
        capture_output=True,
        text=True,
        cwd=script.parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 1, done.stderr
    cases, files, full = json.loads(done.stdout.splitlines()[-1])
    return cases, files, full, done.stderr


@pytest.mark.parametrize("source", CASES)
def test_an_error_shows_the_users_lines_and_its_words_on_one_screen(shown: Shown, source: str) -> None:
    for text in shown[0][source]:
        assert len(text.splitlines()) <= MOST_LINES
        assert [words for words in CASES[source] if words not in text] == []
        assert not any(library in text for library in ("tinyshard/", "course/", "site-packages/torch"))


def test_the_first_error_ends_with_how_to_see_all_frames_and_later_ones_do_not(shown: Shown) -> None:
    first, *later = [text for pair in shown[0].values() for text in pair]
    assert 'ts.config.update("tracebacks", "full")' in first.splitlines()[-1]
    assert [text for text in later if "ts.config.update" in text] == []


def test_a_debugger_finds_every_frame_of_an_error_that_was_shown_short(shown: Shown) -> None:
    assert any("tinyshard/arrays/array.py" in file for file in shown[1])


DEBUGGED = """
import torch, tinyshard as ts
ts.init(devices=2, runtime="local")
x = ts.array(torch.ones(8, 4))
def f(v):
    {stop}
    return v @ v
ts.jit(f)(x)
"""


IN_THE_TRACE = ["tinyshard/compile/tracing.py", "-> return v @ v"]
OF_THE_CALLER = ["-> ts.jit(f)(x)", "tinyshard/transforms/jitted.py"]


@pytest.mark.parametrize(
    ("stop", "options", "commands", "frames"),
    [
        ("breakpoint()", [], "where\nquit\n", IN_THE_TRACE),  # the frames of a thread: a trace has one of its own
        pytest.param(
            "pass",
            ["-m", "pdb"],
            "continue\nwhere\nquit\nquit\n",
            [*OF_THE_CALLER, *IN_THE_TRACE],
            marks=pytest.mark.whole,
        ),
    ],
    ids=["at a breakpoint", "after the error"],
)
def test_pdb_lists_every_frame(tmp_path: Path, stop: str, options: list[str], commands: str, frames: list[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text(DEBUGGED.format(stop=stop))
    done = subprocess.run(
        [sys.executable, *options, str(script)],
        input=commands,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    for frame in frames:
        assert frame in done.stdout


def test_the_flag_shows_every_frame(shown: Shown) -> None:
    assert "tinyshard/arrays/array.py" in shown[2] and len(shown[2].splitlines()) > MOST_LINES


def test_a_script_ends_with_its_own_line_and_the_error(shown: Shown) -> None:
    assert shown[3].startswith("Traceback (most recent call last):\n") and "script.py" in shown[3]
    assert len(shown[3].splitlines()) <= 6 and "tinyshard/" not in shown[3]


def test_the_environment_variable_sets_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    def fresh() -> ModuleType:
        spec = importlib.util.find_spec("tinyshard.core.config")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    monkeypatch.setenv("TINYSHARD_TRACEBACKS", "full")
    assert fresh().read("tracebacks") == "full"
    monkeypatch.setenv("TINYSHARD_TRACEBACKS", "long")
    with pytest.raises(ts.errors.UnknownFlagError, match="'tracebacks' takes 'short' or 'full'"):
        fresh()


# ---- in this process ----------------------------------------------------------------------------------------------


def caught(run: object) -> BaseException:
    try:
        run()  # type: ignore[operator]
    except BaseException as error:
        return error
    raise AssertionError("no error")


def printed(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))


def test_an_error_is_whole_again_after_it_was_shown() -> None:
    def convert() -> None:
        try:
            ts.P(object())  # type: ignore[arg-type]
        except Exception as error:
            raise KeyError("mine") from error

    error = caught(lambda: ts.vmap(lambda v: convert())(torch.ones(3)))
    whole = printed(error)
    with tracebacks.shortened(error):
        assert len(printed(error)) < len(whole)
        assert "convert" in printed(error)
    assert printed(error) == whole


def test_an_error_that_does_not_pass_through_tinyshard_is_shown_whole() -> None:
    error = caught(lambda: torch.nn.Linear(2, 3)(torch.ones(5)))
    with tracebacks.shortened(error):
        assert "torch/nn/modules/linear.py" in printed(error)


def test_an_error_of_tinyshards_that_torch_caught_keeps_its_words_without_frames() -> None:
    def convert() -> None:  # as torch.testing.assert_close does
        try:
            ts.make_mesh((0,), ("x",))
        except ValueError as error:
            assert error.__traceback__ is not None
            raise RuntimeError("of torch's") from error.with_traceback(error.__traceback__.tb_next)

    error = caught(convert)
    with tracebacks.shortened(error):
        assert "\ntinyshard.errors" not in printed(error).partition("Traceback")[0]
        assert "  got:" in printed(error) and "tinyshard/" not in printed(error)


def test_an_error_without_a_line_of_the_users_is_shown_whole() -> None:
    error = caught(lambda: ts.make_mesh((0,), ("x",)))
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next and error.__traceback__.tb_next.tb_next  # from tinyshard on
    whole = printed(error)
    assert "tinyshard/" in whole
    with tracebacks.shortened(error):
        assert whole in printed(error)


def test_notes_of_an_error_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracebacks, "_is_hint_shown", False)
    error = caught(lambda: ts.make_mesh((0,), ("x",)))
    error.add_note("mine")
    with tracebacks.shortened(error):
        assert "\nmine\nFrames of tinyshard and torch are hidden" in printed(error)
    assert error.__notes__ == ["mine"]


def test_an_error_that_ends_a_thread_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(printed(args.exc_value)))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    tracebacks.install()
    thread = threading.Thread(target=lambda: ts.make_mesh((0,), ("x",)))
    thread.start()
    thread.join()
    assert len(shown) == 1 and "tinyshard/" not in shown[0]
    assert config.read("tracebacks") == "short"

"""tinyshard/README.md names the files that three calls pass, and no others."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "tinyshard" / "README.md"

FOLLOW = """
import json, sys, torch, tinyshard as ts
from pathlib import Path

PACKAGE = Path(ts.__file__).parent

def passed(call):
    "The files of tinyshard that a call enters, in order; what the runtime enters by itself is left out."
    files = []
    def enter(frame, event, argument):
        around, here = frame, Path(frame.f_code.co_filename)
        while around is not None and not around.f_code.co_filename.endswith("runtime/local.py"):
            around = around.f_back
        if around is None and here.is_relative_to(PACKAGE):
            files.append(here.relative_to(PACKAGE).as_posix())
    sys.settrace(enter)
    try:
        call()
    finally:
        sys.settrace(None)
    return list(dict.fromkeys(file for file in files if not file.startswith("runtime/")))

ts.init(devices=8, runtime="local")
mesh = ts.make_mesh((8,), ("x",))
x = ts.device_put(torch.ones(8, 4), ts.NamedSharding(mesh, ts.P("x")))
y = ts.device_put(torch.ones(4, 4), ts.NamedSharding(mesh, ts.P()))
calls = {
    "eager": lambda: torch.sin(x) @ y,
    "jit": lambda f=ts.jit(lambda x, y: torch.sin(x) @ y): f(x, y),
    "pmap": lambda f=ts.pmap(lambda v: v / ts.lax.psum(v, "i"), axis_name="i"): f(x),
}
print(json.dumps({name: [passed(call), passed(call)] for name, call in calls.items()}))
"""


@pytest.fixture(scope="module")
def ways() -> dict[str, list[list[str]]]:
    """For each call the files that it passes the first time, and the second time."""
    done = subprocess.run([sys.executable, "-c", FOLLOW], capture_output=True, text=True, check=True, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1])


def named(text: str) -> set[str]:
    return set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", text))


def sections() -> list[str]:
    return PAGE.read_text("utf-8").split("\n## ")[1:]


def test_an_op_on_arrays_passes_the_files_that_the_page_names(ways: dict[str, list[list[str]]]) -> None:
    first, again = ways["eager"]
    assert set(first) == named(sections()[0])
    assert set(again) == named(sections()[0].partition("The first time")[0])


@pytest.mark.parametrize("name, number", [("jit", 1), ("pmap", 2)])
def test_the_first_call_passes_the_files_that_the_page_names(
    ways: dict[str, list[list[str]]], name: str, number: int
) -> None:
    here, before = named(sections()[number]), set().union(*map(named, sections()[:number]))
    first = set(ways[name][0])
    assert here - first == set(), "named, not passed"
    assert first - here - before == set(), "passed, not named"


@pytest.mark.parametrize("name, number", [("jit", 1), ("pmap", 2)])
def test_a_call_like_an_earlier_one_passes_few_files(ways: dict[str, list[list[str]]], name: str, number: int) -> None:
    again, _, _ = sections()[number].partition("The first time")
    jit = named(sections()[1].partition("The first time")[0])
    assert set(ways[name][1]) == named(again) | jit


def test_a_call_passes_no_more_files_than_these(ways: dict[str, list[list[str]]]) -> None:
    counts = {name: (len(first), len(again)) for name, (first, again) in ways.items()}
    assert counts == {"eager": (27, 4), "jit": (36, 6), "pmap": (47, 6)}, "lower them where a hop has gone"

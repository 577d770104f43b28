"""The table of deliberate faults, without planting one: its rows fit the code and the tests that are there."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.mutants import __main__ as mutants
from tests.mutants.__main__ import ROOT, Ended, among, said_of
from tests.mutants.faults import FAULTS, Fault
from tests.rows import for_every_row

LEAST = 44
SLOW = ("tests/workers/", "tests/browser/", "tests/sweeps/", "tests/notebooks/", "tests/gpu/")
FAULT = Fault("a sum is a difference", "a.py", "+", "-", ("tests/test_a.py::test_a_sum",))


def names_in(file: str) -> set[str]:
    """The names that a doctest or a test of a file can have: functions, classes, and methods with a point."""
    found = set()
    for node in ast.parse((ROOT / file).read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)}
    return found


def folders_with_code(package: str) -> set[str]:
    """The folders of a package that hold modules, besides the empty `__init__`."""
    return {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / package).rglob("*.py")}


@for_every_row(FAULTS)
def test_what_a_fault_replaces_is_there_once_and_what_it_puts_there_is_another_text(fault: Fault) -> None:
    assert (ROOT / fault.file).read_text("utf-8").count(fault.old) == 1, (fault.name, fault.file)
    assert fault.new != fault.old, fault.name


@for_every_row(FAULTS)
def test_a_fault_leaves_python_that_can_be_parsed(fault: Fault) -> None:
    if fault.file.endswith(".py"):
        ast.parse((ROOT / fault.file).read_text("utf-8").replace(fault.old, fault.new))


@for_every_row(FAULTS)
def test_the_tests_that_a_fault_names_are_there_and_fast(fault: Fault) -> None:
    assert 1 <= len(fault.caught_by) <= 2, fault.name
    for test in fault.caught_by:
        file, _, name = test.partition("::")
        assert not test.startswith(SLOW), test
        module = "" if file.startswith("tests/") else file.removesuffix(".py").replace("/", ".") + "."
        assert name.partition("[")[0].removeprefix(module) in names_in(file), test


def test_there_are_many_faults_each_with_a_name_of_its_own_and_one_in_every_folder() -> None:
    assert len(FAULTS) >= LEAST
    assert max(Counter(fault.name for fault in FAULTS).values()) == 1
    folders = {Path(fault.file).parent.as_posix() for fault in FAULTS}
    assert (folders_with_code("tinyshard") | folders_with_code("course")) <= folders


@pytest.mark.parametrize(
    "code, failed, is_caught",
    [
        (1, {"tests/test_a.py::test_a_sum"}, True),
        (1, {"tests/test_a.py::test_a_sum[row]"}, True),
        (1, {"tests/test_a.py::test_a_sum_of_others"}, False),
        (1, set(), False),
        (2, {"tests/test_a.py::test_a_sum"}, False),
        (0, set(), False),
        (None, {"tests/test_a.py::test_a_sum"}, False),
    ],
    ids=["the test", "a row of it", "another test", "an error", "interrupted", "passed", "hung"],
)
def test_a_fault_is_caught_only_by_a_failure_of_its_own_test(code, failed, is_caught) -> None:
    found, line = said_of(FAULT, Ended(code, frozenset(failed), frozenset(), "1 failed"))
    assert found == is_caught
    assert line.startswith("caught" if is_caught else "NOT CAUGHT")
    assert ("hung" in line) == (code is None)


def test_ids_are_read_from_what_pytest_prints(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text(
        "import pytest\n\n\n"
        "@pytest.mark.parametrize('x', ['a - b', 'c'])\n"
        "def test_x(x):\n    assert x == 'c', 'no - it is not'\n\n\n"
        "def test_y():\n    pass\n"
    )
    ended = mutants.run(tmp_path, ["tests/test_a.py::test_x", "tests/test_a.py::test_y"], 60)
    assert ended.code == 1
    assert among("tests/test_a.py::test_x", ended.failed)
    assert ended.passed == {"tests/test_a.py::test_x[c]", "tests/test_a.py::test_y"}


def test_a_fault_is_planted_and_taken_away_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("TOTAL = 1 + 1\n")
    seen = []

    def read(folder: Path, *_: object) -> Ended:
        seen.append((folder / "a.py").read_text())
        return Ended(1, frozenset(FAULT.caught_by), frozenset(), "")

    monkeypatch.setattr(mutants, "run", read)
    assert said_of(FAULT, mutants.planted(tmp_path, FAULT))[0]
    assert seen == ["TOTAL = 1 - 1\n"]
    assert (tmp_path / "a.py").read_text() == "TOTAL = 1 + 1\n"

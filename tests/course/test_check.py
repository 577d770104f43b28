"""`check` says how an answer does, raises for none, comes back from all, and keeps the learner's progress."""

import errno
import json
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
import torch

import tinyshard as ts
from course import check, checking, deadline, exercises, progress
from course.exercises import UnknownExerciseError
from course.exercises.exercise import PASSED, Exercise, Verdict, differs, is_untouched
from course.progress import PROGRESS, Record, note, read_progress


def judge_three(answer: object) -> Verdict:
    if callable(answer):
        answer = answer()
    if answer == -3:
        return differs("it is negative", hint="Count up, not down.")
    return PASSED if answer == 3 else differs(f"it is {answer}, not 3")


@pytest.fixture(autouse=True)
def exercise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One exercise, 99.1, in an empty folder."""
    made = Exercise("99.1", judge_three, ("How many are there?", "More than two.", "Write 3."))
    monkeypatch.setattr(checking, "exercise_of", lambda id: made)
    monkeypatch.chdir(tmp_path)


def said(capsys: pytest.CaptureFixture[str], answer: object) -> list[str]:
    check("99.1", answer)
    return capsys.readouterr().out.splitlines()


def test_an_untouched_answer_is_not_yet_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert said(capsys, None) == ["99.1: not yet"]
    assert said(capsys, lambda: None) == ["99.1: not yet"]
    assert list(tmp_path.iterdir()) == []


def test_a_right_answer_is_passed_and_stays_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert said(capsys, 3) == ["99.1: passed"]
    said(capsys, 4)
    assert read_progress(tmp_path) == {"99.1": Record(wrong=1, is_passed=True)}


def test_after_passed_stands_why_the_answer_is_right(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Exercise("99.1", judge_three, ("One?", "Two?"), why="There are three of them. " * 6)
    monkeypatch.setattr(checking, "exercise_of", lambda id: made)
    told = said(capsys, 3)
    assert told[:2] == ["99.1: passed", "  why:  " + "There are three of them. " * 3 + "There"]
    assert told[2].startswith("    are three of them. There")


def test_why_may_depend_on_the_answer_and_is_not_asked_of_a_wrong_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def why(answer: object) -> str:
        asked.append(answer)
        return "You counted them." if callable(answer) else f"There are {answer}."

    exercise = Exercise("99.1", judge_three, ("One?", "Two?"), why=why)
    monkeypatch.setattr(checking, "exercise_of", lambda id: exercise)
    assert said(capsys, 3) == ["99.1: passed", "  why:  There are 3."]
    assert said(capsys, lambda: 3)[1:] == ["  why:  You counted them."]
    said(capsys, 4)
    said(capsys, None)
    assert len(asked) == 2


def test_wrong_answers_climb_the_ladder_and_stay_on_its_last_rung(capsys: pytest.CaptureFixture[str]) -> None:
    hints = [said(capsys, number)[1] for number in (4, 5, 6, 7)]
    assert hints == [
        "  hint 1 of 3: How many are there?",
        "  hint 2 of 3: More than two.",
        "  hint 3 of 3: Write 3.",
        "  hint 3 of 3: Write 3.",
    ]


def test_a_misconception_gets_its_own_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, -3) == ["99.1: it is negative", "  hint: Count up, not down."]


def test_a_misconception_with_its_own_hint_does_not_climb_the_ladder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for _ in range(3):
        said(capsys, -3)
    assert said(capsys, 4)[1] == "  hint 1 of 3: How many are there?"
    assert read_progress(tmp_path) == {"99.1": Record(wrong=4, recognised=3)}


def test_of_an_error_of_tinyshard_got_rule_and_try_stand_in_place_of_a_rung(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def uneven() -> object:
        sharding = ts.NamedSharding(ts.AbstractMesh((4,), ("x",)), ts.P("x"))
        return sharding.shard_shape((10, 6))

    told = said(capsys, uneven)
    assert told[1] == "  at:   return sharding.shard_shape((10, 6))"
    assert [line[:8] for line in told[2:] if line[2:3] != " "] == ["  got:  ", "  rule: ", "  try:  "]
    assert "multiple of 4" in " ".join(told)
    assert said(capsys, 4)[1] == "  hint 1 of 3: How many are there?"


def test_a_crashing_answer_gets_its_error_its_line_and_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    def crashing() -> float:
        nothing = 0
        return 1 / nothing

    assert said(capsys, crashing) == [
        "99.1: it raised ZeroDivisionError: division by zero",
        "  at:   return 1 / nothing",
        "  hint 1 of 3: How many are there?",
    ]


def test_of_an_error_on_a_device_the_cause_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    ts.init(devices=2, runtime="local")

    def beyond() -> object:
        return torch.gather(ts.array([1.0, 2.0]), 0, ts.array([9])).tolist()

    told = "99.1: it raised RemoteError: RuntimeError: index 9 is out of bounds for dimension 0 with size 2"
    assert said(capsys, beyond)[0].startswith(told)


@pytest.mark.parametrize("error", [SystemExit(2), RecursionError(), ExceptionGroup("two", [ValueError("x")])])
def test_no_error_of_an_answer_reaches_the_cell(capsys: pytest.CaptureFixture[str], error: BaseException) -> None:
    def raising() -> None:
        raise error

    assert said(capsys, raising)[0].startswith(f"99.1: it raised {type(error).__name__}: ")


def test_an_answer_that_cannot_be_compared_is_a_wrong_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Odd:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("do not ask")

    made = Exercise("99.1", judge_three, ("One?", "Two?"), stub=Odd())
    monkeypatch.setattr(checking, "exercise_of", lambda id: made)
    assert said(capsys, Odd())[0] == "99.1: it raised RuntimeError: do not ask"


def test_an_answer_without_end_is_stopped(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "LIMIT_S", 0.1)

    def endless() -> None:
        while True:
            pass

    assert said(capsys, endless)[0] == "99.1: it was still running after 0.1 seconds, and was stopped"


def test_an_answer_that_sleeps_in_a_lock_is_stopped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "LIMIT_S", 0.1)
    assert "still running" in said(capsys, threading.Event().wait)[0]


def test_an_answer_that_swallows_one_interrupt_is_interrupted_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "LIMIT_S", 0.1)

    def stubborn() -> None:
        try:
            threading.Event().wait()
        except BaseException:
            threading.Event().wait()

    assert "still running" in said(capsys, stubborn)[0]


def test_the_learners_own_interrupt_ends_the_check() -> None:
    with pytest.raises(KeyboardInterrupt):
        check("99.1", lambda: signal.raise_signal(signal.SIGINT))


def test_in_another_thread_there_is_no_limit_and_no_interrupt() -> None:
    done = []

    def work() -> None:
        with deadline.deadline(0.0):
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


@pytest.mark.parametrize("damaged", ["", "[]", '{"99.1": 3}', '{"99.1": {"wrong": "many"}}', '{"99.1": {"wr'])
def test_a_damaged_progress_file_counts_as_empty(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, damaged: str
) -> None:
    (tmp_path / PROGRESS).write_text(damaged)
    assert said(capsys, 3) == ["99.1: passed"]
    assert json.loads((tmp_path / PROGRESS).read_text()) == {
        "edition": 3,
        "exercises": {"99.1": {"wrong": 0, "passed": True, "recognised": 0}},
    }


def test_what_two_kernels_write_at_once_is_both_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    is_at_the_lock_or_done = threading.Event()
    lock = fcntl.flock

    def flock(*arguments: object) -> None:
        if threading.current_thread() is other:
            is_at_the_lock_or_done.set()
        lock(*arguments)

    def note_another() -> None:
        note(tmp_path, "99.2", True)
        is_at_the_lock_or_done.set()

    def read(folder: Path) -> dict[str, Record]:
        known = read_progress(folder)
        if threading.current_thread() is not other:
            other.start()
            assert is_at_the_lock_or_done.wait(60)
        return known

    other = threading.Thread(target=note_another)
    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr(progress, "read_progress", read)
    note(tmp_path, "99.1", True)
    other.join()
    assert set(read_progress(tmp_path)) == {"99.1", "99.2"}


def test_a_kernel_that_is_stopped_while_it_writes_holds_up_no_other(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    others = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(others, fcntl.LOCK_EX)
        assert note(tmp_path, "99.1", True).is_passed
    finally:
        os.close(others)
    assert set(read_progress(tmp_path)) == {"99.1"}


def test_of_a_write_that_fails_nothing_is_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    note(tmp_path, "99.1", True)

    def fill_the_disk(source: Path, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", fill_the_disk)
    with pytest.raises(OSError, match="No space"):
        note(tmp_path, "99.2", True)
    assert [each.name for each in tmp_path.iterdir()] == [PROGRESS]
    assert set(read_progress(tmp_path)) == {"99.1"}


def test_a_folder_that_cannot_be_written_is_said_and_the_answer_is_checked_all_the_same(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "_unkept", Counter())
    (tmp_path / PROGRESS).mkdir()  # a folder in its place: also for root, who may write everywhere
    assert said(capsys, 4) == [
        "99.1: it is 4, not 3",
        "  hint 1 of 3: How many are there?",
        "  progress is not kept: Is a directory",
    ]
    assert [said(capsys, number)[1] for number in (5, 6, 7)] == [
        "  hint 2 of 3: More than two.",
        "  hint 3 of 3: Write 3.",
        "  hint 3 of 3: Write 3.",
    ]


def test_an_exercise_that_is_not_there_is_an_error_that_names_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for id in ("99.1", "1", "", 4.2):
        with pytest.raises(UnknownExerciseError, match="rule: the lesson, a point and the exercise's number"):
            check(id, 3)  # type: ignore[arg-type]
    assert exercises.exercises_of("99") == {}


def some_stub(x: int) -> int:
    """A docstring, which the lesson's cell does not have."""
    y = [i + 1 for i in range(x)]
    return len(y)


def test_a_function_to_mend_is_untouched_until_its_code_changes() -> None:
    def same(x: int) -> int:
        y = [i + 1 for i in range(x)]
        return len(y)

    def mended(x: int) -> int:
        y = [i + 2 for i in range(x)]
        return len(y)

    assert is_untouched(same, some_stub)
    assert not is_untouched(mended, some_stub)


def test_a_function_to_mend_is_known_without_the_imports_around_it() -> None:
    source = "def watch(x):\n    time.sleep(x)\n    return time.perf_counter()\n"
    with_import: dict[str, object] = {}
    without: dict[str, object] = {"time": time}
    exec("import time\n" + source, with_import)
    exec(source, without)
    assert is_untouched(without["watch"], with_import["watch"])


def test_functions_with_nothing_in_them_are_untouched_and_others_are_not() -> None:
    def documented(x: int) -> None:
        """What it should do."""

    def dots(x: int) -> None: ...

    def passes(x: int) -> None:
        pass

    assert all(map(is_untouched, (documented, dots, passes, lambda x: None, lambda x: ...)))
    assert not any(map(is_untouched, (lambda x: x, lambda: 0, lambda x: print(x), print, int)))


def test_only_a_value_equal_to_the_stub_is_untouched() -> None:
    assert is_untouched([None, None], [None, None])
    assert not is_untouched([None, 1], [None, None])
    assert not is_untouched((None, None), [None, None])
    assert not is_untouched(0, False)

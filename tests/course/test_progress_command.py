"""`tinyshard progress`: what is passed, tried and still to do."""

import argparse
import json
from pathlib import Path

import pytest

import course.commands.progress
from course.commands.progress import progress_lines, show_progress
from course.progress import Record, note

EXERCISES = {"01  When?": ["01.1", "01.2"], "02  Where?": ["02.1", "02.2", "02.3"], "03  Talk": []}
PASSED = Record(is_passed=True)


def test_nothing_done_names_the_first_exercise() -> None:
    assert progress_lines(EXERCISES, {}) == [
        "□□   0 of 2  01  When?",
        "□□□  0 of 3  02  Where?",
        "",
        "0 of 5 exercises passed. Next: 01.1.",
    ]


def test_passed_and_tried_ones_are_marked_and_the_next_is_the_first_that_is_not_passed() -> None:
    known = {"01.1": PASSED, "01.2": Record(wrong=1), "02.3": PASSED, "99.1": PASSED}
    assert progress_lines(EXERCISES, known) == [
        "■▪   1 of 2  01  When?",
        "□□■  1 of 3  02  Where?",
        "",
        "2 of 5 exercises passed. Next: 01.2, tried 1 time.",
    ]


def test_all_done_has_no_next() -> None:
    known = {id: PASSED for ids in EXERCISES.values() for id in ids}
    assert progress_lines(EXERCISES, known)[-1] == "5 of 5 exercises passed."


def test_what_checks_wrote_down_in_the_working_copy_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    cell = {"cell_type": "markdown", "source": ["# A question?\n", "### Exercise 04.1: a ring (5 minutes)"]}
    (tmp_path / "04-a-question.ipynb").write_text(json.dumps({"cells": [cell]}))
    note(tmp_path, "04.1", is_passed=True)
    monkeypatch.setattr(course.commands.progress, "shipped_folder", lambda: tmp_path)
    monkeypatch.setattr(course.commands.progress, "working_folder", lambda named: tmp_path)
    assert show_progress(argparse.Namespace(folder=None)) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first == "■  1 of 1  04  A question?"
    assert last == f"The working copy is {tmp_path}."

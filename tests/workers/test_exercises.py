"""What the checks say where learners ask them: on real processes, where results are late.

Every answer is asked on the local runtime by tests/course; here, in `make test`, those to the lesson about waiting.
"""

import importlib
from pathlib import Path

import pytest

from course import check, checking
from course.exercises import exercises_of, lesson_numbers
from course.solutions.answers import Answers, Made, Wrong
from tests.extent import mostly_whole
from tinyshard.runtime.controller.pool import ProcessPool

IDS = [id for lesson in lesson_numbers() for id in exercises_of(lesson)]
WAITING = exercises_of("01")


def answers_of(id: str) -> Answers:
    found = importlib.import_module(f"course.solutions.lesson_{id.partition('.')[0]}").ANSWERS[id]
    assert isinstance(found, Answers)
    return found


def made(answer: object) -> object:
    return answer.make() if isinstance(answer, Made) else answer


@pytest.fixture(autouse=True)
def working_folder(pool: ProcessPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checking, "LIMIT_S", 250.0)


@pytest.mark.parametrize("id", mostly_whole(IDS, WAITING.__contains__))
def test_the_solution_is_passed(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    check(id, made(answers_of(id).solution))
    assert capsys.readouterr().out.startswith(f"{id}: passed\n  why:  ")


# Lesson 01 is about waiting: only here does an answer that does not wait get a result that is not there.
@pytest.mark.parametrize("id, wrong", [(id, wrong) for id in WAITING for wrong in answers_of(id).wrong])
def test_an_answer_about_waiting_gets_its_hint(id: str, wrong: Wrong, capsys: pytest.CaptureFixture[str]) -> None:
    check(id, made(wrong.answer))
    assert wrong.hint in " ".join(capsys.readouterr().out.partition("\n  hint")[2].split())

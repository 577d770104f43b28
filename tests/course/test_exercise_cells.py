"""The lessons and the exercises agree: each exercise has its four cells, and each check in a lesson has an exercise."""

import re
from typing import Any

from course.exercises import exercises_of, lesson_numbers
from tests.course.lesson_cells import CHECK, EXERCISE, LESSONS, stored_cells
from tests.rows import for_every_row


def ids_in(cells: list[dict[str, Any]], cell_type: str, pattern: re.Pattern[str]) -> list[str]:
    return [found[1] for cell in cells if cell["cell_type"] == cell_type for found in pattern.finditer(cell["source"])]


@for_every_row(lesson_numbers())
def test_each_exercise_of_a_lesson_has_its_heading_with_minutes_and_its_check(lesson: str) -> None:
    cells = stored_cells(LESSONS[lesson])
    assert ids_in(cells, "markdown", EXERCISE) == list(exercises_of(lesson))
    assert ids_in(cells, "code", CHECK) == list(exercises_of(lesson))


@for_every_row(LESSONS)
def test_no_lesson_checks_an_exercise_that_is_not_there(lesson: str) -> None:
    assert set(ids_in(stored_cells(LESSONS[lesson]), "code", CHECK)) == set(exercises_of(lesson))


@for_every_row(lesson_numbers())
def test_what_a_lesson_stores_of_a_check_is_not_yet(lesson: str) -> None:
    for cell in stored_cells(LESSONS[lesson]):
        found = CHECK.search(cell["source"]) if cell["cell_type"] == "code" else None
        if found:
            (output,) = cell["outputs"]
            assert "".join(output["data"]["text/plain"]) == f"{found[1]}: not yet"
            assert "not yet" in "".join(output["data"]["text/html"])


@for_every_row(lesson_numbers())
def test_a_task_says_its_target_and_the_lesson_no_solution(lesson: str) -> None:
    for cell in stored_cells(LESSONS[lesson]):
        if EXERCISE.search(cell["source"]):
            assert "**Target:**" in cell["source"]
        assert "<summary>A hint" not in cell["source"]

"""The lessons and the predictions agree: each is asked in a cell of its own, and explained after it."""

import re
from pathlib import Path

from course.predictions import lesson_numbers, predictions_of
from tests.course.lesson_cells import LESSONS, PREDICT, stored_cells
from tests.rows import for_every_row

EXPLAIN = re.compile(r'^explain\("([^"]*)"\)$', flags=re.MULTILINE)


def code_of(path: Path) -> list[str]:
    return [cell["source"] for cell in stored_cells(path) if cell["cell_type"] == "code"]


def places(cells: list[str], pattern: re.Pattern[str]) -> dict[str, int]:
    """Id → the number of the code cell in which it is asked or explained; each only once."""
    found = [(match[1], number) for number, source in enumerate(cells) for match in pattern.finditer(source)]
    assert len(dict(found)) == len(found), found
    return dict(found)


@for_every_row(LESSONS)
def test_what_a_lesson_asks_and_explains_are_its_predictions_in_their_order(lesson: str) -> None:
    cells, ids = code_of(LESSONS[lesson]), list(predictions_of(lesson))
    assert list(places(cells, PREDICT)) == ids
    assert sorted(places(cells, EXPLAIN)) == sorted(ids)


@for_every_row(lesson_numbers())
def test_a_prediction_stands_alone_in_its_cell_and_is_explained_at_the_end_of_a_later_one(lesson: str) -> None:
    cells = code_of(LESSONS[lesson])
    asked, explained = places(cells, PREDICT), places(cells, EXPLAIN)
    for id, number in asked.items():
        assert cells[number] == f'predict("{id}")'
        assert explained[id] > number
        assert cells[explained[id]].splitlines()[-1] == f'explain("{id}")'


@for_every_row(lesson_numbers())
def test_a_lesson_has_four_to_six_predictions_with_its_own_number(lesson: str) -> None:
    ids = list(predictions_of(lesson))
    assert 4 <= len(ids) <= 6
    assert ids == [f"{lesson}.{letter}" for letter in "abcdef"[: len(ids)]]


@for_every_row(lesson_numbers())
def test_the_right_choice_is_not_always_at_the_same_place(lesson: str) -> None:
    assert len({prediction.right for prediction in predictions_of(lesson).values()}) > 1

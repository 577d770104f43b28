"""The minutes on a lesson's first page: as many as there is to read and to do, and the same on the map of lessons."""

from pathlib import Path

import pytest

from course.lessons import shipped_folder
from tests.course.lesson_cells import LESSONS, cells_of, exercising, longest_stretch, parted, promised
from tests.rows import for_every_row

MAP = Path(shipped_folder()) / "README.md"


@for_every_row(LESSONS)
def test_the_minutes_of_teaching_are_within_a_third_of_what_is_there_to_read_and_run(lesson: str) -> None:
    cells = cells_of(LESSONS[lesson])
    told, counted = promised(cells)[0], sum(cell.minutes for cell in cells)
    assert abs(told - counted) <= counted / 3, (told, round(counted, 1))


@for_every_row(LESSONS)
def test_the_minutes_of_exercises_are_their_sum_or_a_little_more(lesson: str) -> None:
    cells = cells_of(LESSONS[lesson])
    assert 0 <= promised(cells)[1] - sum(exercising(cells).values()) < 5


@for_every_row(LESSONS)
def test_the_map_says_the_minutes_of_the_first_page(lesson: str) -> None:
    (row,) = [line for line in MAP.read_text("utf-8").splitlines() if line.startswith(f"| [{lesson} ")]
    assert row.endswith("| {} + {} |".format(*promised(cells_of(LESSONS[lesson]))))


WORDS = "word " * 400

SMALL = [
    ("markdown", f"# A question?\n{WORDS}"),
    ("code", "widgets.two_views()"),
    ("markdown", "**Predict.** How many?"),
    ("code", 'predict("05.a")'),
    ("code", 'run()\nexplain("05.a")'),
    ("markdown", f"### Exercise 05.1: a ring (5 minutes)\n{WORDS}"),
    ("code", "answer = None"),
    ("code", "answer"),
    ("code", 'check("05.1", answer)'),
    ("markdown", f"## Next\n{WORDS}"),
    ("code", "widgets.two_views()"),
    ("markdown", f"### Exercise 05.2: another (4 minutes)\n{WORDS}"),
    ("code", 'check("05.2", answer)'),
    ("markdown", f"## With a pencil: at scale\n{WORDS}"),
    ("markdown", WORDS),
    ("markdown", "## Box: the same"),
]


def test_exercises_and_the_pencil_are_no_teaching_and_what_follows_them_is() -> None:
    cells = parted(SMALL)
    assert "".join(cell.part[0] for cell in cells) == "ttttteeeetteeppt"
    assert exercising(cells) == {"05.1": 5, "05.2": 4}


def test_teaching_is_words_cells_predictions_and_one_picture() -> None:
    minutes = [round(cell.minutes, 1) for cell in parted(SMALL)]
    assert minutes == [2.0, 5.5, 0.5, 0.5, 0.5, 0, 0, 0, 0, 2.0, 0.5, 0, 0, 0, 0, 0.0]


def test_the_longest_stretch_ends_at_a_prediction_or_an_exercise() -> None:
    assert longest_stretch(parted(SMALL)) == pytest.approx(8.0, abs=0.1)
    assert longest_stretch(parted(SMALL[4:])) == pytest.approx(7.5, abs=0.1)

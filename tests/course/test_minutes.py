"""The minutes on a lesson's first page: as many as there is to read and to do, and the same on the map of lessons."""

import json
import re
from pathlib import Path

import pytest

from course.lessons import find_lessons, shipped_folder

LESSONS = {lesson.number: lesson.path for lesson in find_lessons(shipped_folder())}
MAP = Path(shipped_folder()) / "README.md"

# What a minute goes to, for somebody who reads every word, writes each prediction down and touches the picture.
WORDS_A_MINUTE = 200
CELL, PREDICTION, PICTURE = 0.5, 0.5, 5.0


def cells_of(path: Path) -> list[tuple[str, str]]:
    return [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text("utf-8"))["cells"]]


def promised(cells: list[tuple[str, str]]) -> tuple[int, int]:
    """Minutes of teaching and of exercises, on the first page."""
    found = re.search(r"about (\d+) minutes of teaching and (\d+) minutes of", " ".join(cells[0][1].split()))
    return int(found[1]), int(found[2])


def teaching(cells: list[tuple[str, str]]) -> float:
    """Minutes that reading and running all but the exercises takes."""
    minutes = 0.0
    for kind, source in cells:
        if kind == "markdown" and re.search(r"^## (Exercises|Puzzles)", source, flags=re.MULTILINE):
            break
        if kind == "markdown":
            minutes += len(source.split()) / WORDS_A_MINUTE + source.count("**Predict") * PREDICTION
        else:
            minutes += CELL
    is_touched = any(kind == "code" and "widgets." in source for kind, source in cells)
    return minutes + PICTURE * is_touched


def exercising(cells: list[tuple[str, str]]) -> int:
    titles = re.compile(r"^### .*\((\d+) minutes?\)", re.MULTILINE)
    return sum(int(minutes) for _, source in cells for minutes in titles.findall(source))


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_minutes_of_teaching_are_within_a_third_of_what_is_there_to_read_and_run(lesson: str) -> None:
    cells = cells_of(LESSONS[lesson])
    told, counted = promised(cells)[0], teaching(cells)
    assert abs(told - counted) <= counted / 3, (told, round(counted, 1))


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_minutes_of_exercises_are_their_sum_or_a_little_more(lesson: str) -> None:
    cells = cells_of(LESSONS[lesson])
    assert 0 <= promised(cells)[1] - exercising(cells) < 5


@pytest.mark.parametrize("lesson", LESSONS)
def test_the_map_says_the_minutes_of_the_first_page(lesson: str) -> None:
    (row,) = [line for line in MAP.read_text("utf-8").splitlines() if line.startswith(f"| [{lesson} ")]
    assert row.endswith("| {} + {} |".format(*promised(cells_of(LESSONS[lesson]))))

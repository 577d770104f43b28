"""A run sheet for each lesson: its clock adds up and is the lesson's, its checks exist, and it quotes the notebook."""

import ast
import re
from itertools import pairwise
from pathlib import Path

from course.exercises import exercises_of
from course.lessons import find_lessons, shipped_folder
from course.predictions import predictions_of
from tests.course.lesson_cells import APPENDIX, cells_of, promised
from tests.course.tables import minutes, tables
from tests.rows import for_every_row

ROOT = Path(__file__).parents[2]
SHEETS = ROOT / "course/instructor/lessons"
SHEETED = {lesson.number: lesson for lesson in find_lessons(shipped_folder())}
LESSONS = {number: lesson for number, lesson in SHEETED.items() if number != APPENDIX}  # with predictions, exercises
AT_LEAST_EVERY, BELIEFS = 15, 3
ID = re.compile(r"\b(?:\d\d|[A-Z])\.(?:\d+|[a-z])\b")


def sheet(number: str) -> str:
    return (SHEETS / f"{number}.md").read_text("utf-8")


def clock(number: str) -> list[tuple[int, int, str]]:
    """Start, minutes, and what happens."""
    (found,) = tables(sheet(number), "clock")
    return [(minutes(start), int(lasts), what) for start, lasts, what, _ in found]


def beliefs(number: str) -> list[list[str]]:
    (found,) = tables(sheet(number), "they believe")
    return found


@for_every_row(SHEETED)
def test_a_sheet_has_the_lessons_title_and_its_parts(number: str) -> None:
    text = sheet(number)
    assert text.splitlines()[0] == f"# {number} {SHEETED[number].title}"
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == [
        "What they usually believe",
        "When 15 minutes are missing",
    ]
    assert text.partition("## When 15 minutes are missing\n")[2].strip()


@for_every_row(SHEETED)
def test_the_clock_of_a_lesson_adds_up_to_the_minutes_that_it_promises(number: str) -> None:
    rows = clock(number)
    assert rows[0][0] == 0
    assert all(start + lasts == after for (start, lasts, _), (after, _, _) in pairwise(rows))
    assert abs(sum(rows[-1][:2]) - sum(promised(cells_of(SHEETED[number].path)))) <= 5


@for_every_row(LESSONS)
def test_every_quarter_of_an_hour_something_shows_whether_they_follow(number: str) -> None:
    checks = [(start, start + lasts) for start, lasts, what in clock(number) if what.startswith("check:")]
    end = sum(clock(number)[-1][:2])
    gaps = [start - before for (_, before), (start, _) in pairwise([(0, 0), *checks, (end, end)])]
    assert max(gaps) <= AT_LEAST_EVERY, gaps


@for_every_row(LESSONS)
def test_the_checks_of_a_sheet_are_exercises_and_predictions_of_its_lesson_and_no_exercise_is_forgotten(
    number: str,
) -> None:
    known = {*exercises_of(number), *predictions_of(number)}
    checks = [ID.findall(what) for _, _, what in clock(number) if what.startswith("check:")]
    assert all(checks), "a check without an id"
    named = {id for ids in checks for id in ids}
    assert named <= known, named - known
    assert set(exercises_of(number)) <= named, set(exercises_of(number)) - named


BELIEFS_OF = [(number, *row[1:]) for number in LESSONS if (SHEETS / f"{number}.md").exists() for row in beliefs(number)]


@for_every_row(BELIEFS_OF)
def test_what_answers_a_belief_is_what_the_notebook_says(number: str, id: str, quoted: str) -> None:
    if id in predictions_of(number):
        said = [choice.answer for choice in predictions_of(number)[id].choices]
    else:
        assert id in exercises_of(number)
        tree = ast.parse((ROOT / f"course/exercises/lesson_{number}.py").read_text("utf-8"))
        said = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    assert len(quoted) > 8
    assert any(quoted in text for text in said), quoted


@for_every_row(LESSONS)
def test_a_sheet_names_three_beliefs_or_more(number: str) -> None:
    assert len(beliefs(number)) >= BELIEFS


def test_there_is_no_sheet_without_its_lesson() -> None:
    assert {path.stem for path in SHEETS.glob("*.md")} <= {*SHEETED}

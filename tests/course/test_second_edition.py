"""What a lesson has: its size, exercises where their idea is, predictions, a pencil, a box."""

import re
from pathlib import Path

from course.exercises import exercises_of, lesson_numbers
from course.predictions import predictions_of
from tests.course.lesson_cells import (
    APPENDIX,
    LADDER,
    LESSONS,
    PENCIL,
    Cell,
    cells_of,
    exercising,
    longest_stretch,
    promised,
)
from tests.rows import for_every_row

SOLUTIONS = Path(__file__).parents[2] / "course/solutions"
MOST_CELLS, MOST_TEACHING, MOST_AT_A_STRETCH = 60, 40, 15.0
CELLS = {LADDER: 100}
LONGEST_LINE = 88
MOST_PARENTHESES = 15
UNCOUNTED = re.compile(r"```.*?```|^\|.*?$|`[^`]*`|\]\([^)]*\)|\(\d+ minutes?\)", flags=re.MULTILINE | re.DOTALL)
FEWEST_EXERCISES, MOST_EXERCISES = 3, 5
EXERCISES = {LADDER: 14}  # rungs, of five cells each
TAUGHT = [number for number in LESSONS if number not in (APPENDIX, LADDER)]


def sections(cells: list[Cell]) -> str:
    return "\n".join(cell.source for cell in cells if cell.kind == "markdown")


@for_every_row(LESSONS)
def test_a_lesson_is_not_longer_than_its_reader(lesson: str) -> None:
    cells = cells_of(LESSONS[lesson])
    assert len(cells) <= CELLS.get(lesson, MOST_CELLS)
    assert promised(cells)[0] <= MOST_TEACHING


@for_every_row(LESSONS)
def test_a_line_of_code_is_seen_whole_and_the_marks_of_the_comparison_are_not_seen(lesson: str) -> None:
    lines = [line for cell in cells_of(LESSONS[lesson]) if cell.kind == "code" for line in cell.source.splitlines()]
    assert [line for line in lines if len(line) > LONGEST_LINE or "NBVAL" in line] == []


@for_every_row(LESSONS)
def test_a_lessons_sentences_have_few_parentheses(lesson: str) -> None:
    """Code, tables, links and an exercise's minutes do not count."""
    assert UNCOUNTED.sub("", sections(cells_of(LESSONS[lesson]))).count("(") <= MOST_PARENTHESES


@for_every_row([number for number in LESSONS if number != APPENDIX])
def test_a_lesson_has_three_to_five_exercises(lesson: str) -> None:
    assert FEWEST_EXERCISES <= len(exercising(cells_of(LESSONS[lesson]))) <= EXERCISES.get(lesson, MOST_EXERCISES)


@for_every_row(lesson_numbers())
def test_every_exercise_says_why_its_answer_is_right(lesson: str) -> None:
    assert [
        id for id, exercise in exercises_of(lesson).items() if not (callable(exercise.why) or exercise.why.strip())
    ] == []


@for_every_row(TAUGHT)
def test_exercises_stand_where_their_idea_is_and_not_in_a_heap_at_the_end(lesson: str) -> None:
    cells = cells_of(LESSONS[lesson])
    assert longest_stretch(cells) <= MOST_AT_A_STRETCH
    code = "".join(cell.part[0] for cell in cells if cell.kind == "code")
    assert re.search("e.*tt", code), "all exercises stand after the last cell that teaches"
    assert not re.search("Exercise.*Exercise.*Exercise", _headings(cells)), "three exercises in a row"


def _headings(cells: list[Cell]) -> str:
    """One line for all exercises between which nothing is taught."""
    words = ["Exercise" if "### Exercise" in cell.source else "\n" * (cell.part == "teaching") for cell in cells]
    return "".join(words)


@for_every_row([number for number in LESSONS if number != APPENDIX])
def test_a_lesson_has_four_to_six_recorded_predictions(lesson: str) -> None:
    assert 4 <= len(predictions_of(lesson)) <= 6


@for_every_row([number for number in LESSONS if number != APPENDIX])
def test_a_pencil_problem_is_in_the_lesson_and_its_solution_computes_what_it_says(lesson: str) -> None:
    text = sections(cells_of(LESSONS[lesson]))
    assert len(PENCIL.findall(text)) == 1
    assert re.search(r"^## With a pencil: \S", text, flags=re.MULTILINE)
    solution = (SOLUTIONS / f"pencil_{lesson}.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", solution, flags=re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        assert "assert " in block
        exec(compile(block, f"pencil_{lesson}.md", "exec"), {"__name__": "pencil"})


@for_every_row(LESSONS)
def test_a_lesson_ends_with_the_same_in_jax_and_in_pytorch(lesson: str) -> None:
    _, _, box = sections(cells_of(LESSONS[lesson])).partition("\n## Box: the same in JAX and in PyTorch\n")
    (header,) = re.findall(r"^\| *here *\| *JAX *\| *PyTorch *\|$", box, flags=re.MULTILINE)
    rows = [line for line in box.partition(header)[2].split("\n\n")[0].splitlines() if line.startswith("|")]
    assert len(rows) > 2  # the line below the header, and two or more
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 4 for row in rows)

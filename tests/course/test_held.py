"""What is held during each step adds up to what memory_analysis says, and is sorted by bytes."""

import pytest

from course.capstone import FSDP, PIPELINE, RING
from course.exercises import exercises_of
from course.held import held_during
from course.solutions.lesson_18 import ANSWERS
from tests.extent import mostly_whole

PUZZLES = {"18.1": RING, "18.2": FSDP, "18.3": PIPELINE}
PROGRAMS = [
    pytest.param(puzzle, answer, id=f"{id}-{which}")
    for id, puzzle in PUZZLES.items()
    for which, answer in (("stub", exercises_of("18")[id].stub), ("solution", ANSWERS[id].solution))
]


@pytest.mark.parametrize("puzzle, answer", mostly_whole(PROGRAMS, lambda row: not row.id.startswith("18.3")))
def test_what_is_held_adds_up_to_the_memory_line(puzzle, answer):
    compiled = puzzle.lower(answer)
    steps = compiled.memory_analysis().steps
    for k in range(0, len(steps), 5):
        assert sum(each.nbytes for each in held_during(compiled.program, k)) == steps[k].nbytes


def test_the_whole_matrices_of_the_wasteful_step_come_first():
    compiled = FSDP.lower(exercises_of("18")["18.2"].stub)
    first = held_during(compiled.program, compiled.memory_analysis().peak_step)[0]
    assert (first.op, first.type, first.count) == (
        "all_gather",
        "f32[256, 256]",
        4,
    )  # backward; the sums of gradients begin before it has ended
    assert first.nbytes == 4 * 256 * 256 * 4

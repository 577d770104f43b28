"""What is held during each step adds up to what memory_analysis says, and is sorted by bytes."""

import pytest

import tinyshard as ts
from course.held import held_during
from course.ladder import RUNGS
from course.solutions import lesson_18 as solutions


@pytest.fixture(scope="module", autouse=True)
def local():
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


@pytest.mark.parametrize(
    "id, answer",
    [
        ("18.9", solutions.fsdp),
        ("18.9", solutions.fsdp_that_keeps),
        ("18.11", solutions.ring_attention),
        ("18.13", solutions.pipeline),
    ],
)
def test_what_is_held_adds_up_to_the_memory_line(id, answer):
    compiled = RUNGS[id].compile(answer)
    steps = compiled.memory_analysis().steps
    for k in range(0, len(steps), 5):
        assert sum(each.nbytes for each in held_during(compiled.program, k)) == steps[k].nbytes


def test_the_whole_matrices_that_wait_come_first():
    compiled = RUNGS["18.9"].compile(solutions.fsdp_that_keeps)
    first = held_during(compiled.program, compiled.memory_analysis().peak_step)[0]
    # backward the first layer's product needs no matrix any more
    assert (first.op, first.type, first.count) == ("all_gather", "f32[128, 128]", 3)
    assert first.nbytes == 3 * 128 * 128 * 4

"""The puzzles of the capstone: what stands in the lesson is what the judge knows, and scores are counted by hand."""

import pytest
import torch

import tinyshard as ts
from course.capstone import FSDP, PIPELINE, RING, queries_keys_values
from course.exercises import exercises_of
from course.exercises.exercise import is_untouched
from course.solutions import lesson_18 as solutions
from tests.course.lesson_cells import LESSONS, stored_cells


def answer_cell(number):
    """The function that stands in an answer cell of the lesson, as it is shipped."""
    (source,) = [cell["source"] for cell in stored_cells(LESSONS["18"]) if cell["id"] == f"exercise-{number}-answer"]
    scope = {"torch": torch, "ts": ts}
    exec(compile(source, "a cell", "exec"), scope)
    return scope[f"answer_18_{number}"]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_answer_cells_of_the_lesson_count_as_untouched(number):
    assert is_untouched(answer_cell(number), exercises_of("18")[f"18.{number}"].stub)


@pytest.mark.parametrize("number, puzzle", [(1, RING), (2, FSDP), (3, PIPELINE)])
def test_what_stands_in_the_answer_cell_is_right_but_above_a_target(number, puzzle):
    score = puzzle.score(answer_cell(number))
    assert score.wrong == ""
    assert "too many" in str(score)


def test_the_targets_are_those_of_the_text():
    # seven moves of 128 keys and 128 values of 32 numbers; two products of 128 x 1024 x 32 each
    assert (RING.goal.nbytes, RING.goal.flops) == (7 * 2 * 128 * 32 * 4, 2 * 2 * 128 * 1024 * 32)
    # 11 gathered and 6 scattered matrices of 256 KiB, seven eighths of each; 7 bytes for the loss
    assert FSDP.goal.nbytes == 17 * 256 * 256 * 4 * 7 // 8 + 7
    # 22 moves of 4 x 64 numbers; 23 products of 4 x 64 x 64
    assert (PIPELINE.goal.nbytes, PIPELINE.goal.flops) == (22 * 4 * 64 * 4, 23 * 2 * 4 * 64 * 64)


@pytest.mark.usefixtures("local")
def test_the_ring_computes_attention_on_devices_too():
    q, k, v = queries_keys_values()
    mesh = ts.make_mesh((8,), ("ring",))
    got = ts.shard_map(solutions.ring, mesh=mesh, in_specs=ts.P("ring"), out_specs=ts.P("ring"))(q, k, v)
    want = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
    assert torch.allclose(ts.device_get(got), want, atol=1e-3)


@pytest.fixture
def local():
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()

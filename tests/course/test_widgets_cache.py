"""What jit finds at a second call, of lesson 09: every rule, one change at a time."""

import pytest
import torch

from course.widgets import cache_explorer
from course.wrapping import WIDTH
from tinyshard import P

# what is different at the second call -> whether the trace is found, and whether the program is
RULES = [
    ({}, "found", "found"),
    ({"spec": P(None, "b")}, "found", "made again"),
    ({"shape": (32, 64)}, "made again", "made again"),
    ({"dtype": torch.float64}, "made again", "made again"),
    ({"times": 3}, "made again", "made again"),
    ({"scale": "10.0"}, "found", "found"),
    ({"scale": "64 numbers"}, "made again", "made again"),
    ({"offset": 100.0}, "found", "found"),
    ({"function": "written again"}, "made again", "made again"),
    ({"shape": (32, 64), "spec": P()}, "made again", "made again"),
]


@pytest.mark.parametrize("choices, trace, program", RULES)
def test_shape_dtype_and_static_value_decide_on_the_trace_the_layout_on_the_program(choices, trace, program):
    line = cache_explorer().choose(**choices).text.splitlines()[0]
    assert line == f"trace: {trace}; program: {program}"


def test_a_number_outside_is_stale_until_the_function_is_traced_again():
    stale = cache_explorer().choose(offset=100.0)
    assert "stale: the trace holds the offset of the first call" in stale.text
    assert "aten.add.Tensor(%3, 1.0)" in stale.text
    fresh = stale.choose(shape=(32, 64))
    assert "stale" not in fresh.text
    assert "aten.add.Tensor(%3, 100.0)" in fresh.text


def test_a_static_value_is_unrolled_in_the_trace():
    assert cache_explorer().choose(times=3).text.count("aten.mul.Tensor") == 3


def test_the_words_say_what_is_different_and_what_it_decides_about():
    text = cache_explorer().choose(spec=P(), offset=100.0).text
    assert "  layout of x: P('a'), now P() (decides about the program)\n" in text
    assert "  offset (a number outside): 1.0, now 100.0 (decides about nothing)\n" in text
    assert "  nothing is different\n" in cache_explorer().text


def test_no_line_of_the_words_is_broken_where_an_output_ends():
    text = cache_explorer().choose(scale="64 numbers").text
    assert max(map(len, text.splitlines())) <= WIDTH
    words = "scale (a tensor outside): 2.0, now 64 numbers (decides about the trace, by shape and dtype)"
    assert words in " ".join(text.split())


def test_the_picture_has_the_facts_and_the_verdict():
    svg = cache_explorer().choose(dtype=torch.float64).svg
    for words in ("dtype of x", "float64", "trace: made again", "the function runs again", "≠"):
        assert words in svg
    assert "found in the cache" in cache_explorer().svg


@pytest.fixture(scope="module")
def before():
    """The explorer as it opens."""
    return cache_explorer()


@pytest.mark.parametrize("choices", [choices for choices, _, _ in RULES if len(choices) == 1])
def test_every_control_changes_picture_and_words(choices, before):
    after = cache_explorer().choose(**choices)
    assert after.svg != before.svg
    assert after.text != before.text

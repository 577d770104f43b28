"""The axis picker of lesson 05: what it says against batches by hand; every control changes the picture."""

import pytest

from course.widgets import axis_picker


def test_rows_of_x_with_one_w_put_side_by_side():
    # (2, 3, 4) · 4, 6 · 3 and so on: 2·2 + 3·3 + 4·4 = 29
    assert axis_picker().choose(w="one", w_axis=None, out_axes=1, example=2).text == (
        "ts.vmap(convolve, in_axes=(0, None), out_axes=1)(x, w)\n"
        "inside convolve: x has shape (5,), w has shape (3,); 3 examples\n"
        "x of shape (3, 5); example 2 is x[2]: 2 3 4 5 6\n"
        "w of shape (3,); example 2 is w: 2 3 4\n"
        "result of shape (3, 3); example 2 is result[:, 2]: 29 38 47"
    )


def test_the_other_axis_makes_other_examples():
    found = axis_picker().choose(x="columns", w="one", w_axis=None)
    assert "x has shape (3,), w has shape (3,); 5 examples" in found.text
    assert "x of shape (5, 3); example 0 is x[0]: 0 1 2" in found.text
    found.choose(x_axis=1)
    assert "x has shape (5,), w has shape (3,); 3 examples" in found.text
    assert "x of shape (5, 3); example 0 is x[:, 0]: 0 1 2 3 4" in found.text


def test_the_last_example_stands_for_those_that_there_are_not():
    assert "example 2 is x[2]" in axis_picker().choose(example=4).text


@pytest.mark.parametrize(
    "choices, problem",
    [
        ({"w": "two"}, "vmap got inconsistent sizes for the axes to be mapped"),
        ({"x_axis": None, "w_axis": None}, "vmap finds no mapped argument"),
        ({"x": "one", "x_axis": 1}, "vmap cannot map an argument over a dim that it does not have"),
        ({"x_axis": None}, "the function fails on such an example\n  got:  inside it, x has shape (3, 5)"),
        (
            {"x": "one", "w": "one", "w_axis": None},
            "the function fails on such an example\n  got:  inside it, x has shape ()",
        ),
    ],
)
def test_axes_that_do_not_fit_show_the_error(choices, problem):
    assert axis_picker().choose(**choices).text.startswith(problem)


def test_the_picture_marks_the_numbers_of_the_chosen_example():
    svg = axis_picker().choose(w="one", w_axis=None).svg
    # a row of x, all of w, a row of the result
    assert svg.count('stroke-width="3"') == 5 + 3 + 3


@pytest.mark.parametrize(
    "choice",
    [
        {"x": "columns"},
        {"x_axis": 1},
        {"w": "one"},
        {"w_axis": 1},
        {"out_axes": 1},
        {"example": 1},
    ],
)
def test_every_control_changes_picture_and_words(choice):
    before = axis_picker()
    after = axis_picker().choose(**choice)
    assert after.svg != before.svg
    assert after.text != before.text

"""The whole beside one device, of lesson 06: numbers by hand; every control changes the picture."""

import pytest

import tinyshard as ts
from course.widgets import two_views
from course.widgets.views import CALLS


@pytest.fixture(autouse=True)
def four_devices():
    ts.init(devices=4, runtime="local")


def test_a_row_each_and_its_sum():
    assert two_views().choose(call=4, device=2).text == (
        "ts.pmap(lambda v: v.sum())(x)\n"
        "x as a whole, shape (4, 4): 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15\n"
        "result as a whole, shape (4,): 6 22 38 54\n"
        "CPU 2 has a (1, 4) block of x: 8 9 10 11; the function gets shape (4,) and returns shape ()\n"
        "CPU 2 has a (1,) block of the result: 38\n"
        "no device sends anything"
    )


def test_a_block_keeps_all_its_dims_under_shard_map():
    lines = two_views().choose(call=0, device=1).text.splitlines()
    assert lines[3:] == [
        "CPU 1 has a (2, 2) block of x: 2 3 6 7; the function gets shape (2, 2) and returns shape (2, 2)",
        "CPU 1 has a (2, 2) block of the result: 4 6 12 14",
        "no device sends anything",
    ]


def test_a_broken_promise_of_out_specs_is_seen_on_the_device_and_not_in_the_whole():
    # CPU 1 has the right half of rows 0 and 1: 2 + 3 and 6 + 7; the whole says what CPU 0 has
    lines = two_views().choose(call=1, device=1).text.splitlines()
    assert lines[2] == "result as a whole, shape (4,): 1 9 17 25"
    assert lines[4] == "CPU 1 has a (2,) block of the result: 5 13"
    assert "other numbers there" in lines[5]
    assert "other numbers there" not in two_views().choose(call=1, device=0).text


def test_a_psum_keeps_the_promise():
    lines = two_views().choose(call=2, device=1).text.splitlines()
    assert lines[2] == "result as a whole, shape (4,): 6 22 38 54"
    assert lines[4] == "CPU 1 has a (2,) block of the result: 6 22"
    # two float32, over two devices: 2 · 8 · 1/2 bytes
    assert lines[5] == "the busiest device sends at least 8 bytes, by the model of lesson 07"


def test_the_picture_marks_what_the_device_holds_of_both():
    # of the first call: 4 numbers of x and 4 of the result
    assert two_views().svg.count('stroke-width="3"') == 8


def test_every_call_has_a_picture_of_its_own():
    found = two_views()
    assert len({found.choose(call=call).svg for call in range(len(CALLS))}) == len(CALLS) == 8


@pytest.mark.parametrize("choice", [{"call": 3}, {"device": 3}])
def test_every_control_changes_picture_and_words(choice):
    before = two_views()
    after = two_views().choose(**choice)
    assert after.svg != before.svg
    assert after.text != before.text

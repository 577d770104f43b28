"""The time line of lesson 01: parts worked out by hand from given times; every control changes the picture."""

import pytest

import tinyshard as ts
from course.widgets import time_line
from course.widgets.record_spans import recording
from course.widgets.recorded_spans import CORES, RECORDED
from course.widgets.spans import MOST_CALLS, SIZES, Call, TimeLine, describe, draw, look, measure

# two products: the lines take 1 ms each, each product 10 ms
TWO = (Call(0.0, 1.0, 11.0), Call(1.0, 2.0, 21.0))


def test_the_second_product_stands_in_the_queue_until_the_first_is_ready():
    line = TimeLine(size=200, waits_each=False, calls=TWO, origin="by hand")
    assert line.spans() == [
        ("your cell", "dispatch", 1, 0.0, 1.0),
        ("CPU 0", "compute", 1, 1.0, 11.0),
        ("your cell", "dispatch", 2, 1.0, 2.0),
        ("queue", "queue", 2, 2.0, 11.0),
        ("CPU 0", "compute", 2, 11.0, 21.0),
        ("your cell", "wait", 2, 2.0, 21.0),
    ]


def test_who_waits_each_time_has_no_queue():
    calls = (Call(0.0, 1.0, 11.0), Call(11.0, 12.0, 22.0))
    line = TimeLine(size=200, waits_each=True, calls=calls, origin="by hand")
    assert [kind for _, kind, _, _, _ in line.spans()] == ["dispatch", "compute", "wait"] * 2
    assert describe(line).splitlines()[-2:] == [
        "all ready after 22.0 ms; your cell dispatches for 2.0 ms and waits for 20.0 ms",
        "by hand",
    ]


def test_the_picture_is_to_scale_and_names_every_part():
    svg = draw(TimeLine(size=200, waits_each=False, calls=TWO, origin="by hand")).piece.svg
    for part in ("dispatch of product 2: from 1.0 to 2.0", "queue of product 2: from 2.0 to 11.0"):
        assert f"<title>{part} ms</title>" in svg
    # 10 of 21 ms, of 560 px
    assert svg.count('width="266.67"') == 2


def test_every_state_of_the_controls_was_recorded():
    counts = range(1, MOST_CALLS + 1)
    assert set(RECORDED) == {(count, size, each) for count in counts for size in SIZES for each in (False, True)}


@pytest.mark.parametrize("count, size, waits_each", RECORDED)
def test_the_recorded_times_go_forward(count, size, waits_each):
    line = look(count, size, waits_each, measured=0)
    assert len(line.calls) == count
    assert all(0 <= start <= end for _, _, _, start, end in line.spans())
    assert [call.ready_ms for call in line.calls] == sorted(call.ready_ms for call in line.calls)
    assert line.origin == f"recorded on a machine of {CORES} cores: press the button to measure on yours"


def test_what_the_recorder_prints_is_what_is_stored_in_form():
    ts.init(devices=1, runtime="local")
    found = {}
    exec(recording(most_calls=2, sizes=(8,), runs=1, for_s=0.0), {"Times": tuple}, found)
    assert found["CORES"] >= 1
    assert {key: len(times) for key, times in found["RECORDED"].items()} == {
        (count, 8, each): count for count in (1, 2) for each in (False, True)
    }
    assert all(start <= back <= there for times in found["RECORDED"].values() for start, back, there in times)


@pytest.mark.parametrize("waits_each", [False, True])
def test_a_small_time_is_told_to_the_hundredth_of_a_ms(waits_each):
    calls = (Call(0.0, 0.07, 0.33),)
    words = describe(TimeLine(size=200, waits_each=waits_each, calls=calls, origin="by hand"))
    assert "0.00 to    0.07 ms" in words
    assert "all ready after 0.33 ms; your cell dispatches for 0.07 ms and waits for 0.26 ms" in words


def test_a_measurement_has_the_times_of_each_call_in_order():
    ts.init(devices=1, runtime="local")
    calls = measure(3, size=8, waits_each=True)
    times = [at for call in calls for at in (call.dispatched_ms, call.returned_ms, call.ready_ms)]
    assert times == sorted(times)
    assert len(times) == 9


def test_a_measurement_with_one_wait_tells_when_each_product_is_there():
    ts.init(devices=1, runtime="local")
    calls = measure(3, size=8, waits_each=False)
    lines = [at for call in calls for at in (call.dispatched_ms, call.returned_ms)]
    ready = [call.ready_ms for call in calls]
    assert (lines, ready) == (sorted(lines), sorted(ready))
    assert all(call.returned_ms <= call.ready_ms for call in calls)


@pytest.mark.parametrize("choice", [{"calls": 1}, {"size": 200}, {"waits_each": True}])
def test_every_control_changes_picture_and_words(choice):
    before = time_line()
    after = time_line().choose(**choice)
    assert after.svg != before.svg
    assert after.text != before.text


def test_the_button_measures_here():
    ts.init(devices=1, runtime="local")
    assert time_line().choose(size=200).text.endswith("press the button to measure on yours")
    assert time_line().choose(size=200, measured=1).text.endswith("measured here")

"""Measured times beside the model's: only at a press, never longer than the limit, errors in words."""

import threading
from collections.abc import Iterator

import pytest

import tinyshard as ts
from course.widgets import collective_stepper, layout_costs, layout_table
from course.widgets import timed as clock
from course.widgets.base import Explorer
from course.widgets.card import MARGIN, WIDEST, size_of
from course.widgets.pattern_times import times_of_function, times_of_move
from course.widgets.timed import OnPress, Timed, is_too_much, table, timed

EXPLORERS = {"stepper": collective_stepper, "layouts": layout_table, "costs": layout_costs}


@pytest.fixture(autouse=True)
def local(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(clock, "LIMIT_S", 60.0)  # what else runs here may take the processor
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


@pytest.mark.parametrize("make", EXPLORERS.values(), ids=EXPLORERS)
def test_a_press_adds_the_measured_time_and_nothing_else(make: type[Explorer[object]]) -> None:
    found = make()
    before = found.text
    assert "measured" not in before
    after = found.choose(measured=1).text
    assert after.startswith(before)
    assert "measured here" in after[len(before) :] and "not measured" not in after
    assert "measured here" in found.svg
    assert size_of(found.svg)[0] <= WIDEST + 2 * MARGIN


def test_another_choice_is_not_measured_until_the_next_press_and_the_first_is_remembered() -> None:
    found = collective_stepper().choose(measured=1)
    first = found.text
    assert "measured here" not in found.choose(pattern="all-gather").text
    assert found.choose(pattern="all-reduce").text == first
    assert "measured here" in found.choose(pattern="all-gather").choose(measured=2).text


def test_an_all_reduce_is_timed_on_the_rows_of_the_picture_and_on_rows_of_1_mib() -> None:
    small, large = times_of_function(lambda row: ts.lax.psum(row, "i"), 8)
    # 2 · 7/8 of a row
    assert (small.nbytes, large.nbytes) == (2 * 7 * 32 // 8, 2 * 7 * 2**20 // 8)
    # 14 rounds of 0.1 ms, and 500 MB/s
    assert large.modelled_s == pytest.approx((14e-4 + large.nbytes / 500e6,) * 2)
    assert small.measured_s is not None and large.measured_s is not None


def test_a_move_is_timed_too_and_its_model_is_one_round() -> None:
    rows = ts.NamedSharding(ts.make_mesh((8,), "i"), ts.P("i"))
    small, large = times_of_move(ts.SingleDeviceSharding(ts.devices()[0]), rows, (8, 8))
    assert (small.nbytes, large.nbytes) == (7 * 32, 7 * 2**20)
    assert small.modelled_s == pytest.approx((1e-4 + 224 / 500e6,) * 2)
    assert small.measured_s is not None and large.measured_s is not None


def test_a_function_that_cannot_take_large_rows_says_so_in_words() -> None:
    small, large = times_of_function(lambda row: row.reshape(2, 4).sum(0), 8)
    assert small.measured_s is not None
    assert large.measured_s is None and "RuntimeError: shape '[2, 4]' is invalid" in large.problem


def test_a_call_that_does_not_end_is_given_up() -> None:
    found = timed("a wait", 0, (0.0, 0.0), lambda: lambda: threading.Event().wait(), limit_s=0.2)
    assert (found.measured_s, found.problem) == (None, "it took more than 0.2 s")
    assert "a wait is not measured: it took more than 0.2 s" in table([found])


def test_the_columns_stay_straight_beside_a_long_name() -> None:
    names = ["one device", "4 × 2, layers 1 and 2"]
    lines = table([Timed(name, 1_789_804, (0.01, 0.02), 0.03) for name in names])[:3]
    assert len({len(line) for line in lines}) == 1


def test_too_few_devices_are_told_as_an_error_of_the_library() -> None:
    ts.shutdown()
    ts.init(devices=2, runtime="local")
    text = layout_table().choose(measured=1).text
    assert "left @ right is not measured: MeshError: the mesh shape does not fit" in text


def test_what_is_too_large_for_a_laptop_is_not_run() -> None:
    text = layout_costs().choose(width=8192, measured=1).text
    # two matrices of 8192 x 8192 and two narrow ones, twice as much state, their gradients, and a matrix in the making
    assert "one device is not measured: the devices would need 2.5 GB together" in text
    assert is_too_much(0, 30_000_000_000) == "the devices would do 30 Gflop together"


def test_a_small_and_a_large_time_have_units_of_their_own() -> None:
    row = Timed("a step", 7, (0.5, 2.0), 0.0123)
    assert table([row])[1].split() == ["a", "step", "7", "500.00", "ms", "to", "2.0", "s", "12.30", "ms"]
    assert table([]) == []


def test_a_press_is_seen_once() -> None:
    calls = []
    found = OnPress(lambda key: calls.append(key) or key)
    assert [found(0, "a"), found(2, "a"), found(2, "b"), found(2, "a")] == [None, "a", None, "a"]
    assert calls == ["a"]

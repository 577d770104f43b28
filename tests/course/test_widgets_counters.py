"""Counters to devices, of lesson 10: who makes which number, by hand; every control changes the picture."""

import pytest
import torch

import tinyshard as ts
from course.widgets import counter_map
from course.widgets.counters import look


def test_each_number_has_a_counter_of_its_own_and_is_made_where_it_is_kept():
    assert counter_map().choose(parts=8).text.splitlines()[:6] == [
        "24 numbers in 8 blocks, one counter for each number",
        "",
        "CPU 0: 0 1 2 of counters 0 1 2",
        "CPU 1: 3 4 5 of counters 3 4 5",
        "CPU 2: 6 7 8 of counters 6 7 8",
        "CPU 3: 9 10 11 of counters 9 10 11",
    ]
    assert "no device sends anything\n0 of 24" in counter_map().text


def test_in_pairs_number_i_comes_with_number_i_and_twelve_and_half_of_them_are_sent():
    # 24 numbers on 4 devices: of 6 pairs, CPU 0 makes the first three and CPU 2 the others
    lines = counter_map().choose(is_partitionable=False).text.splitlines()
    assert lines[2] == "CPU 0: 0 1 2 3 4 5 of counters 0+12 1+13 2+14 3+15 4+16 5+17; 3 4 5 made by CPU 2"
    assert lines[4] == "CPU 2: 12 13 14 15 16 17 of counters 0+12 1+13 2+14 3+15 4+16 5+17; 12 13 14 made by CPU 0"
    # three float32 each
    assert lines[-3] == "12 bytes sent by the busiest device, by the model: collective_permute"
    assert lines[-2].startswith("12 of 24 numbers are made elsewhere")


@pytest.mark.parametrize("is_partitionable", [True, False])
@pytest.mark.parametrize("parts", [1, 4])
def test_the_numbers_are_those_of_one_device(is_partitionable, parts):
    ts.init(devices=1, runtime="local")
    ts.config.update("threefry_partitionable", is_partitionable)
    try:
        expected = ts.device_get(ts.random.uniform(ts.random.key(42), (8, 6))).flatten()
    finally:
        ts.config.update("threefry_partitionable", True)
    drawn = look(is_partitionable, (8, 6), parts, follow=0)
    assert torch.equal(torch.tensor([number.value for row in drawn.blocks for number in row]), expected)


def test_the_flag_is_left_as_it_was():
    look(is_partitionable=False, shape=(24,), parts=2, follow=0)
    assert ts.config.read("threefry_partitionable") is True


def test_the_picture_has_the_counters_in_the_cells():
    svg = counter_map().choose(is_partitionable=False).svg
    assert svg.count(">8+20<") == 2
    assert svg.count('stroke-width="3"') == 1


@pytest.mark.parametrize("choice", [{"is_partitionable": False}, {"shape": (8, 6)}, {"parts": 2}, {"follow": 20}])
def test_every_control_changes_picture_and_words(choice):
    before = counter_map()
    after = counter_map().choose(**choice)
    assert after.svg != before.svg
    assert after.text != before.text

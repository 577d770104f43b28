"""The schedule: a cell for each step, the memory line above its bytes, and the same in words."""

import xml.etree.ElementTree as ElementTree

import pytest
import torch

import tinyshard as ts
from course.widgets.card import card
from course.widgets.schedule import describe, draw, look, program_schedule
from tinyshard.compile.memory import MemoryAnalysis, StepMemory

SVG = "{http://www.w3.org/2000/svg}"


def line_of(*nbytes, exchanges=()):
    """A memory line with these bytes; the steps in `exchanges` exchange."""
    return MemoryAnalysis(
        nbytes[0], 0, tuple(StepMemory("op", f"%{k}", k in exchanges, n) for k, n in enumerate(nbytes))
    )


def polygon(svg):
    points = ElementTree.fromstring(svg).find(f".//{SVG}polygon").get("points")
    return [tuple(map(float, point.split(","))) for point in points.split()]


def test_the_line_is_as_high_as_the_bytes():
    # 620 px for two steps, 150 px for the peak
    assert polygon(card("f", draw(look("f", line_of(50, 100), None, 0)))) == [
        (6, 150),
        (6, 75),
        (316, 75),
        (316, 0),
        (626, 0),
        (626, 150),
    ]


def test_a_limit_above_the_peak_makes_room_for_itself():
    svg = card("f", draw(look("f", line_of(50, 100), 200, 0)))
    assert polygon(svg)[3] == (316, 75)
    assert "stroke-dasharray" in svg
    assert "stroke-dasharray" not in draw(look("f", line_of(50, 100), None, 0)).piece.svg


def test_the_axis_has_two_numbers_the_peak_above_its_step_and_zero():
    svg = card("f", draw(look("f", line_of(50, 100_000, 80), 200_000, 0)))
    words = {each.text: each for each in ElementTree.fromstring(svg).iter(f"{SVG}text")}
    assert float(words["100,000 bytes"].get("x")) == pytest.approx(6 + 1.5 * 620 / 3, abs=0.01)
    assert 60 < float(words["100,000 bytes"].get("y")) < 75  # the peak is at 75 px, half of the limit
    assert float(words["0"].get("x")) > 626


def test_steps_that_exchange_are_taller_and_named_in_words():
    svg = card("f", draw(look("f", line_of(50, 100, 80, exchanges=(1,)), None, 0)))
    cells = [r for r in ElementTree.fromstring(svg).iter(f"{SVG}rect") if r.find(f"{SVG}title") is not None]
    assert [float(cell.get("height")) for cell in cells] == [15, 30, 15]
    assert "1 of them exchanges; at most 100 bytes, in step 1" in svg


def test_in_words_a_row_stands_for_a_few_steps_and_an_x_for_an_exchange():
    text = describe(look("f", line_of(*range(100, 128), exchanges=(3, 4, 5)), None, 27))
    rows = text.splitlines()[1:-1]
    assert len(rows) == 14
    assert rows[1].split()[0] == "2-3"
    assert [row.count("x") for row in rows[:4]] == [0, 1, 2, 0]
    assert text.splitlines()[-1] == "step 27: %27 = op    # 127 bytes held"


def test_it_opens_at_the_peak_and_every_control_draws_anew():
    x = torch.zeros(256)
    up, down = (
        ts.jit(lambda x: (x + 1, x - 1)).lower(x).compile(),
        ts.jit(lambda x: torch.sin(x) * 2).lower(x).compile(),
    )
    opened = program_schedule({"two": up, "one": down}, limit_nbytes=4096)
    assert opened.choices == {"name": "two", "step": 1}
    pictures = {opened.svg, opened.choose(step=0).svg, opened.choose(name="one").svg}
    assert len(pictures) == 3
    assert opened.text.startswith("one: 2 steps")


@pytest.mark.parametrize("limit", [None, 10])
def test_a_program_without_steps_is_drawn(limit):
    found = look("empty", MemoryAnalysis(32, 0, ()), limit, 0)
    assert ElementTree.fromstring(card("a program", draw(found))).tag == f"{SVG}svg"
    assert describe(found).endswith("no steps")

"""A pipeline's timetable: each work after what it needs, the bubble by its formula, and how many are held."""

import xml.etree.ElementTree as ElementTree

import pytest

from course.widgets.timetable import MICRO_BATCHES, NAMES, STAGES, look, timetable

SVG = "{http://www.w3.org/2000/svg}"
ALL = [(name, stages, m) for name in NAMES for stages in STAGES for m in MICRO_BATCHES]


@pytest.mark.parametrize("schedule, stages, micro_batches", ALL)
def test_every_work_is_done_once_and_after_what_it_needs(schedule, stages, micro_batches):
    found = look(schedule, stages, micro_batches)
    slot_of = {(stage, *work): slot for stage, row in enumerate(found.starts) for slot, work in row.items()}
    assert len(slot_of) == 2 * stages * micro_batches
    for m in range(micro_batches):
        path = [(stage, "F", m) for stage in range(stages)] + [(stage, "B", m) for stage in reversed(range(stages))]
        slots = [slot_of[each] for each in path]
        assert slots == sorted(set(slots))


@pytest.mark.parametrize("stages, micro_batches", [(2, 4), (4, 8), (8, 16)])
def test_the_bubble_is_that_of_the_formula_and_1f1b_holds_as_many_as_stages_are_left(stages, micro_batches):
    gpipe, one = look("GPipe", stages, micro_batches), look("1F1B", stages, micro_batches)
    for found in (gpipe, one):
        assert found.slots == 2 * (micro_batches + stages - 1)
        assert found.bubble == pytest.approx((stages - 1) / (micro_batches + stages - 1))
    assert gpipe.held == (micro_batches,) * stages
    assert one.held == tuple(range(stages, 0, -1))
    assert look("in turn", stages, micro_batches).slots == 2 * stages * micro_batches


def test_a_cell_is_drawn_for_each_work_and_said_in_words():
    shown = timetable("1F1B", 4, 8)
    titles = [each.text for each in ElementTree.fromstring(shown.svg).iter(f"{SVG}title")]
    assert sum(title.startswith("slot ") for title in titles) == 2 * 4 * 8
    assert shown.text.splitlines()[4].split()[:8] == ["stage", "3", ".", ".", ".", "F0", "B0", "F1"]
    assert "at most 8 held" in shown.choose(schedule="GPipe").text

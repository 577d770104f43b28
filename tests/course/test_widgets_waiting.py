"""Who waits for whom, drawn: as many arrows as waits, the circle marked, the same in words."""

from xml.etree import ElementTree

import pytest

import tinyshard as ts
from course.schedules import ring, start, steps
from course.widgets import who_waits
from course.widgets.card import card
from course.widgets.waiting import SCENES, describe, draw

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", SCENES)
def test_every_moment_of_every_example_is_drawn_with_an_arrow_for_each_wait(name: str) -> None:
    for moment in steps(SCENES[name]):
        root = ElementTree.fromstring(card("waits", draw(moment)))
        arrows = list(root.iter(f"{SVG}polygon"))
        assert len(arrows) == sum(map(len, moment.waits_for.values()))
        thick = [node for node in root.iter(f"{SVG}path") if node.get("stroke-width") == "3"]
        assert len(thick) == len(moment.circle)


@pytest.mark.parametrize("name", SCENES)
def test_what_is_drawn_lies_on_the_card(name: str) -> None:
    for moment in steps(SCENES[name]):
        root = ElementTree.fromstring(card("waits", draw(moment)))
        width, height = float(root.get("width", 0)), float(root.get("height", 0))
        assert 300 < width < 900 and 150 < height < 500


def test_the_examples_show_a_deadlock_a_stall_one_who_left_and_good_ends() -> None:
    ends = {name: describe(steps(moment)[-1]).splitlines()[0].partition(": ")[2] for name, moment in SCENES.items()}
    assert ends == {
        "the same order everywhere": "all are done",
        "another order on CPU 2": "a deadlock, CPU 0 → CPU 2 → CPU 0",
        "CPU 3 is stopped": "all wait for CPU 3",
        "a ring, all send first": "a deadlock, CPU 0 → CPU 1 → CPU 2 → CPU 3 → CPU 0",
        "a ring, CPU 0 receives first": "all are done",
        "a ring, even ones send first": "all are done",
        "CPU 1 leaves one out": "all wait for CPU 1, which has left and will not come again",
    }


def test_choosing_another_example_goes_back_to_a_round_that_it_has() -> None:
    explorer = who_waits().choose(example="a ring, CPU 0 receives first", rounds=4)
    assert "after 4 rounds: all are done" in explorer.text
    explorer.choose(example="a ring, even ones send first")
    assert "after 2 rounds: all are done" in explorer.text
    explorer.choose(example="a ring, all send first")
    assert explorer.text.startswith("after 0 rounds: a deadlock")


def test_ones_own_lists_and_an_error_are_drawn_too() -> None:
    assert who_waits(ring(3, ["send", "receive"])).text == describe(start(ring(3, ["send", "receive"])))
    words = (
        "all_gather cannot complete: …\n  got:  reached by none; not reached by CPU 1,4\n        dispatched by In[3]"
    )
    text = who_waits(ts.CollectiveTimeoutError(words)).text
    assert text.startswith("after 0 rounds: all wait for CPU 1,4\n") and "all_gather" in text

"""The curve that grows: every point is where its step and its loss are, in the picture and in words."""

import re
import threading

import pytest

from course.widgets import loss_curve
from course.widgets.card import MARGIN, WIDEST, size_of
from course.widgets.loss_curve import HEIGHT, LEFT, WIDTH, Curve, Run, describe, draw


def points_in(svg: str) -> list[list[tuple[float, float]]]:
    """Of each line of the picture."""
    lines = re.findall(r'<polyline points="([^"]*)"', svg)
    return [[tuple(map(float, point.split(","))) for point in line.split()] for line in lines]  # type: ignore[misc]


def trained() -> object:
    curve = loss_curve(steps=100, most=4.0, name="eight")
    for step, loss in ((0, 4.0), (50, 3.0), (75, 1.0)):
        curve.add(step, loss)
    curve.mark(76, "killed < 1 s")
    curve.begin("four")
    curve.add(50, 3.0)
    curve.add(100, 0.0)
    return curve


def test_each_step_is_a_point_at_its_place() -> None:
    first, second = points_in(trained().svg)  # type: ignore[attr-defined]
    at_50 = (LEFT + WIDTH / 2, HEIGHT / 4)
    assert first == [(LEFT, 0), at_50, (LEFT + 0.75 * WIDTH, 0.75 * HEIGHT)]
    assert second == [at_50, (LEFT + WIDTH, HEIGHT)]


def test_the_words_say_where_each_run_began_and_ended_and_what_happened() -> None:
    assert repr(trained()).splitlines() == [
        "eight: steps 0 to 75, the loss falls from 4.00 to 1.00",
        "four: steps 50 to 100, the loss falls from 3.00 to 0.00",
        "before step 76: killed < 1 s",
    ]


def test_the_picture_fits_a_narrow_page_and_is_well_formed() -> None:
    from xml.etree import ElementTree

    curve = loss_curve(name="eight devices")
    curve.begin("four devices, from the files")
    ElementTree.fromstring(curve.svg)
    ElementTree.fromstring(trained().svg)  # type: ignore[attr-defined]
    assert size_of(curve.svg)[0] <= WIDEST + 2 * MARGIN


def test_the_mean_of_several_steps_is_that_of_the_last_ones() -> None:
    curve = loss_curve(steps=40)
    for step in range(12):
        curve.add(step, step / 4)
    curve.choose(mean=10)
    assert "from 0.00 to 1.62" in repr(curve)  # 2 … 11, a quarter of 6.5
    assert curve.losses(0)[11] == 11 / 4, "the losses stay as they are"


def test_it_grows_at_each_call_and_only_then() -> None:
    before = set(threading.enumerate())
    curve = loss_curve()
    seen = []
    for step in range(3):
        curve.add(step, 3.0 - step)
        seen.append(curve.panel.children[1].value)
    assert len(set(seen)) == 3
    assert set(threading.enumerate()) == before


def test_the_same_losses_store_the_same_picture_whatever_was_shown_in_between() -> None:
    curve = trained()
    curve.choose(mean=10).choose(mean=1)  # type: ignore[attr-defined]
    assert curve.svg == trained().svg  # type: ignore[attr-defined]


def test_the_axis_grows_with_a_training_that_goes_on() -> None:
    curve = loss_curve(steps=10, most=4.0)
    curve.add(0, 4.0)
    curve.add(20, 2.0)
    assert points_in(curve.svg) == [[(LEFT, 0), (LEFT + WIDTH, HEIGHT / 2)]]


def test_of_a_long_run_every_tenth_step_is_drawn_beyond_a_thousand_and_the_words_name_the_last_one() -> None:
    points = tuple((step, 2.0) for step in range(1025))
    assert [step for step, _ in Run("a", points).drawn] == [*range(1000), 1000, 1010, 1020]
    curve = Curve(10, 4.0, (Run("a", points),))
    assert len(points_in(draw(curve).piece.svg)[0]) == 1003
    assert "steps 0 to 1024," in describe(curve)


def test_a_loss_above_the_top_is_drawn_at_the_top() -> None:
    assert Curve(10, 4.0, (Run("a"),)).y(9.0) == 0


@pytest.mark.parametrize("count", [1, 3])
def test_a_mean_of_runs_keeps_their_steps(count: int) -> None:
    run = Run("a", ((5, 4.0), (6, 2.0), (7, 3.0), (8, 1.0)))
    assert [step for step, _ in run.smoothed(count).points] == [5, 6, 7, 8]
    assert run.smoothed(count).points[-1][1] == {1: 1.0, 3: 2.0}[count]

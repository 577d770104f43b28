"""The rounds of three all-reduces: what a device sends, what a link carries, and which one is the fastest."""

import xml.etree.ElementTree as ElementTree
from fractions import Fraction

import pytest

from course.widgets.card import WIDEST, card
from course.widgets.rounds import ANY, NEIGHBOURS, ROWS, WAYS, busiest_link, draw, exchange_rounds, look

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize(
    "way, rounds, by_device, by_link",
    [("ring of pieces", 14, 1.75, 1.75), ("doubling", 3, 3, 5), ("halving, then doubling", 6, 1.75, 2.5)],
)
def test_rounds_and_rows_of_a_way(way, rounds, by_device, by_link):
    anywhere, around = look(ANY, "4 KiB").costs[way], look(NEIGHBOURS, "4 KiB").costs[way]
    assert (anywhere.rounds, anywhere.rows, around.rows) == (rounds, by_device, by_link)
    assert anywhere.seconds == pytest.approx(rounds * 10e-6 + by_device * 4096 / 100e9)


def test_every_device_has_the_numbers_of_all_when_the_last_round_ends():
    for rounds in WAYS.values():
        known = [{device} for device in range(8)]
        for one in rounds:
            before = [set(each) for each in known]
            for source, target in one.pairs:
                known[target] |= before[source]
        assert all(each == set(range(8)) for each in known)


def test_of_messages_to_the_opposite_device_half_goes_each_way():
    # four senders' halves on each link
    assert busiest_link(WAYS["doubling"][2]) == Fraction(4, 2)


@pytest.mark.parametrize(
    "links, fastest",
    [
        (ANY, ["doubling", "doubling", *["halving, then doubling"] * 2]),
        (NEIGHBOURS, ["doubling", "doubling", "halving, then doubling", "ring of pieces"]),
    ],
)
def test_few_rounds_win_for_small_rows_and_the_ring_only_for_large_ones_on_links_between_neighbours(links, fastest):
    assert [look(links, row).fastest for row in ROWS] == fastest


def test_the_picture_has_a_circle_for_each_round_that_differs_and_fits_the_page():
    for links in (ANY, NEIGHBOURS):
        picture = draw(look(links, "4 MiB")).piece
        svg = ElementTree.fromstring(card("rounds", draw(look(links, "4 MiB"))))
        assert len(list(svg.iter(f"{SVG}circle"))) == 8 * (1 + 3 + 6)
        assert picture.width <= WIDEST


def test_the_words_name_the_fastest():
    assert exchange_rounds().text.splitlines()[-1] == "the fastest: doubling"

"""A row of bars: its parts are end to end, and the words behind the last one."""

import re

from course.widgets.bars import NAMES_WIDTH, bar


def test_parts_are_end_to_end_and_words_behind_the_last() -> None:
    parts = [
        ("weights", 2, "#111111", 10),
        ("nothing", 0, "#222222", 10),
        ("batch", 3, "#333333", 10),
        ("rest", 1, "#444444", 5),
    ]
    svg = bar("step", parts, "6 in all", str, px_per_unit=10, row=20, width=100).svg
    drawn = [(float(x), float(width)) for x, width in re.findall(r'<rect x="([\d.]+)"[^>]* width="([\d.]+)"', svg)]
    assert drawn == [(NAMES_WIDTH, 20), (NAMES_WIDTH + 20, 30), (NAMES_WIDTH + 50, 10)]
    (words,) = re.findall(r'<text x="([\d.]+)"[^>]*>6 in all<', svg)
    assert float(words) > NAMES_WIDTH + 60

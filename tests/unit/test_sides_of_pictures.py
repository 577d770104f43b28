"""The words beside a picture are those of its rows, the words below it those of its columns."""

import re

from tinyshard.core.layout import Layout
from tinyshard.draw.svg import mesh_svg, sharding_svg


def beside_and_below(svg: str, words: set[str]) -> tuple[list[str], list[str]]:
    """Of these words those that are turned, as beside a picture, and the others."""
    texts = [(rest, said) for rest, said in re.findall(r"<text([^>]*)>([^<]*)</text>", svg) if said in words]
    return [said for rest, said in texts if "rotate" in rest], [said for rest, said in texts if "rotate" not in rest]


def test_the_first_axis_of_a_mesh_is_beside_it_and_the_second_below() -> None:
    svg = mesh_svg((2, 3), range(6), ("data", "model"), "cpu")
    assert beside_and_below(svg, {"data: 2", "model: 3"}) == (["data: 2"], ["model: 3"])


def test_the_number_of_rows_is_beside_an_array_and_that_of_columns_below() -> None:
    svg = sharding_svg(Layout((0, 1), (2,), ((0,), ())), (80, 60))
    assert beside_and_below(svg, {"80", "60"}) == (["80"], ["60"])

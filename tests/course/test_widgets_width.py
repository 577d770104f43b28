"""Every picture is shown in full size in a window of 900 px, under its heading; some of them whatever is chosen."""

from collections.abc import Iterator

import pytest
import torch

import tinyshard as ts
from course import widgets
from course.widgets.card import MARGIN, WIDEST, size_of
from tinyshard import P


@pytest.fixture
def local() -> Iterator[None]:
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


def shown(name: str) -> widgets.base.Explorer[object]:
    if name != "program_schedule":
        return getattr(widgets, name)()
    compiled = ts.jit(lambda x: x.sum(0)).lower(torch.ones(8, 4)).compile()
    return widgets.program_schedule({"sum": compiled}, limit_nbytes=1000)


@pytest.mark.parametrize("name", widgets.__all__)
def test_a_picture_fits_a_window_of_900_px_and_has_a_bold_heading(name: str, local: None) -> None:
    found = shown(name)
    assert size_of(found.svg)[0] <= WIDEST + 2 * MARGIN
    assert found.svg.count('font-weight="bold"') == 1


# the longest code, the widest mesh, the longest lines of a program
WIDE = [
    (
        "sharding_explorer",
        {"mesh": (2, 2, 2), "shape": (32, 3, 64, 64), "dim_0": None, "dim_1": None, "dim_3": ("a", "b")},
    ),
    ("sharding_explorer", {"mesh": (2, 2, 2), "shape": (4, 64, 64), "dim_2": "c"}),
    ("sharding_explorer", {"mesh": (2, 2, 2), "shape": (24,)}),
    ("sharding_explorer", {"mesh": (8,), "shape": (32, 3, 64, 64)}),
    ("token_routing", {"capacity": 8}),
    ("two_programs", {"name": "two_dims"}),
    ("layout_table", {"left": P("a", "b"), "right": P("a"), "size": 4096}),
    ("layout_table", {"function": "left + right", "left": P(None, ("a", "b"))}),
]


@pytest.mark.parametrize("name, choices", WIDE)
def test_it_fits_there_with_the_longest_lines_too(name: str, choices: dict[str, object], local: None) -> None:
    found = shown(name).choose(**choices)
    assert size_of(found.svg)[0] <= WIDEST + 2 * MARGIN

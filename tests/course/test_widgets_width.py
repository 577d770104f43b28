"""Every picture is shown in full size in a window of 900 px, under its heading."""

from collections.abc import Iterator

import pytest
import torch

import tinyshard as ts
from course import widgets
from course.widgets.card import MARGIN, WIDEST, size_of


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

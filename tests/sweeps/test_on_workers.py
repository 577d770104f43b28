"""A drawn part of the sweeps of torch.nn and of random programs on eight worker processes."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

import tinyshard as ts
from tests.extent import drawn, every
from tests.sweeps.random_programs import program
from tests.sweeps.test_nn import ROWS, check_row
from tests.sweeps.test_random_programs import KEPT, check_program

DRAWN = sorted(random.Random(0).sample(sorted(ROWS), drawn(6, 20, 150)))
PARTS = range(drawn(1, 1, 40))
A_PART = drawn(8, 25, 25)


@pytest.fixture(scope="module", autouse=True)
def eight_workers() -> Iterator[None]:
    ts.init(devices=8, runtime="process")
    yield
    ts.shutdown()


@pytest.mark.parametrize("name", DRAWN)
def test_a_module_and_its_gradients_equal_plain_torchs(name: str) -> None:
    check_row(name, range(drawn(1, 1, 3)))


@pytest.mark.parametrize("part", PARTS)
def test_random_programs_give_what_plain_torch_gives(part: int) -> None:
    for number in range(A_PART):
        check_program(program(random.Random(f"{part} {number}").choice))


@pytest.mark.parametrize("name", every(3, KEPT))
def test_a_program_that_once_missed_gives_what_plain_torch_gives(name: str) -> None:
    check_program(KEPT[name])

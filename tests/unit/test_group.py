import itertools

import pytest

from tinyshard.runtime.collectives.base import group_of, step_of


@pytest.mark.parametrize("count", range(1, 5))
def test_a_step_is_the_distance_of_numbers_that_ascend_evenly(count: int) -> None:
    for numbers in itertools.product(range(6), repeat=count):
        steps = {b - a for a, b in itertools.pairwise(numbers)}
        wanted = steps.pop() if len(steps) == 1 and min(steps) > 0 else 0
        assert step_of(numbers) == step_of(list(numbers)) == wanted


def test_numbers_far_apart_are_looked_at_one_by_one() -> None:
    """As places of operands in the memory of several devices are."""
    assert step_of([0, 1, 1 << 60]) == 0
    assert step_of([5, 5 + (1 << 58), 5 + (1 << 59)]) == 1 << 58


def test_a_group_knows_its_step() -> None:
    assert group_of((1, 3, 5), 3).step == 2
    assert group_of((3, 1), 3).step == 0
    assert group_of((3,), 3).step == 0

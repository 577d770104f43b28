"""What differs between the learner's value and the wanted one is said in words, whatever the value is."""

import numpy as np
import pytest
import torch

import tinyshard as ts
from course.exercises.compare import difference


@pytest.fixture(scope="module", autouse=True)
def local():
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


@pytest.mark.parametrize(
    "got",
    [
        [1.0, 2.0],
        (1, 2),
        np.array([1.0, 2.0]),
        torch.tensor([1, 2]),
        torch.tensor([1.0, 2.0], requires_grad=True),
        [torch.tensor(1.0), torch.tensor(2.0)],
        [1.0, 2.0 + 1e-7],
    ],
)
def test_equal_values_of_any_kind_do_not_differ(got: object) -> None:
    assert difference(got, torch.tensor([1.0, 2.0])) == ""


def test_arrays_are_fetched() -> None:
    rows = ts.sharding.PositionalSharding(ts.devices())
    assert difference(ts.device_put(torch.arange(8.0), rows), range(8)) == ""
    assert difference([ts.array(1.0), ts.array(2.0)], [1, 2]) == ""


@pytest.mark.parametrize(
    "got, want, told",
    [
        (None, 1, "x is None"),
        (len, 1, "x is of type builtin_function_or_method, which holds no numbers that could be compared"),
        ("four", 4, "x is of type str, which holds no numbers that could be compared"),
        ([[1], [1, 2]], [1, 2], "x is of type list, which holds no numbers that could be compared"),
        (1, [1, 2], "x has the shape (), not (2,)"),
        (3, 4, "x is 3, not 4"),
        (float("nan"), 4.0, "x is nan, not 4.0"),
        (True, False, "x is True, not False"),
        ([1, 2], [1, 3], "x differs in 1 of 2 elements\n  got:  [1, 2]\n  want: [1, 3]"),
    ],
)
def test_what_differs_is_said(got: object, want: object, told: str) -> None:
    assert difference(got, want, "x") == told


def test_of_many_elements_the_first_that_differs_is_shown() -> None:
    got = torch.zeros(5, 5)
    got[3, 1] = 2
    assert difference(got, torch.zeros(5, 5)) == "it differs in 1 of 25 elements; the first is [3, 1]: 2.0, not 0.0"

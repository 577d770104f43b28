"""The gradient of what was sent goes back to who sent it."""

import pytest
import torch

import tinyshard as ts

pytestmark = pytest.mark.usefixtures("local")

WEIGHTS = torch.tensor([2.0, 3.0, 5.0, 7.0])


@pytest.mark.parametrize("mapped", [ts.vmap, ts.pmap], ids=["vmap", "pmap"])
@pytest.mark.parametrize(
    "pairs, expected",
    [([(0, 1), (1, 2), (2, 3)], [3.0, 5.0, 7.0, 0.0]), ([(0, 2), (1, 0), (2, 1)], [5.0, 2.0, 3.0, 0.0])],
    ids=["a line", "a ring of three"],
)
def test_the_gradient_of_a_permutation_is_the_way_back(mapped, pairs, expected) -> None:
    sent = mapped(lambda v: ts.lax.ppermute(v, "i", pairs), axis_name="i")
    assert ts.grad(lambda x: (sent(x) * WEIGHTS).sum())(torch.ones(4)).tolist() == expected

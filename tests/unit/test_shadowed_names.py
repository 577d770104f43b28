"""A name that is bound again inside: its size and its positions are those of the inner axis."""

import pytest
import torch

import tinyshard as ts

pytestmark = pytest.mark.usefixtures("local")

ROWS = torch.arange(12.0).reshape(4, 3) ** 2
POSITIONS = torch.arange(3, dtype=torch.int32).expand(4, 3)


def nested(function, outer):
    return ts.device_get(outer(ts.vmap(function, axis_name="i"), axis_name="i")(ROWS))


@pytest.mark.parametrize("outer", [ts.vmap, ts.pmap], ids=["vmap", "pmap"])
def test_size_mean_and_position_are_of_the_inner_axis(outer) -> None:
    assert nested(lambda v: v * 0 + ts.lax.axis_size("i"), outer).eq(3).all()
    assert torch.equal(nested(lambda v: v.int() * 0 + ts.lax.axis_index("i"), outer), POSITIONS)
    means = torch.from_numpy(ROWS.numpy().mean(1, keepdims=True)).expand(4, 3)
    torch.testing.assert_close(nested(lambda v: ts.lax.pmean(v, "i"), outer), means)

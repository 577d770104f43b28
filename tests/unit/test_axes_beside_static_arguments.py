"""in_axes of pmap name every argument; the entry of a static one is not that of the next."""

import pytest
import torch

import tinyshard as ts

pytestmark = pytest.mark.usefixtures("local")


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_static_argument_takes_its_own_entry_with_it(place) -> None:
    rows, shared = torch.arange(12.0).reshape(4, 3), torch.tensor([1.0, 10.0, 100.0])
    arguments, axes = [rows, shared], [0, None]
    arguments.insert(place, 2)
    axes.insert(place, None)

    def weighted(*given):
        row, weights = (x for x in given if isinstance(x, torch.Tensor))
        return (row * weights).sum() * given[place]

    f = ts.pmap(weighted, in_axes=tuple(axes), static_broadcasted_argnums=place)
    assert f(*arguments).tolist() == (rows @ shared * 2).tolist()

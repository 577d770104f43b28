"""Seed 003 up to "Computation follows data sharding": every picture, CPU for TPU, cells in mesh order."""

import numpy as np
import pytest
import torch

import tinyshard as ts
from tinyshard import NamedSharding, P
from tinyshard.sharding import PositionalSharding

pytestmark = pytest.mark.usefixtures("local")
SIZE = 256  # the seed's 8192 gives the same pictures: only the aspect matters


def box(rows, width, blank_above=0, blank_below=0):
    """The seed's box: one text a cell, blank lines above and below it."""
    line = "─" * width
    top, middle, bottom = (a + b.join([line] * len(rows[0])) + c for a, b, c in ("┌┬┐", "├┼┤", "└┴┘"))
    blank = "│" + "│".join([" " * width] * len(rows[0])) + "│"
    body = []
    for row in rows:
        texts = (
            "│"
            + "│".join(text.center(width) if (width - len(text)) % 2 == 0 else _left(text, width) for text in row)
            + "│"
        )
        body.append("\n".join([*[blank] * blank_above, texts, *[blank] * blank_below]))
    return top + "\n" + ("\n" + middle + "\n").join(body) + "\n" + bottom + "\n"


def _left(text, width):
    left = (width - len(text)) // 2
    return " " * left + text + " " * (width - len(text) - left)


FOUR_BY_TWO = box([["CPU 0", "CPU 1"], ["CPU 2", "CPU 3"], ["CPU 4", "CPU 5"], ["CPU 6", "CPU 7"]], 10)
EIGHT_ROWS = box([[f"CPU {i}"] for i in range(8)], 23)
EIGHT_COLUMNS = box([[f"CPU {i}" for i in range(8)]], 7, 4, 4)
ROWS_TWICE = box([["CPU 0,1"], ["CPU 2,3"], ["CPU 4,5"], ["CPU 6,7"]], 23)
COLUMNS_FOUR_TIMES = box([["CPU 0,2,4,6", "CPU 1,3,5,7"]], 11, 4, 4)
TWO_BY_FOUR = box([["CPU 0", "CPU 2", "CPU 4", "CPU 6"], ["CPU 1", "CPU 3", "CPU 5", "CPU 7"]], 7, 1, 2)
COLUMNS_TWICE = box([["CPU 0,1", "CPU 2,3", "CPU 4,5", "CPU 6,7"]], 7, 4, 4)
WHOLE_ON_ONE = box([["CPU 0"]], 23, 4, 4)


@pytest.fixture
def x():
    return torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def sharding():
    return PositionalSharding(ts.mesh_utils.create_device_mesh((8,)))


def picture(capsys, array):
    capsys.readouterr()
    ts.debug.visualize_array_sharding(array)
    return capsys.readouterr().out


def test_the_quick_example_is_sharded_and_so_is_its_sine(capsys, x, sharding):
    y = ts.device_put(x, sharding.reshape(4, 2))
    assert picture(capsys, y) == FOUR_BY_TWO
    z = torch.sin(y)
    assert picture(capsys, z) == FOUR_BY_TWO
    torch.testing.assert_close(ts.device_get(z), torch.sin(x))


def test_a_value_on_one_device(capsys, x):
    assert picture(capsys, ts.array(x)) == WHOLE_ON_ONE
    assert picture(capsys, ts.device_put(x, ts.devices()[0])) == WHOLE_ON_ONE


def test_positional_shardings_of_every_shape(capsys, x, sharding):
    assert picture(capsys, ts.device_put(x, sharding.reshape(8, 1))) == EIGHT_ROWS
    assert picture(capsys, ts.device_put(x, sharding.reshape(4, 2))) == FOUR_BY_TWO
    assert picture(capsys, ts.device_put(x, sharding.reshape(1, 8))) == EIGHT_COLUMNS
    four = sharding.reshape(4, 2)
    assert picture(capsys, ts.device_put(x, four.replicate(axis=0, keepdims=True))) == COLUMNS_FOUR_TIMES
    assert picture(capsys, ts.device_put(x, four.replicate(1))) == ROWS_TWICE


def test_named_shardings_of_every_spec(capsys, x):
    mesh = ts.Mesh(ts.mesh_utils.create_device_mesh((4, 2)), axis_names=("a", "b"))
    pictures = {
        P("a", "b"): FOUR_BY_TWO,
        P("b", "a"): TWO_BY_FOUR,
        P("a", None): ROWS_TWICE,
        P(None, "b"): COLUMNS_FOUR_TIMES,
        P(None, "a"): COLUMNS_TWICE,
        P(("a", "b"), None): EIGHT_ROWS,
    }
    for spec, drawn in pictures.items():
        assert picture(capsys, ts.device_put(x, NamedSharding(mesh, spec))) == drawn


def test_matmul_of_rows_by_columns_and_its_copy(capsys, x, sharding):
    y = ts.device_put(x, sharding.reshape(4, 2).replicate(1))
    z = ts.device_put(x, sharding.reshape(4, 2).replicate(0))
    w = y @ z
    assert picture(capsys, w) == FOUR_BY_TWO
    assert picture(capsys, torch.clone(w)) == FOUR_BY_TWO
    single = ts.device_put(x, ts.devices()[0])
    assert np.allclose(single @ single, w, atol=1e-3)

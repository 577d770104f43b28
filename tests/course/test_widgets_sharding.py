"""The sharding explorer of lesson 02: what it says against pictures made by hand; every control changes it."""

import xml.etree.ElementTree as ElementTree

import pytest

from course.widgets import sharding_explorer
from course.widgets.sharding import look
from tinyshard.core.errors import ShardingError


def test_rows_by_b_and_copies_along_a():
    assert sharding_explorer().choose(shape=(24,), dim_0="b").text == (
        "┌───────────┬───────────┐\n"
        "│CPU 0,2,4,6│CPU 1,3,5,7│\n"
        "└───────────┴───────────┘\n"
        "each device: 12 numbers = 48 B of 96 B; 2 different blocks, 4 copies of each\n"
        'ts.device_put(x, ts.NamedSharding(ts.make_mesh((4, 2), ("a", "b")), ts.P("b")))'
    )


def test_the_picture_shows_every_device_of_mesh_and_array_and_the_line_of_code():
    root = ElementTree.fromstring(sharding_explorer().svg)
    words = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [word for word in words if word.startswith("CPU ")] == 2 * [f"CPU {k}" for k in range(8)]
    assert words[-1] == 'ts.device_put(x, ts.NamedSharding(ts.make_mesh((4, 2), ("a", "b")), ts.P("a", "b")))'


@pytest.mark.parametrize(
    "choice",
    [{"mesh": (2, 4)}, {"shape": (32, 3, 64, 64)}, {"dim_0": None}, {"dim_1": ("b", "a")}, {"dim_0": ("a", "b")}],
)
def test_every_control_changes_picture_and_words(choice):
    before = sharding_explorer()
    after = sharding_explorer().choose(**choice)
    assert after.svg != before.svg
    assert after.text != before.text


def test_the_controls_of_deeper_dims_come_with_the_rank():
    found = sharding_explorer().choose(dim_1=None, shape=(32, 3, 64, 64), dim_2="b")
    assert found.text.splitlines()[-3:] == [
        "each device: 8 × 3 × 32 × 64 = 192 KiB of 1.5 MiB; 8 different blocks, one copy of each",
        'ts.device_put(x, ts.NamedSharding(ts.make_mesh((4, 2), ("a", "b")),',
        '                                  ts.P("a", None, "b", None)))',
    ]


def test_without_a_cut_there_is_one_block_and_a_copy_of_it_on_each_device():
    line = sharding_explorer().choose(dim_0=None, dim_1=None).text.splitlines()[-2]
    assert line == "each device: 2048 × 2048 = 16 MiB of 16 MiB; one block, 8 copies of it"


def test_a_cut_that_does_not_come_out_even_shows_the_error():
    assert "10 must be a multiple of 4" in sharding_explorer().choose(shape=(10, 6)).text
    with pytest.raises(ShardingError):
        look(mesh=(4, 2), shape=(10, 6), dim_0="a", dim_1="b")


def test_the_code_makes_the_sharding_that_is_drawn():
    import torch

    import tinyshard as ts

    ts.init(devices=8, runtime="local")
    found = sharding_explorer().choose(mesh=(2, 2, 2), shape=(4, 64, 64), dim_0="c", dim_1=("b", "a"))
    y = eval("\n".join(found.text.splitlines()[-2:]), {"ts": ts, "x": torch.zeros(4, 64, 64)})
    assert y.addressable_shards[0].data.shape == (2, 16, 64)
    drawn = look(mesh=(2, 2, 2), shape=(4, 64, 64), dim_0="c", dim_1=("b", "a"), dim_2=None)
    assert [shard.index for shard in y.addressable_shards] == [drawn.layout.index(k, drawn.shape) for k in range(8)]

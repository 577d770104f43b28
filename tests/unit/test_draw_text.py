"""The boxes of visualize_array_sharding are JAX's, for every rank, and stay small on large meshes."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tinyshard as ts
from tinyshard.core.layout import Layout, replicated
from tinyshard.debug import visualize_array_sharding, visualize_sharding
from tinyshard.draw.text import sharding_text

# What jax.debug.visualize_sharding printed (JAX 0.10.2 with rich, CPU devices) for these layouts.
JAX_PRINTED = [
    (
        Layout((0,), (1,), ((), ())),
        (8192, 8192),
        """
┌───────────────────────┐
│                       │
│                       │
│                       │
│                       │
│         CPU 0         │
│                       │
│                       │
│                       │
│                       │
└───────────────────────┘
""",
    ),
    (
        Layout(tuple(range(8)), (4, 2), ((0,), (1,))),
        (8192, 8192),
        """
┌──────────┬──────────┐
│  CPU 0   │  CPU 1   │
├──────────┼──────────┤
│  CPU 2   │  CPU 3   │
├──────────┼──────────┤
│  CPU 4   │  CPU 5   │
├──────────┼──────────┤
│  CPU 6   │  CPU 7   │
└──────────┴──────────┘
""",
    ),
    (
        Layout(tuple(range(8)), (8,), ((), (0,))),
        (8192, 8192),
        """
┌───────┬───────┬───────┬───────┬───────┬───────┬───────┬───────┐
│       │       │       │       │       │       │       │       │
│       │       │       │       │       │       │       │       │
│       │       │       │       │       │       │       │       │
│       │       │       │       │       │       │       │       │
│ CPU 0 │ CPU 1 │ CPU 2 │ CPU 3 │ CPU 4 │ CPU 5 │ CPU 6 │ CPU 7 │
│       │       │       │       │       │       │       │       │
│       │       │       │       │       │       │       │       │
│       │       │       │       │       │       │       │       │
│       │       │       │       │       │       │       │       │
└───────┴───────┴───────┴───────┴───────┴───────┴───────┴───────┘
""",
    ),
    (
        Layout(tuple(range(8)), (4, 2), ((), (1,))),
        (8192, 8192),
        """
┌───────────┬───────────┐
│           │           │
│           │           │
│           │           │
│           │           │
│CPU 0,2,4,6│CPU 1,3,5,7│
│           │           │
│           │           │
│           │           │
│           │           │
└───────────┴───────────┘
""",
    ),
    (
        Layout(tuple(range(8)), (2, 4), ((0,), (1,))),
        (8192, 8192),
        """
┌───────┬───────┬───────┬───────┐
│       │       │       │       │
│ CPU 0 │ CPU 1 │ CPU 2 │ CPU 3 │
│       │       │       │       │
│       │       │       │       │
├───────┼───────┼───────┼───────┤
│       │       │       │       │
│ CPU 4 │ CPU 5 │ CPU 6 │ CPU 7 │
│       │       │       │       │
│       │       │       │       │
└───────┴───────┴───────┴───────┘
""",
    ),
    (
        Layout(tuple(range(8)), (8,), ((), ())),
        (8192, 8192),
        """
┌───────────────────────┐
│                       │
│                       │
│                       │
│                       │
│  CPU 0,1,2,3,4,5,6,7  │
│                       │
│                       │
│                       │
│                       │
└───────────────────────┘
""",
    ),
    (
        Layout(tuple(range(8)), (4, 2), ((0,), ())),
        (8192, 784),
        """
┌───────┐
│CPU 0,1│
├───────┤
│CPU 2,3│
├───────┤
│CPU 4,5│
├───────┤
│CPU 6,7│
└───────┘
""",
    ),
    (
        Layout(tuple(range(8)), (8,), ((0,),)),
        (24,),
        """
┌───────┬───────┬───────┬───────┬───────┬───────┬───────┬───────┐
│ CPU 0 │ CPU 1 │ CPU 2 │ CPU 3 │ CPU 4 │ CPU 5 │ CPU 6 │ CPU 7 │
└───────┴───────┴───────┴───────┴───────┴───────┴───────┴───────┘
""",
    ),
    (
        Layout(tuple(range(8)), (8,), ((),)),
        (24,),
        """
┌───────────────────┐
│CPU 0,1,2,3,4,5,6,7│
└───────────────────┘
""",
    ),
    (
        Layout((0,), (1,), ((),)),
        (1,),
        """
┌───────────────────────┐
│         CPU 0         │
└───────────────────────┘
""",
    ),
    (
        Layout((0, 1, 2, 3, 6, 7, 4, 5), (4, 2), ((0,), (1,))),
        (8192, 8192),
        """
┌──────────┬──────────┐
│  CPU 0   │  CPU 1   │
├──────────┼──────────┤
│  CPU 2   │  CPU 3   │
├──────────┼──────────┤
│  CPU 6   │  CPU 7   │
├──────────┼──────────┤
│  CPU 4   │  CPU 5   │
└──────────┴──────────┘
""",
    ),
    (
        Layout((5, 3, 1, 0, 2, 4), (3, 2), ((0,), (1,))),
        (12, 8),
        """
┌───────┬───────┐
│ CPU 5 │ CPU 3 │
│       │       │
├───────┼───────┤
│ CPU 1 │ CPU 0 │
│       │       │
├───────┼───────┤
│ CPU 2 │ CPU 4 │
│       │       │
└───────┴───────┘
""",
    ),
    (
        Layout(tuple(range(8)), (2, 2, 2), ((2,), (0,))),
        (8192, 8192),
        """
┌──────────┬──────────┐
│          │          │
│ CPU 0,2  │ CPU 4,6  │
│          │          │
│          │          │
├──────────┼──────────┤
│          │          │
│ CPU 1,3  │ CPU 5,7  │
│          │          │
│          │          │
└──────────┴──────────┘
""",
    ),
    (
        Layout(tuple(range(7)), (7,), ((0,), ())),
        (7, 49),
        """
┌──────────────────────────────────────────────────────────────────────────────┐
│                                    CPU 0                                     │
├──────────────────────────────────────────────────────────────────────────────┤
│                                    CPU 1                                     │
├──────────────────────────────────────────────────────────────────────────────┤
│                                    CPU 2                                     │
├──────────────────────────────────────────────────────────────────────────────┤
│                                    CPU 3                                     │
├──────────────────────────────────────────────────────────────────────────────┤
│                                    CPU 4                                     │
├──────────────────────────────────────────────────────────────────────────────┤
│                                    CPU 5                                     │
├──────────────────────────────────────────────────────────────────────────────┤
│                                    CPU 6                                     │
└──────────────────────────────────────────────────────────────────────────────┘
""",
    ),
]


@pytest.mark.parametrize(("layout", "shape", "printed"), JAX_PRINTED)
def test_boxes_are_what_jax_prints(layout, shape, printed):
    assert sharding_text(layout, shape) == printed.strip()


def test_a_picture_of_the_seed_on_tpus():
    # seed 003: sharding.reshape(4, 2).replicate(1) on a torus, whose device order is 0 1 2 3 6 7 4 5
    layout = Layout((0, 1, 2, 3, 6, 7, 4, 5), (4, 2), ((0,), ()), "tpu")
    expected = """
┌───────────────────────┐
│        TPU 0,1        │
├───────────────────────┤
│        TPU 2,3        │
├───────────────────────┤
│        TPU 6,7        │
├───────────────────────┤
│        TPU 4,5        │
└───────────────────────┘
"""
    assert sharding_text(layout, (8192, 8192)) == expected.strip()


def test_a_number_is_one_box():
    expected = """
┌───────────────────────┐
│      CPU 0,1,2,3      │
└───────────────────────┘
"""
    assert sharding_text(replicated(range(4), ndim=0), ()) == expected.strip()


def test_rank_3_is_one_picture_for_each_block_of_the_leading_dim():
    layout = Layout(tuple(range(8)), (2, 2, 2), ((0,), (1,), (2,)))
    expected = """
x[0:4, ...]
┌──────────┬──────────┐
│          │          │
│  CPU 0   │  CPU 1   │
│          │          │
│          │          │
├──────────┼──────────┤
│          │          │
│  CPU 2   │  CPU 3   │
│          │          │
│          │          │
└──────────┴──────────┘
x[4:8, ...]
┌──────────┬──────────┐
│          │          │
│  CPU 4   │  CPU 5   │
│          │          │
│          │          │
├──────────┼──────────┤
│          │          │
│  CPU 6   │  CPU 7   │
│          │          │
│          │          │
└──────────┴──────────┘
"""
    assert sharding_text(layout, (8, 6, 6)) == expected.strip()


def test_a_leading_dim_that_is_not_cut_repeats_nothing():
    text = sharding_text(Layout((0, 1), (2,), ((), (0,), ())), (5, 8, 8))
    assert text.startswith("x[:, ...]\n┌")
    assert text.count("┌") == 1


def test_rank_4_headings_name_every_leading_slice():
    layout = Layout(tuple(range(8)), (2, 4), ((0,), (), (1,), ()))
    headings = [line for line in sharding_text(layout, (16, 3, 8, 8)).splitlines() if line.startswith("x")]
    assert headings == ["x[0:8, :, ...]", "x[8:16, :, ...]"]


def test_a_picture_wider_than_80_columns_keeps_every_name_on_one_line():
    layout = Layout(tuple(range(16)), (16,), ((), (0,)))
    lines = sharding_text(layout, (16, 16)).splitlines()
    (names,) = [line for line in lines if "CPU" in line]
    assert [name.strip() for name in names.strip("│").split("│")] == [f"CPU {i}" for i in range(16)]


def test_a_very_wide_array_is_drawn_in_80_columns():
    # JAX draws this outline too, but loses the names.
    lines = sharding_text(Layout(tuple(range(8)), (8,), ((), (0,))), (8, 1024)).splitlines()
    assert lines[0] == "┌─────────┬─────────┬─────────┬─────────┬─────────┬─────────┬─────────┬────────┐"
    assert [name.strip() for name in lines[5].strip("│").split("│")] == [f"CPU {i}" for i in range(8)]


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (0, 0)])
def test_an_empty_array_is_drawn(shape):
    assert "CPU 0,1" in sharding_text(replicated((0, 1), ndim=len(shape)), shape)


def test_up_to_16_ids_are_complete_and_more_are_counted():
    assert "CPU 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15│" in sharding_text(replicated(range(16), 1), (4,))
    assert "│CPU 0,1,2,…,4095 (4096)│" in sharding_text(replicated(range(4096), 1), (4,))


def test_a_mesh_of_4096_devices_shows_the_first_and_the_last():
    text = sharding_text(Layout(tuple(range(4096)), (64, 64), ((0, 1), ())), (4096, 8))
    names = [line.strip("│").strip() for line in text.splitlines() if line.startswith("│")]
    assert names == [*(f"CPU {i}" for i in range(8)), "⋮", *(f"CPU {i}" for i in range(4088, 4096))]
    assert len(sharding_text(Layout(tuple(range(65536)), (256, 256), ((0,), (1,))), (256, 256))) < 20_000


def test_a_layout_of_another_rank_is_an_error():
    with pytest.raises(ValueError, match="2 dims"):
        sharding_text(replicated((0,), ndim=2), (3,))


@st.composite
def layouts(draw):
    axes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    ndim = draw(st.integers(0, 4))
    devices = tuple(draw(st.permutations(range(math.prod(axes)))))
    cut = [draw(st.integers(-1, ndim - 1)) for _ in axes] if ndim else []
    dims = tuple(tuple(a for a, dim in enumerate(cut) if dim == d) for d in range(ndim))
    layout = Layout(devices, axes, dims)
    return layout, tuple(parts * draw(st.integers(0, 40)) for parts in layout.parts)


@given(layouts())
def test_every_picture_has_straight_borders_and_names_every_block_in_order(drawn):
    layout, shape = drawn
    names: list[str] = []
    for line in sharding_text(layout, shape).splitlines():
        if line[0] == "┌":
            width = len(line)
        if line[0] in "│┌├└":
            assert len(line) == width
            names += [name.strip() for name in line.strip("│").split("│") if "CPU" in name]
    if math.prod(layout.parts[:-2]) <= 16:
        blocks: dict[tuple[int, ...], list[int]] = {}
        for position, device in enumerate(layout.devices):
            blocks.setdefault(layout.block(position), []).append(device)
        expected = [blocks[block] for block in sorted(blocks)]
        for name, ids in zip(names, expected, strict=True):
            assert "…" in name or name == f"CPU {','.join(map(str, sorted(ids)))}"


# Devices 1 and 0, in that order: rows over two devices.
PAIR = ts.NamedSharding(ts.Mesh([ts.Device(1), ts.Device(0)], ("i",)), ts.P("i"))


@pytest.mark.usefixtures("local")
def test_visualize_prints_an_array_and_a_sharding_alike(capsys):
    visualize_array_sharding(ts.device_put(torch.zeros(4), PAIR))
    first = capsys.readouterr().out
    visualize_sharding((4,), PAIR)
    assert first == capsys.readouterr().out == "┌───────┬───────┐\n│ CPU 1 │ CPU 0 │\n└───────┴───────┘\n"


def test_a_plain_tensor_is_on_device_0(capsys):
    visualize_array_sharding(torch.zeros(3))
    assert "│ CPU 0 │" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [3, [1.0], None, "x"])
def test_what_is_no_array_is_an_error_that_says_what_came(wrong):
    with pytest.raises(ts.DtypeError, match=r"got: .*a " + type(wrong).__name__):
        visualize_array_sharding(wrong)


def test_wrong_arguments_of_visualize_sharding_are_errors():
    with pytest.raises(ts.DtypeError, match="not a sharding"):
        visualize_sharding((8,), (8,))
    with pytest.raises(ts.DtypeError, match="not a shape"):
        visualize_sharding(8, PAIR)
    with pytest.raises(ts.DtypeError, match="not a shape"):
        visualize_sharding((-8,), PAIR)
    with pytest.raises(ts.ShardingError, match="7 must be a multiple of 2"):
        visualize_sharding((7,), PAIR)

"""Layouts against NumPy: coordinates by unravel_index, blocks by slicing an array of positions."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.expressions import factorizations
from tests.extent import examples
from tinyshard.core.layout import (
    Layout,
    coarsest,
    is_same_placement,
    merge_axes,
    refine,
    replicated,
    split_axes,
)

drawn = settings(max_examples=examples(25, 100))
SIZES = st.lists(st.sampled_from((1, 2, 3, 4)), max_size=4).filter(lambda s: math.prod(s) <= 48)


@st.composite
def layouts(draw: Any, sizes: tuple[int, ...] | None = None, ndim: int | None = None) -> Layout:
    """A layout over devices in any order; each axis cuts one dim or none."""
    axes = tuple(draw(SIZES)) if sizes is None else sizes
    ndim = draw(st.integers(0, 3)) if ndim is None else ndim
    cuts: list[list[int]] = [[] for _ in range(ndim)]
    for axis in draw(st.permutations(range(len(axes)))):
        dim = draw(st.sampled_from([*range(ndim), None]))
        if dim is not None:
            cuts[dim].append(axis)
    devices = tuple(10 + d for d in draw(st.permutations(range(math.prod(axes)))))
    return Layout(devices, axes, tuple(map(tuple, cuts)))


def same_product(sizes: tuple[int, ...]) -> st.SearchStrategy[tuple[int, ...]]:
    """Other sizes for as many devices."""
    return st.sampled_from([sizes, sizes[::-1], *factorizations(math.prod(sizes))])


def blocks_by_numpy(layout: Layout) -> list[tuple[int, ...]]:
    """The block of each device, from its coordinates as NumPy counts them."""
    found = []
    for position in range(len(layout.devices)):
        at = np.unravel_index(position, layout.axes) if layout.axes else ()
        found.append(
            tuple(
                int(np.ravel_multi_index([at[a] for a in cut], [layout.axes[a] for a in cut])) if cut else 0
                for cut in layout.dims
            )
        )
    return found


def placement(layout: Layout) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """What a layout says in the end: block of each device, and into how many blocks each dim is cut."""
    return [(block, layout.parts) for block in blocks_by_numpy(layout)]


@drawn
@given(layouts())
def test_coordinates_count_as_unravel_index_does(layout: Layout) -> None:
    for position in range(len(layout.devices)):
        want = tuple(map(int, np.unravel_index(position, layout.axes))) if layout.axes else ()
        assert layout.coordinates(position) == want


@drawn
@given(layouts())
def test_a_block_is_the_number_that_the_coordinates_along_its_cuts_spell(layout: Layout) -> None:
    assert [layout.block(p) for p in range(len(layout.devices))] == blocks_by_numpy(layout)


@drawn
@given(layouts(), st.integers(1, 3))
def test_the_blocks_tile_the_tensor(layout: Layout, unit: int) -> None:
    shape = tuple(k * unit for k in layout.parts)
    seen = np.zeros(shape, dtype=int)
    for position in range(len(layout.devices)):
        index = layout.index(position, shape)
        assert seen[index].shape == layout.shard_shape(shape)
        seen[index] += 1
    copies = len(layout.devices) // math.prod(layout.parts)
    assert (seen == copies).all()


@drawn
@given(layouts())
def test_block_i_of_n_is_the_ith_of_numpys_split(layout: Layout) -> None:
    shape = tuple(2 * k for k in layout.parts)
    for position, block in enumerate(blocks_by_numpy(layout)):
        want = np.arange(math.prod(shape)).reshape(shape)
        whole = want
        for dim, (i, parts) in enumerate(zip(block, layout.parts, strict=True)):
            want = np.split(want, parts, dim)[i]
        assert (whole[layout.index(position, shape)] == want).all()


@drawn
@given(layouts())
def test_owners_list_each_device_once_and_copies_are_numbered_in_mesh_order(layout: Layout) -> None:
    blocks = blocks_by_numpy(layout)
    owners = layout.owners()
    assert list(owners) == sorted(set(blocks))
    for block, ids in owners.items():
        assert list(ids) == sorted(d for d, b in zip(layout.devices, blocks, strict=True) if b == block)
    seen: dict[tuple[int, ...], int] = {}
    for position, block in enumerate(blocks):
        assert layout.replica_id(position) == seen.get(block, 0)
        seen[block] = seen.get(block, 0) + 1
    assert layout.positions() == {b: blocks.index(b) for b in blocks}
    assert layout.is_replicated == (len(owners) == 1)


@drawn
@given(layouts())
def test_free_axes_and_cuts_are_all_axes(layout: Layout) -> None:
    cut = [a for dim in layout.dims for a in dim]
    assert sorted([*cut, *layout.free_axes]) == list(range(len(layout.axes)))


@drawn
@given(layouts())
def test_coarsest_says_the_same_with_no_axis_to_spare(layout: Layout) -> None:
    coarse = coarsest(layout)
    assert placement(coarse) == placement(layout)
    assert coarse.devices == layout.devices
    assert 1 not in coarse.axes
    assert coarsest(coarse) == coarse
    for a in range(len(coarse.axes) - 1):  # neighbours are kept apart only where some dim uses them apart
        users = [cut for cut in coarse.dims if a in cut or a + 1 in cut]
        assert users
        assert all((a, a + 1) not in pairwise(cut) for cut in users)


@drawn
@given(st.data())
def test_equal_placements_are_recognized_and_others_told_apart(data: Any) -> None:
    first = data.draw(layouts())
    second = data.draw(layouts(data.draw(same_product(first.axes)), first.ndim))
    second = Layout(first.devices, second.axes, second.dims)
    assert is_same_placement(first, second) == (placement(first) == placement(second))
    assert (coarsest(first) == coarsest(second)) == (placement(first) == placement(second))


@drawn
@given(st.data())
def test_merged_axes_are_common_to_all_and_change_no_placement(data: Any) -> None:
    sizes = tuple(data.draw(SIZES))
    given_ = [data.draw(layouts(sizes)) for _ in range(data.draw(st.integers(1, 3)))]
    merged = merge_axes(given_)
    assert len({x.axes for x in merged}) == 1
    assert [placement(x) for x in merged] == [placement(x) for x in given_]


@drawn
@given(st.data())
def test_refined_layouts_share_axes_and_change_no_placement(data: Any) -> None:
    first = data.draw(layouts())
    second = data.draw(layouts(data.draw(same_product(first.axes))))
    second = Layout(first.devices, second.axes, second.dims)
    refined = refine([first, second])
    if refined is None:
        edges = [set(np.cumprod([1, *x.axes]).tolist()) for x in (first, second)]
        joined = sorted(edges[0] | edges[1])
        assert any(high % low for low, high in pairwise(joined))
    else:
        assert refined[0].axes == refined[1].axes
        assert [placement(x) for x in refined] == [placement(first), placement(second)]


def test_four_by_two_and_two_by_four_meet_as_two_by_two_by_two() -> None:
    devices = tuple(range(8))
    refined = refine([Layout(devices, (4, 2), ((0,), (1,))), Layout(devices, (2, 4), ((0,), (1,)))])
    assert refined is not None
    assert [x.axes for x in refined] == [(2, 2, 2)] * 2
    assert [x.dims for x in refined] == [((0, 1), (2,)), ((0,), (1, 2))]


def test_three_by_two_and_two_by_three_have_no_common_axes() -> None:
    devices = tuple(range(6))
    assert refine([Layout(devices, (3, 2), ((0,),)), Layout(devices, (2, 3), ((0,),))]) is None


@drawn
@given(st.data())
def test_split_axes_change_no_placement(data: Any) -> None:
    layout = data.draw(layouts())
    sizes: list[int] = []
    for size in layout.axes:
        pieces = [2, 2] if size == 4 and data.draw(st.booleans()) else [size]
        sizes += pieces
    assert placement(split_axes(layout, tuple(s for s in sizes if s > 1))) == placement(layout)


@pytest.mark.parametrize("ndim", [0, 1, 4])
def test_a_replicated_layout_has_one_block_that_all_own(ndim: int) -> None:
    assert replicated((3, 1, 2), ndim).owners() == {(0,) * ndim: (1, 2, 3)}

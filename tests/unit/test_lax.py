"""Collectives: vmap, pmap on the local runtime and NumPy by hand agree; so do their derivatives."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinyshard as ts
from tests.collectives_by_hand import KINDS, LINEAR, MESHES, cases, over_two_axes, same

pytestmark = pytest.mark.usefixtures("local")
DIFFERENTIABLE = (*LINEAR, "pmax", "pmin")


def drawn(data, kind, sizes=(1, 2, 3, 4, 6, 8), **options):
    return data.draw(cases(kind, data.draw(st.sampled_from(sizes)), **options))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_vmap_and_pmap_give_what_numpy_gives(kind, data):
    case = drawn(data, kind)
    expected = case.by_hand(case.stack)
    same(ts.vmap(lambda v: case.call(v, "i"), axis_name="i")(case.operand), expected)
    same(ts.pmap(lambda v: case.call(v, "i"), axis_name="i")(case.operand), expected)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=12)
@given(data=st.data())
def test_a_tuple_of_names_is_one_long_axis_however_they_are_bound(kind, data):
    mesh_shape = data.draw(st.sampled_from(MESHES))
    case = data.draw(cases(kind, mesh_shape[0] * mesh_shape[1], groups_allowed=False))
    expected = case.by_hand(case.stack)
    for way, got in over_two_axes(case, mesh_shape).items():
        try:
            same(got, expected)
        except AssertionError as error:
            raise AssertionError(f"{way}: {error}") from error


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=10)
@given(data=st.data())
def test_one_of_two_names_works_for_each_position_of_the_other(kind, data):
    a, b = data.draw(st.sampled_from(MESHES))
    case = data.draw(cases(kind, b, dtypes=("int32", "float32", "bool")))
    stacks = np.stack([np.roll(case.stack, k, 0) for k in range(a)])
    expected = np.stack([case.by_hand(stack) for stack in stacks])
    both = torch.from_numpy(stacks)
    inner = lambda v: case.call(v, "b")  # noqa: E731
    same(ts.vmap(ts.vmap(inner, axis_name="b"), axis_name="a")(both), expected)
    same(ts.pmap(ts.vmap(inner, axis_name="b"), axis_name="a")(both), expected)
    same(ts.vmap(ts.pmap(inner, axis_name="b"), axis_name="a")(both), expected)
    same(
        ts.vmap(ts.vmap(inner, axis_name="b"), in_axes=1, out_axes=1)(both.transpose(0, 1)), np.moveaxis(expected, 0, 1)
    )

"""The collectives on gloo processes give what NumPy written by hand gives."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tinyshard as ts
from tests.collectives_by_hand import KINDS, cases, extremes_keep_nan, over_two_axes, same
from tests.extent import examples
from tests.slopes_by_hand import DIFFERENTIABLE, gradients_agree

few = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("kind", KINDS)
@settings(few, max_examples=examples(4, 10))
@given(data=st.data())
def test_pmap_on_processes_gives_what_numpy_gives(pool, kind, data):
    case = data.draw(cases(kind, data.draw(st.sampled_from((1, 2, 3, 4, 8)))))
    same(ts.pmap(lambda v: case.call(v, "i"), axis_name="i")(case.operand), case.by_hand(case.stack))


@pytest.mark.parametrize("kind", KINDS)
@settings(few, max_examples=examples(2, 3))
@given(data=st.data())
def test_a_tuple_of_names_is_one_long_axis_on_processes(pool, kind, data):
    mesh_shape = data.draw(st.sampled_from(((2, 2), (4, 2), (2, 3))))
    case = data.draw(cases(kind, mesh_shape[0] * mesh_shape[1], groups_allowed=False))
    for got in over_two_axes(case, mesh_shape).values():
        same(got, case.by_hand(case.stack))


@pytest.mark.parametrize("kind", DIFFERENTIABLE)
@settings(few, max_examples=examples(2, 3))
@given(data=st.data())
def test_gradients_on_processes_are_vmaps_and_the_finite_differences(pool, kind, data):
    gradients_agree(data.draw(cases(kind, data.draw(st.sampled_from((2, 4))), distinct=True)))


def test_gradients_on_processes_are_those_of_the_formula(pool):
    x = torch.arange(8, dtype=torch.float64) / 3

    def loss(v):
        return ts.lax.psum(v**2, "i")

    inside = ts.pmap(ts.grad(loss), axis_name="i")(x)
    np.testing.assert_allclose(np.asarray(inside), 2 * x.numpy() * 8, rtol=1e-12)
    outside = ts.grad(lambda v: ts.pmap(loss, axis_name="i")(v).sum())(x)
    np.testing.assert_allclose(np.asarray(outside), 2 * x.numpy() * 8, rtol=1e-12)


def test_the_largest_and_the_smallest_of_numbers_and_nan_is_nan_on_processes(pool):
    extremes_keep_nan(ts.pmap)
    x = torch.tensor([1.0, float("nan"), -2.0, 3.0])
    cut = ts.device_put(x, ts.sharding.PositionalSharding(ts.devices()[:4]))
    assert np.isnan(cut.max().item())
    assert np.isnan(cut.min().item())


def test_slices_of_different_lengths_are_exchanged_between_processes(pool):
    x, nothing = torch.tensor([[1, 2, 2], [3, 4, 0]]), torch.zeros(2, 4, dtype=torch.int64)
    starts, sizes, places = (torch.tensor(v) for v in ([[0, 1]] * 2, [[1, 2], [1, 1]], [[0, 0], [1, 2]]))
    f = ts.pmap(lambda *v: ts.lax.ragged_all_to_all(*v, v[3], axis_name="i"), axis_name="i")
    np.testing.assert_array_equal(np.asarray(f(x, nothing, starts, sizes, places)), [[1, 3, 0, 0], [2, 2, 4, 0]])

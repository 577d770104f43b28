"""dynamic_slice and its kind: JAX's clamping, traced starts, derivatives, what stays cut."""

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests.rows import for_every_row

pytestmark = pytest.mark.usefixtures("local")

STARTS = (-7, -2, 0, 1, 3, 9)


def clamped(start, size, length):
    """By JAX's documentation: a negative start counts from the end; then the block is moved inside."""
    return min(max(start + size if start < 0 else start, 0), size - length)


@for_every_row(STARTS)
def test_blocks_are_taken_and_written_where_jax_has_them(start):
    x, update = torch.arange(20.0).reshape(4, 5), -torch.ones(2, 3)
    rows, columns = clamped(start, 4, 2), clamped(start, 5, 3)
    block = x[rows : rows + 2, columns : columns + 3]
    written = x.clone()
    written[rows : rows + 2, columns : columns + 3] = update
    for starts in ((start, start), (torch.tensor(start),) * 2, torch.tensor([start, start])):
        for wrap in (lambda f: f, ts.jit):
            got = wrap(lambda x, s: ts.lax.dynamic_slice(x, s, (2, 3)))(x, starts)
            np.testing.assert_array_equal(ts.device_get(got), block)
            got = wrap(lambda x, s: ts.lax.dynamic_update_slice(x, update, s))(x, starts)
            np.testing.assert_array_equal(ts.device_get(got), written)


def test_along_one_dim():
    x, i = torch.arange(12).reshape(3, 4), torch.tensor(1)
    assert torch.equal(ts.lax.dynamic_slice_in_dim(x, i, 2, axis=-1), x[:, 1:3])
    assert torch.equal(ts.lax.dynamic_index_in_dim(x, i), x[1:2])
    assert torch.equal(ts.lax.dynamic_index_in_dim(x, i, 1, keepdims=False), x[:, 1])
    wanted = x.clone()
    wanted[:, 1] = 7
    for update in (torch.full((3,), 7), torch.full((3, 1), 7)):
        assert torch.equal(ts.lax.dynamic_update_index_in_dim(x, update, i, 1), wanted)
    assert torch.equal(ts.lax.dynamic_update_slice_in_dim(x, torch.full((3, 1), 7), i, 1), wanted)
    assert torch.equal(ts.lax.dynamic_update_slice(x, x[:0], (0, 0)), x)


def test_derivatives_are_those_of_slices():
    x, update, start = torch.randn(5, 3), torch.randn(2, 3), torch.tensor(3)
    weight = torch.randn(2, 3)
    whole = torch.randn(5, 3)
    for wrap in (lambda f: f, ts.jit):
        grad = wrap(ts.grad(lambda x: (ts.lax.dynamic_slice(x, (start, 0), (2, 3)) * weight).sum()))(x)
        expected = torch.zeros(5, 3)
        expected[3:] = weight
        torch.testing.assert_close(ts.device_get(grad), expected)
        of_both = ts.grad(lambda x, u: (ts.lax.dynamic_update_slice(x, u, (start, 0)) * whole).sum(), argnums=(0, 1))
        by_x, by_update = map(ts.device_get, wrap(of_both)(x, update))
        torch.testing.assert_close(by_update, whole[3:])
        torch.testing.assert_close(by_x, torch.cat([whole[:3], torch.zeros(2, 3)]))


def test_under_vmap_each_example_has_a_start_of_its_own():
    x, starts = torch.arange(6.0), torch.tensor([0, 2, 9])
    got = ts.vmap(lambda s: ts.lax.dynamic_slice(x, (s,), (2,)))(starts)
    assert got.tolist() == [[0, 1], [2, 3], [4, 5]]
    got = ts.vmap(lambda s: ts.lax.dynamic_update_slice(x, torch.zeros(2), (s,)))(starts)
    assert got.tolist() == [[0, 0, 2, 3, 4, 5], [0, 1, 0, 0, 4, 5], [0, 1, 2, 3, 0, 0]]


def test_dims_that_a_block_has_whole_stay_cut():
    rows = ts.NamedSharding(ts.make_mesh((8,), ("a",)), ts.P("a"))
    x, start = ts.device_put(torch.arange(64.0).reshape(16, 4), rows), torch.tensor(1)
    take = ts.jit(lambda x, s: ts.lax.dynamic_slice_in_dim(x, s, 2, axis=1))
    write = ts.jit(lambda x, u, s: ts.lax.dynamic_update_slice_in_dim(x, u, s, 1))
    into_rows = ts.jit(lambda x, u, s: ts.lax.dynamic_update_slice_in_dim(x, u, s, 0))
    block = ts.device_put(-torch.ones(16, 2), rows)
    whole = torch.zeros(3, 4)
    for f, args in ((take, (x, start)), (write, (x, block, start)), (into_rows, (x, whole, start))):
        assert not f.lower(*args).compile().program.communicates
        assert f(*args).sharding.is_equivalent_to(rows, 2)
        np.testing.assert_array_equal(f(*args).numpy(), f(*map(ts.device_get, args)).numpy())


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.uint32, torch.bool, torch.bfloat16, torch.complex64])
def test_of_every_dtype(dtype):
    x, start = torch.tensor([1, 0, 1, 1, 0]).to(dtype), torch.tensor(1)
    got = ts.jit(lambda x, s: ts.lax.dynamic_update_slice(x, ts.lax.dynamic_slice(x, (s,), (2,)), (0,)))(x, start)
    assert ts.device_get(got).to(torch.complex64).real.tolist() == [0, 1, 1, 1, 0]


@for_every_row(
    [
        (lambda x: ts.lax.dynamic_slice(x, (0,), (1, 1)), "for each dim"),
        (lambda x: ts.lax.dynamic_slice(x, (0, 0), (1, 9)), "does not fit"),
        (lambda x: ts.lax.dynamic_slice(x, (0, 0.5), (1, 1)), "is an int"),
        (lambda x: ts.lax.dynamic_slice(x, (0, torch.tensor(0.5)), (1, 1)), "is an int"),
        (lambda x: ts.lax.dynamic_update_slice(x, torch.ones(1, 1, dtype=torch.int32), (0, 0)), "another dtype"),
        (lambda x: ts.lax.dynamic_update_index_in_dim(x, torch.ones(2, 3), 0, 0), "one index"),
        (lambda x: ts.lax.dynamic_slice_in_dim(x, 0, 1, axis=2), "no dim"),
    ]
)
def test_wrong_arguments_are_refused(call, words):
    with pytest.raises((TypeError, ValueError), match=words):
        call(torch.zeros(2, 3))

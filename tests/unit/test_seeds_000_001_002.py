"""Seeds 000, 001 and 002 with jnp written as torch: what they print, and millions of rows."""

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests.extent import examples

pytestmark = pytest.mark.usefixtures("local")
ROW = "[11., 20., 29.]"


def convolve(x, w):
    output = []
    for i in range(1, len(x) - 1):
        output.append(x[i - 1 : i + 2] @ w)
    return torch.stack(output)


@pytest.fixture
def x():
    return ts.array(torch.arange(5.0))


@pytest.fixture
def w():
    return ts.array([2.0, 3.0, 4.0])


def test_convolve_prints_what_the_seed_prints(x, w):
    assert repr(convolve(x, w)) == f"Array({ROW}, dtype=float32)"


@pytest.mark.parametrize("count", [3, 2])
def test_vmap_jit_of_vmap_and_pmap_of_convolve_print_what_the_seeds_print(x, w, count):
    xs, ws = torch.stack([x] * count), torch.stack([w] * count)
    printed = "Array([" + ",\n       ".join([ROW] * count) + "], dtype=float32)"
    vconvolve = ts.vmap(convolve)
    assert repr(vconvolve(xs, ws)) == printed
    assert repr(ts.jit(vconvolve)(xs, ws)) == printed
    made = ts.pmap(convolve)(xs, ws)
    assert repr(made) == printed
    assert [s.device for s in made.addressable_shards] == ts.devices()[:count]


def test_millions_of_rows_by_vmap_and_by_pmap_of_vmap():
    made = torch.Generator().manual_seed(1234)
    count = examples(1_000_000, 10_000_000)
    v1, v2 = (torch.randn(count, 3, generator=made) for _ in range(2))

    def dot(v1, v2):
        return torch.vdot(v1, v2)

    expected = np.einsum("ij,ij->i", v1.numpy(), v2.numpy())
    np.testing.assert_allclose(ts.vmap(dot)(v1, v2).numpy(), expected, rtol=0, atol=1e-5)
    blocks = [v.reshape(8, count // 8, 3) for v in (v1, v2)]
    mapped = ts.pmap(ts.vmap(dot))(*blocks)
    assert [s.data.shape for s in mapped.addressable_shards] == [(1, count // 8)] * 8
    np.testing.assert_allclose(mapped.numpy().reshape(-1), expected, rtol=0, atol=1e-5)


def test_z_is_a_future_that_block_until_ready_waits_for():
    made = torch.Generator().manual_seed(0)
    x, y = (torch.randn(1000, 1000, generator=made) for _ in range(2))
    z = ts.array(x) @ ts.array(y)
    assert z.block_until_ready() is z
    np.testing.assert_allclose(z.numpy(), x.numpy() @ y.numpy(), rtol=0, atol=1e-3)


def test_the_patterns_of_seed_001_broadcast_scatter_reduce_gather_and_total_exchange():
    rows = torch.arange(16.0).reshape(4, 4)
    shared = torch.ones(4)
    broadcast = ts.pmap(lambda v, s, n: v + s * n, in_axes=(0, None, None), static_broadcasted_argnums=2)
    np.testing.assert_array_equal(broadcast(rows, shared, 3).numpy(), rows.numpy() + 3)
    reduced = ts.pmap(lambda v: ts.lax.psum(v, "i"), axis_name="i")(rows)
    np.testing.assert_array_equal(reduced.numpy(), np.tile(rows.numpy().sum(0), (4, 1)))
    gathered = ts.pmap(lambda v: ts.lax.all_gather(v, "i"), axis_name="i")(rows)
    np.testing.assert_array_equal(gathered.numpy(), np.tile(rows.numpy(), (4, 1, 1)))
    exchanged = ts.pmap(lambda v: ts.lax.all_to_all(v, "i", 0, 0), axis_name="i")(rows)
    np.testing.assert_array_equal(exchanged.numpy(), rows.numpy().T)
    on_one = ts.device_put(reduced, ts.devices()[0])
    assert on_one.devices() == {ts.devices()[0]}

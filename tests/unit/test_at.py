"""`x.at[i].set(v)` and its like: NumPy's unbuffered updates, and what JAX 0.10 does with indices out of bounds."""

import itertools
import math

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests.extent import in_turn, pairwise
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")

NAN = math.nan
UFUNCS = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}
INDICES = {
    "2": 2,
    "-1": -1,
    "1:7:2": slice(1, 7, 2),
    "::-1": slice(None, None, -1),
    "5:1:-2": slice(5, 1, -2),
    "3:3": slice(3, 3),
    "...": ...,
    "()": (),
    "None, 1": (None, 1),
    "..., 1": (..., 1),
    "1, :, -2": (1, slice(None), -2),
    "i": np.array([1, 1, -1, 4]),
    "list": [1, 1, 0],
    ":, i": (slice(None), np.array([0, 2, 2])),
    ":, :, i of two dims": (slice(None), slice(None), np.array([[0, 1], [1, -1]])),
    "i, j": (np.array([[0], [3]]), np.array([1, 1, 3])),
    "i, :, j": (np.array([0, 0]), slice(None), np.array([1, 1])),
    "2:5, i, None": (slice(2, 5), np.array([2, 2]), None),
    "mask": np.arange(8) % 3 == 0,
    ":, mask": (slice(None), np.array([True, False, True, True])),
    "mask of two dims": np.arange(32).reshape(8, 4) % 5 == 0,
    "no indices": np.array([], dtype=np.int64),
}
HOST = np.random.default_rng(0).normal(size=(8, 4, 4)).astype(np.float32)


@pytest.fixture
def sharded(mesh):
    return ts.device_put(torch.from_numpy(HOST), ts.NamedSharding(mesh, P("a", "b")))


def as_torch(index):
    if isinstance(index, tuple):
        return tuple(map(as_torch, index))
    return torch.from_numpy(index) if isinstance(index, np.ndarray) else index


def values(x):
    return ts.device_get(x).numpy() if isinstance(x, torch.Tensor) else x


def expected(how, index, v):
    changed = HOST.copy()
    if how == "set":
        changed[index] = v
    else:
        UFUNCS[how].at(changed, index, v)
    return changed


@pytest.mark.parametrize("name, how", in_turn(INDICES, ["set", *UFUNCS]))
def test_each_change_at_each_index_is_numpys_on_tensors_arrays_and_in_jit(how, name, sharded):
    index = INDICES[name]
    v = np.float32(1.5) if how == "set" else np.random.default_rng(1).normal(size=HOST[index].shape).astype(np.float32)
    wanted = expected(how, index, v)

    def change(x, v):
        return getattr(x.at[as_torch(index)], how)(v)

    given = torch.as_tensor(v)
    np.testing.assert_allclose(change(torch.from_numpy(HOST), given), wanted, rtol=1e-6)
    np.testing.assert_allclose(values(change(sharded, given)), wanted, rtol=1e-6)
    if "mask" not in name or (
        how == "set" and isinstance(index, np.ndarray)
    ):  # in a trace the number of elements of a mask is not known
        np.testing.assert_allclose(values(ts.jit(change)(sharded, given)), wanted, rtol=1e-6)


@pytest.mark.parametrize("name", INDICES)
def test_get_gives_the_elements_in_torchs_order_of_dims(name, sharded):
    index = INDICES[name]
    wanted = HOST[index]
    np.testing.assert_array_equal(torch.from_numpy(HOST).at[as_torch(index)].get(), wanted)
    np.testing.assert_array_equal(values(sharded.at[as_torch(index)].get()), wanted)


def test_the_order_of_dims_is_torchs():
    x, i = torch.randn(3, 4, 5), torch.tensor([1, 2])
    assert x.at[0, :, i].get().shape == x[0, :, i].shape == (4, 2)
    assert torch.equal(x.at[i, :, i].get(), x[i, :, i])
    assert torch.equal(x.at[i, :, torch.tensor(1)].get(), x[i, :, 1])


OUT = [1, 7, -9, -1]
# what JAX 0.10 prints for x = arange(5.): x.at[OUT].get(), x.at[7].get(), x.at[OUT].set(9), x.at[7].set(9), by mode
JAX = {
    None: ([1, 4, 0, 4], 4, [0, 9, 2, 3, 9], [0, 1, 2, 3, 4]),
    "fill": ([1, NAN, NAN, 4], NAN, [0, 9, 2, 3, 9], [0, 1, 2, 3, 4]),
    "drop": ([1, NAN, NAN, 4], NAN, [0, 9, 2, 3, 9], [0, 1, 2, 3, 4]),
    "clip": ([1, 4, 0, 4], 4, [9, 9, 2, 3, 9], [0, 1, 2, 3, 9]),
}
WAYS = {
    "tensor": lambda f: f,
    "jit": ts.jit,
    "vmap": lambda f: lambda *args: ts.vmap(f, in_axes=(None, 0, None))(args[0], args[1][None], *args[2:])[0],
    "pmap": lambda f: (
        lambda *args: ts.pmap(f, in_axes=(None, 0, None), devices=ts.devices()[:1])(args[0], args[1][None], *args[2:])[
            0
        ]
    ),
}


@pytest.mark.parametrize("way, mode, index", pairwise(list(WAYS), list(JAX), ["several", "one"]))
def test_indices_out_of_bounds_are_what_they_are_in_jax(way, mode, index):
    x, i = torch.arange(5.0), torch.tensor(OUT if index == "several" else 7)
    got = WAYS[way](lambda x, i, v: x.at[i].get(mode=mode))(x, i, torch.tensor(9.0))
    changed = WAYS[way](lambda x, i, v: x.at[i].set(v, mode=mode))(x, i, torch.tensor(9.0))
    at = 0 if index == "several" else 1
    np.testing.assert_array_equal(values(got), np.float32(JAX[mode][at]))
    np.testing.assert_array_equal(values(changed), np.float32(JAX[mode][2 + at]))


def test_a_number_out_of_bounds_that_python_knows_is_treated_alike(sharded):
    x = torch.arange(5.0)
    for mode, (_, got, _, changed) in JAX.items():
        np.testing.assert_array_equal(x.at[7].get(mode=mode), np.float32(got))
        np.testing.assert_array_equal(x.at[7].set(9, mode=mode), np.float32(changed))
    assert torch.equal(ts.device_get(sharded.at[9, 1].add(1)), torch.from_numpy(HOST))


@pytest.mark.parametrize("how", ["set", *UFUNCS])
def test_what_is_left_out_hides_nothing_that_names_the_nearest(how, sharded):
    index, v = np.array([7, 50, -50, 0]), np.float32([2, 3, 4, 5])[:, None, None]
    wanted = expected(how, index[[0, 3]], v[[0, 3]])
    got = getattr(sharded.at[ts.array(index)], how)(torch.from_numpy(v))
    np.testing.assert_allclose(values(got), wanted, rtol=1e-6)


def test_the_filling_is_nan_or_the_smallest_or_the_largest_or_what_is_given():
    i = torch.tensor([7])
    assert torch.arange(5.0).at[i].get(mode="fill").isnan().all()
    assert torch.arange(5).at[i].get(mode="fill").item() == torch.iinfo(torch.int64).min
    assert torch.arange(5, dtype=torch.uint8).at[i].get(mode="fill").item() == 255
    assert torch.ones(5, dtype=torch.bool).at[i].get(mode="fill").item() is True
    assert torch.arange(5.0).at[i].get(mode="fill", fill_value=3).item() == 3


def test_divide_power_and_apply():
    x = torch.arange(5.0)
    assert x.at[[1, 1]].divide(2).tolist() == [0, 0.25, 2, 3, 4]
    assert torch.arange(5).at[1].divide(2).tolist() == [0, 0.5, 2, 3, 4]
    assert x.at[[3, 3]].power(2).tolist() == [0, 1, 2, 81, 4]
    torch.testing.assert_close(x.at[3:].apply(torch.sqrt), torch.tensor([0, 1, 2, 3**0.5, 2]))
    assert x.at[2].mul(3).tolist() == [0, 1, 6, 3, 4]


def test_values_are_converted_to_the_dtype_of_the_array():
    assert torch.arange(5).at[1].set(2.7).tolist() == [0, 2, 2, 3, 4]
    assert torch.ones(2, dtype=torch.bfloat16).at[0].add(torch.tensor(1.0, dtype=torch.float64)).dtype == torch.bfloat16


def test_the_array_stays_as_it_is(sharded):
    x = torch.zeros(3)
    x.at[0].set(1)
    assert x.tolist() == [0, 0, 0]
    sharded.at[...].set(1)
    np.testing.assert_array_equal(values(sharded), HOST)


@pytest.mark.parametrize("how", ["set", "add", "multiply", "min", "max"])
@pytest.mark.parametrize("index", [2, slice(0, 6, 2), torch.tensor([1, 5]), torch.tensor([1, 99]), (slice(None), 1)])
def test_gradients_are_those_of_torchs_own_ops(how, index):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))
    inner = torch.tensor([1]) if isinstance(index, torch.Tensor) and int(index.max()) > 8 else index
    v = torch.full((), 0.3)
    weight = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))

    def by_hand(x, v):
        y = x.clone()
        op = {"add": torch.add, "multiply": torch.mul, "min": torch.minimum, "max": torch.maximum}.get(how)
        y[inner] = v if op is None else op(x[inner], v)
        return (y * weight).sum()

    def changed(x, v):
        return (getattr(x.at[index], how)(v, unique_indices=True) * weight).sum()

    ours = ts.grad(changed, argnums=(0, 1))
    for got, wanted in zip(ours(x, v), ts.grad(by_hand, argnums=(0, 1))(x, v), strict=True):
        torch.testing.assert_close(got, wanted)
    for got, wanted in zip(ts.jit(ours)(x, v), ts.grad(by_hand, argnums=(0, 1))(x, v), strict=True):
        torch.testing.assert_close(ts.device_get(got), wanted)


def test_each_example_of_vmap_has_an_index_of_its_own(sharded):
    caches, rows = torch.zeros(4, 3, 2), torch.arange(8.0).reshape(4, 2)
    at = torch.tensor([0, 2, 1, 9])
    written = ts.vmap(lambda cache, i, row: cache.at[i].set(row))(caches, at, rows)
    wanted = caches.clone()
    for n in range(3):
        wanted[n, at[n]] = rows[n]
    assert torch.equal(written, wanted)
    pairs = torch.tensor([[0, 2], [2, 1], [1, 1], [9, 0]])
    added = ts.jit(ts.vmap(lambda cache, i: cache.at[i].add(1.0)))(caches, pairs)
    for n, i in itertools.product(range(4), range(2)):
        if pairs[n, i] < 3:
            wanted[n, pairs[n, i]] += 1
    assert torch.equal(ts.device_get(added), wanted - written + caches)


def test_a_row_is_written_without_an_exchange(mesh):
    x = ts.device_put(torch.zeros(8, 4), ts.NamedSharding(mesh, P("a", "b")))
    compiled = ts.jit(lambda x, i, v: x.at[i].set(v)).lower(x, 3, torch.ones(4)).compile()
    assert not ts.collectives_in(compiled)
    assert ts.jit(lambda x, i, v: x.at[i].set(v))(x, 3, torch.ones(4)).sharding == x.sharding
    columns = ts.jit(lambda x, i: x.at[:, i].set(1)).lower(
        ts.device_put(x, ts.NamedSharding(mesh, P("a"))), torch.tensor([0, 9])
    )
    assert not ts.collectives_in(columns.compile())


@pytest.mark.parametrize(
    "call, kind, words",
    [
        (lambda x: x.at[0, 0, 0, 0], IndexError, "too many indices"),
        (lambda x: x.at[1.5], TypeError, "not an index"),
        (lambda x: x.at[True], TypeError, "not an index"),
        (lambda x: x.at[torch.ones(2)], TypeError, "not an index"),
        (lambda x: x.at["a"], TypeError, "not an index"),
    ],
)
def test_a_wrong_index_is_an_error(call, kind, words, sharded):
    with pytest.raises(kind, match=words):
        call(sharded).set(0)


def test_values_that_do_not_fit_and_modes_that_there_are_not_are_errors(sharded):
    with pytest.raises(ts.errors.IndexingError, match="do not broadcast"):
        sharded.at[0].set(torch.ones(3))
    with pytest.raises(ValueError, match="no such mode"):
        sharded.at[0].set(1, mode="wrap")
    with pytest.raises(TypeError):
        sharded.at[0].set(1, mod="clip")


def test_a_broken_promise_is_an_error_on_the_device(sharded):
    changed = sharded.at[ts.array([99])].set(1, mode="promise_in_bounds")
    with pytest.raises(ts.RemoteError):
        changed.block_until_ready()

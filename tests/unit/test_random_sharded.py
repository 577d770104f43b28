"""Random numbers on many devices: each makes its own block, and the values are those of one device."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinyshard as ts
from tests.extent import examples

pytestmark = pytest.mark.usefixtures("local")

MESHES = [ts.AbstractMesh((8,), "a"), ts.AbstractMesh((4, 2), ("a", "b")), ts.AbstractMesh((2, 2, 2), ("a", "b", "c"))]
DRAWS = {
    "uniform": lambda key, shape: ts.random.uniform(key, shape),
    "normal": lambda key, shape: ts.random.normal(key, shape),
    "bits": lambda key, shape: ts.random.bits(key, shape),
    "bits8": lambda key, shape: ts.random.bits(key, shape, torch.uint8),
    "randint": lambda key, shape: ts.random.randint(key, shape, -7, 1000),
    "uniform16": lambda key, shape: ts.random.uniform(key, shape, torch.bfloat16, -1.0, 3.0),
    "bernoulli": lambda key, shape: ts.random.bernoulli(key, 0.3, shape),
    "keys": lambda key, shape: ts.random.split(key, shape).data,
}
# the seed's numbers, from its text
STABLE = """0.72503686 1.8532515 2.983416 3.083253 4.0332246 5.4782867 6.1720605 7.6900277 8.602836 9.810046 10.861367
    11.907651 12.330483 13.456195 14.808557 15.960099 16.067581 17.739723 18.335474 19.46401 20.390276 21.116539
    22.858128 23.223194"""
PARTITIONABLE = """0.48870957 1.6797972 2.6162715 3.561016 4.4506445 5.585866 6.0748096 7.775133 8.698959 9.818634
    10.350306 11.87282 12.925881 13.86013 14.477554 15.818481 16.711355 17.586697 18.073738 19.777622 20.404566
    21.119123 22.026257 23.63918"""


@pytest.fixture
def original():
    ts.config.update("threefry_partitionable", False)
    yield
    ts.config.update("threefry_partitionable", True)


@st.composite
def drawn_cases(draw):
    """A mesh, a spec, and a shape that it cuts evenly."""
    abstract = draw(st.sampled_from(MESHES))
    axes = dict(abstract.shape)
    ndim = draw(st.integers(0, 3))
    entries = [[] for _ in range(ndim)]
    for name in draw(st.permutations(sorted(axes))):
        where = draw(st.integers(-1, ndim - 1))
        if where >= 0:
            entries[where].append(name)
    sizes = [draw(st.integers(1, 3)) * math.prod(axes[n] for n in names) for names in entries]
    mesh = ts.make_mesh(tuple(axes.values()), tuple(axes))
    return ts.NamedSharding(mesh, ts.P(*(tuple(names) or None for names in entries))), tuple(sizes)


def on_one_device(name, key, shape):
    """The values of one device, without a program on several."""
    return plain(DRAWS[name](key, shape))


def plain(x):
    x = ts.device_get(x)
    return (x.float() if x.dtype == torch.bfloat16 else x).numpy()


@pytest.mark.parametrize("name", DRAWS)
@settings(max_examples=examples(4, 25))
@given(case=drawn_cases(), seed=st.integers(-(2**31), 2**32))
def test_each_device_draws_its_own_counters_and_the_values_are_those_of_one_device(name, case, seed):
    sharding, shape = case
    key = ts.random.key(seed)
    f = ts.jit(lambda k: ts.lax.with_sharding_constraint(DRAWS[name](k, shape), sharding))
    program = f.lower(key).compile().program
    assert not program.communicates
    block = sharding.shard_shape(shape)
    draws = [s for s in program.steps if s.op == "tinyshard.draw.default"]
    own = [s for s in draws if name != "randint" or s.args[4] == "bits"]  # randint splits its key first
    assert {program.metas[s.results[0]].shape[: len(shape)] for s in own} == {block}
    np.testing.assert_array_equal(plain(f(key)), on_one_device(name, key, shape))


@pytest.mark.parametrize("name", DRAWS)
@settings(max_examples=examples(4, 25))
@given(case=drawn_cases(), seed=st.integers(0, 2**32))
def test_the_original_mode_gives_one_devices_values_on_any_mesh(name, case, seed):
    sharding, shape = case
    key = ts.random.key(seed)
    ts.config.update("threefry_partitionable", False)
    try:
        f = ts.jit(lambda k: ts.lax.with_sharding_constraint(DRAWS[name](k, shape), sharding))
        np.testing.assert_array_equal(plain(f(key)), on_one_device(name, key, shape))
        cut = any(n > 1 for n in sharding.layout(len(shape)).parts)
        assert f.lower(key).compile().program.communicates == cut
    finally:
        ts.config.update("threefry_partitionable", True)


def add_numbers(key, x):
    return x + ts.random.uniform(key, x.shape)


def seeds_call():
    x = ts.device_put(torch.arange(24), ts.sharding.PositionalSharding(ts.devices()))
    return ts.jit(add_numbers), ts.random.key(42), x


def test_the_seeds_example_prints_its_numbers_and_does_not_communicate():
    f, key, x = seeds_call()
    np.testing.assert_array_equal(f(key, x).numpy(), np.array(PARTITIONABLE.split(), np.float32))
    assert "collective_permute" not in f.lower(key, x).compile().as_text()
    assert f(key, x).sharding.is_equivalent_to(x.sharding, 1)


def test_the_seeds_example_in_the_original_mode_communicates(original):
    f, key, x = seeds_call()
    np.testing.assert_array_equal(f(key, x).numpy(), np.array(STABLE.split(), np.float32))
    assert "collective_permute" in f.lower(key, x).compile().as_text()
    assert f(key, x).sharding.is_equivalent_to(x.sharding, 1)


def test_the_flag_is_part_of_jits_cache_key():
    f, key, x = seeds_call()
    before = f(key, x).numpy()
    ts.config.update("threefry_partitionable", False)
    try:
        assert not np.array_equal(f(key, x).numpy(), before)
    finally:
        ts.config.update("threefry_partitionable", True)
    np.testing.assert_array_equal(f(key, x).numpy(), before)


def test_what_is_computed_from_draws_alone_is_made_where_it_is_wanted():
    rows = ts.NamedSharding(ts.make_mesh((8,), "a"), ts.P("a"))
    f = ts.jit(lambda k, scale: scale * (2 * ts.random.normal(k, (8, 6)) + 1).exp(), out_shardings=rows)
    key, scale = ts.random.key(3), ts.device_put(torch.tensor(0.5), ts.NamedSharding(rows.mesh, ts.P()))
    program = f.lower(key, scale).compile().program
    whole = {(8, 6)} & {m.shape for m in program.metas if m is not None}
    assert not whole and not program.communicates
    expected = 0.5 * np.exp(2 * ts.random.normal(key, (8, 6)).numpy() + 1)
    np.testing.assert_allclose(f(key, scale).numpy(), expected, rtol=1e-6)


def test_a_draw_takes_the_layout_of_an_operand_that_it_is_broadcast_against():
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    x = ts.device_put(torch.zeros(8, 6), ts.NamedSharding(mesh, ts.P("a", "b")))
    f = ts.jit(lambda k, x: x + ts.random.uniform(k, (6,)))
    made = [s for s in f.lower(ts.random.key(0), x).compile().program.steps if s.op == "tinyshard.draw.default"]
    assert [step.args[2] for step in made] == [[2]]
    np.testing.assert_array_equal(
        f(ts.random.key(0), x).numpy(), np.tile(on_one_device("uniform", ts.random.key(0), (6,)), (8, 1))
    )


def test_a_mapped_draw_from_sharded_keys_stays_where_the_keys_are():
    mesh = ts.make_mesh((8,), "a")
    keys = ts.random.split(ts.random.key(1), 8)
    placed = ts.device_put(keys, ts.NamedSharding(mesh, ts.P("a")))
    f = ts.jit(torch.func.vmap(lambda k: ts.random.normal(k, (5,))))
    assert not f.lower(placed).compile().program.communicates
    assert f(placed).sharding.is_equivalent_to(ts.NamedSharding(mesh, ts.P("a")), 2)
    expected = np.stack([ts.random.normal(k, (5,)).numpy() for k in keys])
    np.testing.assert_array_equal(f(placed).numpy(), expected)
    np.testing.assert_array_equal(torch.func.vmap(lambda k: ts.random.normal(k, (5,)))(placed).numpy(), expected)


def test_a_mapped_draw_from_one_split_is_cut_along_both_dims_without_communication():
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    cut = ts.NamedSharding(mesh, ts.P("a", "b"))
    f = ts.jit(
        lambda k: torch.func.vmap(lambda one: ts.random.uniform(one, (6,)))(ts.random.split(k, 8)), out_shardings=cut
    )
    key = ts.random.key(9)
    assert not f.lower(key).compile().program.communicates
    expected = np.stack([ts.random.uniform(k, (6,)).numpy() for k in ts.random.split(key, 8)])
    np.testing.assert_array_equal(f(key).numpy(), expected)


def test_four_thousand_devices_draw_without_communication():
    hall = ts.AbstractMesh((64, 64), ("a", "b"))
    f = ts.jit(lambda k: ts.random.normal(k, (65536, 65536)), out_shardings=ts.NamedSharding(hall, ts.P("a", "b")))
    compiled = f.lower(ts.random.key(0)).compile()
    assert compiled.cost_analysis().nbytes == 0
    assert compiled.program.metas[-1].shape == (1024, 1024)


@pytest.mark.parametrize("wrap", [lambda f: f, ts.jit])
def test_numbers_are_folded_into_keys_that_are_cut(wrap):
    keys, mesh = ts.random.split(ts.random.key(0), 8), ts.make_mesh((4, 2), ("a", "b"))
    cut = ts.device_put(keys, ts.NamedSharding(mesh, ts.P("a")))
    for numbers in (lambda key: 7, lambda key: key.data[0]):
        fold = wrap(ts.vmap(lambda key, numbers=numbers: ts.random.fold_in(key, numbers(key))))
        wanted = [ts.random.key_data(ts.random.fold_in(key, numbers(key))).tolist() for key in keys]
        assert ts.random.key_data(fold(cut)).tolist() == wanted

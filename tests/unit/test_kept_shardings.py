"""An Array keeps the sharding that it was given, word by word, beside the layout that it stands for."""

import operator
import pickle

import numpy as np
import pytest
import torch

import tinyshard as ts
from tinyshard import NamedSharding, P
from tinyshard.sharding import PositionalSharding

pytestmark = pytest.mark.usefixtures("local")

SPECS = [P("x", None), P(None, None), P(None), P(()), P(("x",)), P("x"), P("one"), P("one", "x"), P(("x", "one"), None)]


def mesh():
    return ts.make_mesh((4, 1), ("x", "one"))


def alone():
    return ts.make_mesh((1,), ("x",))


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_device_put_gives_the_sharding_that_it_took(spec):
    sharding = NamedSharding(mesh(), spec)
    x = ts.device_put(torch.arange(32.0).reshape(8, 4), sharding)
    assert x.sharding == sharding
    assert x.sharding.spec == spec and len(x.sharding.spec) == len(spec)
    assert (x.numpy() == np.arange(32.0).reshape(8, 4)).all()
    again = ts.device_put(x, NamedSharding(mesh(), P(None, "x")))
    assert ts.device_put(again, sharding).sharding == sharding


def test_device_put_of_an_array_that_lies_so_already_takes_the_new_words():
    short, long = NamedSharding(mesh(), P("x")), NamedSharding(mesh(), P("x", None))
    x = ts.device_put(torch.zeros(8, 4), short)
    assert ts.device_put(x, long).sharding == long
    assert x.sharding == short


def test_a_mesh_of_one_device_is_kept():
    for spec in (P(), P("x"), P("x", None)):
        sharding = NamedSharding(alone(), spec)
        assert ts.device_put(torch.zeros(4, 2), sharding).sharding == sharding
    single = ts.SingleDeviceSharding(ts.devices()[0])
    assert ts.device_put(torch.zeros(4, 2), single).sharding == single


def test_positional_shardings_are_kept():
    every = PositionalSharding(ts.devices())
    for sharding in (every.reshape(4, 2), every.reshape(8, 1), every.replicate(), every.reshape(4, 2).replicate(0)):
        assert ts.device_put(torch.zeros(8, 4), sharding).sharding == sharding


def test_a_value_without_elements_and_a_scalar_keep_their_sharding():
    sharding = NamedSharding(mesh(), P("x", None))
    assert ts.device_put(torch.zeros(0, 4), sharding).sharding == sharding
    assert ts.device_put(ts.array(torch.zeros(0, 4)), sharding).sharding == sharding
    whole = NamedSharding(mesh(), P())
    assert ts.device_put(2.0, whole).sharding == whole


def test_a_detached_array_keeps_its_sharding():
    sharding = NamedSharding(mesh(), P("x", None))
    x = ts.device_put(torch.zeros(8, 4), sharding)
    assert x.detach().sharding == sharding


def test_a_computed_array_says_its_layout_in_the_shortest_words():
    x = ts.device_put(torch.zeros(8, 4), NamedSharding(mesh(), P("x", None)))
    assert (x + 1).sharding == NamedSharding(mesh(), P("x"))
    assert (x + 1).sharding.is_equivalent_to(x.sharding, 2)


def test_out_shardings_are_the_results_shardings():
    for spec in SPECS:
        sharding = NamedSharding(mesh(), spec)
        f = ts.jit(lambda x: x + 1, out_shardings=sharding)
        x = ts.device_put(torch.zeros(8, 4), NamedSharding(mesh(), P("x")))
        assert f(x).sharding == sharding
        assert f(x).sharding == sharding  # from the cache


def test_bare_specs_in_out_shardings_follow_the_mesh_that_is_set():
    f = ts.jit(lambda x: x + 1, out_shardings=P("x", None))
    for names in (("x", "y"), ("y", "x")):
        other = ts.make_mesh((2, 4), names)
        x = ts.device_put(torch.zeros(8, 4), NamedSharding(other, P()))
        for _ in range(2):
            with ts.set_mesh(other):
                assert f(x).sharding == NamedSharding(other, P("x", None))


def test_a_constraint_outside_of_jit_is_the_sharding():
    sharding = NamedSharding(mesh(), P("x", None))
    assert ts.lax.with_sharding_constraint(torch.zeros(8, 4), sharding).sharding == sharding


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_out_specs_are_the_sharding_of_shard_maps_result(spec):
    f = ts.shard_map(lambda x: x[:2, :1], mesh=mesh(), in_specs=P(), out_specs=spec)
    for _ in range(2):  # traced, then from the cache
        assert f(torch.zeros(8, 4)).sharding == NamedSharding(mesh(), spec)


def test_equal_regions_with_other_out_specs_keep_their_own_words():
    short = ts.shard_map(torch.sin, mesh=mesh(), in_specs=P("x"), out_specs=P("x"))
    long = ts.shard_map(torch.sin, mesh=mesh(), in_specs=P("x"), out_specs=P("x", None))
    x = ts.device_put(torch.zeros(8, 4), NamedSharding(mesh(), P("x")))
    for _ in range(2):
        assert short(x).sharding.spec == P("x")
        assert long(x).sharding.spec == P("x", None)


def test_out_specs_of_a_tree_with_none_and_numbers():
    f = ts.shard_map(
        lambda x: {"a": x, "none": None, "b": (x.sum(), 3)},
        mesh=alone(),
        in_specs=P("x"),
        out_specs={"a": P("x", None), "none": None, "b": P()},
    )
    made = f(torch.ones(4, 2))
    assert made["a"].sharding == NamedSharding(alone(), P("x", None))
    assert made["b"][0].sharding == NamedSharding(alone(), P())
    assert made["none"] is None


def test_keys_keep_their_sharding():
    keys = ts.random.split(ts.random.key(0), 4)
    for sharding in (NamedSharding(mesh(), P("x")), NamedSharding(mesh(), P(("x", "one"))), NamedSharding(mesh(), P())):
        assert ts.device_put(keys, sharding).sharding == sharding
    every = PositionalSharding(ts.devices()[:4])
    assert ts.device_put(keys, every).sharding == every
    assert ts.device_put(keys, every.replicate()).sharding.is_fully_replicated


def test_shards_of_an_uncommitted_array_are_uncommitted():
    (shard,) = ts.array([1.0, 2.0]).addressable_shards
    assert not shard.data.committed
    placed = ts.device_put(torch.ones(4), ts.devices()[1])
    assert (shard.data.sum() + placed).devices() == {ts.devices()[1]}
    assert placed.addressable_shards[0].data.committed


# ---- specs --------------------------------------------------------------------------------------------------------


def test_a_list_or_tuple_of_one_name_is_the_name():
    assert P(["x"]) == P(("x",)) == P("x")
    assert P(()) == P([]) == P(None)
    assert P(["x", "y"]) == P(("x", "y"))
    assert hash(P(["x"])) == hash(P("x"))
    assert repr(P(("x",), ())) == "P('x', None)"
    assert pickle.loads(pickle.dumps(P(["x"], ("x", "y")))) == P("x", ("x", "y"))


def test_nested_tuples_in_a_spec_are_an_error():
    for entry in ((("x", "y"), "z"), (("x",),), [["x"]], ("x", None), ("x", 3)):
        with pytest.raises(ts.ShardingError, match=r"nested|names"):
            P(entry)


def test_specs_add_up_to_a_spec():
    whole = P("x") + P(None, "y")
    assert type(whole) is P and whole == P("x", None, "y")
    more, before = operator.add(P("x"), ("y",)), operator.add((None,), P("x"))
    assert type(more) is P and more == P("x", "y")
    assert type(before) is P and before == P(None, "x")
    with pytest.raises(TypeError):
        P("x") + 3

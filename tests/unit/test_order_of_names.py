"""A tuple of names in a spec: the first one counts slowest, whatever the order of the mesh's axes."""

import numpy as np
import pytest
import torch

import tinyshard as ts

P = ts.P
SIZES = {"a": 2, "b": 3}


def holders(names: tuple[str, str]) -> list[int]:
    """By device of a mesh of axes a and b, the block of six that it holds, counted along these names."""
    places = np.arange(6).reshape([SIZES[name] for name in names])
    return (places if names == ("a", "b") else places.T).ravel().tolist()


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a")])
def test_devices_hold_blocks_in_the_order_of_the_names(names) -> None:
    sharding = ts.NamedSharding(ts.AbstractMesh((2, 3), ("a", "b")), P(names))
    held = [index for (index,) in sharding.devices_indices_map((12,)).values()]
    assert held == [slice(2 * block, 2 * block + 2) for block in holders(names)]


@pytest.mark.usefixtures("local")
def test_blocks_go_to_the_devices_that_hold_them_in_the_other_order() -> None:
    """A permutation that is not its own inverse."""
    mesh, x = ts.make_mesh((2, 3), ("a", "b")), torch.arange(12.0)
    moved = ts.device_put(
        ts.device_put(x, ts.NamedSharding(mesh, P(("a", "b")))), ts.NamedSharding(mesh, P(("b", "a")))
    )
    got = [ts.device_get(shard.data).tolist() for shard in moved.addressable_shards]
    assert got == [[2.0 * block, 2.0 * block + 1] for block in holders(("b", "a"))]


def test_a_mesh_that_is_set_within_another_one_gives_way_to_it_again() -> None:
    outer, inner = ts.AbstractMesh((2,), "x"), ts.AbstractMesh((4,), "y")

    def parts(name):
        return ts.ShapeDtypeStruct((8,), torch.float32, sharding=P(name)).sharding.shard_shape((8,))

    with ts.set_mesh(outer):
        with ts.set_mesh(inner):
            assert parts("y") == (2,)
        assert parts("x") == (4,)
    with pytest.raises(ts.ShardingError, match="no mesh is set"):
        parts("x")


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("outer", [ts.vmap, ts.pmap], ids=["vmap", "pmap"])
def test_collectives_over_two_names_count_the_last_one_fastest(outer) -> None:
    x = torch.arange(12.0).reshape(4, 3) ** 2

    def mapped(function):
        return ts.device_get(outer(ts.vmap(function, axis_name="j"), axis_name="i")(x))

    places = torch.arange(12, dtype=torch.int32)
    assert torch.equal(mapped(lambda v: v.int() * 0 + ts.lax.axis_index(("i", "j"))), places.reshape(4, 3))
    assert torch.equal(mapped(lambda v: v.int() * 0 + ts.lax.axis_index(("j", "i"))), places.reshape(3, 4).T)
    assert torch.equal(mapped(lambda v: ts.lax.all_gather(v, ("i", "j"))), x.flatten().expand(4, 3, 12))
    assert torch.equal(mapped(lambda v: ts.lax.all_gather(v, ("j", "i"))), x.T.flatten().expand(4, 3, 12))

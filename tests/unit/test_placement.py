import numpy as np
import pytest
import torch

import tinyshard as ts
from tinyshard.devices import Device

pytestmark = pytest.mark.usefixtures("local")


@pytest.fixture
def mesh():
    return ts.make_mesh((4, 2), ("a", "b"))


def test_a_later_change_of_the_host_tensor_does_not_reach_the_array():
    host, values = torch.zeros(4), np.zeros(4)
    x, y = ts.device_put(host, ts.devices()[0]), ts.array(values)
    z = x + host
    host.fill_(7)
    values.fill(7)
    assert [float(v.sum()) for v in (x, y, z)] == [0.0, 0.0, 0.0]


def test_committed_is_what_was_placed():
    on_one = ts.device_put(torch.ones(2), ts.devices()[1])
    free = ts.array([1.0, 2.0])
    assert on_one.committed
    assert not free.committed
    assert (on_one + free).committed
    assert (on_one + free).devices() == {ts.devices()[1]}
    assert not (free + 1).committed
    assert (torch.ones(2) + on_one).devices() == {ts.devices()[1]}


def test_uncommitted_values_move_to_where_the_committed_ones_are(mesh):
    x = ts.device_put(torch.ones(8, 4), ts.NamedSharding(mesh, ts.P("a", "b")))
    for other in (torch.ones(8, 4), ts.array(torch.ones(4)), ts.array(2.0), torch.arange(32).reshape(8, 4)):
        got = x + other
        assert got.sharding.is_equivalent_to(x.sharding, 2)
        assert torch.equal(ts.device_get(got), torch.ones(8, 4) + ts.device_get(other))


def test_a_tree_is_placed_leaf_by_leaf_or_with_a_prefix(mesh):
    rows, whole = ts.NamedSharding(mesh, ts.P("a")), ts.NamedSharding(mesh, ts.P())
    tree = {"w": torch.ones(8, 2), "b": [torch.ones(4), 3.0]}
    placed = ts.device_put(tree, {"w": rows, "b": whole})
    assert placed["w"].sharding == rows
    assert placed["b"][1].sharding == whole
    assert ts.device_get(placed)["b"][1] == 3.0
    with pytest.raises(ts.ShardingError, match="does not fit the tree"):
        ts.device_put(tree, [rows, whole])


def test_a_spec_stands_for_a_sharding_when_a_mesh_is_set(mesh):
    with ts.set_mesh(mesh):
        assert ts.device_put(torch.ones(8), ts.P("a")).sharding == ts.NamedSharding(mesh, ts.P("a"))


def test_resharding_the_same_placement_copies_nothing(mesh):
    x = ts.device_put(torch.ones(8, 2), ts.NamedSharding(mesh, ts.P("a", "b")))
    y = ts.device_put(x, ts.sharding.PositionalSharding(ts.devices()).reshape(4, 2))
    assert y._buffer is x._buffer


def test_between_sets_of_devices_the_values_stay(mesh):
    host = torch.arange(48.0).reshape(8, 6)
    left = ts.sharding.PositionalSharding(ts.devices()[:4])
    right = ts.sharding.PositionalSharding(ts.devices()[4:])
    x = ts.device_put(host, left.reshape(2, 2))
    for target in (
        right.reshape(4, 1),
        right.reshape(2, 2).replicate(0),
        ts.devices()[7],
        ts.NamedSharding(mesh, ts.P("b")),
    ):
        moved = ts.device_put(x, target)
        assert torch.equal(ts.device_get(moved), host)
        for shard in moved.addressable_shards:
            assert torch.equal(ts.device_get(shard.data), host[shard.index])


def test_committed_arrays_on_other_devices_or_in_another_order_do_not_meet():
    order = [0, 1, 2, 3, 6, 7, 4, 5]
    all_of_them = ts.devices()
    pairs = [
        (all_of_them[:4], all_of_them[4:], "[0, 1, 2, 3] on platform CPU", "[4, 5, 6, 7] on platform CPU"),
        (all_of_them, [all_of_them[i] for i in order], "[0, 1, 2, 3, 4, 5, 6, 7]", "[0, 1, 2, 3, 6, 7, 4, 5]"),
    ]
    for ours, theirs, left, right in pairs:
        y = ts.device_put(torch.ones(8, 8), ts.sharding.PositionalSharding(ours).reshape(-1, 2))
        z = ts.device_put(torch.ones(8, 8), ts.sharding.PositionalSharding(theirs).reshape(-1, 2))
        with pytest.raises(ValueError, match="Devices of all `Array` inputs and outputs should be the same") as caught:
            y + z
        assert left in str(caught.value)
        assert right in str(caught.value)


@pytest.mark.parametrize(
    ("value", "target", "kind", "words"),
    [
        ("abc", None, TypeError, ["not a value", "str: abc"]),
        (object(), None, TypeError, ["not a value"]),
        (torch.ones(2, 2).to_sparse(), None, TypeError, ["dense CPU tensors"]),
        (1.0, "cpu", ValueError, ["not a place", "'cpu' (str)"]),
        (1.0, 0, ValueError, ["not a place", "0 (int)"]),
        (torch.ones(8), ts.P("a"), ValueError, ["no mesh is set"]),
        (
            torch.ones(8),
            ts.NamedSharding(ts.AbstractMesh((8,), "z"), ts.P()),
            ValueError,
            ["abstract mesh", "lower"],
        ),
        (torch.ones(2), Device(8), ValueError, ["not there", "CPU 8"]),
    ],
)
def test_what_cannot_be_placed_is_refused(value, target, kind, words):
    with pytest.raises(kind) as caught:
        ts.device_put(value, target)
    assert isinstance(caught.value, ts.TinyshardError)
    for word in words:
        assert word in str(caught.value)


def test_array_takes_numbers_lists_and_arrays():
    assert ts.array(3).dtype == torch.int64
    assert ts.array([[1, 2], [3, 4]], dtype=torch.int8).tolist() == [[1, 2], [3, 4]]
    assert ts.array([ts.array(1.0), 2.0]).tolist() == [1.0, 2.0]
    assert ts.array(np.float64(2.5)).dtype == torch.float64


def test_block_until_ready_takes_trees_and_returns_them():
    tree = {"x": ts.array([1.0]), "n": 3}
    assert ts.block_until_ready(tree) is tree
    assert tree["x"].is_ready()


def test_zero_sized_and_scalar_values_are_placed(mesh):
    empty = ts.device_put(torch.empty(0, 4), ts.NamedSharding(mesh, ts.P("a", "b")))
    assert ts.device_get(empty).shape == (0, 4)
    assert float(ts.device_put(2.5, ts.NamedSharding(mesh, ts.P()))) == 2.5


def test_after_shutdown_old_arrays_say_so_and_new_ones_work():
    x = ts.array([1.0])
    ts.init(devices=8, runtime="local")
    with pytest.raises(ts.RuntimeStateError, match="shut down"):
        x.numpy()
    assert ts.array([2.0]).tolist() == [2.0]

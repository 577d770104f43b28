import numpy as np
import pytest
import torch

import tinyshard as ts
from tinyshard.core.devices import Device

pytestmark = pytest.mark.usefixtures("local")


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
    with pytest.raises(ts.ShardingError, match="do not fit its values"):
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


def test_python_numbers_are_rounded_to_the_dtype_that_is_asked_for_and_only_once():
    double = torch.float64
    assert ts.array(0.1, dtype=double).item() == 0.1
    assert ts.array([[0.1], [1e300]], dtype=double).tolist() == [[0.1], [1e300]]
    assert ts.array(16777217.0, dtype=torch.int64).item() == 16777217
    x = ts.array(1.0)
    assert ts.array([x, 0.1, 16777217], dtype=double).tolist() == [1.0, 0.1, 16777217.0]
    assert ts.array([[x.to(double), 0.1], [0.2, 0.3]]).tolist() == [[1.0, 0.1], [0.2, 0.3]]
    assert ts.jit(lambda v: ts.array([v, 0.1], dtype=double))(x).tolist() == [1.0, 0.1]
    with pytest.raises(ts.DtypeError, match=r"a value that torch\.int8 does not have"):
        ts.array(300, dtype=torch.int8)


def _read_only(values):
    values.flags.writeable = False
    return values


@pytest.mark.parametrize(
    "values",
    [
        np.arange(8.0)[::-1],
        np.arange(16.0).reshape(8, 2)[::-2, ::-1],
        np.arange(8.0).astype(">f8"),
        np.arange(8).astype(">i2")[::-1],
        np.zeros(8, [("a", "i1"), ("b", "f4")])["b"],
        _read_only(np.arange(8.0)),
    ],
    ids=["backwards", "backwards in both dims", "big-endian", "both", "a field", "read-only"],
)
@pytest.mark.parametrize("put", ["array", "device_put", "jit", "vmap", "constraint"])
def test_numpy_arrays_that_torch_does_not_share_memory_with_are_copied(mesh, values, put):
    way = {
        "array": ts.array,
        "device_put": lambda x: ts.device_put(x, ts.NamedSharding(mesh, ts.P())),
        "jit": ts.jit(lambda x: x + 0),
        "vmap": ts.vmap(lambda x: x + 0),
        "constraint": lambda x: ts.lax.with_sharding_constraint(x, ts.NamedSharding(mesh, ts.P())),
    }[put]
    made = way(values)
    assert made.tolist() == values.tolist()
    assert ts.device_get(made).numpy().dtype == values.dtype.newbyteorder("=")


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


# ---- inside transformations -----------------------------------------------------------------------------------------


def rows_of_eight():
    return ts.NamedSharding(ts.make_mesh((8,), ("rows",)), ts.P("rows"))


def halves():
    return ts.NamedSharding(ts.make_mesh((2, 4), ("half", "copy")), ts.P("half"))


def squares_over_devices(v):
    return (ts.device_put(v, rows_of_eight()) ** 2).sum()


@pytest.mark.parametrize(
    "put", [lambda x: x, ts.array, lambda x: ts.device_put(x, halves())], ids=["host", "array", "cut"]
)
@pytest.mark.parametrize("wrap", [lambda f: f, ts.jit], ids=["eager", "jit"])
def test_device_put_can_be_differentiated_in_every_mode(put, wrap):
    x = torch.arange(8.0)
    placed = put(x)
    torch.testing.assert_close(ts.device_get(wrap(ts.grad(squares_over_devices))(placed)), 2 * x)
    value, tangent = wrap(lambda v: ts.jvp(squares_over_devices, (v,), (torch.ones(8),)))(placed)
    assert (value.item(), tangent.item()) == (140.0, 56.0)
    torch.testing.assert_close(ts.device_get(wrap(ts.hessian(squares_over_devices))(placed)), 2 * torch.eye(8))


def test_the_gradient_of_device_put_returns_to_where_the_argument_was():
    plain = ts.grad(squares_over_devices)(torch.arange(8.0))
    assert not isinstance(plain, ts.Array)
    placed = ts.device_put(torch.arange(8.0), halves())
    gradient = ts.grad(squares_over_devices)(placed)
    assert gradient.committed and gradient.sharding.is_equivalent_to(halves(), 1)
    free = ts.grad(squares_over_devices)(ts.array(torch.arange(8.0)))
    assert not free.committed and free.devices() == {ts.devices()[0]}


def test_backward_through_device_put_reaches_host_tensors_and_arrays():
    weights = torch.arange(8.0, requires_grad=True)
    squares_over_devices(weights).backward()
    torch.testing.assert_close(weights.grad, 2 * torch.arange(8.0))
    assert not isinstance(weights.grad, ts.Array)
    placed = ts.device_put(torch.arange(8.0), halves()).requires_grad_()
    (ts.device_put(placed, rows_of_eight()) ** 3).sum().backward()
    torch.testing.assert_close(ts.device_get(placed.grad), 3 * torch.arange(8.0) ** 2)
    host = torch.arange(8.0, requires_grad=True)
    (ts.array(host) ** 2).sum().backward()
    torch.testing.assert_close(host.grad, 2 * torch.arange(8.0))


def test_in_jit_device_put_is_a_constraint_and_vmap_leaves_it_out():
    x = ts.device_put(torch.arange(8.0), halves())
    made = ts.jit(lambda v: ts.device_put(torch.sin(v), rows_of_eight()))(x)
    assert made.sharding.is_equivalent_to(rows_of_eight(), 1)
    torch.testing.assert_close(ts.device_get(made), torch.sin(torch.arange(8.0)))
    both = torch.arange(16.0).reshape(2, 8)
    for wrap in (lambda f: f, ts.jit):
        got = wrap(ts.vmap(squares_over_devices))(both)
        torch.testing.assert_close(ts.device_get(got), (both**2).sum(1))
        got = wrap(ts.vmap(ts.grad(squares_over_devices)))(both)
        torch.testing.assert_close(ts.device_get(got), 2 * both)
    assert ts.jit(lambda v: ts.device_put(v) + 1)(x).sharding.is_equivalent_to(halves(), 1)


def test_device_put_on_a_shard_is_refused():
    mesh = ts.make_mesh((8,), ("rows",))
    body = ts.shard_map(
        lambda v: ts.device_put(v, rows_of_eight()), mesh=mesh, in_specs=ts.P("rows"), out_specs=ts.P("rows")
    )
    with pytest.raises(ts.ShardingError, match="device_put where the names 'rows' are mapped"):
        body(torch.arange(8.0))


def test_array_of_a_differentiated_tensor_keeps_its_gradient():
    x = torch.arange(4.0)
    torch.testing.assert_close(ts.device_get(ts.grad(lambda v: (ts.array(v) ** 2).sum())(x)), 2 * x)
    torch.testing.assert_close(ts.device_get(ts.jit(lambda v: ts.array(v) * 2)(x)), 2 * x)

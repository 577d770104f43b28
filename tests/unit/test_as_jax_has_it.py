"""Small behaviours that users of JAX rely on: names in errors, described values, keys as arrays, groups, containers."""

import operator

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree

import tinyshard as ts
from tinyshard import NamedSharding, P

pytestmark = pytest.mark.usefixtures("local")


def mesh():
    return ts.make_mesh((4, 2), ("a", "b"))


def on(first, count=4):
    return NamedSharding(ts.make_mesh((count,), "x", ts.devices()[first : first + count]), P("x"))


# ---- different devices ----------------------------------------------------------------------------------------------


def test_the_error_of_different_devices_names_the_arguments():
    x, y = ts.device_put(torch.zeros(8), on(0)), ts.device_put(torch.zeros(4, 2), on(4))

    def f(first, tree, *, last=None):
        return first.sum() + tree["a"]["b"].sum()

    with pytest.raises(ts.ShardingError) as caught:
        ts.jit(f)(x, {"a": {"b": y}})
    said = str(caught.value)
    assert "first of f32[8], array device ids [0, 1, 2, 3] on platform CPU" in said
    assert "tree['a']['b'] of f32[4, 2], another array's device ids [4, 5, 6, 7] on platform CPU" in said
    with pytest.raises(ts.ShardingError, match=r"tree\['a'\]\['b'\]"):
        ts.jit(f).lower(x, {"a": {"b": y}}).compile()
    with pytest.raises(ts.ShardingError, match=r"(?s)first of .*last of "):
        ts.jit(f)(x, {"a": {"b": torch.ones(1)}}, last=y)


def test_the_error_of_different_devices_names_what_the_function_closes_over():
    x, weight = ts.device_put(torch.zeros(8), on(0)), ts.device_put(torch.zeros(8), on(4))
    with pytest.raises(ts.ShardingError, match=r"(?s)v of f32\[8\].*weight of f32\[8\]"):
        ts.jit(lambda v: v + weight)(x)


def test_a_constraint_without_a_sharding_is_an_error():
    f = ts.jit(lambda x: ts.lax.with_sharding_constraint(x, None))
    with pytest.raises(ts.ShardingError, match="got no sharding"):
        f(torch.zeros(4))
    with pytest.raises(ts.ShardingError, match="got no sharding"):
        ts.lax.with_sharding_constraint((torch.zeros(4), torch.zeros(4)), (on(0), None))
    assert ts.lax.with_sharding_constraint(None, None) is None


def test_an_uneven_constraint_is_an_error_inside_jit_too():
    f = ts.jit(lambda x: ts.lax.with_sharding_constraint(x, on(0)))
    with pytest.raises(ts.ShardingError, match="6 must be a multiple of 4"):
        f(torch.zeros(6))


# ---- ShapeDtypeStruct -----------------------------------------------------------------------------------------------


def test_described_values_are_equal_where_shape_dtype_and_sharding_are():
    def made(shape=(8, 4), dtype=torch.float32, sharding=None):
        return ts.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    rows = NamedSharding(mesh(), P("a"))
    assert made() == made([8, 4]) == made((np.int64(8), 4)) and hash(made()) == hash(made([8, 4]))
    assert made(sharding=rows) == made(sharding=NamedSharding(mesh(), P("a")))
    others = [made((8, 5)), made(dtype=torch.float64), made(sharding=rows), (8, 4), None]
    assert not any(made() == other for other in others)
    assert len({made(), made(), made(sharding=rows)}) == 2


def test_described_values_have_rank_size_and_length():
    x = ts.ShapeDtypeStruct((8, 4, 3), torch.float32)
    assert (x.ndim, x.size, len(x)) == (3, 96, 8)
    scalar = ts.ShapeDtypeStruct((), torch.float32)
    assert (scalar.ndim, scalar.size) == (0, 1)
    with pytest.raises(TypeError, match="no length"):
        len(scalar)


def test_a_described_value_takes_a_spec_where_a_mesh_is_set():
    with ts.set_mesh(mesh()):
        x = ts.ShapeDtypeStruct((8, 4), torch.float32, sharding=P("a", None))
    assert x.sharding == NamedSharding(mesh(), P("a", None))
    assert repr(x) == "f32[8@a, 4]"
    with pytest.raises(ts.ShardingError, match="no mesh is set"):
        ts.ShapeDtypeStruct((8, 4), torch.float32, sharding=P("a"))
    for wrong in (3, -1, "ab"):
        with pytest.raises(ts.DtypeError, match="a shape is"):
            ts.ShapeDtypeStruct(wrong, torch.float32)


# ---- keys -----------------------------------------------------------------------------------------------------------


def words(keys):
    return np.asarray(ts.random.key_data(keys)).astype(np.int64)


@pytest.fixture(params=["host", "devices"])
def keys(request):
    made = ts.random.split(ts.random.key(0), (2, 3))
    return made if request.param == "host" else ts.device_put(made, ts.devices()[1])


INDICES = {
    "int": 1,
    "NumPy int": np.int64(1),
    "negative": -1,
    "slice": slice(1, None),
    "two": (1, 2),
    "ellipsis": (Ellipsis, 1),
    "ellipsis and all": (1, Ellipsis, 2),
    "none": None,
    "none inside": (1, None, 2),
    "none last": (Ellipsis, None),
    "list": [1, 0, 1],
    "NumPy array": np.array([[1, 0], [0, 0]]),
    "NumPy array of a dim": (slice(None), np.array([2, 0])),
    "arrays of two dims": (np.array([0, 1]), np.array([2, 0])),
    "array and ellipsis": (Ellipsis, np.array([2, 0])),
    "mask of a dim": np.array([False, True]),
    "mask of both": np.array([[True, False, True], [False, False, True]]),
    "mask and int": (np.array([False, True]), 2),
    "whole mask list": [True, False],
}


@pytest.mark.parametrize("index", INDICES.values(), ids=INDICES)
def test_keys_are_indexed_as_numpy_indexes_an_array_of_their_shape(keys, index):
    rows = np.arange(6).reshape(2, 3)[index]
    want = words(keys).reshape(6, 2)[rows]
    got = keys[index]
    assert isinstance(got, ts.random.Key) and got.shape == rows.shape
    assert (words(got) == want).all()


@pytest.mark.parametrize("index", [(0, 1, 1), (0, 1, 0), (Ellipsis, 0, 1, 1), (slice(None),) * 3, (None, 0, 1, 1)])
def test_an_index_too_many_is_an_index_error(keys, index):
    with pytest.raises(IndexError, match="too many indices"):
        keys[index]


def test_a_mask_of_too_many_dims_and_an_index_out_of_range_are_index_errors(keys):
    with pytest.raises(IndexError):
        keys[np.ones((2, 3, 2), dtype=bool)]
    with pytest.raises(IndexError):
        keys[2]
    with pytest.raises(IndexError):
        keys[0, 3]


def test_one_key_takes_none_and_ellipsis_alone():
    key = ts.random.key(7)
    assert key[None].shape == (1,) and key[..., None].shape == (1,) and key[...].shape == ()
    assert (words(key[None]) == words(key)[None]).all()
    for wrong in (0, slice(None), (None, 0)):
        with pytest.raises(IndexError, match="one key cannot be indexed"):
            key[wrong]


def test_keys_are_compared_one_by_one(keys):
    other = keys[:, [0, 2, 1]]
    assert (keys == other).tolist() == [[True, False, False]] * 2
    assert (keys != other).tolist() == [[False, True, True]] * 2
    assert bool(keys[0, 0] != keys[0, 1]) and not bool(keys[0, 0] != keys[0, 0])
    assert keys != "text"


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_keys_are_stacked(keys, dim):
    want = np.stack([words(keys), words(keys[:, [2, 1, 0]])], dim % 3)
    got = torch.stack([keys, keys[:, [2, 1, 0]]], dim)
    assert isinstance(got, ts.random.Key) and got.shape == want.shape[:-1]
    assert (words(got) == want).all()


@pytest.mark.parametrize("dim", [0, 1, -1, -2])
def test_keys_are_concatenated(keys, dim):
    want = np.concatenate([words(keys), words(keys)], dim % 2)
    for join in (torch.cat, torch.concat, torch.concatenate):
        got = join((keys, keys), dim=dim)
        assert got.shape == want.shape[:-1] and (words(got) == want).all()


def test_joining_keys_with_others_or_along_no_dim_is_an_error(keys):
    for join, dim in ((torch.stack, 3), (torch.cat, 2), (torch.cat, -3)):
        with pytest.raises(IndexError, match="no such dim"):
            join([keys, keys], dim)
    with pytest.raises(ts.DtypeError):
        torch.stack([keys, torch.zeros(2, 3)])
    with pytest.raises(ts.DtypeError, match="keys are none"):
        torch.sum(keys)


def test_keys_are_no_numpy_array_and_have_a_dtype_of_their_own(keys):
    for convert in (np.asarray, np.array, lambda k: np.add(k, 1), ts.array):
        with pytest.raises(TypeError):
            convert(keys)
    assert repr(keys.dtype) == "key<fry>" and keys.dtype == ts.random.key(1).dtype
    assert keys.dtype != torch.int32


# ---- groups over several axes ---------------------------------------------------------------------------------------

GROUPS = [[0, 3, 5, 6], [1, 2, 7, 4]]


def over_both(body, out):
    return ts.shard_map(body, mesh=mesh(), in_specs=P(("a", "b")), out_specs=out)


def test_groups_over_two_axes_gather_each_for_itself():
    x = torch.arange(16.0).reshape(8, 2)
    f = over_both(lambda v: ts.lax.all_gather(v, ("a", "b"), axis_index_groups=GROUPS, tiled=True), P(("a", "b")))
    got = f(x).numpy().reshape(8, 4, 2)
    group_of = {i: group for group in GROUPS for i in group}
    for i in range(8):
        assert (got[i] == x.numpy()[group_of[i]]).all()


def test_groups_over_two_axes_sum_and_scatter_each_for_themselves():
    x = torch.arange(32.0).reshape(8, 4)
    rows = x.numpy()
    f = over_both(lambda v: ts.lax.psum_scatter(v[0], ("a", "b"), axis_index_groups=GROUPS)[None], P(("a", "b")))
    g = over_both(lambda v: ts.lax.psum(v, ("a", "b"), axis_index_groups=GROUPS), P(("a", "b")))
    scattered, summed = f(x).numpy(), g(x).numpy()
    for group in GROUPS:
        for place, i in enumerate(group):
            assert scattered[i] == rows[group].sum(0)[place]
            assert (summed[i] == rows[group].sum(0)).all()


def test_groups_over_two_axes_have_gradients():
    x = torch.arange(16.0).reshape(8, 2)
    weights = torch.arange(64.0).reshape(8, 8)

    def gathered(v):
        body = over_both(
            lambda v, w: (ts.lax.all_gather(v[0], ("a", "b"), axis_index_groups=GROUPS, tiled=True) * w).sum()[None],
            P(("a", "b")),
        )
        return body(v, weights).sum()

    want = np.zeros((8, 2))
    for group in GROUPS:
        blocks = weights.numpy()[group].sum(0).reshape(4, 2)
        for place, i in enumerate(group):
            want[i] = blocks[place]
    assert (ts.grad(gathered)(x).numpy() == want).all()


def test_groups_over_several_axes_of_which_vmap_binds_one_are_an_error():
    def body(v):
        return ts.lax.all_gather(v, ("i", "j"), axis_index_groups=[[0, 1], [2, 3]])

    with pytest.raises(ts.MappingError, match="vmap binds one"):
        ts.vmap(ts.vmap(body, axis_name="j"), axis_name="i")(torch.zeros(2, 2))


# ---- meshes and containers ------------------------------------------------------------------------------------------


def test_meshes_take_numpys_ints():
    want = ts.make_mesh((4, 2), ("a", "b"))
    assert ts.make_mesh(np.array([4, 2]), ("a", "b")) == want
    assert ts.make_mesh((np.int64(4), np.int32(2)), ("a", "b")) == want
    assert ts.make_mesh(np.int64(8), "a") == ts.make_mesh(8, "a")
    assert ts.AbstractMesh(np.array([4, 2]), ("a", "b")).axis_sizes == (4, 2)
    assert ts.AbstractMesh(np.int64(4), "a") == ts.AbstractMesh(4, "a")
    assert {type(n) for n in ts.make_mesh(np.array([4, 2]), ("a", "b")).axis_sizes} == {int}
    assert ts.mesh_utils.create_device_mesh(np.array([4, 2])).shape == (4, 2)
    for wrong in (4.0, (2.0, 2), "ab", np.array([0, 2]), (-1, 2), (2, (3,))):
        for make in (ts.make_mesh, ts.AbstractMesh):
            with pytest.raises(ts.MeshError, match="positive int"):
                make(wrong, ("a", "b"))


class Pair:
    def __init__(self, left, right):
        self.left, self.right = left, right


pytree.register_pytree_node(Pair, lambda p: ([p.left, p.right], None), lambda xs, _: Pair(*xs))


@pytest.mark.parametrize("wrap", [ts.vmap, ts.pmap, ts.jit])
def test_a_container_without_keys_is_mapped_and_jitted(wrap):
    made = wrap(lambda pair, x: Pair(pair.left + x, pair.right * 2))(
        Pair(torch.arange(4.0), torch.ones(4)), 1.0 * torch.ones(4)
    )
    assert made.left.tolist() == [1.0, 2.0, 3.0, 4.0] and made.right.tolist() == [2.0] * 4


def test_a_container_of_ones_own_is_one_in_trees_of_shardings_specs_and_axes():
    mesh = ts.make_mesh((4,), "x")
    cut, whole = ts.NamedSharding(mesh, ts.P("x")), ts.NamedSharding(mesh, ts.P())
    pair, specs = Pair(torch.arange(4.0), torch.ones(2)), Pair(ts.P("x"), ts.P())
    places = Pair(cut, whole)

    def same(p):
        return p

    for made in (
        ts.device_put(pair, places),
        ts.device_put({"a": [pair]}, {"a": [places]})["a"][0],
        ts.jit(same, out_shardings=places)(pair),
        ts.jit(same, in_shardings=(places,))(pair),
        ts.jit(lambda p: ts.lax.with_sharding_constraint(p, places))(pair),
        ts.shard_map(same, mesh=mesh, in_specs=(specs,), out_specs=specs)(pair),
    ):
        assert made.left.sharding.is_equivalent_to(cut, 1) and made.right.sharding.is_equivalent_to(whole, 1)
        assert made.left.tolist() == [0, 1, 2, 3] and made.right.tolist() == [1, 1]


@pytest.mark.parametrize("wrap", [ts.vmap, ts.pmap])
def test_a_container_of_ones_own_is_one_in_trees_of_axes(wrap):
    pair = Pair(torch.arange(4.0), torch.ones(2))
    made = wrap(lambda p: Pair(p.left + 1, p.right * 2), in_axes=(Pair(0, None),), out_axes=Pair(0, None))(pair)
    assert made.left.tolist() == [1, 2, 3, 4] and made.right.tolist() == [2, 2]


def test_a_prefix_with_another_container_than_ones_own_is_refused():
    pair, cut = Pair(torch.ones(4), torch.ones(4)), ts.NamedSharding(ts.make_mesh((4,), "x"), ts.P("x"))
    with pytest.raises(ts.ShardingError, match=r"do not fit its values[^$]*got:  tuple of 2 for Pair of 2"):
        ts.device_put(pair, (cut, cut))
    with pytest.raises(ts.ShardingError, match="got:  Pair of 2 for list of 2"):
        ts.device_put([pair.left, pair.right], Pair(cut, cut))
    with pytest.raises(ts.MappingError, match="got:  Pair of 2 for one value"):
        ts.vmap(lambda x: x, in_axes=(Pair(0, None),))(pair.left)


def test_errors_count_the_leaves_of_a_container_without_keys():
    with pytest.raises(ts.MappingError, match=r"pair\[leaf 1\]"):
        ts.vmap(lambda pair: pair.left)(Pair(torch.zeros(4), torch.zeros(3)))
    made = ts.grad(lambda pair: (pair.left * pair.right).sum())(Pair(torch.ones(2), torch.full((2,), 3.0)))
    assert made.left.tolist() == [3.0, 3.0]
    assert operator.attrgetter("right")(made).tolist() == [1.0, 1.0]

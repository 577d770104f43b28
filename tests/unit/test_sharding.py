import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinyshard as ts
from tinyshard.core.devices import Device
from tinyshard.sharding import PositionalSharding, express

EIGHT = [Device(i) for i in range(8)]
MESH = ts.make_mesh((4, 2), ("a", "b"), EIGHT)
POSITIONAL = PositionalSharding(EIGHT)


def cells(sharding):
    """Element [i, j, …] as a set of ids, from NumPy's own view of the device map."""
    shape = sharding.shape
    found = np.empty(shape, dtype=object)
    for device, index in sharding.devices_indices_map(shape).items():
        at = tuple(0 if s.start is None else s.start for s in index)
        found[at] = (found[at] or frozenset()) | {device.id}
    return found


def ids_as_sets(array):
    out = np.empty(array.shape, dtype=object)
    for at in np.ndindex(array.shape):
        out[at] = frozenset([int(array[at])])
    return out


def test_positional_sharding_prints_as_in_the_seed():
    assert repr(POSITIONAL) == ("PositionalSharding([{CPU 0} {CPU 1} {CPU 2} {CPU 3} {CPU 4} {CPU 5} {CPU 6} {CPU 7}])")
    assert repr(POSITIONAL.reshape(4, 2)) == (
        "PositionalSharding([[{CPU 0} {CPU 1}]\n"
        "                    [{CPU 2} {CPU 3}]\n"
        "                    [{CPU 4} {CPU 5}]\n"
        "                    [{CPU 6} {CPU 7}]])"
    )
    assert repr(POSITIONAL.reshape(4, 2).replicate(axis=0, keepdims=True)) == (
        "PositionalSharding([[{CPU 0, 2, 4, 6} {CPU 1, 3, 5, 7}]])"
    )


def test_replicate_keeps_dims_unless_told_otherwise():
    sharding = POSITIONAL.reshape(4, 2)
    assert sharding.replicate(0).shape == (1, 2)
    assert sharding.replicate(1).shape == (4, 1)
    assert sharding.replicate(1, keepdims=False).shape == (4,)
    assert sharding.replicate().shape == (1, 1)
    assert sharding.replicate(-1).T.shape == (1, 4)


@given(st.permutations(range(8)), st.sampled_from([(8,), (4, 2), (2, 4), (2, 2, 2), (1, 8), (8, 1)]))
def test_reshape_and_transpose_are_those_of_numpy(order, shape):
    sharding = PositionalSharding([EIGHT[i] for i in order]).reshape(shape)
    grid = np.array(order).reshape(shape)
    assert (cells(sharding) == ids_as_sets(grid)).all()
    assert (cells(sharding.T) == ids_as_sets(grid.T)).all()
    assert (cells(sharding.T.reshape(2, -1)) == ids_as_sets(grid.T.reshape(2, -1))).all()
    assert [d.id for d in sharding.T.devices] == list(order)


def test_reshape_after_a_transpose_that_needs_parts_of_axes():
    grid = np.arange(12).reshape(4, 3)
    sharding = PositionalSharding([Device(i) for i in range(12)]).reshape(4, 3)
    assert (cells(sharding.reshape(6, 2)) == ids_as_sets(grid.reshape(6, 2))).all()
    with pytest.raises(ts.ShardingError, match="after its transpose"):
        sharding.T.reshape(2, 6)


@given(st.integers(0, 2))
def test_replicate_unites_sets_as_sum_adds(axis):
    grid = ids_as_sets(np.arange(8).reshape(2, 2, 2))
    want = np.empty([1 if i == axis else 2 for i in range(3)], dtype=object)
    for at in np.ndindex(2, 2, 2):
        to = tuple(0 if i == axis else c for i, c in enumerate(at))
        want[to] = (want[to] or frozenset()) | grid[at]
    assert (cells(POSITIONAL.reshape(2, 2, 2).replicate(axis)) == want).all()


def test_a_value_of_lower_rank_takes_the_trailing_dims():
    sharding = POSITIONAL.reshape(4, 2).replicate(0)
    assert sharding.shard_shape((6,)) == (3,)
    assert POSITIONAL.reshape(4, 2).replicate().shard_shape((5, 7, 9)) == (5, 7, 9)
    with pytest.raises(ts.ShardingError, match="rank"):
        POSITIONAL.reshape(4, 2).shard_shape((8,))


def test_named_sharding_maps_devices_to_slices():
    sharding = ts.NamedSharding(MESH, ts.P("b", None))
    index = sharding.devices_indices_map((4, 3))
    assert index[EIGHT[0]] == (slice(0, 2), slice(None))
    assert index[EIGHT[1]] == (slice(2, 4), slice(None))
    assert index[EIGHT[2]] == index[EIGHT[0]]


def test_trailing_nones_can_be_left_out():
    a, b = ts.NamedSharding(MESH, ts.P("a", None)), ts.NamedSharding(MESH, ts.P("a"))
    assert a.is_equivalent_to(b, 2)
    assert not a.is_equivalent_to(ts.NamedSharding(MESH, ts.P(None, "a")), 2)


def test_positional_and_named_say_the_same():
    pairs = [
        (POSITIONAL.reshape(4, 2), ts.P("a", "b")),
        (POSITIONAL.reshape(8, 1), ts.P(("a", "b"))),
        (POSITIONAL.reshape(4, 2).replicate(0), ts.P(None, "b")),
        (POSITIONAL.reshape(4, 2).T, ts.P("b", "a")),
        (POSITIONAL.reshape(4, 2).replicate(), ts.P()),
    ]
    for positional, spec in pairs:
        assert positional.is_equivalent_to(ts.NamedSharding(MESH, spec), 2)


@given(st.permutations(["a", "b", None]), st.booleans())
def test_express_gives_back_the_spec(entries, joined):
    names = [n for n in entries if n]
    spec = ts.P(None, tuple(names)) if joined else ts.P(*entries)
    layout = ts.NamedSharding(MESH, spec).layout(3)
    named = express(layout, MESH)
    assert isinstance(named, ts.NamedSharding)
    assert named.is_equivalent_to(ts.NamedSharding(MESH, spec), 3)


def test_express_falls_back_to_positional_where_the_mesh_has_no_words():
    assert isinstance(express(POSITIONAL.reshape(2, 4).layout(2), MESH), PositionalSharding)


def test_shardings_compare_hash_and_pickle():
    for sharding in (ts.NamedSharding(MESH, ts.P("a")), POSITIONAL.reshape(4, 2), ts.SingleDeviceSharding(EIGHT[1])):
        again = pickle.loads(pickle.dumps(sharding))
        assert again == sharding
        assert hash(again) == hash(sharding)
    assert ts.P("a", ["b"]) == ts.P("a", ("b",))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ts.NamedSharding(MESH, ts.P("z")), ["no axis named 'z'", "('a', 'b')"]),
        (lambda: ts.NamedSharding(MESH, ts.P("a", "a")), ["axis 'a' twice", "P('a', 'a')"]),
        (lambda: ts.NamedSharding(MESH, "a"), ["PartitionSpec", "'a' (str)"]),
        (lambda: ts.NamedSharding("mesh", ts.P()), ["takes a mesh", "'mesh' (str)"]),
        (lambda: ts.NamedSharding(MESH, ts.P(0)), ["axis names", "0 (int)"]),
        (lambda: ts.SingleDeviceSharding(0), ["one device", "0 (int)"]),
        (lambda: ts.NamedSharding(MESH, ts.P("a", None, "b")).shard_shape((4, 2)), ["rank", "2-d array", "3 dims"]),
        (
            lambda: ts.NamedSharding(MESH, ts.P("a", "b")).shard_shape((10, 6)),
            ["dim 0", "(10, 6)", "multiple of 4", "mesh axis 'a'", "pad dim 0 to 12", "P(None, 'b')"],
        ),
        (lambda: ts.NamedSharding(MESH, ts.P(("a", "b"))).shard_shape((12,)), ["multiple of 8", "('a', 'b')"]),
        (lambda: POSITIONAL.shard_shape((9,)), ["multiple of 8", "pad dim 0 to 16"]),
        (lambda: POSITIONAL.shard_shape((8, 8)), ["rank", "reshape(8, 1)"]),
        (lambda: POSITIONAL.reshape(3, 2), ["multiply to 8", "(3, 2)"]),
        (lambda: POSITIONAL.reshape(-1, -1), ["at most one"]),
        (lambda: POSITIONAL.replicate(1), ["no axis 1", "(8,)"]),
        (lambda: POSITIONAL.transpose(1), ["permutation"]),
        (lambda: PositionalSharding([]), ["made of devices"]),
        (lambda: PositionalSharding([0, 1]), ["made of devices"]),
        (lambda: PositionalSharding([EIGHT[0], EIGHT[0]]), ["twice"]),
    ],
)
def test_a_wrong_sharding_is_refused_with_what_was_given(make, words):
    with pytest.raises(ValueError) as caught:
        make()
    assert isinstance(caught.value, ts.TinyshardError)
    for word in words:
        assert word in str(caught.value)


def test_a_sharding_shows_a_picture():
    for sharding in (ts.NamedSharding(MESH, ts.P("a")), POSITIONAL, ts.SingleDeviceSharding(EIGHT[0])):
        assert "<svg" in sharding._repr_html_()

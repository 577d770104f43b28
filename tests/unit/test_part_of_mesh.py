"""shard_map over a part of a mesh's axes: along the others values are whole, and the partitioner cuts them."""

import operator

import pytest
import torch

import tinyshard as ts
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")


def mesh():
    return ts.make_mesh((4, 2), ("data", "model"))


def close(got, expected, rtol=1e-5):
    torch.testing.assert_close(torch.as_tensor(ts.device_get(got)), torch.as_tensor(expected), rtol=rtol, atol=1e-4)


def put(x, *spec):
    return ts.device_put(x, ts.NamedSharding(mesh(), P(*spec)))


DATA = P("data")


def over_data(f, in_specs=DATA, out_specs=DATA, names=frozenset({"data"}), **others):
    return ts.shard_map(f, mesh=mesh(), in_specs=in_specs, out_specs=out_specs, axis_names=names, **others)


def exchanged(f, *args):
    """What a program exchanges: kind of collective, axes -> bytes."""
    cost = ts.jit(f).lower(*args).compile().cost_analysis()
    return {(c.kind, c.axes): c.nbytes for c in cost.traffic}


X = torch.arange(128.0).reshape(16, 8) / 100
BLOCKS = X.reshape(4, 4, 8)
RIGHT = [(i, (i + 1) % 4) for i in range(4)]

# ---- collectives: under vmap each is arithmetic on a mapped dim, of plain tensors ----------------------------------

COLLECTIVES = {
    "psum": lambda v: ts.lax.psum(v, "data"),
    "psum in groups": lambda v: ts.lax.psum(v, "data", axis_index_groups=[[0, 3], [1, 2]]),
    "pmean": lambda v: ts.lax.pmean(v * v, ("data",)),
    "pmax": lambda v: ts.lax.pmax(v, "data"),
    "pmin": lambda v: ts.lax.pmin(v, "data"),
    "ppermute": lambda v: ts.lax.ppermute(v, "data", RIGHT),
    "ppermute of two": lambda v: ts.lax.ppermute(v, "data", [(0, 2), (3, 0)]),
    "pshuffle": lambda v: ts.lax.pshuffle(v, "data", [2, 0, 3, 1]),
    "pswapaxes": lambda v: ts.lax.pswapaxes(v, "data", 0),
    "all_gather": lambda v: ts.lax.all_gather(v, "data", axis=1).sum(1),
    "all_gather tiled": lambda v: ts.lax.all_gather(v, "data", tiled=True),
    "all_to_all": lambda v: ts.lax.all_to_all(v, "data", 0, 0, tiled=True),
    "psum_scatter": lambda v: ts.lax.psum_scatter(v, "data", tiled=True),
    "axis_index": lambda v: v * ts.lax.axis_index("data"),
    "ragged_all_to_all": lambda v: ts.lax.ragged_all_to_all(
        v, torch.zeros(4, 8), [0, 1, 2, 3], [1, 1, 1, 1], [0, 1, 2, 3], [1, 1, 1, 1], axis_name="data"
    ),
}


def all_of_them(v):
    return {name: f(v) for name, f in COLLECTIVES.items()}


def by_vmap(x):
    stacked = ts.vmap(all_of_them, axis_name="data")(x.reshape(4, -1, 8))
    return {name: y.flatten(0, 1) for name, y in stacked.items()}


def weighed(results):
    return sum((torch.cos(y) * y).sum() for y in results.values())


def test_every_collective_over_the_named_axes_leaves_the_others_alone():
    f, x = over_data(all_of_them), put(X, "data", "model")
    for name, y in f(x).items():
        close(y, by_vmap(X)[name])
        assert y.sharding.spec == P("data", "model"), name
    assert {axes for _, axes in exchanged(f, x)} == {("data",)}


@pytest.mark.whole
def test_the_gradient_of_every_collective():
    got = ts.grad(lambda x: weighed(over_data(all_of_them)(x)))(put(X, "data", "model"))
    close(got, torch.func.grad(lambda x: weighed(by_vmap(x)))(X), rtol=1e-4)
    assert got.sharding.spec == P("data", "model")


@pytest.mark.parametrize(
    ("f", "moved"),
    [
        (lambda v: ts.lax.all_gather(v, "data", axis=1, tiled=True), "all_to_all"),
        (lambda v: ts.lax.all_to_all(v, "data", 1, 0, tiled=True), "all_gather"),  # it touches both dims
    ],
)
def test_a_collective_along_a_dim_that_another_axis_cuts(f, moved):
    """The blocks of "data" would not be in one piece: the cut by "model" moves to another dim, if there is one."""
    x = put(X, "data", "model")
    close(over_data(f)(x), ts.vmap(f, axis_name="data")(BLOCKS).flatten(0, 1))
    assert [kind for kind, axes in exchanged(over_data(f), x) if axes == ("model",)] == [moved]


# ---- a step of training: data parallel by hand, tensor parallel by the partitioner ---------------------------------

W = torch.cos(torch.arange(128.0)).reshape(8, 16), torch.sin(torch.arange(128.0)).reshape(16, 8)


def loss(w, x, y):
    return ((torch.relu(x @ w[0]) @ w[1] - y) ** 2).mean()


def stepped(w, value_and_gradient):
    value, g = value_and_gradient
    return value, *map(operator.sub, w, (0.1 * each for each in g))


def plain_step(w, x, y):
    return stepped(w, ts.value_and_grad(loss)(w, x, y))


def gradient_inside(w, x, y):
    w = ts.lax.pcast(w, "data", to="varying")
    return ts.lax.pmean(ts.value_and_grad(loss)(w, x, y), "data")


SPECS = P(), P("data"), P("data")
STEPS = {
    "the gradient inside": lambda w, x, y: stepped(w, over_data(gradient_inside, SPECS, P())(w, x, y)),
    "the gradient of it": lambda w, x, y: stepped(
        w, ts.value_and_grad(over_data(lambda *args: ts.lax.pmean(loss(*args), "data"), SPECS, P()))(w, x, y)
    ),
    "the whole step inside": over_data(lambda w, *args: stepped(w, gradient_inside(w, *args)), SPECS, P()),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_step_sends_what_the_partitioner_alone_sends(step):
    args = (put(W[0], None, "model"), put(W[1], "model")), put(X, "data"), put(X.flip(0), "data")
    value, *weights = ts.jit(step)(*args)
    want, *wanted = plain_step(W, X, X.flip(0))
    close(value, want)
    for w, wanted_w, spec in zip(weights, wanted, [P(None, "model"), P("model")], strict=True):
        close(w, wanted_w)
        assert w.sharding.spec == spec
    # over data the gradients of 8 x 8 and the loss, over model the activations of 4 x 8
    assert exchanged(step, *args) == exchanged(plain_step, *args)
    assert exchanged(step, *args) == {
        ("all_reduce", ("data",)): 2 * (256 + 256 + 4) * 3 // 4,
        ("all_reduce", ("model",)): 128,
    }


# ---- inside, and around --------------------------------------------------------------------------------------------


def test_the_function_is_given_blocks_along_the_named_axes_alone():
    seen = []

    def body(v, w):
        seen.append((tuple(v.shape), ts.get_abstract_mesh()))
        return v @ w

    got = over_data(body, (P("data"), P()))(put(X, "data", "model"), put(X.T.contiguous(), None, "model"))
    types = ts.AxisType.Manual, ts.AxisType.Auto
    assert seen == [((4, 8), ts.AbstractMesh((4, 2), ("data", "model"), axis_types=types))]
    close(got, X @ X.T)


def test_a_scan_a_cond_and_a_draw_inside():
    key = ts.random.key(3)

    def body(v):
        place = ts.lax.axis_index("data")
        total, rows = ts.lax.scan(
            lambda c, r: (c + ts.lax.psum(v.sum(1) * r, "data"), c.sum()), torch.zeros(4), torch.arange(3.0)
        )
        drawn = ts.random.normal(ts.random.fold_in(key, place), (4, 8))
        return ts.lax.cond(place > 1, lambda v: v * 2, lambda v: v + 1, v) + drawn, total, rows

    f, x = over_data(body, P("data"), (P("data"), P(), P())), put(X, "data", "model")
    got, total, rows = ts.jit(f)(x)
    drawn = torch.cat([ts.device_get(ts.random.normal(ts.random.fold_in(key, i), (4, 8))) for i in range(4)])
    close(got, torch.cat([X[:8] + 1, 2 * X[8:]]) + drawn)
    sums = BLOCKS.sum((0, 2))
    close(total, 3 * sums)
    close(rows, torch.tensor([0.0, 0.0, 1.0]) * sums.sum())
    slopes = torch.tensor([1.0] * 8 + [2.0] * 8) + (0 + 1 + 2) + 1  # by the cond, total and rows
    close(ts.grad(lambda x: sum(y.sum() for y in f(x)))(x), slopes[:, None].expand(16, 8))


@pytest.mark.whole
def test_in_a_scan_of_jit_and_under_vmap_and_jvp():
    step = over_data(lambda v: v - 0.1 * ts.lax.pmean(v, "data"))
    x = put(X, "data", "model")
    looped = ts.jit(lambda x: ts.lax.scan(lambda c, _: (step(c), None), x, None, length=3)[0])

    def want(x):
        for _ in range(3):
            x = x - 0.1 * x.reshape(4, 4, 8).mean(0).repeat(4, 1)
        return x

    close(looped(x), want(X))
    close(ts.grad(lambda x: (looped(x) ** 2).sum())(x), torch.func.grad(lambda x: (want(x) ** 2).sum())(X))
    one = X - 0.1 * BLOCKS.mean(0).repeat(4, 1)
    close(ts.vmap(step, in_axes=1, out_axes=1)(torch.stack([X, 2 * X], 1)), torch.stack([one, 2 * one], 1))
    close(ts.vmap(step, axis_name="model")(torch.stack([X, 2 * X])), torch.stack([one, 2 * one]))
    close(ts.jvp(step, (x,), (x,))[1], one)


def test_without_check_vma_a_gradient_is_that_of_all_devices_too():
    f = over_data(lambda v: ts.lax.psum(v**2, "data"), P("data"), P(), check_vma=False)
    close(ts.grad(lambda x: f(x).sum())(put(X, "data", "model")), 2 * X)


def test_shard_map_over_the_axes_that_another_one_leaves():
    def inner(w, v):
        return ts.lax.psum(v @ w, "model")

    def outer(w, v):
        return ts.shard_map(inner, in_specs=(P("model"), P(None, "model")), out_specs=P())(w, v)

    f = over_data(outer, (P(), P("data")))
    w, x = put(W[0], "model"), put(X, "data", "model")
    close(ts.jit(f)(w, x), X @ W[0])
    assert exchanged(f, w, x) == {("all_reduce", ("model",)): 256}
    want = torch.func.grad(lambda w: ((X @ w) ** 2).sum())(W[0])
    close(ts.grad(lambda w: (f(w, x) ** 2).sum())(w), want)
    inside = over_data(lambda w, v: ts.grad(lambda w: (outer(w, v) ** 2).sum())(w), (P(), P("data")), P())
    close(inside(w, x), want)


def test_constraints_along_the_other_axes():
    cut = P(None, "model")
    for place in (cut, ts.NamedSharding(mesh(), cut), ts.NamedSharding(mesh().abstract_mesh, cut)):
        got = over_data(lambda v, to=place: ts.lax.with_sharding_constraint(v * 2, to))(X)
        close(got, 2 * X)
        assert got.sharding.spec == P("data", "model")
    moved = over_data(lambda v: ts.reshard(v, P("model")))(put(X, "data", None))
    assert moved.sharding.spec == P(("data", "model"))


def test_a_cut_that_changes_axes_stays_among_devices_of_one_block():
    """From "t" to "e" blocks change devices, and "d" is between them: a device along "d" has another block."""
    on = ts.make_mesh((2, 2, 2), ("t", "d", "e"))
    x = ts.device_put(X, ts.NamedSharding(on, P("d", "t")))

    def body(v):
        return ts.reshard(v * (1 + ts.lax.axis_index("d")), P(None, "e"))

    f = ts.shard_map(body, mesh=on, in_specs=P("d"), out_specs=P("d"), axis_names={"d"})
    assert "collective_permute" in ts.jit(f).lower(x).compile().as_text()
    close(f(x), torch.cat([X[:8], 2 * X[8:]]))


def test_a_print_has_the_whole_value_of_each_block(capsys):
    over_data(lambda v: (ts.debug.print("{}", v.sum(1)[0].round()), v)[1])(put(X, "data", "model")).block_until_ready()
    assert [float(line) for line in capsys.readouterr().out.split()] == BLOCKS[:, 0].sum(1).round().tolist()


def test_on_a_mesh_of_thousands():
    on = ts.AbstractMesh((64, 64), ("a", "b"))
    x = ts.ShapeDtypeStruct((4096, 4096), torch.float32, sharding=ts.NamedSharding(on, P("b", "a")))
    f = ts.shard_map(lambda v: ts.lax.psum(v, "b"), mesh=on, in_specs=P("b"), out_specs=P(), axis_names={"b"})
    (only,) = ts.jit(f).lower(x).compile().cost_analysis().traffic
    assert (only.kind, only.axes, only.nbytes) == ("all_reduce", ("b",), 2 * 64 * 64 * 4 * 63 // 64)


# ---- refusals ------------------------------------------------------------------------------------------------------


def explicit():
    return ts.make_mesh((4, 2), ("data", "model"), axis_types=(ts.AxisType.Explicit,) * 2)


def within(f):
    return over_data(lambda v: ts.shard_map(f, in_specs=P(), out_specs=P())(v))(X)


def uneven(v):
    return ts.lax.cond(ts.lax.axis_index("data") > 1, lambda v: v * v.sum(1, keepdim=True), lambda v: v, v)


def rounds(v):
    index = torch.zeros((), dtype=torch.int32)
    return ts.lax.while_loop(
        lambda c: c[0] < ts.lax.axis_index("data"), lambda c: (c[0] + 1, c[1] * c[1].sum()), (index, v)
    )[1]


REFUSED = {
    "a name that the mesh has not": (lambda: over_data(torch.sin, names={"c"}), ts.MeshError, "'c'.*'data', 'model'"),
    "in_specs": (lambda: over_data(torch.sin, P("data", "model"))(X), ts.ShardingError, "in_specs name.*'model'"),
    "out_specs": (
        lambda: over_data(torch.sin, P("data"), P("model"))(X),
        ts.ShardingError,
        "out_specs name an axis that is not in its axis_names.*'model'",
    ),
    "a collective": (
        lambda: over_data(lambda v: ts.lax.psum(v, "model"))(X),
        NameError,
        "'model' is not in the axis_names.*'data' of size 4.*x.sum",
    ),
    "what varies": (lambda: over_data(torch.sin, P("data"), P())(X), ts.ShardingError, "'data'"),
    "a constraint": (
        lambda: over_data(lambda v: ts.lax.with_sharding_constraint(v, P("data", "model")))(X),
        ts.ShardingError,
        "not left to the partitioner.*may name 'model'",
    ),
    "a constraint on another mesh": (
        lambda: over_data(lambda v: ts.reshard(v, ts.NamedSharding(ts.make_mesh((8,), "model"), P("model"))))(X),
        ts.ShardingError,
        "not left to the partitioner",
    ),
    "Explicit axes": (
        lambda: ts.shard_map(torch.sin, mesh=explicit(), in_specs=P(), out_specs=P(), axis_names={"data"}),
        ts.MeshError,
        "axes are Explicit.*without axis_types",
    ),
    "pmap inside": (lambda: over_data(lambda v: ts.pmap(torch.sin)(v))(X), ts.MappingError, "'data' is mapped"),
    "the outer one's axis": (
        lambda: over_data(lambda v: over_data(torch.sin)(v))(X),
        ts.MeshError,
        "'model', which the shard_map around it leaves",
    ),
    "a collective over the outer one's axis": (
        lambda: within(lambda v: ts.lax.psum(v, "data")),
        NameError,
        "'data' is not in the axis_names",
    ),
    "another mesh inside": (
        lambda: over_data(lambda v: ts.shard_map(torch.sin, mesh=explicit(), in_specs=P(), out_specs=P())(v))(X),
        ts.MeshError,
        "over another mesh",
    ),
    "vmap along one of the others": (
        lambda: ts.vmap(over_data(torch.sin), spmd_axis_name="model")(torch.stack([X, X])),
        ts.MappingError,
        "axis_names, it is one of them",
    ),
    "branches that exchange": (
        lambda: over_data(uneven)(put(X, "data", "model")),
        ts.ShardingError,
        "cond or switch asks for may differ.*'data'",
    ),
    "rounds that exchange": (
        lambda: over_data(rounds)(put(X, "data", "model")),
        ts.ShardingError,
        "while_loop asks for may differ.*'data'",
    ),
    "meshes without common axes": (
        lambda: ts.jit(lambda x: on_six((2, 3))(on_six((3, 2))(x)))(torch.ones(6, 6)),
        ts.MeshError,
        "another mesh.*one mesh for both",
    ),
}


def on_six(sizes):
    on = ts.make_mesh(sizes, ("a", "b"), devices=ts.devices()[:6])
    return ts.shard_map(torch.sin, mesh=on, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})


@pytest.mark.parametrize(("call", "error", "says"), REFUSED.values(), ids=REFUSED)
def test_what_is_refused_says_what_to_do(call, error, says):
    with pytest.raises(error, match=f"(?s){says}"):
        call()

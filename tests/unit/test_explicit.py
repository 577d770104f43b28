"""Explicit axes: types that JAX prints, errors where it has them, and the values of plain torch."""

import pytest
import torch

import tinyshard as ts
from tests.refusals import assert_refused
from tinyshard.sharding.axis_types import AxisType

pytestmark = pytest.mark.usefixtures("local")
P = ts.P
F = torch.nn.functional


def explicit_mesh():
    return ts.make_mesh((4, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2)


def put(spec, *shape):
    """Numbers of no pattern, that differ from each other, and how they are cut."""
    values = torch.sin(torch.arange(float(torch.Size(shape).numel())) * 7 + len(shape)).reshape(shape)
    return ts.device_put(values, ts.NamedSharding(explicit_mesh(), spec))


def check(f, expected, specs, *shapes):
    """What f gives has this type, outside and inside of jit and as traced, and the values of plain torch."""
    operands = [put(spec, *shape) for spec, shape in zip(specs, shapes, strict=True)]
    seen = []

    def looked_at(*xs):
        made = f(*xs)
        seen.append(ts.typeof(made))
        return made

    plain = f(*map(ts.device_get, operands))
    for made in (f(*operands), ts.jit(looked_at)(*operands)):
        assert ts.typeof(made) == expected
        torch.testing.assert_close(ts.device_get(made), plain)
    assert seen == [expected]


def row(f, expected, *operands):
    return f, expected, [spec for spec, _ in operands], [shape for _, shape in operands]


X, XY, Y, XT, YT = P("x"), P("x", "y"), P(None, "y"), P(None, "x"), P("y")

# What JAX 0.10 prints for the same, without the space after a comma.
AGREED = {
    "add": row(torch.add, "f32[8@x, 4@y]", (XY, (8, 4)), (XY, (8, 4))),
    "add of more and less cut": row(torch.add, "f32[8@x, 4@y]", (X, (8, 4)), (XY, (8, 4))),
    "add of other dims cut": row(torch.add, "f32[8@x, 4@y]", (X, (8, 4)), (Y, (8, 4))),
    "add of cut and whole": row(torch.add, "f32[8@x, 4@y]", (XY, (8, 4)), (P(), (8, 4))),
    "add broadcast": row(torch.add, "f32[8@x, 4@y]", (XY, (8, 4)), (P("y"), (4,))),
    "times a number": row(lambda x: x * 2, "f32[8@x, 4@y]", (XY, (8, 4))),
    "transpose": row(lambda x: x.T, "f32[4@y, 8@x]", (XY, (8, 4))),
    "sum over a cut dim": row(lambda x: x.sum(0), "f32[4@y]", (XY, (8, 4))),
    "sum of all": row(torch.sum, "f32[]", (XY, (8, 4))),
    "mean": row(lambda x: x.mean(0), "f32[4@y]", (XY, (8, 4))),
    "variance over a cut dim": row(lambda x: x.var(1), "f32[8@x]", (XY, (8, 4))),
    "largest over a cut dim": row(lambda x: x.amax(1), "f32[8@x]", (XY, (8, 4))),
    "softmax over a cut dim": row(lambda x: x.softmax(1), "f32[8@x, 4@y]", (XY, (8, 4))),
    "argmax over a cut dim": row(lambda x: x.argmax(0), "i64[4@y]", (XY, (8, 4))),
    "product of other dims cut": row(torch.matmul, "f32[8@x, 8@y]", (X, (8, 4)), (Y, (4, 8))),
    "product of one side cut along k": row(torch.matmul, "f32[8, 8]", (Y, (8, 4)), (P(), (4, 8))),
    "product of a batch": row(torch.matmul, "f32[4@x, 2, 2]", (X, (4, 2, 4)), (X, (4, 4, 2))),
    "product of a batch and a whole one": row(torch.bmm, "f32[4@x, 2, 2]", (X, (4, 2, 4)), (P(), (4, 4, 2))),
    "linear": row(F.linear, "f32[8@x, 8@y]", (X, (8, 4)), (P("y"), (8, 4)), (P("y"), (8,))),
    "dims merged": row(lambda x: x.reshape(32), "f32[32@x]", (X, (8, 4))),
    "a dim split": row(lambda x: x.reshape(4, 2, 4), "f32[4@x, 2, 4@y]", (XY, (8, 4))),
    "a dim more": row(lambda x: x[None], "f32[1, 8@x, 4@y]", (XY, (8, 4))),
    "a dim less": row(lambda x: x.squeeze(1), "f32[8@x]", (X, (8, 1))),
    "repeated": row(lambda x: x.expand(2, 8, 4), "f32[2, 8@x, 4@y]", (XY, (8, 4))),
    "indexed along a whole dim": row(lambda x: x[:, 0], "f32[8@x]", (X, (8, 4))),
    "sliced along a whole dim": row(lambda x: x[:, :2], "f32[8@x, 2]", (X, (8, 4))),
    "cat along a whole dim": row(lambda x: torch.cat([x, x]), "f32[16, 4@y]", (Y, (8, 4))),
    "cat along a cut dim": row(lambda x: torch.cat([x, x]), "f32[16@x, 4@y]", (XY, (8, 4))),
    "stack": row(lambda x: torch.stack([x, x]), "f32[2, 8@x, 4@y]", (XY, (8, 4))),
    "attention": row(lambda q: F.scaled_dot_product_attention(q, q, q), "f32[4@x, 2@y, 8, 4]", (XY, (4, 2, 8, 4))),
    "zeros alike": row(torch.zeros_like, "f32[8@x, 4@y]", (XY, (8, 4))),
}


@pytest.mark.parametrize("name", AGREED)
def test_where_operands_agree_the_result_has_their_sharding(name):
    f, expected, specs, shapes = AGREED[name]
    check(f, expected, specs, *shapes)


def test_a_value_that_a_trace_changes_in_place_keeps_its_sharding():
    seen = []

    @ts.jit
    def f(x):
        y = x.clone()
        y.mul_(2)
        y[:, 0] = 1
        y.unsqueeze_(0).fill_(3)
        seen.append(ts.typeof(y))
        return y

    assert ts.typeof(f(put(X, 8, 4))) == seen[0] == "f32[1, 8@x, 4]"


SUM, APART, WHOLE, BLOCKS = (
    "contracting dims are sharded, and it is ambiguous",
    "its operands are sharded differently",
    "a dim is sharded that the op needs whole",
    "a dim is split or merged where it is sharded",
)
# the op, what is in the way, both shardings as the error shows them
REFUSED = {
    "add": (row(torch.add, APART, (XY, (8, 4)), (P("y", "x"), (8, 4))), "add", "f32[8@x, 4@y] and f32[8@y, 4@x]"),
    "add of one axis": (
        row(torch.add, APART, (X, (8, 4)), (P(None, "x"), (8, 4))),
        "add",
        "f32[8@x, 4] and f32[8, 4@x]",
    ),
    "broadcast": (row(torch.add, APART, (XY, (8, 4)), (X, (4,))), "add", "f32[8@x, 4@y] and f32[4@x]"),
    "mm along k": (row(torch.matmul, SUM, (Y, (8, 4)), (P("y"), (4, 8))), "mm", "f32[8, 4@y] and f32[4@y, 8]"),
    "bmm along k": (
        row(torch.bmm, SUM, (P(None, None, "y"), (3, 8, 4)), (P(None, "y"), (3, 4, 8))),
        "bmm",
        "f32[3, 8, 4@y] and f32[3, 4@y, 8]",
    ),
    "dot along k": (row(torch.dot, SUM, (X, (8,)), (X, (8,))), "dot", "f32[8@x] and f32[8@x]"),
    "mm apart": (row(torch.matmul, APART, (Y, (8, 4)), (X, (4, 8))), "mm", "f32[8, 4@y] and f32[4@x, 8]"),
    "mm twice": (row(torch.matmul, APART, (X, (8, 4)), (P(None, "x"), (4, 8))), "mm", "f32[8@x, 4] and f32[4, 8@x]"),
    "reshape": (row(lambda x: x.reshape(2, 4, 4), BLOCKS, (XY, (8, 4))), "view", "f32[8@x, 4@y]"),
    "cumsum": (row(lambda x: x.cumsum(0), WHOLE, (XY, (8, 4))), "cumsum", "f32[8@x, 4@y]"),
    "sort": (row(lambda x: x.sort(0)[0], WHOLE, (XY, (8, 4))), "sort", "f32[8@x, 4@y]"),
    "index": (row(lambda x: x[0], WHOLE, (XY, (8, 4))), "select", "f32[8@x, 4@y]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_where_operands_leave_a_choice_the_error_names_op_shardings_and_a_way_out(name):
    (f, problem, specs, shapes), op, shardings = REFUSED[name]
    operands = [put(spec, *shape) for spec, shape in zip(specs, shapes, strict=True)]
    for call in (f, ts.jit(f)):
        with pytest.raises(ts.ShardingError) as caught:
            call(*operands)
        said = str(caught.value)
        assert f"{op}: {problem}" in said
        assert shardings in said
        assert "ts.reshard(x, P(...))" in said
        assert ("out_sharding=" in said) == (op in ("mm", "bmm", "dot", "view"))


TOLD = {
    "dot along k, whole": row(lambda x, y: ts.lax.dot(x, y, out_sharding=P()), "f32[8, 8]", (Y, (8, 4)), (YT, (4, 8))),
    "dot along k, cut": row(lambda x, y: ts.lax.dot(x, y, out_sharding=Y), "f32[8, 8@y]", (Y, (8, 4)), (YT, (4, 8))),
    "dot apart": row(lambda x, y: ts.lax.dot(x, y, out_sharding=X), "f32[8@x, 8]", (X, (8, 4)), (P(None, "x"), (4, 8))),
    "dot that agrees": row(ts.lax.dot, "f32[8@x, 8]", (X, (8, 4)), (P(), (4, 8))),
    "einsum": row(
        lambda x, y: ts.lax.einsum("ik,kj->ji", x, y, out_sharding=Y), "f32[8, 8@y]", (Y, (8, 4)), (P("y"), (4, 8))
    ),
    "reshape": row(lambda x: ts.lax.reshape(x, (2, 4, 4), out_sharding=P(None, "x")), "f32[2, 4@x, 4]", (XY, (8, 4))),
    "reshard": row(lambda x: ts.reshard(x, P(None, "x")) * 2, "f32[8, 4@x]", (XY, (8, 4))),
}


@pytest.mark.parametrize("name", TOLD)
def test_out_sharding_and_reshard_say_how_a_result_is_cut(name):
    f, expected, specs, shapes = TOLD[name]
    operands = [put(spec, *shape) for spec, shape in zip(specs, shapes, strict=True)]
    plain = {"reshard": lambda x: x * 2, "einsum": lambda x, y: (x @ y).T, "reshape": lambda x: x.reshape(2, 4, 4)}
    values = plain.get(name, torch.matmul)(*map(ts.device_get, operands))
    for made in (f(*operands), ts.jit(f)(*operands)):
        assert ts.typeof(made) == expected
        torch.testing.assert_close(ts.device_get(made), values)


def test_a_sum_that_is_told_to_be_cut_is_scattered_in_one_step():
    program = ts.jit(lambda x, y: ts.lax.dot(x, y, out_sharding=P("y"))).lower(put(Y, 8, 4), put(P("y"), 4, 8))
    text = program.compile().as_text()
    assert "reduce_scatter" in text and "all_reduce" not in text


def test_a_draw_is_made_where_out_sharding_says():
    sharding = ts.NamedSharding(explicit_mesh(), XY)
    draw = ts.jit(lambda key: ts.random.normal(key, (8, 4), out_sharding=sharding))
    key = ts.random.key(0)
    assert ts.typeof(draw(key)) == "f32[8@x, 4@y]" == ts.typeof(ts.random.normal(key, (8, 4), out_sharding=sharding))
    assert not ts.collectives_in(draw.lower(key).compile())
    assert torch.equal(ts.device_get(draw(key)), ts.device_get(ts.random.normal(key, (8, 4))))


# ---- gradients ------------------------------------------------------------------------------------------------------


def test_without_an_explicit_operand_the_first_mesh_that_is_named_is_that_of_the_types():
    sharding, seen = ts.NamedSharding(explicit_mesh(), XY), []

    @ts.jit
    def f(x):
        drawn = ts.random.normal(ts.random.key(0), (8, 4), out_sharding=sharding)
        seen.extend(map(ts.typeof, (drawn, drawn + 1, ts.lax.dot(x, x.T, out_sharding=sharding), x)))
        with pytest.raises(ts.ShardingError, match=r"^add: its operands are sharded differently"):
            drawn + ts.reshard(torch.ones(8, 4), ts.NamedSharding(explicit_mesh(), P("y", "x")))
        return drawn

    f(torch.ones(8, 4))
    assert seen == ["f32[8@x, 4@y]", "f32[8@x, 4@y]", "f32[8@x, 8@y]", "f32[8, 4]"]


def test_a_mesh_that_a_body_names_is_known_around_it():
    sharding, seen = ts.NamedSharding(explicit_mesh(), X), []

    @ts.jit
    def f(x):
        rows = ts.lax.scan(lambda c, row: (c, ts.lax.dot(row, c, out_sharding=sharding)), torch.ones(4, 4), x)[1]
        seen.append(ts.typeof(rows))
        return rows

    assert ts.typeof(f(torch.ones(3, 8, 4))) == seen[0] == "f32[3, 8@x, 4]"


def test_a_gradient_is_cut_as_its_value():
    x, w = put(X, 8, 4), put(Y, 4, 8)

    def loss(w, x):
        return (torch.tanh(x @ w) ** 2).sum()

    plain = torch.func.grad(loss, argnums=(0, 1))(ts.device_get(w), ts.device_get(x))
    for gradient in (ts.grad(loss, argnums=(0, 1)), ts.jit(ts.grad(loss, argnums=(0, 1)))):
        of_w, of_x = gradient(w, x)
        assert (ts.typeof(of_w), ts.typeof(of_x)) == ("f32[4, 8@y]", "f32[8@x, 4]")
        torch.testing.assert_close([ts.device_get(of_w), ts.device_get(of_x)], list(plain))


def test_a_gradient_that_comes_cut_is_whole_as_its_value():
    w, x = put(P(), 8, 4), put(XY, 8, 4)
    for transform in (
        ts.grad,
        lambda f: ts.jit(ts.grad(f)),
        lambda f: lambda *xs: ts.vjp(f, *xs)[1](torch.ones(()))[0],
    ):
        made = transform(lambda w, x: (w * x).sum())(w, x)
        assert ts.typeof(made) == "f32[8, 4]"
        assert torch.equal(ts.device_get(made), ts.device_get(x))


def test_a_gradient_passes_what_out_sharding_decides():
    x, w = put(Y, 8, 4), put(P("y"), 4, 8)

    def loss(w, x):
        return (ts.lax.dot(x, w, out_sharding=P("x")) ** 2).sum()

    plain = torch.func.grad(lambda w, x: ((x @ w) ** 2).sum())(ts.device_get(w), ts.device_get(x))
    for gradient in (ts.grad(loss), ts.jit(ts.grad(loss))):
        made = gradient(w, x)
        assert ts.typeof(made) == "f32[4@y, 8]"
        torch.testing.assert_close(ts.device_get(made), plain)


def test_second_derivatives_and_vmap_have_types_too():
    x = put(XY, 8, 4)
    twice = ts.grad(lambda x: ts.grad(lambda y: (y**3).sum())(x).pow(2).sum())
    torch.testing.assert_close(ts.device_get(ts.jit(twice)(x)), 36 * ts.device_get(x) ** 3)
    seen = []

    def one(v):
        seen.append(ts.typeof(v))
        return v * 2

    assert ts.typeof(ts.jit(ts.vmap(one))(x)) == "f32[8@x, 4@y]"
    assert seen == ["f32[4@y]"]


# ---- traces ---------------------------------------------------------------------------------------------------------


def test_another_sharding_is_another_trace():
    seen = []

    @ts.jit
    def f(x):
        seen.append(ts.typeof(x))
        return x + 1

    for spec in (X, XY, X):
        f(put(spec, 8, 4))
    assert seen == ["f32[8@x, 4]", "f32[8@x, 4@y]"]


def test_a_mapped_function_sees_rows_however_its_operand_is_cut_and_is_traced_once():
    weight, seen = {"w": put(P("y"), 4)}, []

    def row(v):
        seen.append(ts.typeof(v))
        return v * weight["w"] / ts.lax.psum(v, "i")

    mapped = ts.pmap(row, axis_name="i")
    values, w = ts.device_get(put(P(), 8, 4)), ts.device_get(put(P(), 4))
    for spec in (X, XY, P(), X):
        torch.testing.assert_close(ts.device_get(mapped(put(spec, 8, 4))), values * w / values.sum(0))
    assert seen == ["f32[4]"]
    weight["w"] = put(P("x"), 4)
    torch.testing.assert_close(ts.device_get(mapped(put(XY, 8, 4))), values * w / values.sum(0))


def test_what_is_closed_over_has_a_type_and_another_one_is_traced_again():
    weight = {"w": put(P(), 4, 8)}
    f = ts.jit(lambda x: x @ weight["w"])
    x = put(X, 8, 4)
    assert ts.typeof(f(x)) == "f32[8@x, 8]"
    weight["w"] = put(Y, 4, 8)
    assert ts.typeof(f(x)) == "f32[8@x, 8@y]"
    weight["w"] = put(P(None, "x"), 4, 8)
    assert_refused(lambda: f(x), ts.ShardingError, "mm: its operands are sharded differently")


def test_plain_tensors_are_whole_on_the_mesh_that_is_set():
    with explicit_mesh() as mesh:
        made = ts.jit(lambda x: x * 2)(torch.ones(8, 4))
        assert made.sharding == ts.NamedSharding(mesh, P())
        assert ts.typeof(ts.jit(lambda: ts.reshard(torch.ones(8, 4), P("x")))()) == "f32[8@x, 4]"


def test_auto_axes_have_no_part_in_types():
    mesh = ts.make_mesh((4, 2), ("x", "y"))
    x = ts.device_put(torch.ones(8, 4), ts.NamedSharding(mesh, XY))
    seen = []

    @ts.jit
    def f(x):
        seen.append(ts.typeof(x))
        return x + x.T.reshape(8, 4)

    assert torch.equal(ts.device_get(f(x)), torch.full((8, 4), 2.0))
    assert seen == ["f32[8, 4]"]
    assert ts.typeof(ts.reshard(x, ts.NamedSharding(mesh, X))) == "f32[8@x, 4]"


def test_a_sharding_of_another_mesh_is_said_in_the_axes_of_the_first():
    other = ts.make_mesh((2, 4), ("a", "b"))
    seen = []

    @ts.jit
    def f(x):
        for spec in (P("a"), P(("a", "b")), P("b", "a")):
            y = ts.reshard(x, ts.NamedSharding(other, spec))
            seen.append(ts.typeof(y))
        return ts.reshard(ts.reshard(x, ts.NamedSharding(other, P(("a", "b")))), P("x"))

    assert ts.typeof(f(put(X, 8, 4))) == "f32[8@x, 4]"
    assert seen == ["f32[8, 4]", "f32[8@(x,y), 4]", "f32[8, 4]"]


def test_with_sharding_constraint_checks_and_moves_nothing():
    mesh, x = explicit_mesh(), put(X, 8, 4)
    same = ts.jit(lambda x: ts.lax.with_sharding_constraint(x + 1, ts.NamedSharding(mesh, X)))
    assert ts.typeof(same(x)) == "f32[8@x, 4]"
    other = ts.jit(lambda x: ts.lax.with_sharding_constraint(x + 1, ts.NamedSharding(mesh, P())))
    assert_refused(lambda: other(x), ts.ShardingError, "with_sharding_constraint on a value that is cut otherwise")


# ---- loops, branches, mapped functions ------------------------------------------------------------------------------


def test_bodies_of_loops_have_types():
    carry, rows, w = put(X, 4, 4), put(XT, 3, 4, 4), put(P(), 4, 4)
    seen = []

    def step(c, row):
        seen.append((ts.typeof(c), ts.typeof(row)))
        c = torch.tanh(c @ w) + row
        return c, c * 2

    last, all_of_them = ts.jit(lambda c, xs: ts.lax.scan(step, c, xs))(carry, rows)
    assert seen == [("f32[4@x, 4]", "f32[4@x, 4]")]
    assert (ts.typeof(last), ts.typeof(all_of_them)) == ("f32[4@x, 4]", "f32[3, 4@x, 4]")
    c = ts.device_get(carry)
    for row_ in ts.device_get(rows):
        c = torch.tanh(c @ ts.device_get(w)) + row_
    torch.testing.assert_close(ts.device_get(last), c)
    changed = ts.jit(lambda c, xs: ts.lax.scan(step, c, xs))
    assert_refused(lambda: changed(put(P(), 4, 4), rows), ts.ShardingError, "the carry of a scan changes its sharding")
    along = ts.jit(lambda c, xs: ts.lax.scan(lambda c, r: (c, r), c, xs))
    assert_refused(lambda: along(carry, put(X, 4, 2)), ts.ShardingError, "a scan goes along a dim that is sharded")


def test_branches_return_one_type():
    x, one = put(XY, 8, 4), torch.tensor(True)
    assert ts.typeof(ts.jit(lambda p, x: ts.lax.cond(p, torch.sin, torch.cos, x))(one, x)) == "f32[8@x, 4@y]"
    unlike = ts.jit(lambda p, x: ts.lax.cond(p, torch.sin, lambda x: ts.reshard(x, P()), x))
    assert_refused(lambda: unlike(one, x), ts.ShardingError, "the branches of a cond or switch give a result different")
    counted = ts.jit(lambda x: ts.lax.while_loop(lambda x: x.sum() < 40, lambda x: x + 1, x))
    assert ts.typeof(counted(x)) == "f32[8@x, 4@y]"


def test_shard_map_takes_arguments_as_they_are():
    mesh = explicit_mesh()
    f = ts.shard_map(lambda v: ts.lax.psum(v, "y"), mesh=mesh, out_specs=X)
    assert ts.typeof(f(put(XY, 8, 4))) == "f32[8@x, 2]"
    x = put(XY, 8, 4)
    values = ts.device_get(x)
    for made in (f(x), ts.jit(lambda x: f(x) + 0)(x)):
        torch.testing.assert_close(ts.device_get(made), values[:, :2] + values[:, 2:])
    assert ts.typeof(f(put(X, 8, 4))) == "f32[8@x, 4]"
    other = ts.shard_map(lambda v: v, mesh=mesh, in_specs=P("y"), out_specs=P("y"))
    for call in (other, ts.jit(other)):
        assert_refused(lambda call=call: call(x), ts.ShardingError, "in_specs are not how its argument is sharded")
    with pytest.raises(TypeError, match="no in_specs"):
        ts.shard_map(lambda v: v, mesh=ts.make_mesh((4, 2), ("x", "y")), out_specs=P())


# ---- meshes ---------------------------------------------------------------------------------------------------------


def test_a_mesh_says_the_type_of_its_axes():
    auto, explicit = ts.AbstractMesh((4, 2), ("x", "y")), ts.AbstractMesh((4, 2), ("x", "y"), (AxisType.Explicit,) * 2)
    assert auto.axis_types == (AxisType.Auto,) * 2 and ts.AxisType is ts.sharding.AxisType is AxisType
    assert (repr(auto), repr(explicit)) == (
        "AbstractMesh('x': 4, 'y': 2)",
        "AbstractMesh('x': 4, 'y': 2, axis_types=(Explicit, Explicit))",
    )
    assert auto != explicit and explicit_mesh().abstract_mesh == explicit
    for types, said in [
        ((AxisType.Auto, AxisType.Explicit), "of several types"),
        ((AxisType.Explicit,), "a type for each axis"),
        (("explicit", "explicit"), "a type for each axis"),
    ]:
        with pytest.raises(ts.MeshError, match=said):
            ts.AbstractMesh((4, 2), ("x", "y"), axis_types=types)
    with pytest.raises(ts.MeshError, match="a mesh of devices has Manual axes"):
        ts.make_mesh((8,), "x", axis_types=AxisType.Manual)


def test_a_mesh_is_current_within_its_block_and_manual_in_a_mapped_function():
    outer, inner = ts.AbstractMesh((8,), "a"), ts.make_mesh((4, 2), ("x", "y"))
    assert ts.get_mesh() is None and ts.get_abstract_mesh() is None
    with outer:
        with inner as mesh:
            assert ts.get_mesh() is inner is mesh
            assert ts.get_abstract_mesh() == ts.AbstractMesh((4, 2), ("x", "y"))
        assert ts.get_mesh() is outer
        with pytest.raises(ZeroDivisionError), inner:
            1 / 0  # noqa: B018
        assert ts.get_mesh() is outer
    assert ts.get_mesh() is None
    seen = []

    def f(v):
        seen.append(ts.get_abstract_mesh())
        return ts.lax.pcast(v, "x", to="varying")

    ts.shard_map(f, mesh=inner, in_specs=X, out_specs=X)(torch.ones(8))
    assert seen[0].axis_types == (AxisType.Manual,) * 2 and seen[0].shape == {"x": 4, "y": 2}


# ---- vmap's spmd_axis_name ------------------------------------------------------------------------------------------


def test_spmd_axis_name_cuts_the_examples_where_a_sharding_is_named():
    mesh = ts.make_mesh((4, 2), ("x", "y"))
    values = torch.arange(64.0).reshape(8, 2, 4)
    x = ts.device_put(values, ts.NamedSharding(mesh, P()))

    def f(v):
        return ts.lax.with_sharding_constraint(v * 2, ts.NamedSharding(mesh, P("y")))

    for call in (ts.vmap(f, spmd_axis_name="x"), ts.jit(ts.vmap(f, spmd_axis_name=("x",)))):
        assert ts.typeof(call(x)) == "f32[8@x, 2@y, 4]"
        assert torch.equal(ts.device_get(call(x)), values * 2)
    assert ts.typeof(ts.vmap(f, in_axes=1, out_axes=1, spmd_axis_name="x")(x.movedim(0, 1))) == "f32[2@y, 8@x, 4]"
    with pytest.raises(ts.ShardingError, match="twice"):
        ts.vmap(f, spmd_axis_name="y")(x)


def test_spmd_axis_name_cuts_the_examples_of_a_shard_map():
    mesh = ts.make_mesh((4, 2), ("x", "y"))
    values = torch.arange(64.0).reshape(8, 2, 4)
    x = ts.device_put(values, ts.NamedSharding(mesh, P("x")))
    mapped = ts.shard_map(lambda v: ts.lax.psum(v, "y"), mesh=mesh, in_specs=P("y"), out_specs=P())
    f = ts.jit(ts.vmap(mapped, spmd_axis_name="x"))
    assert torch.equal(ts.device_get(f(x)), values.sum(1, keepdim=True))
    assert "all_gather" not in f.lower(x).compile().as_text()
    assert "all_gather" in ts.jit(ts.vmap(mapped)).lower(x).compile().as_text()
    with pytest.raises(ts.MappingError, match="spmd_axis_name does not fit"):
        ts.vmap(mapped, spmd_axis_name="y")(x)


def test_a_call_with_a_derivative_of_its_own_types_its_results_as_its_function_does():
    mesh = ts.make_mesh((4, 2), ("a", "b"), axis_types=(ts.AxisType.Explicit,) * 2)
    x = torch.arange(32.0).reshape(8, 4)
    placed = ts.device_put(x, ts.NamedSharding(mesh, P("a", "b")))
    sine = ts.custom_vjp(torch.sin)
    sine.defvjp(lambda v: (torch.sin(v), v), lambda v, g: (g * torch.cos(v),))
    for f in (ts.checkpoint(torch.sin), sine, ts.checkpoint(lambda v: torch.sin(v) + 0 * placed)):
        assert ts.jit(f)(placed).sharding.spec == P("a", "b")
        slope = ts.jit(ts.grad(lambda v, f=f: (f(v) * v).sum()))(placed)
        assert slope.sharding.spec == P("a", "b")
        torch.testing.assert_close(ts.device_get(slope), torch.cos(x) * x + torch.sin(x))

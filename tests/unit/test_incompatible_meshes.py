"""Meshes of the same devices whose axes have no common refinement, as (2, 3) and (3, 2)."""

import pytest
import torch

import tinyshard as ts
from tests.extent import every
from tinyshard import P


@pytest.fixture(scope="module", autouse=True)
def six_devices():
    ts.init(devices=6, runtime="local")
    yield
    ts.shutdown()


@pytest.fixture
def wide():
    return ts.make_mesh((2, 3), ("a", "b"))


@pytest.fixture
def tall():
    return ts.make_mesh((3, 2), ("c", "d"))


def values():
    return torch.arange(36.0).reshape(6, 6)


def at(mesh, *spec):
    return ts.NamedSharding(mesh, P(*spec))


SPECS = [("c", "d"), ("d", "c"), ("c",), (None, "d"), ("d",), (("c", "d"),), (None, ("d", "c")), ()]


@pytest.mark.parametrize(("spec",), every(3, [(spec,) for spec in SPECS]), ids=str)
def test_out_shardings_of_another_mesh_are_had_as_asked(wide, tall, spec):
    x = ts.device_put(values(), at(wide, "a", "b"))
    for function in (
        ts.jit(torch.sin, out_shardings=at(tall, *spec)),
        ts.jit(lambda v: ts.lax.with_sharding_constraint(torch.sin(v), at(tall, *spec))),
        ts.jit(lambda v: ts.device_put(torch.sin(v), at(tall, *spec))),
    ):
        got = function(x)
        assert got.sharding.is_equivalent_to(at(tall, *spec), 2)
        torch.testing.assert_close(ts.device_get(got), torch.sin(values()))


def test_each_result_has_the_sharding_that_it_was_asked_to_have(wide, tall):
    shardings = (at(tall, "c", "d"), at(wide, "b", "a"), None, at(tall, None, ("c", "d")))
    x = ts.device_put(values(), at(wide, "a", "b"))
    made = ts.jit(lambda v: (v + 1, v + 2, v + 3, v), out_shardings=shardings)(x)
    for got, sharding, wanted in zip(made, shardings, (1, 2, 3, 0), strict=True):
        assert sharding is None or got.sharding.is_equivalent_to(sharding, 2)
        torch.testing.assert_close(ts.device_get(got), values() + wanted)


def test_a_constrained_value_is_computed_with_and_constrained_back(wide, tall):
    x = ts.device_put(values(), at(wide, "a", "b"))

    def function(v):
        there = ts.lax.with_sharding_constraint(v * 2, at(tall, "c", "d"))
        back = ts.lax.with_sharding_constraint(there, at(wide, "b", "a"))
        return there @ v, there, back + there.sum(0)

    product, there, back = ts.jit(function)(x)
    doubled = values() * 2
    assert there.sharding.is_equivalent_to(at(tall, "c", "d"), 2)
    torch.testing.assert_close(ts.device_get(product), doubled @ values())
    torch.testing.assert_close(ts.device_get(there), doubled)
    torch.testing.assert_close(ts.device_get(back), doubled + doubled.sum(0))


def test_a_host_value_and_a_fill_are_put_where_another_mesh_wants_them(wide, tall):
    x = ts.device_put(values(), at(wide, "a", "b"))
    asked = (None, at(tall, "c", "d"), at(tall, "d"), at(tall, "c", "d"))
    f = ts.jit(lambda v, w: (v + 1, w, torch.ones(6, 6) * 3, w + 1), out_shardings=asked)
    made = f(x, values())
    for got, sharding, wanted in zip(
        made, asked, (values() + 1, values(), torch.full((6, 6), 3.0), values() + 1), strict=True
    ):
        assert sharding is None or got.sharding.is_equivalent_to(sharding, 2)
        torch.testing.assert_close(ts.device_get(got), wanted)


def over(mesh, body, in_spec, out_spec):
    return ts.shard_map(body, mesh=mesh, in_specs=P(*in_spec), out_specs=P(*out_spec))


def body_of_wide(v):
    return ts.lax.psum(v, "a") * (ts.lax.axis_index("b") + 1)


def body_of_tall(v):
    shifted = ts.lax.ppermute(v, "c", [(0, 1), (1, 2), (2, 0)])
    whole = ts.lax.all_gather(shifted, "d", axis=1, tiled=True)
    return ts.lax.psum_scatter(whole, "d", scatter_dimension=1, tiled=True) + ts.lax.axis_index("c")


def by_hand_wide(x):
    return (x[:3] + x[3:]) * torch.arange(1, 4).repeat_interleave(2)


def by_hand_tall(x):
    return torch.roll(x, 2, 0) * 2 + torch.arange(3).repeat_interleave(2)[:, None]


def test_regions_on_both_meshes_stand_in_one_program(wide, tall):
    first = over(wide, body_of_wide, ("a", "b"), (None, "b"))
    second = over(tall, body_of_tall, ("c", "d"), ("c", "d"))
    x = ts.device_put(values(), at(wide, "a", "b"))
    left, right = ts.jit(lambda v: (first(v), second(v)))(x)
    torch.testing.assert_close(ts.device_get(left), by_hand_wide(values()))
    torch.testing.assert_close(ts.device_get(right), by_hand_tall(values()))
    assert right.sharding.is_equivalent_to(at(tall, "c", "d"), 2)
    chained = ts.jit(lambda v: first(second(second(torch.sin(v))) + v) + 1)(x)
    inner = by_hand_tall(by_hand_tall(torch.sin(values()))) + values()
    torch.testing.assert_close(ts.device_get(chained), by_hand_wide(inner) + 1)


def test_gradients_pass_through_regions_on_both_meshes(wide, tall):
    first = over(wide, body_of_wide, ("a", "b"), (None, "b"))
    second = over(tall, body_of_tall, ("c", "d"), ("c", "d"))
    loss = lambda v: (first(torch.sin(second(v))) ** 2).sum()  # noqa: E731
    x = values() / 36
    wanted = torch.func.grad(lambda v: (by_hand_wide(torch.sin(by_hand_tall(v))) ** 2).sum())(x)
    placed = ts.device_put(x, at(wide, "a", "b"))
    torch.testing.assert_close(ts.device_get(ts.jit(ts.grad(loss))(placed)), wanted)
    torch.testing.assert_close(ts.device_get(ts.grad(loss)(placed)), wanted)


def test_groups_and_tuples_of_names_mean_the_same_on_the_other_mesh(wide, tall):
    def body(v):
        paired = ts.lax.psum(v, "c", axis_index_groups=[[0], [1], [2]])
        return paired + ts.lax.psum(v, ("d", "c")) + ts.lax.axis_index(("d", "c"))

    first = over(wide, lambda v: v * 2, ("a", "b"), ("a", "b"))
    second = over(tall, body, ("c", "d"), ("c", "d"))
    got = ts.jit(lambda v: second(first(v)))(ts.device_put(values(), at(wide, "a", "b")))
    x = values() * 2
    blocks = x.reshape(3, 2, 2, 3).permute(0, 2, 1, 3)  # c, d, rows, columns
    places = torch.arange(6).reshape(2, 3).T[:, :, None, None]
    wanted = blocks + blocks.sum((0, 1)) + places
    torch.testing.assert_close(ts.device_get(got), wanted.permute(0, 2, 1, 3).reshape(6, 6))


def test_one_name_may_mean_different_axes_in_two_regions_of_a_program():
    first, second = ts.make_mesh((2, 3), ("a", "b")), ts.make_mesh((3, 2), ("b", "a"))

    def body(v):
        return v + ts.lax.axis_index("a")

    one = ts.shard_map(body, mesh=first, in_specs=P(), out_specs=P(("a", "b")))
    two = ts.shard_map(body, mesh=second, in_specs=P(), out_specs=P(("b", "a")))
    got = ts.jit(lambda v: (one(v), two(v)))(torch.zeros(1))
    assert [ts.device_get(x).tolist() for x in got] == [[0, 0, 0, 1, 1, 1], [0, 1, 0, 1, 0, 1]]


def test_the_text_and_the_cost_show_what_is_transferred(wide, tall):
    x = ts.device_put(values(), at(wide, "a"))
    compiled = ts.jit(lambda v: v + 1, out_shardings=at(tall, "c")).lower(x).compile()
    assert "transfer(%1, over=a*b)" in compiled.as_text()
    # devices 0, 1, 2 hold rows 0-2 and should hold 0-1, 0-1, 2-3: device 2 gets row 3, of 6 floats; device 3 row 2
    assert compiled.cost_analysis().count("transfer") == 1
    assert compiled.cost_analysis().nbytes == 24

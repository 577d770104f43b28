"""None in a tree is an empty tree, as in JAX: whatever takes a tree leaves it where it is."""

import pytest
import torch

import tinyshard as ts
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")

W = torch.arange(4.0, dtype=torch.float64) + 1


def params():
    return {"weight": W, "bias": None}


def on_devices():
    return {"weight": ts.array(W), "bias": None}


def square(p):
    return (p["weight"] ** 2).sum()


def cubes(p):
    return {"out": p["weight"] ** 3, "nothing": None}


def same(got, weight, wanted):
    """The tree has the wanted values under `weight`, and None where None was."""
    other = {"weight": "bias", "out": "nothing"}[weight]
    assert set(got) == {weight, other} and got[other] is None
    torch.testing.assert_close(ts.device_get(got[weight]), wanted)


@pytest.mark.parametrize("tree", [params, on_devices])
def test_derivatives_leave_none_where_it_is(tree):
    p = tree()
    same(ts.grad(square)(p), "weight", 2 * W)
    same(ts.jit(ts.grad(square))(p), "weight", 2 * W)
    same(ts.vmap(ts.grad(square))(p), "weight", 2 * W)
    value, slope = ts.value_and_grad(lambda a, p: a * square(p), argnums=1)(torch.tensor(2.0, dtype=torch.float64), p)
    assert value.item() == 2 * (W**2).sum()
    same(slope, "weight", 4 * W)
    value, back = ts.vjp(cubes, p)
    same(value, "out", W**3)
    same(back({"out": torch.ones_like(W), "nothing": None})[0], "weight", 3 * W**2)
    for made in ts.jvp(cubes, (p,), (p,)):
        assert made["nothing"] is None
    torch.testing.assert_close(ts.device_get(made["out"]), 3 * W**3)


@pytest.mark.parametrize("tree", [params, on_devices])
@pytest.mark.parametrize("jacobian", [ts.jacrev, ts.jacfwd])
def test_jacobians_leave_none_where_it_is(tree, jacobian):
    made = jacobian(cubes)(tree())
    assert made["nothing"] is None
    same(made["out"], "weight", torch.diag(3 * W**2))


def test_a_hessian_leaves_none_where_it_is():
    made = ts.hessian(square)(params())
    assert made["bias"] is None
    same(made["weight"], "weight", 2 * torch.eye(4, dtype=torch.float64))


def test_aux_beside_a_tree_with_none_keeps_its_own():
    slope, aux = ts.grad(lambda p: (square(p), {"seen": None, "n": 3}), has_aux=True)(params())
    same(slope, "weight", 2 * W)
    assert aux == {"seen": None, "n": 3}
    same(ts.jacrev(lambda p: (cubes(p), None), has_aux=True)(params())[0]["out"], "weight", torch.diag(3 * W**2))


def test_a_tree_without_a_tensor_has_no_derivative():
    for call in (
        lambda: ts.grad(lambda p: W.sum())(None),
        lambda: ts.vjp(lambda p: W, {"bias": None}),
        lambda: ts.jacfwd(lambda p: W)({}),
    ):
        with pytest.raises(ts.DtypeError, match="nothing to differentiate with respect to"):
            call()


def test_placing_leaves_none_where_it_is():
    rows = ts.NamedSharding(ts.make_mesh(4, "d"), P("d"))
    for placed in (
        ts.device_put(params()),
        ts.device_put(params(), rows),
        ts.device_put(params(), {"weight": rows, "bias": rows}),
    ):
        same(placed, "weight", W)
        same(ts.device_get(placed), "weight", W)
        same(ts.block_until_ready(placed), "weight", W)
    same(ts.lax.with_sharding_constraint(params(), rows), "weight", W)
    assert ts.device_put(None, rows) is None
    same(ts.jit(lambda p: ts.device_put(p, rows))(params()), "weight", W)


COLLECTIVES = {
    "psum": (lambda p: ts.lax.psum(p, "i"), W.sum().expand(4)),
    "pmean": (lambda p: ts.lax.pmean(p, "i"), W.mean().expand(4)),
    "pmax": (lambda p: ts.lax.pmax(p, "i"), W.max().expand(4)),
    "pmin": (lambda p: ts.lax.pmin(p, "i"), W.min().expand(4)),
    "all_gather": (lambda p: ts.lax.all_gather(p, "i"), W.expand(4, 4)),
    "ppermute": (lambda p: ts.lax.ppermute(p, "i", [(0, 1)]), torch.tensor([0.0, 1, 0, 0], dtype=torch.float64)),
    "pshuffle": (lambda p: ts.lax.pshuffle(p, "i", [3, 2, 1, 0]), W.flip(0)),
}


@pytest.mark.parametrize("mapped", [ts.vmap, ts.pmap])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_collectives_leave_none_where_it_is(name, mapped):
    collective, wanted = COLLECTIVES[name]
    same(mapped(collective, axis_name="i")(params()), "weight", wanted.contiguous())


def test_collectives_that_cut_leave_none_where_it_is():
    rows = {"weight": W.expand(4, 4).contiguous(), "bias": None}
    same(ts.vmap(lambda p: ts.lax.psum_scatter(p, "i"), axis_name="i")(rows), "weight", 4 * W)
    swapped = rows["weight"].T.contiguous()
    same(ts.vmap(lambda p: ts.lax.all_to_all(p, "i", 0, 0), axis_name="i")(rows), "weight", swapped)
    same(ts.vmap(lambda p: ts.lax.pswapaxes(p, "i", 0), axis_name="i")(rows), "weight", swapped)

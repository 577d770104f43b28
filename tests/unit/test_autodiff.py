import functools
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tinyshard as ts
from tests.extent import mostly_whole
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")


def host(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def on_host(x):
    return x


def on_devices(x):
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    spec = P(*(name if n % 4 == 0 else None for n, name in zip(x.shape, ("a", "b"), strict=False)))
    return ts.device_put(x, ts.NamedSharding(mesh, spec))


def on_default_device(x):
    return ts.array(x)


def eager(f):
    return f


PLACES = pytest.mark.parametrize("put", [on_host, on_devices, on_default_device])
WAYS = pytest.mark.parametrize("wrap", [eager, ts.jit])
PLACES_AND_WAYS = pytest.mark.parametrize(
    ("put", "wrap"),
    mostly_whole(
        itertools.product((on_host, on_devices, on_default_device), (eager, ts.jit)),
        lambda row: row[0] is on_devices or row == (on_default_device, eager),
    ),
)


def same(got, wanted):
    torch.testing.assert_close(ts.device_get(got), wanted)


def model(params, x):
    hidden = torch.maximum(x @ params["w"] + params["b"], x.new_zeros(()))
    return (torch.tanh(hidden) ** 2).mean()


def curve(x):
    return torch.sin(x) * x**2


def by_autograd(function, tree, *rest):
    """Gradients by torch's own tape."""
    leaves, form = torch.utils._pytree.tree_flatten(tree)
    fresh = [x.clone().requires_grad_() for x in leaves]
    value = function(torch.utils._pytree.tree_unflatten(fresh, form), *rest)
    return torch.utils._pytree.tree_unflatten(torch.autograd.grad(value, fresh), form)


def by_differences(function, x, step=1e-6):
    """The Jacobian by central differences, result dims first."""
    flat = x.reshape(-1)
    columns = []
    for k in range(flat.numel()):
        unit = torch.zeros_like(flat)
        unit[k] = step
        ahead, behind = function((flat + unit).reshape(x.shape)), function((flat - unit).reshape(x.shape))
        columns.append((ahead - behind) / (2 * step))
    return torch.stack(columns, -1).reshape(*columns[0].shape, *x.shape)


# ---- gradients ------------------------------------------------------------------------------------------------------


@PLACES_AND_WAYS
def test_the_gradient_of_a_tree_is_that_of_autograd(put, wrap):
    params, x = {"w": host(4, 8), "b": host(8, seed=1)}, host(8, 4, seed=2)
    placed = {k: put(v) for k, v in params.items()}
    got = wrap(ts.grad(model))(placed, put(x))
    assert list(got) == ["w", "b"]
    for key, wanted in by_autograd(model, params, x).items():
        same(got[key], wanted)
    value, gradient = wrap(ts.value_and_grad(model))(placed, put(x))
    same(value, model(params, x))
    same(gradient["w"], by_autograd(model, params, x)["w"])


@PLACES_AND_WAYS
def test_the_gradient_of_a_jitted_function_is_the_same(put, wrap):
    x = host(8)
    f = ts.jit(lambda v: curve(v).sum())
    same(wrap(ts.grad(f))(put(x)), by_autograd(lambda v: curve(v).sum(), x))


def test_a_gradient_lies_as_its_argument_does():
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    x = ts.device_put(host(8, 4), ts.NamedSharding(mesh, P("a")))
    placed = {
        "w": ts.device_put(host(4, 8), ts.NamedSharding(mesh, P(None, "b"))),
        "b": ts.device_put(host(8), ts.NamedSharding(mesh, P("b"))),
    }
    for gradient in (ts.grad(model)(placed, x), ts.jit(ts.grad(model))(placed, x)):
        assert gradient["w"].sharding.is_equivalent_to(placed["w"].sharding, 2)


@WAYS
def test_argnums_choose_arguments_and_a_tuple_gives_a_tuple(wrap):
    def f(a, b, c):
        return (a * b * b * c).sum()

    a, b, c = (host(3, seed=s) for s in range(3))
    same(wrap(ts.grad(f, argnums=1))(a, b, c), 2 * a * b * c)
    same(wrap(ts.grad(f, argnums=-1))(a, b, c), a * b * b)
    got = wrap(ts.grad(f, argnums=(2, 0)))(a, b, c)
    assert isinstance(got, tuple)
    same(got[0], a * b * b)
    same(got[1], b * b * c)
    got = wrap(ts.grad(f, argnums=(0,)))(a, b, c)
    assert isinstance(got, tuple)
    assert len(got) == 1
    same(got[0], b * b * c)


@WAYS
def test_aux_comes_along_undifferentiated(wrap):
    def f(x):
        return (x**2).sum(), {"twice": x * 2, "name": "f"}

    x = host(3)
    gradient, aux = wrap(ts.grad(f, has_aux=True))(x)
    same(gradient, 2 * x)
    same(aux["twice"], 2 * x)
    assert aux["name"] == "f"
    (value, aux), gradient = wrap(ts.value_and_grad(f, has_aux=True))(x)
    same(value, (x**2).sum())
    same(aux["twice"], 2 * x)
    same(gradient, 2 * x)


@PLACES
def test_gradients_nest(put):
    x = host(4)
    third = ts.grad(lambda v: ts.grad(lambda u: ts.grad(lambda t: (t**4).sum())(u).sum())(v).sum())
    same(third(put(x)), 24 * x)
    same(ts.jit(third)(put(x)), 24 * x)


@PLACES_AND_WAYS
def test_the_gradient_of_each_example_by_vmap(put, wrap):
    w, xs = host(4), host(8, 4, seed=1)
    f = wrap(torch.func.vmap(ts.grad(lambda w, x: torch.sin((w * x).sum())), in_dims=(None, 0)))
    same(f(put(w), put(xs)), torch.cos(xs @ w)[:, None] * xs)


def test_keyword_arguments_are_not_differentiated():
    same(ts.grad(lambda x, *, scale: (x * scale).sum())(host(3), scale=2.0), torch.full((3,), 2.0).double())


def test_the_gradient_by_finite_differences_through_common_ops():
    x = host(4, 4) + 3 * torch.eye(4)
    for f in (
        lambda v: torch.linalg.inv(v).sum(),
        lambda v: torch.logsumexp(v, 1).sum(),
        lambda v: torch.nn.functional.softmax(v, 0)[0].sum(),
        lambda v: torch.cumsum(v, 0).prod(),
        lambda v: v[1:, ::2].abs().sqrt().sum() + v.max(),
    ):
        wanted = by_differences(f, x)
        for got in (ts.grad(f)(x), ts.grad(f)(on_devices(x)), ts.jit(ts.grad(f))(on_devices(x))):
            torch.testing.assert_close(ts.device_get(got), wanted, rtol=1e-5, atol=1e-6)


# ---- one vector with the Jacobian -----------------------------------------------------------------------------------


@PLACES
def test_vjp_gives_a_tuple_with_an_entry_for_each_primal(put):
    x, y, g = host(4), host(4, seed=1), host(4, seed=2)
    value, back = ts.vjp(lambda a, b: curve(a) * b, put(x), put(y))
    same(value, curve(x) * y)
    dx, dy = back(put(g))
    same(dx, g * y * torch.diagonal(by_differences(curve, x)))
    same(dy, g * curve(x))
    _, back = ts.vjp(curve, put(x))
    (dx,) = back(put(g))
    same(dx, g * torch.diagonal(by_differences(curve, x)))


def test_vjp_of_trees_and_with_aux():
    tree = {"w": host(3), "b": (host(2),)}
    _, back, aux = ts.vjp(lambda t: (t["w"].sum() * t["b"][0], "aux"), tree, has_aux=True)
    assert aux == "aux"
    (cotangent,) = back(torch.ones(2, dtype=torch.float64))
    same(cotangent["w"], torch.full((3,), float(tree["b"][0].sum())).double())
    same(cotangent["b"][0], torch.full((2,), float(tree["w"].sum())).double())
    (cotangent,) = ts.vjp(lambda t: t[0] * 2, (host(2),))[1](torch.ones(2, dtype=torch.float64))
    assert isinstance(cotangent, tuple)
    same(cotangent[0], torch.full((2,), 2.0).double())


@PLACES_AND_WAYS
def test_jvp_is_the_derivative_along_the_tangent(put, wrap):
    x, t = host(8), host(8, seed=1)
    value, tangent = wrap(lambda x, t: ts.jvp(curve, (x,), (t,)))(put(x), put(t))
    same(value, curve(x))
    same(tangent, t * torch.diagonal(by_differences(curve, x)))


def test_jvp_of_trees_and_with_aux():
    value, tangent, aux = ts.jvp(lambda d: (d["x"] ** 2, 3), ({"x": host(2)},), ({"x": host(2)},), has_aux=True)
    same(value, host(2) ** 2)
    same(tangent, 2 * host(2) ** 2)
    assert aux == 3


@WAYS
def test_vjp_inside_a_function(wrap):
    x = host(4)
    same(wrap(lambda v: ts.vjp(curve, v)[1](torch.ones_like(v))[0])(x), torch.diagonal(by_differences(curve, x)))


# ---- whole Jacobians ------------------------------------------------------------------------------------------------


@PLACES_AND_WAYS
@pytest.mark.parametrize("transform", [ts.jacrev, ts.jacfwd])
def test_jacobians_are_those_of_finite_differences(put, wrap, transform):
    x = host(4, 3)

    def f(v):
        return torch.sin(v) @ matrix + v.sum(0).exp()[0]

    matrix = host(3, 5, seed=1)
    got = wrap(transform(f))(put(x))
    assert tuple(got.shape) == (4, 5, 4, 3)
    torch.testing.assert_close(ts.device_get(got), by_differences(f, x), rtol=1e-5, atol=1e-7)


@WAYS
@pytest.mark.parametrize("transform", [ts.jacrev, ts.jacfwd])
def test_jacobians_of_trees_nest_results_outside_and_arguments_inside(wrap, transform):
    def f(tree, scale):
        return {"sum": tree["a"].sum() * tree["b"], "scaled": tree["a"] * scale}

    tree, scale = {"a": host(3), "b": host(2, seed=1)}, host(3, seed=2)
    got = wrap(transform(f))(tree, scale)
    same(got["sum"]["a"], tree["b"][:, None].expand(2, 3))
    same(got["sum"]["b"], tree["a"].sum() * torch.eye(2).double())
    same(got["scaled"]["a"], torch.diag(scale))
    same(got["scaled"]["b"], torch.zeros(3, 2).double())
    both = wrap(transform(f, argnums=(1, 0)))(tree, scale)
    same(both["scaled"][0], torch.diag(tree["a"]))
    same(both["scaled"][1]["a"], torch.diag(scale))


@pytest.mark.parametrize("transform", [ts.jacrev, ts.jacfwd])
def test_jacobians_with_aux(transform):
    jacobian, aux = transform(lambda x: (x**2, x.sum()), has_aux=True)(host(3))
    same(jacobian, torch.diag(2 * host(3)))
    same(aux, host(3).sum())


@PLACES_AND_WAYS
def test_the_hessian_is_that_of_second_differences(put, wrap):
    x = host(4)

    def f(v):
        return (torch.sin(v).sum() * v**2).sum()

    got = ts.device_get(wrap(ts.hessian(f))(put(x)))
    torch.testing.assert_close(got, by_differences(lambda v: by_autograd(f, v), x), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(got, torch.func.hessian(f)(x))


def test_the_hessian_of_a_tree_is_a_tree_of_trees():
    tree = {"a": host(2), "b": host(3, seed=1)}
    got = ts.hessian(lambda t: t["a"].sum() * (t["b"] ** 2).sum())(tree)
    same(got["a"]["b"], (2 * tree["b"]).expand(2, 3))
    same(got["b"]["b"], 2 * tree["a"].sum() * torch.eye(3).double())
    same(got["a"]["a"], torch.zeros(2, 2).double())


def test_the_hessian_is_symmetric_on_devices():
    quadratic = host(8, 8)
    got = ts.jit(ts.hessian(lambda v: v @ quadratic @ v))(on_devices(host(8)))
    np.testing.assert_allclose(got.numpy(), (quadratic + quadratic.T).numpy(), rtol=1e-10)


# ---- with constraints -----------------------------------------------------------------------------------------------


def test_a_constraint_is_transparent_to_derivatives():
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    sharding = ts.NamedSharding(mesh, P("b"))

    def f(v):
        return (ts.lax.with_sharding_constraint(torch.sin(v), sharding) * v).sum()

    x = host(8)
    wanted = torch.cos(x) * x + torch.sin(x)
    placed = on_devices(x)
    for transform in (ts.grad, ts.jacrev, ts.jacfwd):
        same(ts.jit(transform(f))(placed), wanted)
        same(transform(f)(placed), wanted)
    same(ts.jit(torch.func.vmap(f))(on_devices(host(4, 8))), torch.func.vmap(lambda v: (v.sin() * v).sum())(host(4, 8)))


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ts.grad(lambda x: x)(torch.ones(2)), ["scalar result", "shape (2,)", "jacrev"]),
        (lambda: ts.grad(lambda x: x.sum().int())(torch.ones(2)), ["scalar result", "int32"]),
        (lambda: ts.grad(lambda x: 3)(torch.ones(2)), ["scalar result", "returns int"]),
        (lambda: ts.grad(lambda x: (x**2).sum())(torch.arange(3)), ["floating-point", "argument 0: torch.int64"]),
        (lambda: ts.grad(lambda x: x)(2), ["floating-point", "argument 0: torch.int64"]),
        (lambda: ts.grad(lambda x: x, argnums=3)(torch.ones(())), ["not there", "argnums=3"]),
        (lambda: ts.grad(lambda x: x)(x=torch.ones(())), ["not there", "by position"]),
        (lambda: ts.jacfwd(lambda x: x)(torch.arange(2)), ["floating-point"]),
        (lambda: ts.jvp(torch.sin, (torch.ones(2),), ()), ["tangent for each primal", "1 and 0"]),
    ],
)
def test_what_cannot_be_differentiated_is_refused(call, words):
    with pytest.raises(TypeError) as caught:
        call()
    assert isinstance(caught.value, ts.DtypeError)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 3,
        lambda x: x / 3,
        lambda x: torch.addcmul(x, x, torch.ones(3)),
        lambda x: torch.where(x > 2, x * 2, x),
        lambda x: torch.func.vmap(lambda y: y * torch.ones(2))(x),
        lambda x: torch.atan2(x, torch.ones(3)),
    ],
)
def test_what_is_not_moved_adds_nothing_to_a_tangent_at_infinity_or_nan(function):
    x, t = torch.tensor([1.0, math.inf, math.nan]), torch.tensor([1.0, 2.0, 3.0])
    wanted = torch.func.jvp(function, (x,), (t,))[1]
    for made in (
        ts.jvp(ts.jit(function), (x,), (t,)),
        ts.jit(lambda x, t: ts.jvp(function, (x,), (t,)))(x, t),
        ts.jvp(function, (ts.array(x),), (ts.array(t),)),
    ):
        torch.testing.assert_close(ts.device_get(made[1]), wanted, equal_nan=True)
    jacobian = torch.func.jacfwd(function)(x)
    torch.testing.assert_close(ts.device_get(ts.jit(ts.jacfwd(function))(x)), jacobian, equal_nan=True)


def test_the_tangent_of_a_mean_over_devices_is_finite_where_a_value_is_infinite():
    x = torch.tensor([1.0, math.inf, 3.0])
    mean = ts.pmap(lambda v: ts.lax.pmean(v, "i"), axis_name="i")
    assert ts.device_get(ts.jvp(mean, (x,), (torch.ones(3),))[1]).tolist() == [1.0, 1.0, 1.0]


def test_a_tangent_of_zero_that_a_traced_function_writes_into_is_none_any_more():
    def written(x):
        tangent = ts.jvp(lambda y: y * 0, (x,), (torch.zeros_like(x),))[1].clone()
        tangent.add_(2.0)
        return tangent * x

    x = torch.tensor([1.0, 2.0])
    same(ts.jit(written)(x), 2 * x)


@pytest.mark.parametrize("transform", [ts.jacrev, ts.hessian])
def test_a_jacobian_of_complex_results_is_not_the_one_of_their_real_parts(transform):
    def turned(x):
        return torch.exp(1j * x)

    x = torch.tensor([1.0, 2.0])
    for function in (turned, ts.jit(turned)):
        with pytest.raises(TypeError, match=r"(?s)real results.*complex64.*jacfwd"):
            transform(function)(x)
        same(ts.jacfwd(function)(x), torch.diag(1j * turned(x)))


def test_the_name_and_docstring_of_the_function_are_kept():
    def loss(x):
        """How bad."""
        return x

    for transform in (ts.grad, ts.value_and_grad, ts.jacrev, ts.jacfwd, functools.partial(ts.hessian)):
        assert transform(loss).__name__ == "loss"


@pytest.mark.parametrize(
    "function",
    [
        lambda a: a.sum(),
        lambda a: (a**2)[:2].sum() + a.sum(),
        lambda a: (a @ torch.eye(8)).sum(),
        lambda a: torch.nn.functional.linear(a, torch.eye(8)).pow(2).sum(),
        lambda a: a.sum() * 0 + 1.0,
    ],
)
def test_derivatives_where_a_gradient_is_constant_or_torch_works_in_place(function):
    host = torch.arange(1.0, 9.0)
    x = ts.device_put(host, ts.NamedSharding(ts.make_mesh((4, 2), ("a", "b")), ts.P("a")))
    for ours, theirs in ((ts.grad, torch.func.grad), (ts.hessian, torch.func.hessian), (ts.jacfwd, torch.func.jacfwd)):
        want = theirs(function)(host)
        for got in (ours(function)(host), ours(function)(x), ts.jit(ours(function))(x)):
            torch.testing.assert_close(ts.device_get(got), want)


def test_jacobians_of_arrays_are_arrays_also_for_linear_functions():
    x = ts.array(torch.ones(3))
    assert isinstance(ts.jacrev(lambda a: a * 2)(x), ts.Array)
    assert isinstance(ts.jacfwd(lambda a: a * 2)(x), ts.Array)


@pytest.mark.parametrize("function", [F.dropout, F.dropout2d, nn.AlphaDropout(0.2), nn.Dropout(0.3)])
def test_dropout_of_an_array_is_refused_under_grad_and_vmap_too(local, function):
    x = ts.array(torch.ones(2, 3, 4, 4))
    with pytest.raises(ts.StatefulRandomError, match="training mode"):
        ts.grad(lambda v: function(v).sum())(x)
    with pytest.raises(ts.StatefulRandomError, match="stateful random op"):
        ts.vmap(lambda v: function(v))(x)
    assert torch.equal(ts.device_get(ts.grad(lambda v: F.dropout(v, training=False).sum())(x)), torch.ones(2, 3, 4, 4))


@pytest.mark.parametrize(
    "classes", [lambda x, known: known, lambda x, known: x.argmax(1)], ids=["closed over", "found"]
)
def test_one_hot_inside_a_derivative(classes):
    x, known = host(8, 4), torch.arange(8) % 4

    def loss(x, known=known):
        return (F.one_hot(classes(x, known), num_classes=4) * x * x).sum()

    on_rows = on_devices(x)
    loss_there = functools.partial(loss, known=on_devices(known))
    torch.testing.assert_close(ts.device_get(ts.grad(loss_there)(on_rows)), torch.func.grad(loss)(x))
    torch.testing.assert_close(ts.device_get(ts.hessian(loss_there)(on_rows)), torch.func.hessian(loss)(x))


def test_a_second_backward_says_what_is_in_its_way():
    w = ts.array(torch.ones(3)).requires_grad_()
    (w * w).sum().backward()
    with pytest.raises(ts.ImmutableError, match=r"backward\(\)[\s\S]*add_[\s\S]*x\.grad = None"):
        (w * w).sum().backward()
    w.grad = None
    (w * w).sum().backward()
    assert w.grad.tolist() == [2.0, 2.0, 2.0]


def _matrix(x):
    return torch.eye(len(x), dtype=x.dtype) * 9 + torch.outer(x, x) + torch.diag(x)


CURVED = {
    "solve": lambda x: torch.linalg.solve(_matrix(x), x.sin()).sum(),
    "slogdet": lambda x: torch.linalg.slogdet(_matrix(x))[1],
    "silu": lambda x: F.silu(x).sum(),
    "group_norm": lambda x: (F.group_norm(x[None], 2) ** 3).sum(),
}
OF_TORCH = ("slogdet", "group_norm")  # in the part; the others by tinyshard's own


@pytest.mark.parametrize(
    ("name", "whose"),
    mostly_whole(itertools.product(CURVED, (ts, torch.func)), lambda row: (row[1] is ts) == (row[0] not in OF_TORCH)),
)
def test_second_derivatives_in_a_trace_are_those_outside_of_it(name, whose):
    function, x = CURVED[name], host(4)
    wanted = torch.autograd.functional.hessian(function, x)
    same(ts.jit(whose.hessian(function))(x), wanted)
    same(ts.jit(whose.hessian(function))(on_devices(x)), wanted)


@pytest.mark.parametrize("put", [on_host, on_devices])
def test_a_gradient_of_a_product_of_the_hessian_and_a_vector(put):
    def slope(of):
        gradient = of.grad(lambda x: (x**3).sum())
        return of.grad(lambda x: of.jvp(gradient, (x,), (torch.ones_like(x),))[1].square().sum())

    x = host(8)
    same(ts.jit(slope(ts))(put(x)), 72 * x)
    same(slope(ts)(put(x)), 72 * x)


@pytest.mark.parametrize("puts", [(on_devices, on_host), (on_host, on_devices), (on_devices, on_devices)])
def test_a_primal_and_its_tangent_may_be_an_array_and_a_plain_tensor(puts):
    x, t = host(8), host(8, seed=1)
    for function in (torch.prod, lambda x: x.cumprod(0).sum()):
        got = ts.jvp(ts.grad(function), (puts[0](x),), (puts[1](t),))[1]
        same(got, torch.autograd.functional.hessian(function, x) @ t)


def test_a_plain_tangent_of_an_example_that_is_an_array():
    x, t = host(8, 4), host(4, seed=1)
    got = ts.vmap(lambda row: ts.jvp(ts.grad(torch.prod), (row,), (t,))[1])(on_devices(x))
    same(got, torch.stack([torch.autograd.functional.hessian(torch.prod, row) @ t for row in x]))

"""custom_vjp, custom_jvp, stop_gradient, linearize: derivatives that the user gives, stops or keeps."""

import functools

import pytest
import torch

import tinyshard as ts
from tests.extent import pairwise


@pytest.fixture(autouse=True)
def local():
    ts.init(devices=8, runtime="local")


X = torch.randn(5, generator=torch.Generator().manual_seed(1))
ONES = torch.ones(5)

both_kinds = pytest.mark.parametrize("put", [lambda x: x, ts.array], ids=["plain tensors", "Arrays"])
both_ways = pytest.mark.parametrize("wrap", [lambda f: f, ts.jit], ids=["eager", "jit"])


def same(got, expected):
    torch.testing.assert_close(torch.as_tensor(ts.device_get(got)), expected)


def loss(f):
    return lambda x: f(x).sum()


def a_vjp(forwards, backwards):
    """torch.sin with a gradient, as a custom_vjp."""
    f = ts.custom_vjp(lambda x: torch.sin(x))
    f.defvjp(forwards, backwards)
    return f


def a_jvp(slope):
    f = ts.custom_jvp(lambda x: torch.sin(x))
    f.defjvp(lambda primals, tangents: (torch.sin(primals[0]), slope(primals[0]) * tangents[0]))
    return f


# sin with its own derivative, and sin with 7 x in place of it, which shows that it is the one that is used
RIGHT = {"vjp": a_vjp(lambda x: (torch.sin(x), torch.cos(x)), lambda c, g: (c * g,)), "jvp": a_jvp(torch.cos)}
ODD = {"vjp": a_vjp(lambda x: (torch.sin(x), x), lambda x, g: (7 * x * g,)), "jvp": a_jvp(lambda x: 7 * x)}
each_kind = pytest.mark.parametrize("kind", ["vjp", "jvp"])


def three_rounds(f):
    return lambda x: ts.lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0].sum()


SINES = [X, torch.sin(X), torch.sin(torch.sin(X))]

# how a function with the slope 7 x is differentiated, and what that is
CALLS = {
    "grad": (lambda f, x: ts.grad(loss(f))(x), 7 * X),
    "grad of jit": (lambda f, x: ts.grad(ts.jit(loss(f)))(x), 7 * X),
    "vmap of grad": (lambda f, x: ts.vmap(ts.grad(f))(x), 7 * X),
    "grad of vmap": (lambda f, x: ts.grad(loss(ts.vmap(f)))(x), 7 * X),
    "grad of vmap of grad": (lambda f, x: ts.grad(loss(ts.vmap(ts.grad(f))))(x), 7 * ONES),
    "checkpoint": (lambda f, x: ts.grad(loss(ts.checkpoint(f)))(x), 7 * X),
    "scan": (lambda f, x: ts.grad(three_rounds(f))(x), 343 * SINES[0] * SINES[1] * SINES[2]),
    "an inner gradient by another value": (
        lambda f, x: ts.grad(lambda a: ts.grad(lambda b: (f(a) * b).sum())(2 * ONES).sum())(x),
        7 * X,
    ),
}


PUTS = {"plain tensors": lambda x: x, "Arrays": ts.array}
WRAPS = {"eager": lambda f: f, "jit": ts.jit}


@pytest.mark.parametrize("name, kind, way, operand", pairwise(list(CALLS), list(ODD), list(WRAPS), list(PUTS)))
def test_the_given_derivative_is_used_by_every_transformation(name, kind, way, operand):
    (call, expected), f, wrap, put = CALLS[name], ODD[kind], WRAPS[way], PUTS[operand]
    same(wrap(f)(put(X)), torch.sin(X))
    same(wrap(lambda x: call(f, x))(put(X)), expected)


@each_kind
def test_pmap_and_shard_map_use_it_inside_and_outside(kind):
    f, x = ODD[kind], torch.arange(8.0)
    mesh = ts.make_mesh((8,), ("i",))
    mapped = ts.shard_map(f, mesh=mesh, in_specs=ts.P("i"), out_specs=ts.P("i"))
    same(ts.pmap(ts.grad(f))(x), 7 * x)
    same(ts.grad(loss(ts.pmap(f)))(x), 7 * x)
    same(ts.grad(loss(mapped))(x), 7 * x)
    same(ts.jit(ts.grad(loss(mapped)))(ts.device_put(x, ts.NamedSharding(mesh, ts.P("i")))), 7 * x)


@both_kinds
@both_ways
@each_kind
def test_second_derivatives_are_those_of_what_the_rules_compute(kind, wrap, put):
    f = RIGHT[kind]
    twice = ts.grad(loss(ts.grad(loss(f))))
    same(wrap(twice)(put(X)), -torch.sin(X))
    same(ts.grad(loss(ts.grad(wrap(loss(f)))))(put(X)), -torch.sin(X))
    same(wrap(ts.hessian(loss(f)))(put(X)), torch.diag(-torch.sin(X)))
    same(wrap(ts.grad(loss(ts.grad(loss(ODD[kind])))))(put(X)), 7 * ONES)


def test_the_outer_of_two_gradients_differentiates_what_fwd_does():
    """Values of JAX's: of x**2 with a gradient times 3 the second derivative is 3 * 2, or 3 * 2 * 3 if fwd calls it."""
    f, g = (ts.custom_vjp(lambda x: x) for _ in range(2))
    f.defvjp(lambda x: (x, None), lambda _, cotangent: (3 * cotangent,))
    g.defvjp(lambda x: (g(x), None), lambda _, cotangent: (3 * cotangent,))
    for wrap in (lambda f: f, ts.jit):
        for function, expected in ((f, 6.0), (g, 18.0)):
            square = functools.partial(lambda function, x: function(x) ** 2, function)
            same(wrap(ts.grad(ts.grad(square)))(torch.tensor(2.0)), torch.tensor(expected))
            same(ts.grad(ts.grad(wrap(square)))(torch.tensor(2.0)), torch.tensor(expected))


@each_kind
@both_kinds
def test_backward_uses_it(kind, put):
    for wrap in (lambda f: f, ts.jit):
        leaf = put(X).detach().requires_grad_()
        wrap(ODD[kind])(leaf).sum().backward()
        same(leaf.grad, 7 * X)


def test_what_fwd_keeps_is_not_computed_again():
    f = a_vjp(lambda x: (torch.sin(x), torch.cos(x)), lambda c, g: (c * g,))
    text = ts.jit(ts.grad(loss(f))).lower(X).compile().as_text()
    assert text.count("aten.cos.default") == text.count("aten.sin.default") == 1
    text = ts.jit(ts.grad(loss(RIGHT["jvp"]))).lower(X).compile().as_text()
    assert text.count("aten.cos.default") == text.count("aten.sin.default") == 1


@both_ways
def test_trees_integers_none_and_arguments_that_are_not_differentiated(wrap):
    @functools.partial(ts.custom_vjp, nondiff_argnums=(0, 2))
    def f(function, params, power, index):
        return {"y": function(params["w"]) ** power, "index": index + 1}

    def forwards(function, params, power, index):
        return f(function, params, power, index), (params["w"], "kept", None)

    def backwards(function, power, residuals, cotangent):
        w, word, nothing = residuals
        assert function is torch.sin and power == 2 and word == "kept" and nothing is None
        return {"w": 5 * w * cotangent["y"], "b": None}, None

    f.defvjp(forwards, backwards)

    def total(params):
        made = f(torch.sin, params, power=2, index=torch.tensor(3))
        return made["y"].sum() + made["index"]

    found = wrap(ts.grad(total))({"w": X, "b": torch.tensor(1.0)})
    same(found["w"], 5 * X)
    same(found["b"], torch.tensor(0.0))


def test_defjvps_adds_what_each_argument_gives():
    @ts.custom_jvp
    def product(x, y, z):
        return x * y * z

    product.defjvps(lambda t, result, x, y, z: 10 * t * y * z, None, lambda t, result, x, y, z: t * result)
    x, y, z = (torch.tensor(v) for v in (2.0, 3.0, 5.0))
    assert [g.item() for g in ts.grad(product, argnums=(0, 1, 2))(x, y, z)] == [150.0, 0.0, 30.0]
    same(ts.jvp(product, (x, y, z), (x, x, x))[1], torch.tensor(360.0))


def pushed(f, x):
    return ts.jvp(f, (x,), (torch.ones_like(x),))


# each gives the value and the tangent of a function at 3
PUSHED = {
    "jvp": pushed,
    "jit of it": lambda f, x: ts.jit(lambda x: pushed(f, x))(x),
    "vmap of it": lambda f, x: [y[0] for y in ts.vmap(lambda x: pushed(f, x))(x[None])],
    "it of vmap": lambda f, x: [y[0] for y in pushed(ts.vmap(f), x[None])],
    "linearize": lambda f, x: [y := ts.linearize(f, x), (y[0], y[1](torch.ones(())))][1],
    "of a tangent": lambda f, x: [y[0] for y in pushed(lambda x: pushed(f, x), x)],
}


@pytest.mark.parametrize("how", PUSHED)
@both_kinds
def test_results_beside_tangents_are_the_rules_and_the_function_runs_once(how, put, capfd):
    @ts.custom_jvp
    def f(x):
        ts.debug.print("f {}", x)
        return x * x

    @f.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        return f(x) + 1, 2 * x * t

    value, tangent = PUSHED[how](f, put(torch.tensor(3.0)))
    assert (float(value), float(tangent)) == (10, 6)
    assert capfd.readouterr().out == "f 3.0\n"


def test_forward_mode_goes_through_custom_jvp_and_not_through_custom_vjp():
    for wrap in (lambda f: f, ts.jit):
        same(wrap(lambda x: ts.jvp(ODD["jvp"], (x,), (2 * ONES,))[1])(X), 14 * X)
        twice = wrap(lambda x: ts.jvp(lambda x: ts.jvp(ODD["jvp"], (x,), (ONES,))[1], (x,), (ONES,))[1])
        same(twice(X), 7 * ONES)
        with pytest.raises(TypeError, match="no derivative forwards"):
            wrap(lambda x: ts.jvp(ODD["vjp"], (x,), (x,)))(X)


def test_what_does_not_fit_is_refused():
    alone = ts.custom_vjp(torch.sin)
    with pytest.raises(TypeError, match=r"without a derivative is called[^?]*defvjp\(fwd, bwd\)"):
        alone(X)
    bad = {
        "does not return a pair": (lambda x: x, lambda r, g: (g,)),
        "another shape or dtype": (lambda x: (x.sum(), None), lambda r, g: (g,)),
        "a gradient for each argument": (lambda x: (x, None), lambda r, g: (g, g)),
        "argument 0 returns values": (lambda x: (x, None), lambda r, g: (g.sum(),)),
        "another tree": (lambda x: (x, None), lambda r, g: ({"a": g},)),
    }
    for said, (forwards, backwards) in bad.items():
        with pytest.raises(TypeError, match=said):
            ts.grad(loss(a_vjp(forwards, backwards)))(X)
    with pytest.raises(TypeError, match="another shape or dtype"):
        ts.grad(loss(a_jvp(lambda x: x.sum().unsqueeze(0).unsqueeze(0))))(X)

    def over(x):
        f = ts.custom_vjp(lambda y: x * y)
        f.defvjp(lambda y: (y, y), lambda y, g: (g,))
        return f(ONES).sum()

    with pytest.raises(TypeError, match="closes over a value that is differentiated"):
        ts.grad(over)(X)


# ---- stop_gradient, linearize, linear_transpose -----------------------------------------------------------------


@both_kinds
@both_ways
def test_stop_gradient_stops_every_derivative(wrap, put):
    def f(x):
        stopped = ts.lax.stop_gradient({"x": x, "n": 3, "none": None})
        assert stopped["n"] == 3 and stopped["none"] is None
        return x * stopped["x"]

    same(wrap(ts.grad(loss(f)))(put(X)), X)
    same(ts.grad(wrap(loss(f)))(put(X)), X)
    same(wrap(lambda x: ts.jvp(f, (x,), (ONES,))[1])(put(X)), X)
    same(wrap(ts.vmap(ts.grad(f)))(put(X)), X)
    same(wrap(ts.grad(loss(ts.grad(loss(f)))))(put(X)), torch.zeros(5))


def curved(x):
    return {"a": torch.sin(x) * x, "total": 3 * x.sum(), "number": x.argmax()}


SLOPE = torch.cos(X) * X + torch.sin(X)


@both_kinds
@both_ways
def test_linearize_is_the_derivative_at_a_point(wrap, put):
    def f(x, t):
        value, along = ts.linearize(lambda x: {k: v for k, v in curved(x).items() if k != "number"}, x)
        return value, along(t), ts.vmap(along)(torch.eye(5))

    t = torch.arange(5.0)
    value, once, each = wrap(f)(put(X), put(t))
    same(value["a"], torch.sin(X) * X)
    same(once["a"], SLOPE * t)
    same(once["total"], 3 * t.sum())
    same(each["a"], torch.diag(SLOPE))
    second = wrap(ts.grad(lambda x: ts.linearize(curved, x)[1](ONES)["a"].sum()))
    same(second(put(X)), -torch.sin(X) * X + 2 * torch.cos(X))


def test_linearize_runs_the_function_once():
    calls = []

    def f(x):
        calls.append(1)
        return torch.exp(x)

    _, along = ts.linearize(f, X)
    same(along(ONES), torch.exp(X))
    same(along(2 * ONES), 2 * torch.exp(X))
    assert calls == [1]

    def three(x):
        along = ts.linearize(torch.exp, x)[1]
        return along(x), along(2 * x), along(3 * x)

    assert ts.jit(three).lower(X).compile().as_text().count("aten.exp.default") == 1
    with pytest.raises(TypeError, match="a tangent for each primal"):
        along(ONES, ONES)
    with pytest.raises(TypeError, match="does not fit its value"):
        along(torch.ones(4))


def test_linear_transpose_turns_a_linear_function_around():
    matrix = torch.arange(10.0).reshape(2, 5)
    for put in (lambda x: x, ts.array, lambda x: ts.ShapeDtypeStruct(tuple(x.shape), x.dtype)):
        (back,) = ts.linear_transpose(lambda x: matrix @ x, put(X))(torch.tensor([1.0, 10.0]))
        same(back, matrix.T @ torch.tensor([1.0, 10.0]))


# ---- integers, complex numbers, columns in parts ----------------------------------------------------------------

Z = torch.tensor([1 + 2j, -0.5 + 1j, 2 - 1j])


@both_kinds
@both_ways
def test_derivatives_of_holomorphic_functions_are_complex(wrap, put):
    same(wrap(ts.grad(lambda z: (z**3).sum(), holomorphic=True))(put(Z)), 3 * Z**2)
    same(wrap(ts.value_and_grad(lambda z: (z**3).sum(), holomorphic=True))(put(Z))[0], (Z**3).sum())
    same(wrap(ts.jacrev(lambda z: z**3, holomorphic=True))(put(Z)), torch.diag(3 * Z**2))
    same(wrap(ts.jacfwd(lambda z: z**3, holomorphic=True))(put(Z)), torch.diag(3 * Z**2))
    same(wrap(ts.hessian(lambda z: (z**3).sum(), holomorphic=True))(put(Z)), torch.diag(6 * Z))
    with_aux = wrap(ts.grad(lambda z: ((z**3).sum(), z), has_aux=True, holomorphic=True))(put(Z))
    same(with_aux[1], Z)


@both_kinds
@both_ways
def test_integers_have_derivatives_of_zeros_where_they_are_allowed(wrap, put):
    n = torch.arange(5)
    args = {"x": put(X), "n": put(n)}
    found = wrap(ts.grad(lambda p: (p["x"] * p["n"]).sum(), allow_int=True))(args)
    same(found["x"], n.float())
    same(found["n"], torch.zeros(5, dtype=torch.int64))
    found = wrap(ts.jacrev(lambda p: p["x"] * p["n"], allow_int=True))(args)
    same(found["x"], torch.diag(n.float()))
    same(found["n"], torch.zeros(5, 5, dtype=torch.int64))
    same(wrap(ts.grad(lambda n: n.sum() * 0.5, allow_int=True))(put(n)), torch.zeros(5, dtype=torch.int64))


@both_kinds
@both_ways
@pytest.mark.parametrize("chunk_size", [1, 2, 5, 9])
def test_columns_and_rows_in_parts(wrap, put, chunk_size):
    def f(x):
        return {"a": torch.sin(x), "total": x.sum()}, x

    for jacobian in (ts.jacfwd, ts.jacrev, ts.jacobian):
        found, aux = wrap(jacobian(f, has_aux=True, chunk_size=chunk_size))(put(X))
        same(found["a"], torch.diag(torch.cos(X)))
        same(found["total"], ONES)
        same(aux, X)


def test_kinds_that_do_not_fit_are_refused():
    refused = {
        "grad needs complex tensors": lambda: ts.grad(loss(torch.sin), holomorphic=True)(X),
        "complex scalar result": lambda: ts.grad(lambda z: z.real.sum(), holomorphic=True)(Z),
        "grad needs real floating-point": lambda: ts.grad(lambda z: z.real.sum())(Z),
        "complex results with holomorphic": lambda: ts.jacrev(lambda z: z.real, holomorphic=True)(Z),
        "grad needs real": lambda: ts.grad(lambda n: n.sum() * 0.5)(torch.arange(3)),
        "chunk_size is a number": lambda: ts.jacfwd(torch.sin, chunk_size=0),
    }
    for said, call in refused.items():
        with pytest.raises(TypeError, match=said):
            call()


def test_make_jaxpr_is_the_text_of_a_graph():
    assert ts.make_jaxpr is ts.make_graph
    assert "aten.sin.default" in str(ts.make_jaxpr(torch.sin)(X))


# ---- backward through a jitted function -------------------------------------------------------------------------


@both_kinds
def test_backward_through_a_jitted_network_gives_torchs_gradients(put):
    torch.manual_seed(0)
    weights = [torch.randn(4, 8) / 2, torch.randn(8), torch.randn(8, 3)]
    x, target = torch.randn(16, 4), torch.randint(3, (16,))

    def loss(weights, x, target):
        first, bias, second = weights
        return torch.nn.functional.cross_entropy(torch.relu(x @ first + bias) @ second, target)

    expected = [w.clone().requires_grad_() for w in weights]
    loss(expected, x, target).backward()
    leaves = [put(w).detach().requires_grad_() for w in weights]
    made = ts.jit(loss)(leaves, put(x), put(target))
    made.backward()
    for leaf, other in zip(leaves, expected, strict=True):
        same(leaf.grad, other.grad)

"""A jitted function under grad, jvp, vmap, on torch's tape, and in another jit."""

import itertools

import pytest
import torch
from torch.autograd import forward_ad

import tinyshard as ts
from tests.extent import every, in_turn, mostly_whole
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")


def loss(w, x):
    return (torch.tanh(x @ w) ** 2).mean()


def weights():
    return torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)


def data():
    return torch.linspace(0, 2, 24, dtype=torch.float64).reshape(8, 3)


def rows(mesh=None):
    return ts.NamedSharding(mesh or ts.make_mesh((4, 2), ("a", "b")), P("a"))


def same(got, wanted):
    torch.testing.assert_close(ts.device_get(got), wanted)


PUT = {"host": lambda x: x, "default": ts.array, "cut": lambda x: ts.device_put(x, rows())}


@pytest.mark.parametrize("put", mostly_whole(PUT, lambda put: put == "cut"))
def test_every_derivative_is_that_of_the_function(put):
    f, w, x = ts.jit(loss), weights(), PUT[put](data())
    plain = lambda w: loss(w, data())  # noqa: E731
    same(ts.grad(f)(w, x), torch.func.grad(plain)(w))
    value, gradient = ts.value_and_grad(f)(w, x)
    same(value, plain(w))
    same(gradient, torch.func.grad(plain)(w))
    same(ts.jvp(lambda w: f(w, x), (w,), (w + 1,))[1], torch.func.jvp(plain, (w,), (w + 1,))[1])
    same(ts.vjp(lambda w: f(w, x), w)[1](torch.tensor(2.0, dtype=torch.float64))[0], 2 * torch.func.grad(plain)(w))
    same(ts.hessian(lambda w: f(w, x))(w), torch.func.hessian(plain)(w))
    same(ts.jacrev(ts.grad(lambda w: f(w, x)))(w), torch.func.hessian(plain)(w))
    many = torch.stack([w, w * 2, w - 1])
    same(ts.vmap(f, in_axes=(0, None))(many, x), torch.stack([plain(v) for v in many]))
    wanted = torch.stack([torch.func.grad(plain)(v) for v in many])
    same(ts.vmap(ts.grad(f), in_axes=(0, None))(many, x), wanted)
    same(ts.grad(lambda ws: ts.vmap(f, in_axes=(0, None))(ws, x).sum())(many), wanted)
    same(ts.jit(ts.vmap(ts.grad(f), in_axes=(0, None)))(many, x), wanted)


def test_grad_of_a_jitted_function_and_another_jit_of_it_do_not_trace_again():
    runs = []

    def function(w, x):
        runs.append(1)
        return loss(w, x)

    f = ts.jit(function)
    f(weights(), data())
    for _ in range(2):
        ts.grad(f)(weights(), data())
        ts.grad(ts.jit(function))(weights(), data())
        ts.jit(function, out_shardings=ts.SingleDeviceSharding(ts.devices()[1]))(weights(), data())
        ts.vmap(f, in_axes=(0, None))(weights()[None], data())
    assert len(runs) == 1


def test_jits_of_one_function_with_other_shardings_do_not_share_a_program():
    x = ts.device_put(data(), rows())
    whole = ts.NamedSharding(ts.make_mesh((4, 2), ("a", "b")), P())
    made = [ts.jit(torch.sin, out_shardings=s)(x) for s in (rows(), whole, None)]
    function = lambda v: torch.sin(v)  # noqa: E731
    made += [ts.jit(function, out_shardings=s)(x) for s in (rows(), whole, None)]
    for got, sharding in zip(made, (rows(), whole, rows()) * 2, strict=True):
        assert got.sharding.is_equivalent_to(sharding, 2)


def test_a_function_is_let_go_of_with_its_traces():
    import gc
    import weakref

    def make():
        scale = torch.tensor(2.0)

        def function(x):
            return x * scale

        ts.jit(function)(torch.ones(3))
        return weakref.ref(function)

    known = make()
    gc.collect()
    assert known() is None


# ---- torch's tape ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("put", PUT.values(), ids=PUT)
def test_backward_through_jit_gives_the_whole_gradient(put):
    w = weights().requires_grad_()
    wanted = 3 * torch.func.grad(loss)(weights(), data())
    f, x = ts.jit(loss), put(data())
    total = f(w, x) + 2 * loss(w, ts.array(data()))
    assert total.requires_grad
    total.backward()
    same(w.grad, wanted)
    placed = ts.device_put(weights(), ts.NamedSharding(ts.make_mesh((4, 2), ("a", "b")), P(None, "b"))).requires_grad_()
    (f(placed, x) * 3).backward()
    same(placed.grad, wanted)


def test_closed_over_parameters_get_gradients():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1)).double()
    x = data()
    (model(x) ** 2).mean().backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    ts.jit(lambda x: (model(x) ** 2).mean())(x).backward()
    for p, g in zip(model.parameters(), wanted, strict=True):
        same(p.grad, g)


def test_second_derivatives_pass_through_jit_on_the_tape():
    w = weights().requires_grad_()
    (first,) = torch.autograd.grad(ts.jit(loss)(w, data()), w, create_graph=True)
    (second,) = torch.autograd.grad((first**2).sum(), w)
    wanted = torch.func.grad(lambda v: (torch.func.grad(loss)(v, data()) ** 2).sum())(weights())
    same(second, wanted)


def test_results_require_a_gradient_only_where_one_can_flow():
    w, f = weights().requires_grad_(), ts.jit(lambda w: (w * 2, w.argmax(), w.detach() + 1, torch.ones(2)))
    assert [v.requires_grad for v in f(w)] == [True, False, False, False]
    with torch.no_grad():
        assert not f(w)[0].requires_grad
    assert not f(weights())[0].requires_grad


def test_backward_passes_through_pmap_and_shard_map():
    mesh = ts.make_mesh((8,), ("i",))
    x = data()
    body = lambda v: torch.sin(v) * ts.lax.psum(v.sum(), "i")  # noqa: E731
    wanted = torch.func.grad(lambda v: (torch.sin(v) * v.sum()).sum())(x)
    for mapped in (
        ts.pmap(body, axis_name="i"),
        ts.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i")),
        ts.jit(ts.shard_map(body, mesh=mesh, in_specs=P("i"), out_specs=P("i"))),
    ):
        for leaf in (x.clone(), ts.device_put(x, ts.NamedSharding(mesh, P("i")))):
            leaf.requires_grad_()
            mapped(leaf).sum().backward()
            same(leaf.grad, wanted)


# ---- functions whose graph does not tell their derivative -----------------------------------------------------------


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.round(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g * 5


def with_no_grad(x):
    with torch.no_grad():
        scale = x * 3
    return (scale * x).sum()


OWN = {
    "autograd.Function": (lambda x: (StraightThrough.apply(x) * 2).sum(), lambda x: torch.full_like(x, 10)),
    "no_grad": (with_no_grad, lambda x: 3 * x),
    "detach": (lambda x: ((x * 3).detach() * x).sum(), lambda x: 3 * x),
    "data": (lambda x: ((x * 3).data * x).sum(), lambda x: 3 * x),
}


@pytest.mark.parametrize("name, put", in_turn(OWN, PUT))
def test_a_derivative_of_the_functions_own_is_kept(name, put):
    (function, gradient), put, x = OWN[name], PUT[put], data()
    f = ts.jit(function)
    same(f(put(x)), function(x))
    same(ts.grad(f)(put(x)), gradient(x))
    same(ts.jit(ts.grad(f))(put(x)), gradient(x))
    leaf = put(x).clone().requires_grad_()
    f(leaf).backward()
    same(leaf.grad, gradient(x))


def test_a_region_with_a_derivative_of_its_own_is_refused_from_outside_and_right_inside():
    mesh = ts.make_mesh((8,), ("i",))
    for function, gradient in OWN.values():
        mapped = ts.shard_map(lambda v: function(v)[None], mesh=mesh, in_specs=P("i"), out_specs=P("i"))  # noqa: B023
        if function in (OWN["detach"][0], OWN["data"][0]):
            same(ts.grad(lambda x: mapped(x).sum())(data()), gradient(data()))  # noqa: B023
        else:
            with pytest.raises(ts.DtypeError, match=r"StraightThrough|no_grad"):
                ts.grad(lambda x: mapped(x).sum())(data())  # noqa: B023
        inside = ts.shard_map(ts.grad(function), mesh=mesh, in_specs=P("i"), out_specs=P("i"))
        same(inside(data()), gradient(data()))


# ---- shardings ------------------------------------------------------------------------------------------------------


def test_shardings_of_an_inner_jit_are_constraints():
    inner = ts.jit(lambda x: x * 2, in_shardings=rows(), out_shardings=rows())
    whole = ts.NamedSharding(ts.make_mesh((4, 2), ("a", "b")), P())
    x = ts.device_put(data(), whole)
    assert ts.jit(inner)(x).sharding.is_equivalent_to(rows(), 2)
    text = ts.jit(lambda v: inner(v).sum()).lower(x).as_text()
    assert text.count("tinyshard.constrain") == 2
    gradient = ts.grad(lambda v: (inner(v) ** 2).sum())(x)
    same(gradient, 8 * data())
    _, made = ts.grad(lambda v: (inner(v).sum(), inner(v)), has_aux=True)(data())
    assert made.sharding.is_equivalent_to(rows(), 2)
    leaf = data().requires_grad_()
    got = inner(leaf)
    assert got.sharding.is_equivalent_to(rows(), 2)
    got.sum().backward()
    same(leaf.grad, torch.full_like(data(), 2))


@pytest.mark.parametrize("mode", every(3, ["mean", "sum", "max"]))
def test_an_embedding_of_bags_has_its_gradient(mode):
    weight, bags = torch.arange(12.0).reshape(4, 3) / 7, torch.tensor([[0, 1], [2, 1]])

    def loss(weight, bags):
        return torch.nn.functional.embedding_bag(bags, weight, mode=mode).sin().sum()

    want = torch.func.grad(loss)(weight, bags)
    mesh = ts.make_mesh((2,), ("a",), devices=ts.devices()[:2])
    for placed in (bags, ts.device_put(bags, ts.NamedSharding(mesh, P("a")))):
        torch.testing.assert_close(ts.device_get(ts.grad(ts.jit(loss))(weight, placed)), want)
    each = ts.shard_map(lambda w, b: loss(w, b)[None], mesh=mesh, in_specs=(P(), P("a")), out_specs=P("a"))
    torch.testing.assert_close(ts.device_get(ts.grad(lambda w: each(w, bags).sum())(weight)), want)


def queries_and_mask():
    return torch.randn(2, 2, 4, 8, dtype=torch.float64), torch.randn(4, 4, dtype=torch.float64)


def attention(q, mask):
    return (torch.nn.functional.scaled_dot_product_attention(q, q * 2, q, attn_mask=mask, scale=0.3) ** 2).sum()


@pytest.mark.parametrize("numbers, is_cut", every(6, itertools.product(((0, 1), 0, 1), (True, False))))
def test_a_jitted_attention_has_a_gradient_by_its_mask(numbers, is_cut):
    q, mask = queries_and_mask()
    wanted = torch.func.grad(attention, argnums=numbers)(q, mask)
    if is_cut:
        q = ts.device_put(q, ts.NamedSharding(ts.make_mesh((2, 4), ("a", "b")), P("a", None, "b")))
    same(ts.grad(ts.jit(attention), argnums=numbers)(q, mask), wanted)
    same(ts.jit(ts.grad(ts.jit(attention), argnums=numbers))(q, mask), wanted)


def test_a_mask_that_is_made_of_the_queries_adds_to_their_gradient():
    q, _ = queries_and_mask()
    by_itself = lambda q: attention(q, q[0, 0, :, :4])  # noqa: E731
    same(ts.grad(ts.jit(by_itself))(q), torch.func.grad(by_itself)(q))


@pytest.mark.whole
def test_a_gradient_of_a_jitted_attention_is_taken_in_another_jit():
    q, mask = queries_and_mask()
    twice = ts.jit(lambda q, mask: ts.grad(ts.jit(attention), argnums=1)(q, mask).sum())
    same(twice(q, mask), torch.func.grad(attention, argnums=1)(q, mask).sum())


def test_no_tangent_of_torchs_forward_mode_is_dropped():
    x, t = torch.arange(8.0), torch.ones(8)
    with forward_ad.dual_level():
        expected = forward_ad.unpack_dual(forward_ad.make_dual(x, t).sin()).tangent
        dual = forward_ad.make_dual(ts.device_put(x), ts.device_put(t))
        made = ts.device_put(dual, ts.devices()[1]).sin()
        torch.testing.assert_close(ts.device_get(forward_ad.unpack_dual(made).tangent), expected)
        with pytest.raises(ts.DtypeError, match=r"ts\.jvp"):
            ts.jit(torch.sin)(dual)
        assert torch.equal(ts.device_get(ts.jit(torch.sin)(ts.device_put(x))), x.sin())


def test_a_hook_that_a_jitted_function_registers_changes_the_gradient_as_in_torch():
    def loss(x):
        y = x * 2
        y.requires_grad_()
        y.register_hook(lambda gradient: gradient * 10)
        return y.sum()

    w = ts.device_put(torch.ones(4)).requires_grad_()
    ts.jit(loss)(w).backward()
    assert w.grad.tolist() == [20.0] * 4


@pytest.mark.parametrize(
    "at", every(5, [slice(-3, None), slice(1, None), slice(-4, -1), slice(1, 99), slice(None, None, 2)])
)
def test_a_jitted_function_that_writes_to_a_slice_is_vmapped(at):
    def shifted(x):
        y = torch.zeros(4, dtype=x.dtype)
        y[at] = x[: len(range(*at.indices(4)))] ** 2
        return y * x

    f, x = ts.jit(shifted), data()[:, :1] + weights()[:1]
    same(ts.vmap(f)(x), torch.stack([shifted(row) for row in x]))
    same(ts.hessian(lambda x: f(x).sum())(x[1]), torch.func.hessian(lambda x: shifted(x).sum())(x[1]))


PARTS = {
    "a row of doubles": lambda x: torch.select_scatter(x.float(), x[0], 0, 1),
    "rows that are real": lambda x: torch.slice_scatter(x.to(torch.complex64), x[:1], 0, 1, 2).abs(),
}


@pytest.mark.parametrize("function", PARTS.values(), ids=PARTS)
def test_a_part_of_another_dtype_is_converted_under_transformations_too(function):
    f, x = ts.jit(function), data() + 1
    same(ts.vmap(f)(x[None]), function(x)[None])
    wanted = torch.ones_like(x)  # torch has no derivative where it is complex
    wanted[0], wanted[1] = 2, 0
    same(ts.grad(lambda x: f(x).sum())(x), wanted)


WRITTEN = {"a row": 0, "a column": (slice(None), -1), "a slice": slice(1, None)}


@pytest.mark.parametrize(
    "dtype, part", every(4, itertools.product((torch.float64, torch.complex128), WRITTEN)), ids=str
)
def test_a_vmapped_function_that_writes_to_a_part_has_its_gradient(dtype, part):
    index = WRITTEN[part]

    def written(x):
        y = torch.ones(3, 3, dtype=dtype)
        y[index].mul_(2).add_(x)
        return (y * x).abs().pow(3).sum()

    x = data()
    wanted = torch.func.grad(lambda x: sum(written(row) for row in x))(x)
    mapped = lambda x: ts.vmap(ts.pmap(written))(x[None])  # noqa: E731
    for function in (ts.vmap(ts.jit(written)), mapped):
        same(ts.grad(lambda x, function=function: function(x).sum())(x), wanted)

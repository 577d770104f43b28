"""`lax.scan`: what it computes and differentiates is what a loop of Python's does, and its program has one body."""

import pytest
import torch

import tinyshard as ts

LENGTH = 6


@pytest.fixture(autouse=True)
def local():
    ts.init(devices=8, runtime="local")


def normal(number, *shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(number), dtype=dtype)


def by_hand(f, init, xs, length=None, reverse=False):
    """A loop of torch's."""
    count = length if xs is None else len(xs)
    carry, made = init, []
    for at in reversed(range(count)) if reverse else range(count):
        carry, y = f(carry, None if xs is None else xs[at])
        made.append(y)
    return carry, torch.stack(made[::-1] if reverse else made)


W, C, XS = normal(1, 4, 4), normal(2, 2, 4), normal(3, LENGTH, 2, 4)


def cell(w, c, x):
    """A round of a small recurrent network."""
    c = torch.tanh(c @ w + x)
    return c, (c * x).sum(-1)


def looped(loop, **named):
    return lambda w, c, xs: loop(lambda c, x: cell(w, c, x), c, xs, **named)


def close(got, expected, **named):
    got, expected = ts.tree.leaves(got), ts.tree.leaves(expected)
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(ts.device_get(a)), b, **named)


# how the carry, the rows and the weight are cut over a mesh of 4 x 2
LAYOUTS = {
    "not placed": (None, None, None),
    "whole": (ts.P(), ts.P(), ts.P()),
    "rows cut": (None, ts.P("b"), None),
    "batch cut": (ts.P("b"), ts.P(None, "b"), ts.P()),
    "carry alone cut": (ts.P("b", "a"), ts.P(), ts.P()),
    "columns cut": (None, ts.P(None, None, "a"), ts.P(None, "a")),
    "contracted dim cut": (ts.P(None, "a"), None, ts.P("a")),
}


def laid_out(name):
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    return [
        x if spec is None else ts.device_put(x, ts.NamedSharding(mesh, spec))
        for x, spec in zip((C, XS, W), LAYOUTS[name], strict=True)
    ]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_scan_of_any_layout_is_the_loop(name, reverse):
    c, xs, w = laid_out(name)
    expected = by_hand(lambda c, x: cell(W, c, x), C, XS, reverse=reverse)
    close(ts.jit(looped(ts.lax.scan, reverse=reverse))(w, c, xs), expected)


def total(loop, **named):
    """A number of a scan, whose gradient is asked for."""

    def function(w, c, xs):
        c, ys = looped(loop, **named)(w, c, xs)
        return c.pow(2).sum() + (ys * torch.arange(1.0, ys.shape[1] + 1)).sum()

    return function


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_gradient_of_a_scan_of_any_layout_is_the_loops(name, reverse):
    c, xs, w = laid_out(name)
    expected = torch.func.grad(total(by_hand, reverse=reverse), (0, 1, 2))(W, C, XS)
    close(ts.jit(ts.grad(total(ts.lax.scan, reverse=reverse), (0, 1, 2)))(w, c, xs), expected, rtol=1e-4, atol=1e-5)


def test_the_gradient_of_a_jitted_scan_is_the_loops():
    c, xs, w = laid_out("batch cut")
    expected = torch.func.grad(total(by_hand), (0, 1, 2))(W, C, XS)
    close(ts.grad(ts.jit(total(ts.lax.scan)), (0, 1, 2))(w, c, xs), expected, rtol=1e-4, atol=1e-5)


def test_a_scan_of_arrays_outside_of_jit_is_jitted_and_differentiated_there():
    c, xs, w = laid_out("batch cut")
    close(looped(ts.lax.scan)(w, c, xs), looped(by_hand)(W, C, XS))
    expected = torch.func.grad(total(by_hand), (0, 1, 2))(W, C, XS)
    close(ts.grad(total(ts.lax.scan), (0, 1, 2))(w, c, xs), expected, rtol=1e-4, atol=1e-5)


def test_a_scan_of_plain_tensors_is_plain_torch():
    made = looped(ts.lax.scan)(W, C, XS)
    assert type(made[0]) is type(made[1]) is torch.Tensor
    close(made, looped(by_hand)(W, C, XS))


def test_a_tangent_goes_through_a_scan():
    given = (W, C, XS), (normal(4, 4, 4), normal(5, 2, 4), normal(6, LENGTH, 2, 4))
    expected = torch.func.jvp(looped(by_hand), *given)
    close(ts.jit(lambda p, t: ts.jvp(looped(ts.lax.scan), p, t))(*given), expected, rtol=1e-4, atol=1e-5)


def test_a_tangent_of_what_the_body_closes_over_alone_goes_through_a_scan():
    expected = torch.func.jvp(lambda w: looped(by_hand)(w, C, XS), (W,), (normal(4, 4, 4),))
    got = ts.jit(lambda w, t: ts.jvp(lambda w: looped(ts.lax.scan)(w, C, XS), (w,), (t,)))(W, normal(4, 4, 4))
    close(got, expected, rtol=1e-4, atol=1e-5)


def small(loop):
    """A number of one vector, with a second derivative that goes through the carries."""
    return lambda v: (loop(lambda c, x: (torch.sin(c * v) + x, c.sum()), v, XS[:3, 0])[1] ** 2).sum()


@pytest.mark.parametrize("name", ["grad of grad", "hessian", "jvp of grad"])
def test_a_second_derivative_goes_through_a_scan(name):
    def second(f, grad, jvp, hessian):
        return {
            "grad of grad": grad(lambda v: grad(f)(v).pow(2).sum()),
            "hessian": hessian(f),
            "jvp of grad": lambda v: jvp(grad(f), (v,), (v.cos(),))[1],
        }[name]

    expected = second(small(by_hand), torch.func.grad, torch.func.jvp, torch.func.hessian)(W[0])
    got = ts.jit(second(small(ts.lax.scan), ts.grad, ts.jvp, ts.hessian))(W[0])
    close(got, expected, rtol=1e-4, atol=1e-4)


IN_AXES = {
    "the carry": (None, 0, None),
    "rows": (None, None, 1),
    "rows, along another dim": (None, None, 2),
    "what it closes over": (0, None, None),
    "all": (1, 1, 0),
}


@pytest.mark.parametrize("name", IN_AXES)
def test_vmap_of_a_scan_is_vmap_of_the_loop(name):
    given = [x if d is None else torch.stack([x, 2 * x, -x], d) for x, d in zip((W, C, XS), IN_AXES[name], strict=True)]
    expected = torch.func.vmap(looped(by_hand), IN_AXES[name])(*given)
    close(ts.jit(ts.vmap(looped(ts.lax.scan), IN_AXES[name]))(*given), expected)
    expected = torch.func.vmap(torch.func.grad(total(by_hand)), IN_AXES[name])(*given)
    got = ts.jit(ts.vmap(ts.grad(total(ts.lax.scan)), IN_AXES[name]))(*given)
    close(got, expected, rtol=1e-4, atol=1e-5)
    expected = torch.func.grad(lambda *a: torch.func.vmap(total(by_hand), IN_AXES[name])(*a).sum())(*given)
    got = ts.jit(ts.grad(lambda *a: ts.vmap(total(ts.lax.scan), IN_AXES[name])(*a).sum()))(*given)
    close(got, expected, rtol=1e-4, atol=1e-5)


def test_a_part_of_the_carry_that_no_mapped_value_reaches_stays_one_for_all_examples():
    def f(c, xs):
        return ts.lax.scan(lambda c, x: ((c[0] + 1, c[1] + x * c[0]), None), (torch.tensor(0), c), xs)[0]

    text = ts.make_graph(ts.vmap(f, (0, None)))(normal(1, 3), normal(2, 5))
    body = [line.split("=")[0].split(":")[1].strip() for line in text.splitlines() if "carry, at first" in line]
    assert body == ["i64[]", "f32[3]"]
    close(ts.jit(ts.vmap(f, (0, None)))(torch.zeros(3), torch.ones(5))[1], torch.full((3,), 10.0))


def test_a_collective_over_a_name_of_vmaps_is_one_over_the_examples():
    def f(c, xs):
        return ts.lax.scan(lambda c, x: (c + ts.lax.psum(x * c, "i"), ts.lax.axis_index("i")), c, xs)

    c, xs = normal(1, 3), normal(2, 5, 3)
    carry, expected = c, []
    for x in xs:
        carry = carry + (x * carry).sum()
        expected.append(torch.arange(3, dtype=torch.int32))
    close(ts.jit(ts.vmap(f, (0, 1), (0, 1), axis_name="i"))(c, xs), (carry, torch.stack(expected)))


# ---- on devices ------------------------------------------------------------------------------------------------------


def test_a_scan_inside_of_pmap_reduces_in_each_round():
    xs, c = normal(1, 8, 5, 3), normal(2, 8, 3)

    def f(c, xs):
        return ts.lax.scan(lambda c, x: (torch.tanh(c + ts.lax.psum(x, "i")), ts.lax.pmean(c, "i")), c, xs)

    carry, made = c, []
    for x in xs.unbind(1):
        made.append(carry.mean(0).expand(8, -1))
        carry = torch.tanh(carry + x.sum(0))
    mapped = ts.pmap(f, axis_name="i")
    close(mapped(c, xs), (carry, torch.stack(made, 1)), rtol=1e-4, atol=1e-5)
    reduced = ts.collectives_in(mapped.lower(c, xs).compile())
    assert [(each.kind, each.count) for each in reduced] == [("all_reduce", 5)]  # both of a round are one exchange


def test_the_gradient_of_a_scan_inside_of_shard_map_is_that_of_the_whole():
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    w, xs = normal(1, 4), normal(2, 5, 8, 4)

    def whole(w, xs):
        c = torch.zeros(8)
        for x in xs:
            c = torch.sin(c + x @ w) * x.sum() / 10
        return c.pow(2).sum()

    def on_a_shard(w, xs):
        def body(c, x):
            return torch.sin(c + x @ w) * ts.lax.psum(x.sum(), "a") / 10, None

        start = ts.lax.pcast(torch.zeros(2), "a", to="varying")
        return ts.lax.psum(ts.lax.scan(body, start, xs)[0].pow(2).sum(), "a")

    mapped = ts.shard_map(on_a_shard, mesh=mesh, in_specs=(ts.P(), ts.P(None, "a")), out_specs=ts.P())
    close(ts.jit(mapped)(w, xs), whole(w, xs), rtol=1e-4, atol=1e-5)
    expected = torch.func.grad(whole, (0, 1))(w, xs)
    close(ts.jit(ts.grad(mapped, (0, 1)))(w, xs), expected, rtol=1e-4, atol=1e-5)
    close(ts.grad(mapped, (0, 1))(w, xs), expected, rtol=1e-4, atol=1e-5)


def test_a_gradient_inside_of_the_body_of_a_scan_inside_of_shard_map_trains_as_one_device():
    mesh = ts.make_mesh((8,), ("data",))
    x, y, w = normal(1, 16, 3), normal(2, 16), normal(3, 3)

    def step(w, _):
        loss, grad = ts.value_and_grad(lambda w: ts.lax.pmean((x_here @ w - y_here).pow(2).mean(), "data"))(w)
        return w - 0.1 * ts.lax.pmean(grad, "data"), loss

    def train(w, x, y):
        nonlocal x_here, y_here
        x_here, y_here = x, y
        return ts.lax.scan(step, w, length=20)

    x_here = y_here = None
    mapped = ts.shard_map(train, mesh=mesh, in_specs=(ts.P(), ts.P("data"), ts.P("data")), out_specs=ts.P())
    made, losses = mapped(w, x, y)
    expected, seen = w, []
    for _ in range(20):
        loss = (x @ expected - y).pow(2).mean()
        seen.append(loss)
        expected = expected - 0.1 * torch.func.grad(lambda w: (x @ w - y).pow(2).mean())(expected)
    close((made, losses), (expected, torch.stack(seen)), rtol=1e-4, atol=1e-5)


def test_forty_steps_of_training_by_a_scan_are_forty_jitted_steps():
    mesh = ts.make_mesh((4, 2), ("data", "model"))
    x = ts.device_put(normal(1, 8, 6), ts.NamedSharding(mesh, ts.P("data")))
    params = {
        "up": ts.device_put(normal(2, 6, 4), ts.NamedSharding(mesh, ts.P(None, "model"))),
        "down": ts.device_put(normal(3, 4, 1), ts.NamedSharding(mesh, ts.P("model"))),
    }
    optimizer = ts.optim.functional(torch.optim.AdamW, lr=0.01)

    def loss(params):
        return (torch.tanh(x @ params["up"]) @ params["down"] - 1).pow(2).mean()

    def step(carry, _=None):
        params, state = carry
        value, grads = ts.value_and_grad(loss)(params)
        return optimizer.update(params, grads, state), value

    start = params, optimizer.init(params)
    carry, jitted, losses = start, ts.jit(step), []
    for _ in range(40):
        carry, value = jitted(carry)
        losses.append(value.item())
    many = ts.jit(lambda carry: ts.lax.scan(step, carry, length=40))
    made, of_scan = many(start)
    close(of_scan, torch.tensor(losses), rtol=1e-5, atol=1e-6)
    close(made[0]["up"], ts.device_get(carry[0]["up"]), rtol=1e-5, atol=1e-6)
    assert many.lower(start).compile().cost_analysis().flops == 40 * jitted.lower(start).compile().cost_analysis().flops


# ---- the program -----------------------------------------------------------------------------------------------------


def lines_and_nodes(length):
    lowered = ts.jit(looped(ts.lax.scan)).lower(W, C, torch.zeros(length, 2, 4))
    compiled = lowered.compile()
    return len(lowered.as_text().splitlines()), len(compiled.as_text().splitlines()), compiled


def test_a_scan_of_a_thousand_steps_is_one_program_whose_text_has_one_body():
    *few, _ = lines_and_nodes(2)
    *many, compiled = lines_and_nodes(1000)
    assert few == many
    assert compiled.as_text().count("aten.tanh.default") == 1
    assert "length=1000" in compiled.as_text()


def test_the_analyses_count_each_round():
    mesh = ts.make_mesh((8,), ("a",))
    xs = ts.device_put(torch.zeros(10, 16), ts.NamedSharding(mesh, ts.P(None, "a")))
    c = ts.device_put(torch.zeros(4, 4), ts.NamedSharding(mesh, ts.P()))

    def f(c, xs):
        return ts.lax.scan(lambda c, x: (c @ c + x.sum(), c.sum()), c, xs)

    compiled = ts.jit(f).lower(c, xs).compile()
    assert compiled.cost_analysis().flops == 10 * 2 * 4**3
    assert [(each.kind, each.count) for each in ts.collectives_in(compiled)] == [("all_reduce", 10)]
    memory = compiled.memory_analysis()
    kept = 64 + 10 * 2 * 4  # the carry, and the rows of a device
    made = 64 + 10 * 4  # the last carry, and a number for each round
    assert memory.argument_nbytes == kept
    assert memory.output_nbytes == made
    assert kept + made + 64 <= memory.peak_nbytes <= kept + made + 3 * 64


@pytest.mark.parametrize("name", ["nowhere", "whole"])
def test_a_carry_takes_the_layout_that_the_body_gives_it(name):
    mesh = ts.make_mesh((8,), ("a",))
    xs = ts.device_put(torch.ones(5, 16), ts.NamedSharding(mesh, ts.P(None, "a")))
    start = torch.zeros(16) if name == "nowhere" else ts.device_put(torch.zeros(16), ts.NamedSharding(mesh, ts.P()))
    f = ts.jit(lambda start, xs: ts.lax.scan(lambda c, x: (c + x, None), start, xs)[0])
    assert f.lower(start, xs).compile().cost_analysis().nbytes == 0
    assert f(start, xs).sharding.spec == ts.P("a")
    close(f(start, xs), torch.full((16,), 5.0))


def test_a_constraint_inside_of_the_body_is_kept():
    mesh = ts.make_mesh((8,), ("a",))
    cut = ts.NamedSharding(mesh, ts.P("a"))
    f = ts.jit(
        lambda xs: ts.lax.scan(lambda c, x: (c, ts.lax.with_sharding_constraint(x * 2, cut)), torch.zeros(()), xs)[1]
    )
    assert f(torch.ones(3, 16)).sharding.spec == ts.P(None, "a")


# ---- trees, lengths, scans in scans ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["in a program", "in Python"])
def test_trees_none_keys_and_numbers_go_through_a_scan(name):
    def body(carry, x):
        key, which = ts.random.split(carry["key"])
        y = {"noise": ts.random.uniform(which, (2,)), "none": None, "x": (x["a"] + carry["n"], x["none"])}
        return {"key": key, "n": carry["n"] + 1, "none": None}, y

    def f(key, a):
        return ts.lax.scan(body, {"key": key, "n": 0, "none": None}, {"a": a, "none": None})

    carry, ys = (ts.jit(f) if name == "in a program" else f)(ts.random.key(1), torch.arange(3))
    assert (carry["n"], carry["none"], ys["none"], ys["x"][1]) == (3, None, None, None)
    assert isinstance(carry["key"], ts.random.Key)
    close(ys["x"][0], torch.tensor([0, 2, 4]))
    key, expected = ts.random.key(1), []
    for _ in range(3):
        key, which = ts.random.split(key)
        expected.append(torch.as_tensor(ts.device_get(ts.random.uniform(which, (2,)))))
    close(ys["noise"], torch.stack(expected))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("unroll", [1, 2, 4, 6, 100, True])
@pytest.mark.parametrize("name", ["in a program", "in Python"])
def test_rounds_that_are_written_out_compute_the_same(name, reverse, unroll):
    f = looped(ts.lax.scan, reverse=reverse, unroll=unroll)
    close((ts.jit(f) if name == "in a program" else f)(W, C, XS), looped(by_hand, reverse=reverse)(W, C, XS))


def test_written_out_rounds_stand_in_one_body():
    text = ts.make_graph(looped(ts.lax.scan, unroll=4))(W, C, torch.zeros(12, 2, 4))
    assert text.count("aten.tanh.default") == 4
    assert ") 3 times:" in text


@pytest.mark.parametrize("name", ["in a program", "in Python"])
def test_a_scan_of_no_rounds_returns_the_first_carry_and_nothing(name):
    f = looped(ts.lax.scan)
    close((ts.jit(f) if name == "in a program" else f)(W, C, XS[:0]), (C, torch.zeros(0, 2)))


def test_the_gradient_of_no_rounds_is_that_of_the_first_carry():
    close(ts.jit(ts.grad(total(ts.lax.scan), (0, 1, 2)))(W, C, XS[:0]), (0 * W, 2 * C, XS[:0]))


def test_a_scan_without_rows_has_a_length():
    f = ts.jit(lambda c: ts.lax.scan(lambda c, _: (c * 2, c), c, length=5))
    close(f(torch.tensor(1.0)), (torch.tensor(32.0), torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])))


def nested(loop):
    def outer(c, xs):
        return loop(lambda c, x: cell(W, c, x), c, xs)

    return lambda w, c, xs: loop(outer, c, xs * w.sum())[1].sum()


def test_a_scan_in_a_scan_and_its_gradient_are_the_loops():
    xs = normal(7, 3, 2, 2, 4)
    close(ts.jit(nested(ts.lax.scan))(W, C, xs), nested(by_hand)(W, C, xs), rtol=1e-4, atol=1e-5)
    expected = torch.func.grad(nested(by_hand), (0, 1, 2))(W, C, xs)
    close(ts.jit(ts.grad(nested(ts.lax.scan), (0, 1, 2)))(W, C, xs), expected, rtol=1e-4, atol=1e-5)
    compiled = ts.jit(nested(ts.lax.scan)).lower(W, C, xs).compile()
    assert compiled.cost_analysis().flops == 6 * 2 * 2 * 4 * 4


def test_a_scan_of_a_gradient_is_the_loop_of_it():
    def step(grad):
        return lambda c, x: (c - 0.1 * grad(lambda c: (torch.tanh(c @ W) - x).pow(2).sum())(c), c.sum())

    got = ts.jit(lambda c, xs: ts.lax.scan(step(ts.grad), c, xs))(C, XS)
    close(got, by_hand(step(torch.func.grad), C, XS), rtol=1e-4, atol=1e-5)


def test_a_body_that_stops_gradients_stops_them_in_each_round():
    def f(loop):
        return lambda c: loop(lambda c, x: (c.detach() * c + x, c.sum()), c, XS)[1].sum()

    close(ts.jit(ts.grad(f(ts.lax.scan)))(C), torch.func.grad(f(by_hand))(C), rtol=1e-4, atol=1e-5)


def test_a_scan_closes_over_what_is_there_at_each_call():
    held = {"w": W}
    f = ts.jit(lambda c, xs: ts.lax.scan(lambda c, x: cell(held["w"], c, x), c, xs))
    close(f(C, XS), looped(by_hand)(W, C, XS))
    held["w"] = 2 * W
    close(f(C, XS), looped(by_hand)(2 * W, C, XS))


def test_the_same_function_outside_of_jit_is_traced_once():
    traced = []

    def body(c, x):
        traced.append(1)
        return c + x, None

    for _ in range(3):
        ts.lax.scan(body, ts.array(0.0), ts.array([1.0, 2.0]))
    assert len(traced) == 1


def test_an_error_in_a_round_names_the_op():
    xs = torch.tensor([0, 1, 9])
    made = ts.jit(lambda v, xs: ts.lax.scan(lambda c, i: (c + v.index_select(0, i[None]).sum(), None), 0.0, xs)[0])
    with pytest.raises(ts.RemoteError, match=r"index_select"):
        made(torch.ones(3), xs).item()


# ---- what is refused -------------------------------------------------------------------------------------------------

REFUSED = {
    "a carry of another shape": (
        lambda: ts.lax.scan(lambda c, x: (torch.stack([c, c]), None), torch.tensor(1.0), torch.ones(3)),
        ts.DtypeError,
        r"changes from round to round[^~]*carry: given f32\[\], returned f32\[2\]",
    ),
    "a carry of another dtype": (
        lambda: ts.lax.scan(lambda c, x: ({"n": c["n"] + x}, None), {"n": 0}, torch.ones(3)),
        ts.DtypeError,
        r"carry\['n'\]: given i64\[\], returned f32\[\]",
    ),
    "a carry of another tree": (
        lambda: ts.lax.scan(lambda c, x: ((c, c), None), torch.tensor(1.0), torch.ones(3)),
        ts.DtypeError,
        r"changes from round to round",
    ),
    "no pair": (
        lambda: ts.lax.scan(lambda c, x: c + x, torch.tensor(1.0), torch.ones(3)),
        ts.DtypeError,
        r"returns a pair",
    ),
    "rows of different lengths": (
        lambda: ts.lax.scan(lambda c, x: (c, x), torch.tensor(1.0), (torch.ones(3), torch.ones(4))),
        ts.MappingError,
        r"different numbers of rows[^~]*xs\[0\]: 3 rows[^~]*xs\[1\]: 4 rows",
    ),
    "another length": (
        lambda: ts.lax.scan(lambda c, x: (c, x), torch.tensor(1.0), torch.ones(3), length=4),
        ts.MappingError,
        r"not the number of rows",
    ),
    "no length": (lambda: ts.lax.scan(lambda c, _: (c, c), torch.tensor(1.0)), ts.MappingError, r"has no length"),
    "a value without rows": (
        lambda: ts.lax.scan(lambda c, x: (c, x), torch.tensor(1.0), torch.tensor(1.0)),
        ts.MappingError,
        r"have rows",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_scan_is_refused(name):
    call, kind, words = REFUSED[name]
    for run in (call, ts.jit(call)):
        with pytest.raises(kind, match=words):
            run()


def test_a_gradient_through_a_body_with_a_derivative_of_its_own_is_refused_in_a_program():
    def body(c, x):
        with torch.no_grad():
            c = c * 2
        return c + x, None

    with pytest.raises(ts.DtypeError, match=r"a derivative of its own"):
        ts.jit(ts.grad(lambda c: ts.lax.scan(body, c, torch.ones(3))[0]))(torch.tensor(1.0))


def test_check_vma_follows_a_carry_through_the_rounds():
    mesh = ts.make_mesh((8,), ("a",))

    def of(body):
        f = lambda xs: ts.lax.scan(body, torch.zeros(2), xs)[0]  # noqa: E731
        return ts.shard_map(f, mesh=mesh, in_specs=ts.P(None, "a"), out_specs=ts.P())

    close(of(lambda c, x: (c + ts.lax.psum(x, "a"), None))(torch.ones(3, 16)), torch.full((2,), 24.0))
    with pytest.raises(ts.ShardingError, match="the carry of a loop changes the axes along which it varies"):
        of(lambda c, x: (c + x, None))(torch.ones(3, 16))

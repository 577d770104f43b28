"""`checkpoint`: the same values and derivatives everywhere, less memory, and operations that are made again."""

import pytest
import torch
import torch.utils.checkpoint

import tinyshard as ts
from tests.extent import pairwise

DEPTH, WIDTH, BATCH = 8, 16, 64
POLICIES = ts.checkpoint_policies


@pytest.fixture(autouse=True)
def local():
    ts.init(devices=8, runtime="local")


def normal(number, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(number))


X, W = normal(1, 8, 5), normal(2, 5, 5)


def block(x):
    return torch.tanh(torch.sin(x @ W) * 2)


def loss(f):
    return lambda x: f(x).sum()


def same(got, expected):
    torch.testing.assert_close(torch.as_tensor(ts.device_get(got)), expected)


def slopes(f, x=X):
    """The gradient by torch alone."""
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(f(leaf), leaf)[0]


def summed(x):
    return torch.sin(ts.lax.psum(torch.sin(x), "i"))


def looped(f):
    def loss(x):
        carry, each = ts.lax.scan(lambda c, _: (f(c), c.sum()), x, None, length=4)
        return carry.sum() + each.sum()

    return loss


def by_hand(x):
    total = 0
    for _ in range(4):
        total, x = total + x.sum(), block(x)
    return x.sum() + total


MESH = ((8,), ("i",))
EXPECTED = slopes(loss(block))

# what is done with a checkpointed block, and what torch alone makes of the block
CALLS = {
    "grad": (lambda f, x: ts.grad(loss(f))(x), lambda: EXPECTED),
    "jit of grad": (lambda f, x: ts.jit(ts.grad(loss(f)))(x), lambda: EXPECTED),
    "grad of jit": (lambda f, x: ts.grad(ts.jit(loss(f)))(x), lambda: EXPECTED),
    "vmap of grad": (lambda f, x: ts.vmap(ts.grad(loss(f)))(x), lambda: EXPECTED),
    "grad of vmap": (lambda f, x: ts.grad(loss(ts.vmap(f)))(x), lambda: EXPECTED),
    "pmap of grad": (lambda f, x: ts.pmap(ts.grad(loss(f)))(x), lambda: EXPECTED),
    "grad of pmap": (lambda f, x: ts.grad(loss(ts.pmap(f)))(x), lambda: EXPECTED),
    "grad of shard_map": (
        lambda f, x: ts.grad(loss(ts.shard_map(f, mesh=ts.make_mesh(*MESH), in_specs=ts.P("i"), out_specs=ts.P("i"))))(
            x
        ),
        lambda: EXPECTED,
    ),
    "jvp": (lambda f, x: ts.jvp(f, (x,), (x,))[1], lambda: torch.func.jvp(block, (X,), (X,))[1]),
    "hessian": (
        lambda f, x: ts.jit(ts.hessian(loss(f)))(x[0]),
        lambda: torch.autograd.functional.hessian(loss(block), X[0]),
    ),
    "nested": (
        lambda f, x: ts.grad(loss(ts.checkpoint(lambda x: f(f(x)))))(x),
        lambda: slopes(lambda x: block(block(x)).sum()),
    ),
    "the body of a scan": (lambda f, x: ts.jit(ts.grad(looped(f)))(x), lambda: slopes(by_hand)),
    "a scan inside": (lambda f, x: ts.jit(ts.grad(ts.checkpoint(looped(f))))(x), lambda: slopes(by_hand)),
}


PUTS = {"plain tensors": lambda x: x, "Arrays": ts.array}
SAVED = {"no policy": None, "dots saved": POLICIES.dots_saveable}


@pytest.mark.parametrize("name, saved, operand", pairwise(list(CALLS), list(SAVED), list(PUTS)))
def test_a_checkpointed_block_has_the_derivatives_of_the_block_everywhere(name, saved, operand):
    (call, expected), policy, put = CALLS[name], SAVED[saved], PUTS[operand]
    same(call(ts.checkpoint(block, policy=policy), put(X)), expected())


def test_a_result_of_plain_tensors_is_a_plain_tensor_and_one_of_arrays_an_array():
    assert type(ts.checkpoint(block)(X)) is torch.Tensor
    assert isinstance(ts.checkpoint(block)(ts.array(X)), ts.Array)


@pytest.mark.parametrize("policy", [None, POLICIES.everything_saveable])
def test_collectives_inside_are_differentiated(policy):
    f = ts.checkpoint(summed, policy=policy)
    total = torch.sin(X).sum(0)
    expected = 8 * torch.cos(total) * torch.cos(X)  # each device uses every other one's value
    same(ts.pmap(ts.grad(loss(f)), axis_name="i")(X), expected)
    same(ts.vmap(ts.grad(loss(f)), axis_name="i")(X), expected)
    same(ts.jit(ts.vmap(ts.grad(loss(f)), axis_name="i"))(X), expected)


@pytest.mark.parametrize("wrap", [lambda f: f, ts.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("put", [lambda x: x, ts.array], ids=["plain tensors", "Arrays"])
def test_trees_none_python_numbers_and_what_is_closed_over(wrap, put):
    def f(params, weight):
        def inner(params, scale):
            return {"value": torch.sin(params["x"] @ weight) * params["k"] * scale, "nothing": None}

        made = ts.checkpoint(inner)(params, 3.0)
        assert made["nothing"] is None
        return made["value"].sum()

    slopes, of_weight = wrap(ts.grad(f, argnums=(0, 1)))({"x": put(X), "k": put(torch.tensor(2.0))}, put(W))
    g = 6 * torch.cos(X @ W)
    same(slopes["x"], g @ W.T)
    same(slopes["k"], 3 * torch.sin(X @ W).sum())
    same(of_weight, X.T @ g)


@pytest.mark.parametrize("put", [lambda x: x, ts.array], ids=["plain tensors", "Arrays"])
@pytest.mark.parametrize("policy", [None, POLICIES.everything_saveable])
def test_backward_goes_through_it(put, policy):
    x, weight = (put(v).detach().requires_grad_() for v in (X, W))
    ts.checkpoint(lambda x: torch.sin(x @ weight), policy=policy)(x).sum().backward()
    g = torch.cos(X @ W)
    same(x.grad, g @ W.T)
    same(weight.grad, X.T @ g)


def test_loops_and_branches_inside_are_run_on_plain_tensors():
    def f(x):
        carry, rows = ts.lax.scan(lambda c, t: (torch.sin(c) * t, c), x, torch.arange(1.0, 4.0), reverse=True)
        large = ts.lax.while_loop(lambda c: c.sum() < 5, lambda c: c + 1, carry)
        return ts.lax.cond(rows.sum() > 0, lambda a: a * rows.sum(), lambda a: -a, large)

    x = torch.tensor([0.3, 0.5])
    torch.testing.assert_close(ts.checkpoint(f)(x), f(x))
    torch.testing.assert_close(ts.checkpoint(f)(-x), f(-x))

    def g(x):  # while_loop has no gradient
        carry, rows = ts.lax.scan(lambda c, t: (torch.sin(c) * t, c), x, torch.arange(1.0, 4.0))
        return ts.lax.cond(rows.sum() > 0, torch.sin, torch.cos, carry).sum()

    torch.testing.assert_close(ts.grad(ts.checkpoint(g))(x), ts.grad(g)(x))
    torch.testing.assert_close(ts.linearize(g, x)[1](torch.ones(2)), ts.jvp(g, (x,), (torch.ones(2),))[1])


def test_a_module_whose_parameters_are_those_of_functional_call():
    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(5, 5)

        def forward(self, x):
            return torch.tanh(ts.checkpoint(self.inner)(x))

    net = Network()
    net(X).sum().backward()
    params = {name: p.detach() for name, p in net.named_parameters()}
    found = ts.jit(ts.grad(lambda p, x: torch.func.functional_call(net, p, (x,)).sum()))(params, X)
    for name, p in net.named_parameters():
        same(found[name], p.grad)


def test_static_arguments_and_the_decorator():
    @ts.checkpoint(static_argnums=1)
    def f(x, kind):
        return torch.sin(x) if kind == "sin" else torch.cos(x)

    same(ts.grad(lambda x: f(x, "sin").sum())(X), torch.cos(X))
    same(ts.grad(lambda x: f(x, "cos").sum())(X), -torch.sin(X))
    assert ts.remat is ts.checkpoint


# ---- what it costs ----------------------------------------------------------------------------------------------


def deep(f):
    def loss(weights, x):
        for w in weights:
            x = f(x, w)
        return x.square().sum()

    return ts.grad(loss)


def layer(x, w):
    return torch.tanh(torch.tanh(torch.tanh(x @ w) * 2) * 3)


def compiled(f):
    weights = [normal(i, WIDTH, WIDTH) / 4 for i in range(DEPTH)]
    found = ts.jit(deep(f))
    for got, expected in zip(found(weights, X0), deep(layer)(weights, X0), strict=True):
        torch.testing.assert_close(ts.device_get(got), expected, rtol=1e-4, atol=1e-5)
    return found.lower(weights, X0).compile()


X0 = normal(9, BATCH, WIDTH)
PRODUCT = 2 * BATCH * WIDTH * WIDTH
VALUE = BATCH * WIDTH * 4

# layer -> how many of its values are held for the gradient, how often a layer's product and its three tanh are made
COSTS = {
    "without": (layer, 3, 1, 1),
    "checkpoint": (ts.checkpoint(layer), 1, 2, 2),
    "nothing saved": (ts.checkpoint(layer, policy=POLICIES.nothing_saveable), 1, 2, 2),
    "dots saved": (ts.checkpoint(layer, policy=POLICIES.dots_saveable), 2, 1, 2),
    "dots of two matrices saved": (ts.checkpoint(layer, policy=POLICIES.dots_with_no_batch_dims_saveable), 2, 1, 2),
    "everything saved": (ts.checkpoint(layer, policy=POLICIES.everything_saveable), 3, 1, 1),
}


@pytest.mark.parametrize(("f", "values", "products", "tanhs"), COSTS.values(), ids=COSTS)
def test_memory_is_held_and_operations_are_made_again_as_the_policy_says(f, values, products, tanhs):
    found, most = compiled(f), compiled(layer).memory_analysis().peak_nbytes
    # backwards a layer has the products for w and, but for the first one, for x
    assert found.cost_analysis().flops == PRODUCT * ((products + 2) * DEPTH - 1)
    assert found.as_text().count("aten.tanh.default") == 3 * DEPTH * tanhs
    less = most - found.memory_analysis().peak_nbytes
    # each layer holds (3 - values) fewer; while one is computed again, its own are there
    assert abs(less - (3 - values) * DEPTH * VALUE) <= 4 * VALUE


def test_policies_by_name_save_what_is_named_and_no_more():
    def f(x):
        return torch.exp(ts.checkpoint_name(torch.exp(ts.checkpoint_name(torch.sin(x), "a")), "b"))

    def sines(policy):
        text = ts.jit(ts.grad(loss(ts.checkpoint(f, policy=policy)))).lower(X).compile().as_text()
        return text.count("aten.sin.default"), text.count("aten.exp.default")

    assert sines(None) == (2, 4)
    assert sines(POLICIES.save_only_these_names("a")) == (1, 4)
    assert sines(POLICIES.save_only_these_names("b")) == (1, 3)  # the sine is not needed once exp of it is there
    assert sines(POLICIES.save_any_names_but_these("b")) == (1, 4)
    assert sines(POLICIES.save_anything_except_these_names("a", "b")) == (1, 2)  # the op that a name is given to
    first, second = POLICIES.save_only_these_names("a"), POLICIES.save_only_these_names("b")
    assert sines(POLICIES.save_from_both_policies(first, second)) == (1, 3)
    assert sines(lambda op, *types, **params: op == "aten.exp.default" and types[0].shape == (8, 5)) == (1, 2)
    same(ts.grad(loss(ts.checkpoint(f, policy=first)))(X), slopes(lambda x: torch.exp(torch.exp(torch.sin(x))).sum()))


def test_in_a_mapped_function_equal_steps_are_not_merged_unless_asked_for():
    def tanhs(**named):
        f = ts.checkpoint(lambda x: torch.tanh(torch.tanh(x)), **named)
        return ts.pmap(ts.grad(loss(f))).lower(X).compile().as_text().count("aten.tanh.default")

    assert tanhs() == 4
    assert tanhs(prevent_cse=False) == 2


def test_a_gathered_weight_is_gathered_again():
    """FSDP by hand: the whole weight is there forwards, and again backwards, and not between."""

    def gathers(wrap):
        def f(w, x):
            return torch.sin(x @ ts.lax.all_gather(w, "i", tiled=True)).sum()

        mapped = ts.pmap(ts.grad(wrap(f)), axis_name="i", in_axes=0)
        return mapped.lower(normal(1, 8, 2, 4), normal(2, 8, 3, 16)).compile().as_text().count(" all_gather(")

    assert gathers(lambda f: f) == 1
    assert gathers(ts.checkpoint) == 2


@pytest.mark.parametrize("policy", [POLICIES.dots_saveable, POLICIES.everything_saveable])
def test_a_gradient_that_is_wanted_in_parts_is_scattered_under_a_policy_too(policy):
    mesh = ts.AbstractMesh((8,), ("d",))

    def laid(x, spec):
        return ts.lax.with_sharding_constraint(x, ts.NamedSharding(mesh, spec))

    def described(shape):
        return ts.ShapeDtypeStruct(shape, torch.float32, sharding=ts.NamedSharding(mesh, ts.P("d")))

    gathered = ts.custom_vjp(lambda w: laid(w, ts.P()))
    gathered.defvjp(lambda w: (laid(w, ts.P()), None), lambda _, g: (laid(g, ts.P("d")),))
    block = ts.checkpoint(lambda w, x: torch.sin(x @ gathered(w)), policy=policy)
    step = ts.grad(lambda w, x: block(w, x).sum())
    compiled = ts.jit(step).lower(described((16, 16)), described((64, 16))).compile()
    assert {each.kind for each in compiled.cost_analysis().traffic} == {"all_gather", "reduce_scatter"}


def test_a_graph_shows_it():
    text = str(ts.make_graph(ts.grad(loss(ts.checkpoint(torch.sin))))(X))
    assert text.count("checkpoint(") == 2


# ---- torch's own ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("put", [lambda x: x, ts.array], ids=["plain tensors", "Arrays"])
def test_torchs_checkpoint_in_a_traced_or_transformed_function(put, use_reentrant):
    calls = []

    def f(x):
        def inner(x, flag, scale=1.0):
            assert flag is True  # what is not a tensor is passed as it is
            calls.append(1)
            return block(x) * scale

        return torch.utils.checkpoint.checkpoint(inner, x, True, use_reentrant=use_reentrant).sum()

    same(ts.jit(ts.grad(f))(put(X)), EXPECTED)
    same(ts.grad(f)(put(X)), EXPECTED)
    same(ts.grad(ts.jit(f))(put(X)), EXPECTED)
    text = ts.jit(ts.grad(f)).lower(put(X)).compile().as_text()
    assert text.count("aten.tanh.default") == 2  # forwards, and again
    leaf = put(X).detach().requires_grad_()
    f(leaf).backward()
    same(leaf.grad, EXPECTED)


class Seven(torch.autograd.Function):
    """A square whose gradient is 7 x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return 7 * g * ctx.saved_tensors[0]


# where a torch.autograd.Function is called
PLACES = {
    "jit of grad": lambda f, x: ts.jit(ts.grad(loss(f)))(x),
    "grad of jit": lambda f, x: ts.grad(ts.jit(loss(f)))(x),
    "pmap of grad": lambda f, x: ts.pmap(ts.grad(loss(f)))(x),
    "vmap of grad": lambda f, x: ts.jit(ts.vmap(ts.grad(loss(f))))(x),
    "checkpoint": lambda f, x: ts.jit(ts.grad(loss(ts.checkpoint(f))))(x),
    "torch's checkpoint": lambda f, x: ts.jit(
        ts.grad(lambda x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False).sum())
    )(x),
}


@pytest.mark.parametrize("call", PLACES.values(), ids=PLACES)
def test_an_autograd_function_has_its_own_gradient_in_traces_and_under_checkpoint(call):
    same(call(Seven.apply, ts.array(X)), 7 * X)


def test_an_autograd_function_of_the_old_form_has_it_on_torchs_tape():
    class Old(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**2

        @staticmethod
        def backward(ctx, g):
            return 7 * g * ctx.saved_tensors[0]

    leaf = X.clone().requires_grad_()
    ts.jit(loss(Old.apply))(leaf).backward()
    same(leaf.grad, 7 * X)
    with pytest.raises(RuntimeError, match="must override the setup_context"):  # torch.func's own rule
        ts.grad(loss(Old.apply))(X)


# ---- errors -----------------------------------------------------------------------------------------------------


def test_what_checkpoint_refuses():
    with pytest.raises(TypeError, match=r"a policy of checkpoint is a function[^?]*dots_saveable"):
        ts.checkpoint(block, policy="dots")
    with pytest.raises(TypeError, match="checkpoint takes a function"):
        ts.checkpoint(3)
    with pytest.raises(TypeError, match="checkpoint_name takes a name"):
        ts.checkpoint_name(X, 3)
    with pytest.raises(TypeError, match="no argument 'concrete'"):
        ts.checkpoint(block, concrete=True)
    with pytest.raises(TypeError):
        ts.checkpoint(lambda x: x if x.sum() > 0 else -x)(X)

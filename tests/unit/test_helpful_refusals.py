"""What is said of names and arguments that JAX has and tinyshard has not, and of ways in that do not fit."""

import functools
import importlib
import re

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim import adam, sgd

import tinyshard as ts
from tests.extent import every
from tinyshard import P
from tinyshard.core.errors import TracedValueError
from tinyshard.core.jax_hints import ARGUMENTS, NAMES, OF_ARRAYS, WITHOUT_EFFECT

pytestmark = pytest.mark.usefixtures("local")


@pytest.mark.parametrize("name", NAMES)
def test_no_name_of_the_table_of_absent_ones_is_there(name):
    module = importlib.import_module(name)
    assert not [missing for missing in NAMES[name] if missing in module.__all__]
    for missing, instead in NAMES[name].items():
        with pytest.raises(AttributeError, match=missing) as caught:
            getattr(module, missing)
        assert instead in str(caught.value)


def test_what_jaxs_arrays_have_and_these_have_not_says_what_to_write():
    x = ts.array([1.0, 2.0])
    for name, instead in OF_ARRAYS.items():
        assert not hasattr(x, name)
        for call in (lambda name=name: getattr(x, name), lambda name=name: ts.jit(lambda x: getattr(x, name))(x)):
            with pytest.raises(AttributeError, match=f"object has no attribute '{name}'") as caught:
                call()
            assert instead in str(caught.value)
    with pytest.raises(AttributeError, match=r"object has no attribute 'no_such'$"):
        x.no_such  # noqa: B018


def test_an_absent_name_of_lax_is_explained_at_the_top_too():
    for name, instead in (("select", r"torch\.where"), ("top_k", r"torch\.topk")):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'(?s:.*){instead}"):
            getattr(ts, name)


def test_a_misspelt_name_gets_those_like_it_and_torchs_own_are_named():
    for ask, told in [
        (lambda: ts.shardmap, "ts.shard_map"),
        (lambda: ts.device_putt, "ts.device_put"),
        (lambda: ts.lax.all_gater, "ts.lax.all_gather"),
        (lambda: ts.random.unifrom, "ts.random.uniform"),
        (lambda: ts.einsum, "torch.einsum"),
        (lambda: ts.lax.rsqrt, "torch.rsqrt"),
    ]:
        with pytest.raises(AttributeError, match=told):
            ask()
    assert not hasattr(ts, "no_such_name")
    with pytest.raises(ImportError):
        from tinyshard import pjit  # noqa: F401


def test_arguments_without_effect_are_taken_and_others_named():
    assert ts.jit(torch.sin, donate_argnums=0, keep_unused=True)(torch.zeros(2)).tolist() == [0, 0]
    assert ts.jit(donate_argnames="x")(torch.sin)(torch.zeros(2)).tolist() == [0, 0]
    assert ts.pmap(torch.sin, donate_argnums=(0,))(torch.zeros(2)).tolist() == [0, 0]
    assert ts.make_mesh((8,), ("a",), axis_types=None).shape == {"a": 8}
    assert ts.Mesh(ts.devices(), "a", axis_types=None) == ts.make_mesh((8,), ("a",))
    assert ts.AbstractMesh((8,), "a", axis_types=None).shape == {"a": 8}
    mesh, device = ts.make_mesh((8,), ("a",)), ts.devices()[0]
    assert ts.NamedSharding(mesh, P("a"), memory_kind=None) == ts.NamedSharding(mesh, P("a"))
    for wrong, told in [
        (lambda: ts.jit(torch.sin, backend="cpu"), r"jit has no argument 'backend'(?s:.*)ts\.init\(platform"),
        (lambda: ts.jit(torch.sin, static_argnum=0), "static_argnums="),
        (lambda: ts.pmap(torch.sin, axisname="i"), "axis_name="),
        (lambda: ts.make_mesh((8,), ("a",), axis_type=None), "axis_types="),
        (lambda: ts.shard_map(torch.sin, in_specs=P(), out_specs=P(), check_rep=False), "check_vma="),
        (lambda: ts.shard_map(in_spec=P()), "in_specs="),
        (lambda: ts.NamedSharding(mesh, P("a"), memory_kind="device"), "NamedSharding has no argument 'memory_kind'"),
        (lambda: ts.SingleDeviceSharding(device, memory_kind="pinned_host"), r"ts\.device_get\(x\)"),
        (lambda: ts.sharding.PositionalSharding([device], memory_kind="device"), "a sharding names devices alone"),
    ]:
        with pytest.raises(TypeError, match=told):
            wrong()


DRAWS = {
    **dict.fromkeys(("bits", "uniform", "normal", "exponential", "gumbel", "laplace"), ((8,),)),
    **dict.fromkeys(("cauchy", "logistic", "rademacher"), ((8,),)),
    "truncated_normal": (-1.0, 1.0, (8,)),
    "randint": ((8,), 0, 9),
    "bernoulli": (0.5, (8,)),
    "permutation": (8,),
    "choice": (8, (8,)),
    "categorical": (torch.zeros(2), -1, (8,)),
}


@pytest.mark.parametrize("name", every(3, DRAWS))
def test_a_draw_takes_a_sharding_as_jaxs_does(name):
    sharding = ts.NamedSharding(ts.make_mesh((8,), ("a",)), P("a"))

    def draw(key, **named):
        return getattr(ts.random, name)(key, *DRAWS[name], **named)

    key = ts.random.key(0)
    with pytest.raises(TypeError, match="mistyped"):
        draw(key, mistyped=1)
    if name == "choice":  # JAX's has no such argument
        with pytest.raises(TypeError, match=r"choice has no argument 'out_sharding'(?s:.*)ts\.reshard\(draw"):
            draw(key, out_sharding=sharding)
        return
    for call in (draw, ts.jit(draw, static_argnames="out_sharding")):
        placed = call(key, out_sharding=sharding)
        assert placed.sharding == sharding
        assert placed.tolist() == draw(key, out_sharding=None).tolist()


class Scaler:
    def __init__(self):
        self.scale = torch.tensor(2.0)

    def plain(self, x):
        return x * self.scale

    @ts.jit
    def jitted(self, x):
        return x * self.scale


def test_jit_of_a_method_says_how_to_jit_it():
    for call in (lambda: Scaler().jitted(torch.ones(2)), lambda: ts.jit(Scaler.plain)(Scaler(), torch.ones(2))):
        with pytest.raises(ts.DtypeError, match=r"ts\.jit\(obj\.method\), or static_argnums=0 for self"):
            call()
    for works in (ts.jit(Scaler().plain), lambda x: ts.jit(Scaler.plain, static_argnums=0)(Scaler(), x)):
        assert works(torch.ones(2)).tolist() == [2, 2]


def test_cond_takes_arrays_outside_of_jit():
    x = ts.device_put(torch.arange(8.0), ts.NamedSharding(ts.make_mesh((8,), ("a",)), P("a")))
    for sign, wanted in ((1, torch.sin), (-1, torch.cos)):
        got = torch.cond(sign * x.sum() > 0, torch.sin, torch.cos, (x,))
        torch.testing.assert_close(ts.device_get(got), wanted(torch.arange(8.0)))
        assert got.sharding.is_equivalent_to(x.sharding, 1)
    each = ts.vmap(lambda v: torch.cond(v > 3, torch.sin, torch.cos, (v,)))(x)
    values = torch.arange(8.0)
    torch.testing.assert_close(ts.device_get(each), torch.where(values > 3, values.sin(), values.cos()))
    slope = ts.grad(lambda v: torch.cond(v.sum() > 3, torch.sin, torch.cos, (v,)).sum())(x)
    torch.testing.assert_close(ts.device_get(slope), values.cos())
    assert torch.cond(True, torch.sin, torch.cos, (torch.zeros(1),)).tolist() == [0]


def test_the_text_of_a_mapped_function_shows_its_body():
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    body = lambda v: torch.sin(v) * ts.lax.psum(v, "a")  # noqa: E731
    mapped = ts.shard_map(body, mesh=mesh, in_specs=P("a", "b"), out_specs=P("a", "b"))
    assert str(ts.make_graph(lambda x: mapped(x) + 1)(torch.zeros(8, 2))).splitlines() == [
        "<lambda> on whole tensors",
        "  %0: f32[8, 2] = x",
        "  %1: f32[8, 2] = mapped(%0) over Mesh('a': 4, 'b': 2):",
        "      %0: f32[2, 1] = shard of %0, P('a', 'b')",
        "      %1: f32[2, 1] = aten.sin.default(%0)",
        "      %2: f32[2, 1] = all_reduce(%0, over=a, op=sum)",
        "      %3: f32[2, 1] = pcast(%2, over=a, to=varying)",
        "      %4: f32[2, 1] = aten.mul.Tensor(%1, %3)",
        "      return %4 as P('a', 'b')",
        "  %2: f32[8, 2] = item(%1, 0)",
        "  %3: f32[8, 2] = aten.add.Tensor(%2, 1)",
        "  return %3",
    ]


WRONG_SHAPES = {
    "cov of three dims": lambda x: torch.cov(x.reshape(2, 2, 3)),
    "cov with a weight too few": lambda x: torch.cov(x, fweights=torch.tensor([1, 2])),
    "cov with weights of another dtype": lambda x: torch.cov(x, aweights=torch.tensor([1, 2, 3])),
    "gaussian_nll_loss with var of another shape": lambda x: F.gaussian_nll_loss(x, x + 1, torch.ones(3)),
    "gaussian_nll_loss with an unknown reduction": lambda x: F.gaussian_nll_loss(x, x + 1, x, reduction="means"),
}


@pytest.mark.parametrize("what", WRONG_SHAPES)
def test_what_torch_refuses_without_looking_at_values_a_trace_refuses_too(what):
    function, x = WRONG_SHAPES[what], torch.rand(4, 3)
    for f in (function, ts.jit(function)):
        with pytest.raises((RuntimeError, ValueError, ts.DtypeError)):
            f(x)


def test_a_variance_is_of_a_shape_that_torch_takes_and_nan_where_it_is_negative():
    x = torch.rand(4, 3, 2)
    for var in (torch.rand(4, 3, 2), torch.rand(4, 3), torch.rand(4, 3, 1), torch.rand(4, 1, 2)):
        wanted = F.gaussian_nll_loss(x, x + 1, var, reduction="none")
        made = ts.jit(lambda x, var: F.gaussian_nll_loss(x, x + 1, var, reduction="none"))(x, var)
        torch.testing.assert_close(ts.device_get(made), wanted)
    assert ts.jit(lambda x: F.gaussian_nll_loss(x, x + 1, -x))(x).isnan()


def _adam(x):
    state = [torch.zeros_like(x)], [torch.zeros_like(x)], [], [torch.tensor(1.0)]
    rates = {"beta1": 0.9, "beta2": 0.99, "lr": 0.1, "weight_decay": 0.0, "eps": 1e-8}
    adam.adam([x * 1], [x * 2], *state, fused=True, amsgrad=False, maximize=False, **rates)


def _sgd(x):
    rates = {"momentum": 0.9, "lr": 0.1, "weight_decay": 0.0, "dampening": 0.0, "nesterov": False}
    sgd.sgd([x * 1], [x * 2], [torch.zeros_like(x)], fused=True, maximize=False, **rates)


def _unscale(x):
    torch._amp_foreach_non_finite_check_and_unscale_([x * 1], torch.zeros(()), torch.ones(()))


@pytest.mark.parametrize("step", [_adam, _sgd, _unscale])
def test_a_fused_step_of_an_optimizer_says_what_to_write(step):
    def stepped(x):
        step(x)
        return x

    step(torch.ones(4))
    x = ts.array(torch.ones(4))
    for call in (ts.jit(stepped), ts.pmap(stepped)):
        with pytest.raises(ts.DtypeError, match="a list of tensors, and more") as caught:
            call(x)
        assert "ts.optim.functional(torch.optim.AdamW" in str(caught.value)
    with pytest.raises(ts.ImmutableError, match=r"ops that return new tensors|ts\.optim\.functional"):
        step(x)


def test_a_custom_op_of_a_list_and_more_is_told_nothing_of_optimizers():
    @torch.library.custom_op("tests_of_refusals::both", mutates_args=())
    def both(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return x + 1, [x + 2]

    both.register_fake(lambda x: (torch.empty_like(x), [torch.empty_like(x)]))
    for call in (both, ts.jit(both)):
        with pytest.raises(ts.DtypeError, match="an op for the list, and one for the rest") as caught:
            call(ts.array(torch.ones(2)))
        assert "optimizer" not in str(caught.value)


def test_python_adds_no_similar_name_to_what_is_used_in_place_of_an_attribute():
    """Python looks for one by the error's `name`, which it fills in itself where it was not given."""
    x = ts.array(1.0)
    for name, looked_for in (("astype", None), ("dtyp", "dtyp")):
        with pytest.raises(AttributeError) as caught:
            getattr(x, name)
        assert caught.value.name == looked_for


def test_a_trace_of_torchs_own_that_meets_an_array_is_refused():
    """`linearize` gave memory that nothing had written."""
    x = ts.array([1.0, 2.0])
    with pytest.raises(TracedValueError, match=r"ts\.jvp"):
        torch.func.linearize(torch.sin, x)
    with pytest.raises(TracedValueError, match="lower"):
        make_fx(lambda y: torch.mul(y.sin(), x))(torch.ones(2))
    assert x.sin().shape == (2,)


# ---- what the hints say is true -------------------------------------------------------------------------------------

HINTS = [
    *(hint for names in NAMES.values() for hint in names.values()),
    *OF_ARRAYS.values(),
    *(hint for table in (ARGUMENTS, WITHOUT_EFFECT) for names in table.values() for hint in names.values()),
]
NO_FUNCTIONS = {
    torch.cond,
    torch.func.functional_call,
    torch.save,
    torch.load,
}  # of torch's that are no ops, and take Arrays all the same


@functools.cache
def takes_tensors():
    """The functions of torch that hand an Array to its class, which decides what they do."""
    return {f for functions in torch.overrides.get_overridable_functions().values() for f in functions}


@pytest.mark.parametrize("hint", sorted(set(HINTS)))
def test_each_name_that_a_hint_recommends_is_there_and_takes_an_array(hint):
    x = ts.device_put(torch.ones(8), ts.NamedSharding(ts.make_mesh(8, "d"), P("d")))
    for root, path in re.findall(r"\b(ts|torch|x)((?:\.[a-zA-Z_]\w*)+)", hint):
        found = {"ts": ts, "torch": torch, "x": x}[root]
        for name in path.split(".")[1:]:
            found = getattr(found, name)
        is_function = root == "torch" and callable(found) and not isinstance(found, type)
        is_of_trees = getattr(found, "__module__", "") == "torch.utils._pytree"
        assert not is_function or is_of_trees or found in NO_FUNCTIONS | takes_tensors(), f"{root}{path}"


def test_a_name_of_torchs_is_said_to_work_on_arrays_where_torch_asks_their_class():
    for name in dir(torch):
        if name.startswith("_") or name in ts.__all__:
            continue
        with pytest.raises(AttributeError) as caught:
            ts.__getattr__(name)
        for own in re.findall(r"torch\.(\w+), which works on Arrays", str(caught.value)):
            assert getattr(torch, own) in takes_tensors(), name


def test_names_of_torchs_that_mean_something_else_here_say_what():
    for name, told in {
        "no_grad": r"x\.detach\(\)",
        "manual_seed": r"ts\.random\.key\(seed\)",
        "zeros": r"ts\.array\(torch\.zeros\(\.\.\.\)\)",
        "randint": r"dir\(ts\.random\)",
        "float32": r"try:  torch\.float32$",
        "distribute_tensor": r"ts\.device_put\(x, sharding\)",
        "init_device_mesh": r"ts\.make_mesh",
        "relu_": r"torch\.relu, which works on Arrays",
        "can_cast": r"try:  torch\.can_cast$",
        "broadcast_shapes": r"try:  torch\.broadcast_shapes$",
    }.items():
        with pytest.raises(AttributeError, match=told):
            getattr(ts, name)


def test_what_a_dtensor_has_points_to_what_does_it_here():
    x = ts.array([1.0])
    for name, told in {
        "full_tensor": "ts.device_get(x)",
        "to_local": "x.addressable_shards[i].data",
        "redistribute": "ts.device_put(x, sharding)",
        "placements": "x.sharding",
        "device_mesh": "x.sharding.mesh",
    }.items():
        with pytest.raises(AttributeError, match=re.escape(told)):
            getattr(x, name)


def test_arguments_of_jaxs_and_torchs_say_what_to_write():
    xs = torch.ones(3)
    assert ts.device_put(xs, donate=True, may_alias=False).tolist() == [1, 1, 1]
    assert ts.grad(torch.sum, holomorphic=False, allow_int=False)(xs).tolist() == [1, 1, 1]
    assert ts.random.key(3, impl="threefry2x32").shape == ts.random.PRNGKey(3, impl=None).shape == ()
    for wrong, told in [
        (lambda: ts.vmap(torch.sin, in_dims=0), "in_axes="),
        (lambda: ts.vmap(torch.sin, randomness="same"), r"ts\.random\.split"),
        (
            lambda: ts.hessian(torch.sum, chunk_size=2),
            r"no argument 'chunk_size'(?s:.*)ts\.jacfwd\(ts\.jac",
        ),
        (lambda: ts.checkpoint(torch.sin, concrete=True), r"no argument 'concrete'(?s:.*)static_argnums="),
        (lambda: ts.hessian(torch.sum, argnum=1), "argnums="),
        (lambda: ts.random.key(0, impl="rbg"), "the only one"),
        (lambda: ts.random.wrap_key_data([0, 1], impl="rbg"), "the only one"),
        (lambda: ts.device_put(xs, src=None), "device_put has no argument 'src'"),
    ]:
        with pytest.raises(TypeError, match=told):
            wrong()


def test_a_device_of_ours_in_torchs_to_points_to_device_put():
    x, device = ts.array([1.0, 2.0]), ts.devices()[1]
    for call in (
        lambda: x.to(device),
        lambda: x.to(device=device),
        lambda: x.to(ts.SingleDeviceSharding(device), torch.float64),
    ):
        with pytest.raises(ts.DtypeError, match=r"ts\.device_put\(x, device\)"):
            call()
    assert (
        x.to(torch.float64).dtype
        == x.to("cpu", torch.float64).dtype
        == x.to(dtype=torch.float64).dtype
        == torch.float64
    )


def test_a_device_of_torchs_with_memory_of_its_own_points_to_init_and_device_put():
    x, net = ts.array([1.0, 2.0]), torch.nn.Linear(2, 2)
    net.weight.data = ts.array(net.weight.detach())
    for call in (
        lambda: x.to("cuda"),
        lambda: x.to(device=torch.device("cuda", 1), dtype=torch.float64),
        lambda: x.to("mps", torch.float64),
        lambda: x.cuda(),
        lambda: net.to("cuda"),
        lambda: net.cuda(),
    ):
        with pytest.raises(ts.DtypeError, match=r"ts\.init\(platform='gpu'\)(?s:.*)ts\.device_put\(x, device\)"):
            call()
    assert x.to("meta").is_meta


def test_a_list_of_numbers_that_is_to_be_cut_is_said_to_be_a_tree():
    rows = ts.NamedSharding(ts.make_mesh(2, "d"), P("d"))
    for numbers in ([1.0, 2.0], (1, 2), [True, False]):
        with pytest.raises(ts.ShardingError, match=r"a list is a tree(?s:.*)ts\.device_put\(torch\.tensor"):
            ts.device_put(numbers, rows)
    assert [x.item() for x in ts.device_put([1.0, 2.0], ts.devices()[1])] == [1, 2]
    with pytest.raises(ts.ShardingError, match="rank"):
        ts.device_put([torch.tensor(1.0)], rows)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("name", ["psum", "pmean", "pmax", "pmin", "psum_scatter"])
def test_a_collective_that_computes_refuses_floats_of_8_bits_by_name(name, dtype):
    x = torch.ones(2, 2).to(dtype)
    for mapped in (ts.vmap, ts.pmap):
        with pytest.raises(
            ts.DtypeError, match=rf"{name} of 8-bit floats(?s:.*)ts\.lax\.{name}\(x\.to\(torch\.bfloat16\)"
        ):
            mapped(lambda v: getattr(ts.lax, name)(v, "i"), axis_name="i")(x)
    moved = ts.pmap(lambda v: ts.lax.ppermute(v, "i", [(0, 1), (1, 0)]), axis_name="i")(x)
    assert torch.equal(ts.device_get(moved).view(torch.uint8), x.view(torch.uint8))

"""Distributions with parameters: the same numbers on every mesh, in jit and under vmap; moments; derivatives; refusals.

That they are JAX's is held by test_random_parity.py.
"""

import math

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests.extent import every
from tests.rows import for_every_row

pytestmark = pytest.mark.usefixtures("local")

# name -> (draw of a shape, mean, variance)
DRAWS = {
    "maxwell": (lambda k, s: ts.random.maxwell(k, s), 2 * math.sqrt(2 / math.pi), 3 - 8 / math.pi),
    "lognormal": (lambda k, s: ts.random.lognormal(k, 0.5, s), math.exp(0.125), math.exp(0.25) * (math.exp(0.25) - 1)),
    "rayleigh": (lambda k, s: ts.random.rayleigh(k, 2.0, s), math.sqrt(2 * math.pi), 8 - 2 * math.pi),
    "double_sided_maxwell": (lambda k, s: ts.random.double_sided_maxwell(k, 1.0, 2.0, s), 1.0, 12.0),
    "pareto": (lambda k, s: ts.random.pareto(k, 6.0, s), 6 / 5, 6 / 25 / 4),
    "weibull_min": (lambda k, s: ts.random.weibull_min(k, 3.0, 2.0, s), 1.5 * math.sqrt(math.pi), 9 - 2.25 * math.pi),
    "triangular": (lambda k, s: ts.random.triangular(k, 0.0, 1.0, 2.0, s), 1.0, 1 / 6),
    "wald": (lambda k, s: ts.random.wald(k, 0.5, s), 0.5, 0.125),
    "geometric": (lambda k, s: ts.random.geometric(k, 0.25, s), 4.0, 12.0),
    "gamma": (lambda k, s: ts.random.gamma(k, 2.5, s), 2.5, 2.5),
    "gamma_below_1": (lambda k, s: ts.random.gamma(k, 0.5, s), 0.5, 0.5),
    "loggamma": (lambda k, s: ts.random.loggamma(k, 1.0, s), -0.5772157, math.pi**2 / 6),
    "beta": (lambda k, s: ts.random.beta(k, 2.0, 3.0, s), 0.4, 0.04),
    "chisquare": (lambda k, s: ts.random.chisquare(k, 3.0, s), 3.0, 6.0),
    "f": (lambda k, s: ts.random.f(k, 6.0, 20.0, s), 20 / 18, 2 * 400 * 24 / (6 * 324 * 16)),
    "t": (lambda k, s: ts.random.t(k, 10.0, s), 0.0, 1.25),
    "generalized_normal": (lambda k, s: ts.random.generalized_normal(k, 2.0, s), 0.0, 0.5),
    "poisson": (lambda k, s: ts.random.poisson(k, 4.0, s), 4.0, 4.0),
    "poisson_of_a_large_rate": (lambda k, s: ts.random.poisson(k, 40.0, s), 40.0, 40.0),
    "binomial": (lambda k, s: ts.random.binomial(k, 12, 0.75, s), 9.0, 2.25),
    "binomial_of_many": (lambda k, s: ts.random.binomial(k, 400, 0.25, s), 100.0, 75.0),
    "dirichlet": (lambda k, s: ts.random.dirichlet(k, torch.tensor([1.0, 3.0]), s)[..., 1], 0.75, 0.0375),
    "multinomial": (
        lambda k, s: ts.random.multinomial(k, 20, torch.tensor([0.5, 0.25, 0.25]), shape=(*s, 3))[..., 1],
        5.0,
        3.75,
    ),
    "ball": (lambda k, s: ts.random.ball(k, 3, shape=s).square().sum(-1), 3 / 5, 3 / 7 - 9 / 25),
    "multivariate_normal": (
        lambda k, s: ts.random.multivariate_normal(
            k, torch.tensor([1.0, 0.0]), torch.tensor([[2.0, 0.5], [0.5, 1.0]]), s
        ).sum(-1),
        1.0,
        4.0,
    ),
    "orthogonal": (lambda k, s: ts.random.orthogonal(k, 3, s)[..., 1, 2], 0.0, 1 / 3),
}


@pytest.mark.whole
@for_every_row(sorted(DRAWS))
def test_mean_and_variance_are_those_of_the_distribution(name):
    draw, mean, variance = DRAWS[name]
    x = ts.device_get(draw(ts.random.key(3), (20_000,))).double()
    assert abs(float(x.mean()) - mean) < 5 * math.sqrt(variance / len(x))
    assert abs(float(x.var()) / variance - 1) < 0.12


@pytest.mark.parametrize("name", every(6, DRAWS))
def test_numbers_are_the_same_on_every_mesh_and_in_jit(name):
    draw = DRAWS[name][0]
    key, mesh = ts.random.key(5), ts.make_mesh((4, 2), ("a", "b"))
    eager = ts.device_get(draw(key, (8, 4)))
    for spec in (ts.P("a", "b"), ts.P(("a", "b")), ts.P(None, "a"), ts.P()):
        sharding = ts.NamedSharding(mesh, spec)
        made = ts.jit(lambda k: draw(k, (8, 4)), out_shardings=sharding)(key)
        assert made.sharding.is_equivalent_to(sharding, 2)
        # a mapped key's formulas may be fused otherwise: a rounding apart
        np.testing.assert_allclose(made.numpy(), eager.numpy(), rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("name", every(6, DRAWS))
def test_under_vmap_each_key_gives_what_it_gives_alone(name):
    draw = DRAWS[name][0]
    keys = ts.random.split(ts.random.key(1), 3)
    mapped = ts.device_get(ts.vmap(lambda k: draw(k, (5,)))(keys))
    jitted = ts.device_get(ts.jit(ts.vmap(lambda k: draw(k, (5,))))(keys))
    alone = torch.stack([ts.device_get(draw(key, (5,))) for key in keys])
    torch.testing.assert_close(mapped, alone, rtol=2e-6, atol=2e-6)
    torch.testing.assert_close(jitted, alone, rtol=2e-6, atol=2e-6)


def test_a_cut_parameter_keeps_each_number_where_its_parameter_is():
    mesh = ts.make_mesh((8,), ("a",))
    rates = ts.device_put(torch.linspace(0.5, 40, 64), ts.NamedSharding(mesh, ts.P("a")))
    for draw in (ts.random.gamma, ts.random.poisson, lambda k, p: ts.random.binomial(k, 30, p / 41)):
        compiled = ts.jit(draw).lower(ts.random.key(0), rates).compile()
        text = compiled.as_text()
        assert "all_gather" not in text and "all_to_all" not in text
        assert "[64, 2" not in text, "a device has the keys of its own block alone"
        got = ts.jit(draw)(ts.random.key(0), rates)
        assert got.sharding.is_equivalent_to(rates.sharding, 1)
        np.testing.assert_allclose(got.numpy(), draw(ts.random.key(0), ts.array(ts.device_get(rates))).numpy(), 2e-6)


def implicit_slopes(draw, alpha):
    """Of the distribution function at the number: by differences of torch's, in doubles."""
    x = draw.double()
    step = 1e-5
    cdf = torch.special.gammainc
    density = torch.exp((alpha - 1) * x.log() - x - torch.lgamma(alpha))
    return -(cdf(alpha + step, x) - cdf(alpha - step, x)) / (2 * step) / density


@pytest.mark.parametrize("put", [lambda x: x, ts.array], ids=["plain", "Array"])
@pytest.mark.parametrize("wrap", [lambda f: f, ts.jit], ids=["eager", "jit"])
def test_gamma_has_the_implicit_derivative(put, wrap):
    alpha = torch.linspace(0.4, 20, 12)
    key = ts.random.key(2)
    drawn = ts.device_get(ts.random.gamma(key, alpha))
    expected = implicit_slopes(drawn, alpha.double()).float()
    slope = wrap(ts.grad(lambda a: ts.random.gamma(key, a).sum()))(put(alpha))
    torch.testing.assert_close(ts.device_get(slope), expected, rtol=2e-3, atol=1e-4)
    around = ts.grad(lambda a: wrap(lambda a: ts.random.gamma(key, a))(a).sum())(put(alpha))
    torch.testing.assert_close(ts.device_get(around), expected, rtol=2e-3, atol=1e-4)
    value, tangent = ts.jvp(wrap(lambda a: ts.random.gamma(key, a)), (put(alpha),), (put(torch.ones(12)),))
    torch.testing.assert_close(ts.device_get(tangent), expected, rtol=2e-3, atol=1e-4)
    torch.testing.assert_close(ts.device_get(value), drawn)
    of_logarithm = wrap(ts.grad(lambda a: ts.random.loggamma(key, a).sum()))(put(alpha))
    torch.testing.assert_close(ts.device_get(of_logarithm), expected / drawn, rtol=2e-3, atol=1e-4)


def in_a_scan(numbers):
    """The function as the body of a loop of one round."""
    return lambda a: ts.lax.scan(lambda carry, _: (carry, numbers(a)), 0.0, None, length=1)[1][0]


# name -> from a function of [8] to one of [8] that transforms it
AROUND = {
    "scan": in_a_scan,
    "checkpoint": ts.checkpoint,
    "vmap": ts.vmap,
    "pmap": lambda numbers: lambda a: ts.pmap(numbers)(a.reshape(4, 2)).reshape(8),
    "shard_map": lambda numbers: (
        lambda a: ts.shard_map(numbers, mesh=ts.make_mesh((8,), ("i",)), in_specs=ts.P("i"), out_specs=ts.P("i"))(a)
    ),
    "vmap in vmap, of one of the two": lambda numbers: (
        lambda a: ts.vmap(lambda x: ts.vmap(lambda _: numbers(x))(torch.zeros(1)))(a).reshape(8)
    ),
}


@pytest.mark.parametrize("name", every(6, AROUND))
def test_the_derivative_of_gamma_numbers_is_kept_within_transformations(name):
    key, alpha = ts.random.key(2), torch.linspace(0.4, 20, 8)
    numbers = AROUND[name](lambda a: ts.random.gamma(key, a))
    expected = implicit_slopes(ts.device_get(numbers(alpha)), alpha.double()).float()
    slope = ts.jit(ts.grad(lambda a: numbers(a).sum()))(alpha)
    torch.testing.assert_close(ts.device_get(slope), expected, rtol=2e-3, atol=1e-4)
    _, tangent = ts.jit(lambda a: ts.jvp(numbers, (a,), (torch.ones(8),)))(alpha)
    torch.testing.assert_close(ts.device_get(tangent), expected, rtol=2e-3, atol=1e-4)


def test_gradients_of_gamma_numbers_are_mapped():
    key, alpha = ts.random.key(2), torch.linspace(0.4, 20, 8)
    slopes = ts.vmap(ts.grad(lambda a: ts.random.gamma(key, a)))(alpha)  # torch's vmap has no rule for it, and warns
    drawn = ts.device_get(ts.vmap(lambda a: ts.random.gamma(key, a))(alpha))
    expected = implicit_slopes(drawn, alpha.double()).float()
    torch.testing.assert_close(ts.device_get(slopes), expected, rtol=2e-3, atol=1e-4)


@pytest.mark.whole
def test_the_derivative_of_gamma_numbers_is_computed_where_the_parameters_are():
    mesh = ts.make_mesh((8,), ("a",))
    alpha = ts.device_put(torch.linspace(0.4, 20, 8), ts.NamedSharding(mesh, ts.P("a")))
    slopes = ts.jit(ts.grad(lambda a: ts.random.gamma(ts.random.key(2), a).sum()))
    assert "all_gather" not in slopes.lower(alpha).compile().as_text()


def test_loggamma_of_a_tiny_parameter_has_a_finite_derivative():
    alpha = torch.tensor([1e-3, 1e-2])
    key = ts.random.key(2)
    made = ts.device_get(ts.random.loggamma(key, alpha))
    slope = ts.device_get(ts.grad(lambda a: ts.random.loggamma(key, a).sum())(alpha))
    assert (made < -16).any()
    # far below 1 the distribution function is x ** a / gamma(a + 1)
    torch.testing.assert_close(slope, (torch.digamma(alpha + 1) - made) / alpha, rtol=1e-3, atol=0.0)


def test_what_is_made_of_gamma_numbers_is_differentiated_too():
    key = ts.random.key(2)
    slope = ts.grad(lambda a: ts.random.beta(key, a, 2.0, (6,)).sum())(torch.tensor(1.5))
    assert float(slope) > 0  # a larger first parameter moves all of them up
    of_mean = ts.grad(lambda m: ts.random.multivariate_normal(key, m, torch.eye(2)).sum())(torch.zeros(2))
    torch.testing.assert_close(ts.device_get(of_mean), torch.ones(2))


def test_a_shape_is_that_of_the_parameters_unless_it_is_given():
    key = ts.random.key(0)
    assert ts.random.gamma(key, torch.ones(3, 1)).shape == (3, 1)
    assert ts.random.beta(key, torch.ones(3, 1), torch.ones(4)).shape == (3, 4)
    assert ts.random.dirichlet(key, torch.ones(5, 3)).shape == (5, 3)
    assert ts.random.dirichlet(key, torch.ones(3), (4, 2)).shape == (4, 2, 3)
    assert ts.random.poisson(key, 2.0, (0,)).shape == (0,)
    assert ts.random.binomial(key, torch.tensor([3, 4]), 0.5).shape == (2,)
    assert ts.random.multinomial(key, 3, torch.tensor([0.5, 0.5])).shape == (2,)


def test_counts_are_of_the_dtype_that_is_asked_for():
    key = ts.random.key(0)
    assert ts.random.poisson(key, 2.0, (3,), torch.int64).dtype == torch.int64
    assert ts.random.gamma(key, 2.0, (3,), torch.bfloat16).dtype == torch.bfloat16
    assert ts.random.gamma(key, 2.0, (3,), torch.float64).dtype == torch.float64


def test_counts_of_outcomes_are_exact_beyond_float32_where_a_parameter_is():
    trials = 2**30 + 1
    halves = torch.tensor([0.5, 0.5], dtype=torch.float64)
    counts = ts.random.multinomial(ts.random.key(0), trials, halves, dtype=torch.float64)
    assert counts.sum().item() == trials and counts[0].item() % 32  # float32 has multiples of 32 there


@for_every_row(
    [
        (lambda key: ts.random.gamma(key, torch.ones(3), (2,)), ValueError, "parameters of gamma do not fit"),
        (lambda key: ts.random.gamma(key), TypeError, "missing a required argument: 'a'"),
        (lambda key: ts.random.gamma(key, "x"), TypeError, "a of gamma is a number"),
        (lambda key: ts.random.gamma(key, 1j), TypeError, "a of gamma"),
        (lambda key: ts.random.gamma(3, 1.0), TypeError, "gamma takes a key"),
        (lambda key: ts.random.gamma(key, 1.0, dtype=torch.int32), TypeError, "gamma makes floats"),
        (lambda key: ts.random.gamma(key, 1.0, out_sharding=3), ts.ShardingError, "not a place to put"),
        (lambda key: ts.random.poisson(key, 1.0, dtype=torch.float32), TypeError, "poisson makes ints"),
        (lambda key: ts.random.binomial(key, 3, 0.5, dtype=torch.float16), TypeError, "32 bits or more"),
        (lambda key: ts.random.multinomial(key, 3, 0.5), ValueError, "a dim of outcomes"),
        (lambda key: ts.random.multivariate_normal(key, torch.ones(3), torch.eye(2)), ValueError, "do not fit"),
        (lambda key: ts.random.multivariate_normal(key, torch.ones(2), torch.eye(2), method="lu"), ValueError, "lu"),
        (lambda key: ts.random.orthogonal(key, 2.5), TypeError, "n of orthogonal is an int"),
        (lambda key: ts.random.ball(key, -1), ValueError, "negative"),
        (lambda key: ts.random.key_impl(3), TypeError, "takes a key"),
    ]
)
def test_wrong_arguments_are_refused(call, error, words):
    with pytest.raises(error, match=words):
        call(ts.random.key(0))


def test_a_cloned_key_may_be_used_again():
    key = ts.random.key(0)
    ts.config.update("debug_key_reuse", True)
    try:
        first = ts.random.gamma(key, 2.0)
        assert float(ts.random.gamma(ts.random.clone(key), 2.0)) == float(first)
        with pytest.raises(ts.errors.KeyReuseError):
            ts.random.gamma(key, 2.0)
    finally:
        ts.config.update("debug_key_reuse", False)
    assert ts.random.key_impl(key) == "threefry2x32"

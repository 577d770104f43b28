"""Random numbers from keys: the same on every mesh, and bitwise equal to JAX's.

    keys         key PRNGKey split fold_in clone key_data wrap_key_data key_impl Key
    bits, ints   bits randint bernoulli rademacher permutation choice categorical
    floats       uniform normal truncated_normal exponential gumbel laplace cauchy logistic maxwell
                 lognormal rayleigh double_sided_maxwell pareto weibull_min triangular wald
                 gamma loggamma beta chisquare f t generalized_normal
    counts       poisson binomial geometric
    vectors      dirichlet multinomial multivariate_normal orthogonal ball

A draw from a key on the host is an uncommitted Array, computed on `devices()[0]`; in a jitted function it is made in
the layout of its consumer, and each device makes its own block. If torch.func.vmap maps a plain key, it is a plain
tensor. `split` and `fold_in` do not move keys: a key on the host stays there.

    keys, key_creation keys, and functions that make them
    discrete           bits randint bernoulli rademacher
    continuous         uniform normal ...: formulas on uniform numbers
    parameters         the common part of distributions with parameters
    formulas           lognormal rayleigh pareto weibull_min triangular wald geometric ...
    gammas             gamma loggamma beta dirichlet chisquare f t generalized_normal
    counts             poisson binomial multinomial
    geometry           multivariate_normal orthogonal ball
    choices            permutation choice categorical
    functional         torch's stateful draws, as of a dropout, made from a key
    sampling           the common part of all distributions: checks, and where the numbers are made

`tinyshard.primitives.random_bits` and the files beside it have the op that draws, and its hash.
"""

from tinyshard.core.jax_hints import names_of as _names_of
from tinyshard.random.choices import categorical, choice, permutation
from tinyshard.random.continuous import (
    cauchy,
    exponential,
    gumbel,
    laplace,
    logistic,
    maxwell,
    normal,
    truncated_normal,
    uniform,
)
from tinyshard.random.counts import binomial, multinomial, poisson
from tinyshard.random.discrete import bernoulli, bits, rademacher, randint
from tinyshard.random.formulas import (
    double_sided_maxwell,
    geometric,
    lognormal,
    pareto,
    rayleigh,
    triangular,
    wald,
    weibull_min,
)
from tinyshard.random.functional import functional
from tinyshard.random.gammas import beta, chisquare, dirichlet, f, gamma, generalized_normal, loggamma, t
from tinyshard.random.geometry import ball, multivariate_normal, orthogonal
from tinyshard.random.key_creation import PRNGKey, clone, fold_in, key, key_data, key_impl, split, wrap_key_data
from tinyshard.random.keys import DrawError, Key, KeyReuseError

__all__ = [
    "DrawError",
    "Key",
    "KeyReuseError",
    "PRNGKey",
    "ball",
    "bernoulli",
    "beta",
    "binomial",
    "bits",
    "categorical",
    "cauchy",
    "chisquare",
    "choice",
    "clone",
    "dirichlet",
    "double_sided_maxwell",
    "exponential",
    "f",
    "fold_in",
    "functional",
    "gamma",
    "generalized_normal",
    "geometric",
    "gumbel",
    "key",
    "key_data",
    "key_impl",
    "laplace",
    "loggamma",
    "logistic",
    "lognormal",
    "maxwell",
    "multinomial",
    "multivariate_normal",
    "normal",
    "orthogonal",
    "pareto",
    "permutation",
    "poisson",
    "rademacher",
    "randint",
    "rayleigh",
    "split",
    "t",
    "triangular",
    "truncated_normal",
    "uniform",
    "wald",
    "weibull_min",
    "wrap_key_data",
]

__getattr__ = _names_of(__name__, __all__)

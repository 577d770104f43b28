"""Random numbers from keys: the same on every mesh, and bit for bit those of JAX.

    keys         key PRNGKey split fold_in key_data wrap_key_data Key
    bits, ints   bits randint bernoulli rademacher permutation choice categorical
    floats       uniform normal truncated_normal exponential gumbel laplace cauchy logistic

A draw from a key on the host is an uncommitted Array, computed on `devices()[0]`; in a jitted function it is made where
its consumer wants it, each device making its own block. Where torch.func.vmap maps a plain key, it is a plain tensor.
`split` and `fold_in` leave keys where they are: a key on the host stays there.

    keys, key_creation keys, and where they come from
    discrete           bits randint bernoulli rademacher
    continuous         uniform normal ...: formulas on uniform numbers
    choices            permutation choice categorical
    functional         torch's stateful draws, as of a dropout, made from a key
    sampling           what all distributions share: the checks, and where the numbers are made

The op that draws, and the hash beneath it: `tinyshard.primitives.random_bits` and its fellows.
"""

from tinyshard.core.jax_hints import names_of as _names_of
from tinyshard.random.choices import categorical, choice, permutation
from tinyshard.random.continuous import (
    cauchy,
    exponential,
    gumbel,
    laplace,
    logistic,
    normal,
    truncated_normal,
    uniform,
)
from tinyshard.random.discrete import bernoulli, bits, rademacher, randint
from tinyshard.random.functional import functional
from tinyshard.random.key_creation import PRNGKey, fold_in, key, key_data, split, wrap_key_data
from tinyshard.random.keys import DrawError, Key, KeyReuseError

__all__ = [
    "DrawError",
    "Key",
    "KeyReuseError",
    "PRNGKey",
    "bernoulli",
    "bits",
    "categorical",
    "cauchy",
    "choice",
    "exponential",
    "fold_in",
    "functional",
    "gumbel",
    "key",
    "key_data",
    "laplace",
    "logistic",
    "normal",
    "permutation",
    "rademacher",
    "randint",
    "split",
    "truncated_normal",
    "uniform",
    "wrap_key_data",
]

__getattr__ = _names_of(__name__, __all__)

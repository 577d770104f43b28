"""Whatever Python takes for an index is an int here too: NumPy's, as np.prod gives them."""

import numpy as np
import pytest
import torch

import tinyshard as ts
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")

N = np.int64
X = torch.arange(8.0)


def key():
    return ts.random.key(0)


def positional():
    return ts.sharding.PositionalSharding(ts.devices())


def scaled(x, n):
    return x * n


SAME = {
    "split": lambda n: ts.random.key_data(ts.random.split(key(), n(6))),
    "the shape of a draw": lambda n: ts.random.normal(key(), n(3)),
    "permutation": lambda n: ts.random.permutation(key(), n(5)),
    "choice": lambda n: ts.random.choice(key(), n(5), n(3), replace=False),
    "randint": lambda n: ts.random.randint(key(), (n(4),), n(0), n(9)),
    "argnums of grad": lambda n: ts.grad(lambda a, b: (a * b).sum(), argnums=n(1))(X, X + 1),
    "argnums of hessian": lambda n: ts.hessian(lambda a, b: (a * b).sum() ** 2, argnums=n(1))(X, X + 1),
    "argnums of jacrev": lambda n: ts.jacrev(lambda a, b: a * b, argnums=(n(1),))(X, X + 1)[0],
    "argnums of jacfwd": lambda n: ts.jacfwd(lambda a, b: a * b, argnums=n(-1))(X, X + 1),
    "in_axes and out_axes of vmap": lambda n: ts.vmap(torch.sin, in_axes=(n(0),), out_axes=n(0))(X),
    "axis_size of vmap": lambda n: ts.vmap(lambda v: v, in_axes=None, axis_size=n(3))(X),
    "in_axes of pmap": lambda n: ts.pmap(torch.sin, in_axes=n(0), axis_size=n(8))(X),
    "static_broadcasted_argnums": lambda n: ts.pmap(scaled, static_broadcasted_argnums=n(1))(X, 3),
    "static_argnums": lambda n: ts.jit(scaled, static_argnums=n(1))(X, 3),
    "a positional sharding": lambda n: ts.device_put(X, positional().reshape(n(2), n(4)).replicate(n(0)).reshape(n(4))),
    "a mesh": lambda n: ts.device_put(X, ts.NamedSharding(ts.make_mesh((n(8),), ("d",)), P("d"))),
    "a dim of a collective": lambda n: ts.vmap(lambda v: ts.lax.all_gather(v, "i", axis=n(0)), axis_name="i")(X),
}


@pytest.mark.parametrize("what", SAME)
def test_an_int_of_numpys_is_as_good_as_pythons(what):
    given, wanted = SAME[what](N), SAME[what](int)
    assert torch.equal(ts.device_get(given), ts.device_get(wanted))
    assert getattr(given, "sharding", None) == getattr(wanted, "sharding", None)


def test_flags_and_sizes_take_them():
    assert ts.ShapeDtypeStruct((N(3), N(2)), torch.float32).shape == (3, 2)
    ts.config.update("collective_timeout_s", N(60))
    assert str(ts.make_graph(scaled, static_argnums=N(1))(X, 2)) == str(ts.make_graph(scaled, static_argnums=1)(X, 2))


@pytest.mark.parametrize(
    "call, words",
    {
        "split": (lambda: ts.random.split(key(), 3.0), "the shape of split is an int or a tuple of ints"),
        "argnums": (lambda: ts.grad(torch.sum, argnums=0.0), "argnums is an int or a tuple of ints"),
        "static_argnums": (lambda: ts.jit(scaled, static_argnums="n"), "static_argnames for arguments by name"),
        "pmap": (lambda: ts.pmap(scaled, static_broadcasted_argnums=1.0), "static_broadcasted_argnums is an int"),
        "axis_size": (lambda: ts.vmap(torch.sin, axis_size=3.0), r"axis_size is the number(?s:.*)3\.0 \(float\)"),
        "in_axes": (lambda: ts.vmap(torch.sin, in_axes=0.0)(X), "an axis is an int or None"),
        "reshape": (lambda: positional().reshape(2.0, 4), "a shape of a sharding is an int or a tuple of ints"),
        "a long int": (lambda: ts.jit(scaled)(X, 2**70), r"out of the range of int64(?s:.*)-2\*\*63"),
    }.values(),
)
def test_what_is_not_an_int_is_refused_by_the_name_of_the_argument(call, words):
    with pytest.raises(ts.TinyshardError, match=words):
        call()

"""Which programs a device takes for small: those that are over before the controller has done its part of the call."""

import pytest
import torch

import tinyshard as ts
from tinyshard.runtime.worker.executor import make_ready

ROWS = ts.NamedSharding(ts.AbstractMesh((2,), "d"), ts.P("d"))


def is_small(function, *shape):
    x = ts.ShapeDtypeStruct(shape, torch.float32, sharding=ROWS)
    return make_ready(ts.jit(function).lower(x).compile()._executable.program).is_small


def loop(x):
    return ts.lax.fori_loop(0, 3, lambda i, y: y + 1, x)


def shown(x):
    ts.debug.print("{}", x)
    return x + 1


@pytest.mark.parametrize(
    "function", [lambda x: x + 1, lambda x: torch.relu(x * 2).reshape(-1), lambda x: (x, x.unsqueeze(0))]
)
def test_a_few_ops_on_a_few_elements_are(function):
    assert is_small(function, 8, 4)


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x + 1, (1 << 14, 4)),
        (lambda x: sum(torch.sin(x * k) for k in range(9)), (8, 4)),
        (lambda x: x.sum(), (8, 4)),
        (torch.linalg.eigvals, (2, 8, 8)),
        (loop, (8, 4)),
        (shown, (8, 4)),
    ],
    ids=["many elements", "many ops", "an exchange", "much for each element", "a loop", "a callback"],
)
def test_others_are_not(function, shape):
    assert not is_small(function, *shape)

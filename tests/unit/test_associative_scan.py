"""`associative_scan` gives every running result of a function that is associative."""

import pytest
import torch

import tinyshard as ts
from tests.unit.test_scan import close, normal


@pytest.fixture(autouse=True)
def local():
    ts.init(devices=8, runtime="local")


WAYS = {"in a program": ts.jit, "in Python": lambda f: f}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 7, 8, 13])
def test_running_sums_are_cumsums(way, reverse, count):
    x = normal(1, 3, count, 2)
    made = WAYS[way](lambda x: ts.lax.associative_scan(torch.add, x, reverse=reverse, axis=-2))(x)
    close(made, x.flip(1).cumsum(1).flip(1) if reverse else x.cumsum(1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("way", WAYS)
def test_products_of_matrices_keep_their_order(way):
    x = normal(1, 6, 3, 3)
    expected = [x[0]]
    for each in x[1:]:
        expected.append(expected[-1] @ each)
    made = WAYS[way](lambda x: ts.lax.associative_scan(torch.matmul, x))(x)
    close(made, torch.stack(expected), rtol=1e-4, atol=1e-4)


def recurrence(left, right):
    """h = a h + b, for pairs (a, b): a linear state space model."""
    return {"a": right["a"] * left["a"], "b": right["a"] * left["b"] + right["b"]}


def by_hand(a, b):
    h, made = torch.zeros(4), []
    for x, y in zip(a, b, strict=True):
        h = x * h + y
        made.append(h)
    return torch.stack(made)


def test_a_linear_recurrence_over_a_tree_and_its_gradient_are_the_loops():
    a, b = normal(1, 9, 4), normal(2, 9, 4)
    cut = ts.NamedSharding(ts.make_mesh((4,), ("d",)), ts.P(None, "d"))
    f = ts.jit(lambda a, b: ts.lax.associative_scan(recurrence, {"a": a, "b": b})["b"])
    placed = ts.device_put((a, b), cut)
    close(f(*placed), by_hand(a, b), rtol=1e-4, atol=1e-4)
    assert f.lower(*placed).compile().cost_analysis().nbytes == 0
    expected = torch.func.grad(lambda a, b: by_hand(a, b).pow(2).sum(), (0, 1))(a, b)
    got = ts.jit(ts.grad(lambda a, b: f(a, b).pow(2).sum(), (0, 1)))(*placed)
    close(got, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "call, kind, words",
    [
        (lambda: ts.lax.associative_scan(torch.add, None), ts.MappingError, "no elements"),
        (lambda: ts.lax.associative_scan(torch.add, torch.ones(3), axis=1), ts.MappingError, "axis is not a dim"),
        (
            lambda: ts.lax.associative_scan(torch.add, (torch.ones(3), torch.ones(4))),
            ts.MappingError,
            r"differ in number[^~]*\[3, 4\]",
        ),
        (lambda: ts.lax.associative_scan(torch.eq, torch.ones(3)), ts.DtypeError, r"given f32\[1\][^~]*bool\[1\]"),
    ],
)
def test_what_cannot_be_combined_is_refused(call, kind, words):
    with pytest.raises(kind, match=words):
        call()

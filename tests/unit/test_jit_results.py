"""What a jitted function writes to and gives, and failed checks in it."""

import pytest
import torch

import tinyshard as ts
from tests.traces import same
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")


def test_writing_into_values_made_inside_is_fine(mesh, host):
    def f(x):
        y = x.clone()
        y[0] = 7.0
        y[1:3, 2] += 1
        y.view(-1)[5:7].mul_(2)
        rows = y.T
        rows[1].zero_()
        z = torch.zeros(8, 4)
        z += y
        z.clamp_(min=1.0)
        return z, y

    for x in (host, ts.device_put(host, ts.NamedSharding(mesh, P("a", "b")))):
        for got, wanted in zip(ts.jit(f)(x), f(host), strict=True):
            same(got, wanted)


def test_writing_into_an_argument_names_it():
    def f(params, x):
        params["w"][0].add_(1)
        return x

    with pytest.raises(TypeError, match=r"changes its argument in place\n.*params\['w'\]\[0\]") as caught:
        ts.jit(f)({"w": [torch.ones(2)]}, torch.ones(2))
    assert isinstance(caught.value, ts.ImmutableError)


@pytest.mark.parametrize(
    "draw",
    [torch.rand_like, torch.nn.functional.dropout, lambda x: x + torch.randn(2), lambda x: x.clone().uniform_()],
)
def test_stateful_randomness_is_refused(draw):
    with pytest.raises(ts.StatefulRandomError, match=r"ts\.random"):
        ts.jit(draw)(torch.ones(2))


def test_an_argument_may_be_passed_through_unchanged(mesh, host):
    f = ts.jit(lambda x, y: (y, x, x))
    x = ts.device_put(host, ts.NamedSharding(mesh, P("a", "b")))
    y, one, two = f(x, host + 1)
    assert one.sharding == x.sharding
    for got, wanted in ((y, host + 1), (one, host), (two, host)):
        same(got, wanted)
    del x, one
    same(two, host)


def test_results_that_are_no_tensors_come_back_as_they_are():
    f = ts.jit(lambda x: {"y": x + 1, "name": "f", "n": 3, "none": None, "shape": x.shape})
    out = f(torch.zeros(2))
    assert out["y"].tolist() == [1, 1]
    assert (out["name"], out["n"], out["none"], tuple(out["shape"])) == ("f", 3, None, (2,))


def test_a_function_without_results_gives_none():
    assert ts.jit(lambda x: None)(torch.ones(2)) is None
    assert ts.jit(lambda: 5)() == 5


def test_a_function_without_arguments_and_constants_inside():
    assert ts.jit(lambda: torch.arange(3) + torch.tensor([1, 2, 3]))().tolist() == [1, 3, 5]
    assert ts.jit(lambda: torch.zeros(2))().tolist() == [0, 0]
    f = ts.jit(lambda x: x + torch.tensor([1.0, 2.0]) * torch.ones(2) + torch.full((2,), 0.5))
    assert f(torch.zeros(2)).tolist() == [1.5, 2.5]


def test_named_tuples_and_nested_trees_come_back_whole():
    import collections

    point = collections.namedtuple("point", "x y")
    out = ts.jit(lambda p: point(p.y, [p.x, {"k": p.x + p.y}]))(point(torch.tensor(1.0), torch.tensor(2.0)))
    assert isinstance(out, point)
    assert (float(out.x), float(out.y[0]), float(out.y[1]["k"])) == (2, 1, 3)


def test_a_failed_check_inside_reaches_who_asks_for_a_result():
    factor = ts.jit(torch.linalg.cholesky)
    same(factor(4 * torch.eye(2)), 2 * torch.eye(2))
    bad = factor(-torch.eye(2))
    with pytest.raises(ts.RemoteError, match="positive-definite"):
        bad.numpy()


def test_a_check_survives_though_nobody_uses_its_values(host):
    def f(x):
        torch.linalg.cholesky(x)
        return x + 1

    got = ts.jit(f)(-torch.eye(2))
    with pytest.raises(ts.RemoteError, match="positive-definite"):
        got.numpy()
    same(ts.jit(f)(torch.eye(2)), torch.eye(2) + 1)

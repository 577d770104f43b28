"""shard_map with its check_vma: along which axes values vary, and their gradients, whose numbers are JAX 0.10.2's.

The arguments are w = [2, 3], the same on all devices, and x = [1 .. 8], cut over four; plain torch on the whole arrays
gives the same numbers where a loss is a sum over all devices.
"""

from typing import Any

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests.refusals import assert_refused
from tests.rows import for_every_row
from tinyshard import P, lax

pytestmark = pytest.mark.usefixtures("local")
W, X, C = torch.tensor([2.0, 3.0]), torch.arange(1.0, 9.0), torch.tensor([5.0, 7.0])


WHOLE, CUT = P(), P("x")


def over(f: Any, in_specs: Any = (WHOLE, CUT), out_specs: Any = WHOLE, **more: Any) -> Any:
    return ts.shard_map(f, mesh=ts.make_mesh((4,), ("x",)), in_specs=in_specs, out_specs=out_specs, **more)


def close(got: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(ts.device_get(got)), np.asarray(expected), rtol=1e-5)


def slope(loss: Any) -> Any:
    """The gradient by w of a loss of w and v, taken inside."""
    return lambda w, v: ts.grad(lambda w: loss(w, v))(w)


def scanned(w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    start = lax.pcast(torch.tensor(0.0), "x", to="varying")
    return lax.scan(lambda c, r: (c + (w * v).sum() * r, None), start, torch.arange(3.0))[0]


def in_place(w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    rows = torch.zeros(2)
    rows[0] = (w * v).sum()
    return rows.add_(v).sum()


@ts.custom_vjp
def product(w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return w * v


product.defvjp(lambda w, v: (w * v, (w, v)), lambda r, g: (lax.psum(g * r[1], "x"), g * r[0]))


@ts.custom_jvp
def square(w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return w * w * v


square.defjvp(lambda xs, ts: (square(*xs), 2 * xs[0] * ts[0] * xs[1] + xs[0] ** 2 * ts[1]))

# a function of w and of a block of x, the spec of its result, and the result
VALUES: list[tuple[str, Any, Any, Any]] = [
    ("by a shared value", slope(lambda w, v: (w * v).sum()), P(), [16, 20]),
    ("as it is on each device", slope(lambda w, v: (w * v).sum()), P("x"), [16, 20] * 4),
    ("summed once more", lambda w, v: lax.psum(slope(lambda w, v: (w * v).sum())(w, v), "x"), P(), [64, 80]),
    ("the mean of equal ones", lambda w, v: lax.pmean(slope(lambda w, v: (w * v).sum())(w, v), "x"), P(), [16, 20]),
    ("of a psum", slope(lambda w, v: lax.psum((w * v).sum(), "x")), P(), [16, 20]),
    ("of a pmean", slope(lambda w, v: lax.pmean((w * v).sum(), "x")), P(), [4, 5]),
    ("of a psum of shared values", slope(lambda w, v: lax.psum(w.sum(), "x")), P(), [4, 4]),
    ("of a pmean of shared values", slope(lambda w, v: lax.pmean(w.sum(), "x")), P(), [1, 1]),
    ("by a varying value", lambda w, v: ts.grad(lambda v: lax.psum((v * v).sum(), "x"))(v), P("x"), 2 * X),
    (
        "by a marked value",
        lambda w, v: slope(lambda w, v: (w * v).sum())(lax.pcast(w, "x", to="varying"), v),
        P("x"),
        X,
    ),
    ("by what it closes over", lambda w, v: ts.grad(lambda u: (u * v).sum())(C), P(), [16, 20]),
    ("by a constant", lambda w, v: ts.grad(lambda u: (C * u * v).sum())(torch.ones(2)), P(), [80, 140]),
    ("times the place", slope(lambda w, v: (w * v).sum() * lax.axis_index("x")), P(), [34, 40]),
    ("of where", slope(lambda w, v: torch.where(v > 3, w * 2, w * 3).sum()), P(), [10, 9]),
    ("of a value that stops", slope(lambda w, v: (lax.stop_gradient(w) * w * v).sum()), P(), [32, 60]),
    ("of a vmap", slope(lambda w, v: ts.vmap(lambda a: w[0] * a)(v).sum()), P(), [36, 0]),
    ("of a scan", slope(scanned), P(), [48, 60]),
    ("of an associative_scan", slope(lambda w, v: lax.associative_scan(torch.add, w * v).sum()), P(), [32, 20]),
    ("of a map", slope(lambda w, v: lax.map(lambda r: r * w[0], v).sum()), P(), [36, 0]),
    ("of a checkpoint", slope(lambda w, v: ts.checkpoint(lambda w, v: w * v)(w, v).sum()), P(), [16, 20]),
    ("of a custom_vjp", slope(lambda w, v: product(w, v).sum()), P(), [16, 20]),
    ("of a custom_jvp", slope(lambda w, v: square(w, v).sum()), P(), [64, 120]),
    ("of an all_gather", slope(lambda w, v: lax.all_gather(w * v, "x").sum()), P(), [64, 80]),
    ("of what is written in place", slope(in_place), P(), [16, 20]),
    ("hessian", lambda w, v: ts.hessian(lambda w: ((w * v) ** 2).sum())(w), P(), [[168, 0], [0, 240]]),
    (
        "hessian of a psum",
        lambda w, v: ts.hessian(lambda w: lax.psum(((w * v) ** 2).sum(), "x") ** 2)(w),
        P(),
        [[701568, 483840], [483840, 1716480]],
    ),
    ("jacfwd", lambda w, v: ts.jacfwd(lambda w: ((w * v) ** 2).sum())(w), P("x"), [4, 24, 36, 96, 100, 216, 196, 384]),
    ("jvp", lambda w, v: ts.jvp(lambda w: lax.psum(w * v, "x"), (w,), (torch.ones(2),))[1], P(), [16, 20]),
    ("linearize", lambda w, v: ts.linearize(lambda w: lax.psum(w * v, "x"), w)[1](torch.ones(2)), P(), [16, 20]),
    ("an invarying all_gather", lambda w, v: lax.all_gather(v, "x", tiled=True, to="invarying"), P(), X),
    ("a psum of shared values", lambda w, v: lax.psum(w, "x"), P(), [8, 12]),
    ("a branch by a shared value", lambda w, v: lax.cond(w[0] > 0, lambda: v, lambda: v * 0), P("x"), X),
]


@for_every_row(VALUES)
def test_values_and_gradients_are_those_of_jax(what: str, f: Any, out: Any, expected: Any) -> None:
    close(over(f, out_specs=out)(W, X), expected)


# a function of w and of a block of x, and the gradients of the sum of its results from outside
OUTSIDE: list[tuple[str, Any, Any, Any, Any]] = [
    ("psum", lambda w, v: lax.psum((w * v).sum(), "x"), P(), [16, 20], [2, 3] * 4),
    ("a varying result", lambda w, v: (w * v).sum()[None], P("x"), [16, 20], [2, 3] * 4),
    ("a shared result", lambda w, v: w.sum(), P(), [1, 1], [0] * 8),
    ("a shared result from each", lambda w, v: w * 2, P("x"), [8, 8], [0] * 8),
    ("pmax", lambda w, v: lax.pmax(w * v, "x"), P(), [7, 8], [0] * 6 + [2, 3]),
    ("a scan", lambda w, v: lax.psum(scanned(w, v), "x"), P(), [48, 60], [6, 9] * 4),
    (
        "a gathered result",
        lambda w, v: w[0] * lax.all_gather(v, "x", tiled=True, to="invarying"),
        P(),
        [36, 0],
        [2] * 8,
    ),
    ("a gradient inside", slope(lambda w, v: (w**2 * v).sum()), P(), [32, 40], [4, 6] * 4),
    ("groups", lambda w, v: lax.psum(w * v, "x", axis_index_groups=[[0, 2], [1, 3]]), P("x"), [32, 40], [4, 6] * 4),
]


@for_every_row(OUTSIDE)
def test_gradients_from_outside_are_those_of_the_whole(what: str, f: Any, out: Any, by_w: Any, by_x: Any) -> None:
    mapped = over(f, out_specs=out)
    got = ts.grad(lambda w, x: mapped(w, x).sum(), argnums=(0, 1))(W, X)
    close(got[0], by_w)
    close(got[1], by_x)
    close(ts.jit(ts.grad(lambda w: mapped(w, X).sum()))(W), by_w)


def test_without_check_vma_gradients_inside_are_each_devices_own() -> None:
    close(over(slope(lambda w, v: (w * v).sum()), out_specs=P("x"), check_vma=False)(W, X), X)
    own = over(lambda v: ts.grad(lambda v: lax.psum((v * v).sum(), "x"))(v), P("x"), P("x"), check_vma=False)
    close(own(X), 8 * X)
    close(over(lambda v: v * 2, P("x"), P(), check_vma=False)(X), [2, 4])


def test_vmapped_along_an_axis_shared_values_have_the_sum_of_all_gradients() -> None:
    mesh = ts.make_mesh((2, 2), ("x", "y"))
    f = ts.shard_map(lambda w, v: lax.psum(w * v, "x"), mesh=mesh, in_specs=(P(), P("x")), out_specs=P())
    rows = torch.arange(8.0).reshape(4, 2)
    mapped = ts.vmap(f, in_axes=(None, 0), spmd_axis_name="y")
    close(ts.grad(lambda w: mapped(w, rows).sum())(torch.tensor([2.0])), [28])


def test_over_one_axis_of_two_a_gradient_is_summed_over_where_it_is_shared() -> None:
    mesh = ts.make_mesh((2, 2), ("a", "b"))
    f = slope(lambda w, v: lax.psum((w * v).sum(), "a"))
    mapped = ts.shard_map(f, mesh=mesh, in_specs=(P("a"), P(("a", "b"))), out_specs=P("a"))
    close(mapped(torch.tensor([1.0, 2.0, 3.0, 4.0]), X), [4, 6, 12, 14])


def test_a_program_has_no_step_for_a_mark_and_one_sum_for_a_shared_gradient() -> None:
    text = over(lambda w, v: lax.psum(w * v, "x")).lower(W, X).compile().as_text()
    assert "pcast" not in text and text.count("all_reduce(") == 1
    assert "pcast(%0, over=x, to=varying)" in over(lambda w, v: lax.psum(w * v, "x")).lower(W, X).as_text()
    text = over(slope(lambda w, v: (w * v).sum())).lower(W, X).compile().as_text()
    assert text.count("all_reduce(") == 1


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(w, v)
        return w * v

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        w, v = ctx.saved_tensors
        return g * v, g * w


@ts.custom_vjp
def own(w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return w * v


own.defvjp(lambda w, v: (w * v, (w, v)), lambda r, g: (g * r[1], g * r[0]))

REFUSED: list[tuple[str, Any, list[str]]] = [
    ("a varying result", lambda w, v: v * 2, ["out_specs leave mesh axis 'x' out", "to='invarying'"]),
    ("a varying all_gather", lambda w, v: lax.all_gather(v, "x"), ["out_specs leave mesh axis 'x' out"]),
    ("axis_index", lambda w, v: w * lax.axis_index("x"), ["axis_index"]),
    (
        "a carry that begins to vary",
        lambda w, v: lax.fori_loop(0, 3, lambda i, c: c + v, torch.zeros(2)),
        [
            "given the same on all devices, returned varying along 'x'",
            "lax.pcast(x, ('x',), to='varying') of the first",
        ],
    ),
    (
        "a carry that ends to vary",
        lambda w, v: lax.fori_loop(0, 3, lambda i, c: lax.psum(c, "x"), v),
        ["given varying along 'x', returned the same on all devices", "of what a round returns"],
    ),
    (
        "a while_loop's value",
        lambda w, v: lax.while_loop(lambda c: c.sum() < 9, lambda c: c + v, w),
        ["given the same on all devices, returned varying along 'x'"],
    ),
    (
        "branches",
        lambda w, v: lax.cond(w[0] > 0, lambda: v, lambda: w),
        ["branch 0, result 0: the same on all devices"],
    ),
    ("bwd of a custom_vjp", slope(lambda w, v: own(w, v).sum()), ["bwd of own", "lax.psum(gradient, ('x',))"]),
    ("an autograd.Function", lambda w, v: Twice.apply(w, v).sum(), ["operands of Twice", "lax.pcast"]),
]


@for_every_row(REFUSED)
def test_what_varies_otherwise_than_it_has_to_is_refused(what: str, f: Any, words: list[str]) -> None:
    assert_refused(lambda: over(f)(W, X), ValueError, words)


def test_an_all_gather_has_one_of_two_types() -> None:
    assert_refused(lambda: over(lambda w, v: lax.all_gather(v, "x", to="reduced"))(W, X), TypeError, ["to='reduced'"])


@pytest.mark.parametrize("check", [True, False])
def test_a_branch_may_return_a_value_around_it_as_it_is(check: bool) -> None:
    f = over(lambda w, v: lax.cond(w[0] > 0, lambda: v, lambda: v * 0), out_specs=P("x"), check_vma=check)
    close(f(W, X), X)
    close(ts.jit(lambda w, v: lax.cond(w[0] > 9, lambda: v, lambda: w))(W, C), W)

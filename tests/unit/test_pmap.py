"""pmap as JAX's users know it: values, layouts, traces, nesting, closures, errors."""

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests.refusals import assert_refused
from tinyshard.runtime import lifecycle

pytestmark = pytest.mark.usefixtures("local")
X = torch.arange(12.0).reshape(4, 3)


def equal(got, expected):
    np.testing.assert_array_equal(np.asarray(got), np.asarray(expected))


def runs(monkeypatch):
    """The programs that the runtime is asked to run, one entry a message."""
    found = []
    runtime = lifecycle.current()
    run = runtime.run

    def counted(program, *args, **kwargs):
        found.append(program)
        return run(program, *args, **kwargs)

    monkeypatch.setattr(runtime, "run", counted)
    return found


def test_each_device_gets_one_row_and_the_result_is_cut_over_the_mapped_dim():
    y = ts.pmap(lambda v: v * 2 + 1)(X)
    equal(y, X * 2 + 1)
    assert isinstance(y, ts.Array)
    assert [s.data.shape for s in y.addressable_shards] == [(1, 3)] * 4
    assert [s.device for s in y.addressable_shards] == ts.devices()[:4]
    for row, shard in zip(X, y.addressable_shards, strict=True):
        equal(shard.data, (row * 2 + 1)[None])


def test_a_function_is_traced_once_for_each_signature():
    calls = []

    def f(v):
        calls.append(v.shape)
        return v + 1

    mapped = ts.pmap(f)
    mapped(X)
    mapped(X + 1)
    mapped(ts.pmap(lambda v: v)(X))
    assert calls == [(3,)]
    mapped(X.double())
    mapped(X.reshape(2, 6))
    mapped(X)
    assert calls == [(3,), (3,), (6,)]


def test_a_call_is_one_message_and_placed_operands_are_not_moved_again(monkeypatch):
    f = ts.pmap(lambda v: v / ts.lax.psum(v, "i"), axis_name="i")
    placed = ts.pmap(lambda v: v + 1)(X)
    f(placed)
    asked = runs(monkeypatch)
    f(placed)
    assert len(asked) == 1
    moved = {s.op for s in asked[0].steps} & {
        "all_gather",
        "all_to_all",
        "collective_permute",
        "transfer",
        "local_slice",
    }
    assert not moved
    f(f(f(placed)))
    assert len(asked) == 4


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_in_axes_and_out_axes_count_from_either_end(axis):
    y = ts.pmap(lambda v: v.cumsum(0), in_axes=axis, out_axes=axis)(X)
    equal(y, X.cumsum(1 if axis in (0, -2) else 0))


def test_in_axes_are_a_tree_prefix_and_none_gives_everyone_the_whole():
    params = {"w": torch.eye(3) * 2, "b": torch.arange(4.0)}
    f = ts.pmap(lambda p, v: (v @ p["w"] + p["b"], p["b"]), in_axes=({"w": None, "b": 0}, 0), out_axes=(0, 0))
    y, b = f(params, X)
    equal(y, X * 2 + torch.arange(4.0)[:, None])
    equal(b, torch.arange(4.0))
    equal(ts.pmap(lambda w, v: v @ w, in_axes=(None, 0))(torch.eye(3) * 3, X), X * 3)


def test_out_axes_none_takes_a_value_that_all_devices_share():
    total, rows = ts.pmap(lambda v: (ts.lax.psum(v, "i"), v), axis_name="i", out_axes=(None, 0))(X)
    equal(total, X.sum(0))
    assert total.shape == (3,)
    assert total.is_fully_replicated
    equal(rows, X)


def test_out_axes_are_a_tree_prefix():
    made = ts.pmap(lambda v: {"a": (v, v + 1), "b": v.sum()}, out_axes={"a": 1, "b": 0})(X)
    equal(made["a"][0], X.T)
    equal(made["a"][1], X.T + 1)
    equal(made["b"], X.sum(1))


def test_arguments_by_name_are_mapped_over_dim_0():
    equal(ts.pmap(lambda v, k: v + k)(X, k=torch.arange(4.0)), X + torch.arange(4.0)[:, None])


def test_static_arguments_are_python_values_and_part_of_the_signature():
    seen = []

    def f(v, power, how):
        seen.append((power, how))
        return v**power if how == "up" else v

    mapped = ts.pmap(f, static_broadcasted_argnums=(1, 2))
    equal(mapped(X, 2, "up"), X**2)
    equal(mapped(X, 2, "up"), X**2)
    equal(mapped(X, 3, "up"), X**3)
    assert seen == [(2, "up"), (3, "up")]
    equal(ts.pmap(lambda v, n: v * n, static_broadcasted_argnums=1)(X, 5), X * 5)


def test_devices_says_where_the_rows_go():
    chosen = ts.devices()[4:][::-1]
    y = ts.pmap(lambda v: v + 1, devices=chosen)(X)
    equal(y, X + 1)
    assert [s.device for s in sorted(y.addressable_shards, key=lambda s: s.index[0].start or 0)] == chosen


def test_axis_size_serves_where_no_argument_is_mapped():
    y = ts.pmap(lambda v: v + ts.lax.axis_index("i"), axis_name="i", in_axes=None, axis_size=5)(torch.tensor(10))
    equal(y, [10, 11, 12, 13, 14])


def test_it_is_a_decorator():
    @ts.pmap
    def f(v):
        return v + 1

    @ts.pmap(axis_name="i")
    def g(v):
        return ts.lax.psum(v, "i")

    equal(f(X), X + 1)
    equal(g(X), X.sum(0).expand(4, 3))


# ---- nesting --------------------------------------------------------------------------------------------------------

BLOCKS = torch.arange(24.0).reshape(4, 2, 3)


def test_pmap_of_vmap_and_vmap_of_pmap_map_both_axes():
    w = torch.tensor([1.0, 2.0, 3.0])
    equal(ts.pmap(ts.vmap(lambda v: v @ w))(BLOCKS), BLOCKS @ w)
    equal(ts.vmap(ts.pmap(lambda v: v @ w))(BLOCKS.transpose(0, 1).contiguous()), (BLOCKS @ w).T)
    equal(ts.vmap(ts.pmap(lambda v: v @ w), in_axes=1, out_axes=1)(BLOCKS), BLOCKS @ w)


def test_jit_in_pmap_and_pmap_in_jit_give_the_values_of_pmap_alone():
    equal(ts.pmap(ts.jit(lambda v: v / ts.lax.psum(v, "i")), axis_name="i")(X + 1), (X + 1) / (X + 1).sum(0))
    mapped = ts.pmap(lambda v: v / ts.lax.psum(v, "i"), axis_name="i")
    equal(ts.jit(lambda x: mapped(x + 1) * 2)(X), (X + 1) / (X + 1).sum(0) * 2)


def test_pmap_in_jit_is_one_message(monkeypatch):
    mapped = ts.pmap(lambda v: ts.lax.psum(v, "i"), axis_name="i")
    f = ts.jit(lambda x: mapped(mapped(x)) + 1)
    placed = ts.pmap(lambda v: v)(X)
    f(placed)
    asked = runs(monkeypatch)
    equal(f(placed), (X.sum(0) * 4 + 1).expand(4, 3))
    assert len(asked) == 1


def test_grad_of_pmap_and_pmap_of_grad():
    equal(ts.grad(lambda x: ts.pmap(lambda v: (v**3).sum())(x).sum())(X), 3 * X**2)
    equal(ts.pmap(ts.grad(lambda v: (v**3).sum()))(X), 3 * X**2)
    value, slope = ts.pmap(ts.value_and_grad(lambda v: (v**2).sum()))(X)
    equal(value, (X**2).sum(1))
    equal(slope, 2 * X)


def test_the_gradient_of_a_value_that_goes_to_all_is_the_sum_over_devices():
    w = torch.tensor([1.0, 2.0, 3.0])
    equal(ts.grad(lambda w: ts.pmap(lambda w, v: v @ w, in_axes=(None, 0))(w, X).sum())(w), X.sum(0))
    equal(ts.grad(lambda w: ts.pmap(lambda v: v @ w)(X).sum())(w), X.sum(0))


def test_a_pmap_inside_a_pmap_says_that_a_device_cannot_be_split():
    with pytest.raises(ValueError, match="cannot be split again"):
        ts.pmap(ts.pmap(lambda v: v, axis_name="b"), axis_name="a")(BLOCKS)


# ---- closures -------------------------------------------------------------------------------------------------------


def test_what_is_closed_over_is_used_as_it_is_at_each_call():
    held = {"w": torch.ones(3)}
    calls = []

    def inner(v):
        return v * held["w"]

    def f(v):
        calls.append(1)
        return inner(v) + 1

    mapped = ts.pmap(f)
    equal(mapped(X), X + 1)
    held["w"] = torch.full((3,), 5.0)
    equal(mapped(X), X * 5 + 1)
    held["w"].mul_(2)
    equal(mapped(X), X * 10 + 1)
    assert calls == [1]


def test_a_module_is_closed_over_with_its_parameters_as_they_are_now():
    module = torch.nn.Linear(3, 2)
    mapped = ts.pmap(lambda v: module(v))
    for _ in range(2):
        weight, bias = module.weight.detach().numpy().copy(), module.bias.detach().numpy().copy()
        np.testing.assert_allclose(np.asarray(mapped(X).detach()), X.numpy() @ weight.T + bias, rtol=1e-5, atol=1e-5)
        with torch.no_grad():
            module.weight.add_(1.0)


# ---- errors ---------------------------------------------------------------------------------------------------------

WRONG = {
    "sizes that differ": (
        lambda: ts.pmap(lambda a, b: a)(torch.ones(4, 2), torch.ones(3, 2)),
        ValueError,
        ["inconsistent sizes", "a, shape (4, 2), has size 4", "b, shape (3, 2), has size 3"],
    ),
    "more rows than devices": (lambda: ts.pmap(lambda v: v)(torch.ones(9)), ValueError, ["size 9", "8 devices"]),
    "devices that do not fit": (
        lambda: ts.pmap(lambda v: v, devices=ts.devices()[:2])(X),
        ValueError,
        ["size 4", "2 devices"],
    ),
    "more devices than rows": (
        lambda: ts.pmap(lambda v: v, devices=ts.devices()[:6])(X),
        ValueError,
        ["6 devices for size 4"],
    ),
    "an unbound name": (
        lambda: ts.pmap(lambda v: ts.lax.psum(v, "j"), axis_name="i")(X),
        NameError,
        ["'j'", "'i' of size 4"],
    ),
    "an unhashable static": (
        lambda: ts.pmap(lambda v, n: v, static_broadcasted_argnums=1)(X, [1]),
        ValueError,
        ["'n': list", "hash"],
    ),
    "a branch on a traced value": (
        lambda: ts.pmap(lambda v: v if v.sum() > 0 else -v)(X),
        TypeError,
        ["traced"],
    ),
    "a repeated source": (
        lambda: ts.pmap(lambda v: ts.lax.ppermute(v, "i", [(0, 1), (0, 2)]), axis_name="i")(X),
        ValueError,
        ["source 0"],
    ),
    "a scalar": (lambda: ts.pmap(lambda v: v)(torch.tensor(1.0)), ValueError, ["axis 0 of v", "rank"]),
    "too many in_axes": (lambda: ts.pmap(lambda v: v, in_axes=(0, 0))(X), ValueError, ["2 entries for 1"]),
    "nothing mapped": (lambda: ts.pmap(lambda v: v, in_axes=None)(X), ValueError, ["no mapped argument", "axis_size"]),
    "another axis_size": (lambda: ts.pmap(lambda v: v, axis_size=3)(X), ValueError, ["3 and 4"]),
    "out_axes beyond": (lambda: ts.pmap(lambda v: v, out_axes=2)(X), ValueError, ["2, a result of 2 dims"]),
    "out_axes of other containers": (
        lambda: ts.pmap(lambda v: (v, v), out_axes=(0, 0, 0))(X),
        ValueError,
        ["out_axes"],
    ),
    "no function": (lambda: ts.pmap(3), TypeError, ["3 (int)"]),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_call_says_what_it_got(what):
    assert_refused(*WRONG[what])


@pytest.mark.parametrize("rows, advised", [(9, True), (1_000_000, False)])
def test_more_rows_than_devices_advise_as_many_workers_only_where_a_machine_can_start_them(rows, advised):
    with pytest.raises(ValueError, match="more rows than devices") as caught:
        ts.pmap(lambda v: v)(torch.ones(rows))
    assert (f"ts.init(devices={rows})" in str(caught.value)) == advised


def test_a_derivative_that_makes_only_some_of_its_results_comes_out_right():
    """A convolution's derivative has none for its input, where that is not asked for."""
    w, b, x = torch.randn(3, 2, 3, 3), torch.randn(3), torch.randn(8, 2, 2, 8, 8)

    def loss(w, b, x):
        return torch.nn.functional.conv2d(x, w, b).relu().mean()

    over = {"axis_name": "i", "in_axes": (None, None, 0), "out_axes": None}
    made = ts.pmap(lambda w, b, x: ts.lax.pmean(ts.grad(loss, (0, 1))(w, b, x), "i"), **over)(w, b, x)
    expected = torch.func.grad(loss, (0, 1))(w, b, x.flatten(0, 1))
    for got, want in zip(made, expected, strict=True):
        torch.testing.assert_close(ts.device_get(got), want)


def test_a_function_that_two_jitted_ones_have_called_is_called_and_differentiated_alone():
    x = torch.arange(24.0).reshape(8, 3)
    for transform in (
        ts.pmap,
        lambda f: ts.shard_map(f, mesh=ts.make_mesh((8,), ("i",)), in_specs=ts.P("i"), out_specs=ts.P("i")),
    ):
        doubled = transform(lambda v: v * 2)
        assert torch.equal(ts.device_get(ts.jit(lambda v, f=doubled: f(v) + 1)(x)), x * 2 + 1)
        assert torch.equal(ts.device_get(ts.jit(lambda v, f=doubled: f(v) - 1)(x)), x * 2 - 1)
        assert torch.equal(ts.device_get(doubled(x)), x * 2)
        assert torch.equal(ts.device_get(ts.grad(lambda v, f=doubled: f(v).sum())(x)), torch.full((8, 3), 2.0))


def test_a_mapped_function_without_operands_is_traced_once_and_explained(capsys):
    weight, traces = ts.array(torch.tensor(2.0)), []
    mapped = ts.shard_map(
        lambda: (traces.append(1), weight * 3)[1], mesh=ts.make_mesh((8,), ("i",)), in_specs=(), out_specs=ts.P()
    )
    ts.config.update("explain_cache_misses", True)
    try:
        assert ts.jit(lambda: mapped() * 2)().item() == 12
        assert len(traces) == 1
        assert mapped().item() == 6
    finally:
        ts.config.update("explain_cache_misses", False)
    assert "is traced" in capsys.readouterr().err

"""What out_specs promise is checked on the graph (check_vma) and on values (check_replicated); None passes through."""

import contextlib

import pytest
import torch

import tinyshard as ts
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")


def mesh():
    return ts.make_mesh((4, 2), ("a", "b"))


X = torch.arange(32.0).reshape(8, 4)


def checked(body, in_specs, out_specs, on=None):
    return ts.shard_map(body, mesh=on or mesh(), in_specs=in_specs, out_specs=out_specs)


def believed(body, in_specs, out_specs):
    return ts.shard_map(body, mesh=mesh(), in_specs=in_specs, out_specs=out_specs, check_vma=False)


@contextlib.contextmanager
def flag(name):
    ts.config.update(name, True)
    try:
        yield
    finally:
        ts.config.update(name, False)


# ---- on the graph ---------------------------------------------------------------------------------------------------

BROKEN = {
    "a cut argument": (lambda v: v.sum(), P("a", "b"), P(), "'a', 'b'"),
    "one axis of two is summed": (lambda v: ts.lax.psum(v.sum(), "a"), P("a", "b"), P(), "'b'"),
    "both reductions of another axis": (lambda v: ts.lax.pmax(ts.lax.pmean(v, "b"), "b"), P(("a", "b")), P("b"), "'a'"),
    "axis_index": (lambda v: v + ts.lax.axis_index("b"), P("a"), P("a"), "'b'"),
    "a cut value after the sum": (lambda v: ts.lax.psum(v, "a") + v, P("a"), P(), "'a'"),
    "a scatter": (lambda v: ts.lax.psum_scatter(v, "a", tiled=True), P(None, "b"), P(None, "b"), "'a'"),
    "an exchange": (lambda v: ts.lax.all_to_all(v, "a", 0, 1, tiled=True), P(None), P(), "'a'"),
    "a shift that leaves one out": (lambda v: ts.lax.ppermute(v, "a", [(0, 1), (1, 2)]), P(), P(), "'a'"),
    "a shift of cut blocks": (
        lambda v: ts.lax.ppermute(v, "a", [(i, (i + 1) % 4) for i in range(4)]),
        P("a"),
        P(),
        "'a'",
    ),
    "a whole shift of equal values": (
        lambda v: ts.lax.ppermute(v, "a", [(i, (i + 1) % 4) for i in range(4)]),
        P(),
        P(),
        "'a'",
    ),
    "gathered, and not said to be the same": (lambda v: ts.lax.all_gather(v, "a"), P("a"), P(), "'a'"),
    "groups": (lambda v: ts.lax.psum(v, "a", axis_index_groups=[[0, 1], [2, 3]]), P("a"), P(), "'a'"),
    "one result of two": (lambda v: {"sum": ts.lax.psum(v, "a"), "own": v}, P("a"), P(), "result['own']"),
}


@pytest.mark.parametrize(("body", "in_specs", "out_specs", "words"), BROKEN.values(), ids=BROKEN)
def test_a_spec_that_the_graph_does_not_bear_out_is_an_error(body, in_specs, out_specs, words):
    f = checked(body, in_specs, out_specs)
    with pytest.raises(ts.ShardingError, match="may differ between devices") as caught:
        f(X)
    assert words in str(caught.value) and "check_vma=False" in str(caught.value)
    with pytest.raises(ts.ShardingError, match="may differ"):
        f.lower(X)
    ts.block_until_ready(believed(body, in_specs, out_specs)(X))


def own(x):
    return ts.lax.pcast(x, ("a", "b"), to="varying")


KEPT = {
    "a sum over both": (lambda v: ts.lax.psum(v.sum(), ("a", "b")), P("a", "b"), P()),
    "one after the other": (lambda v: ts.lax.pmax(ts.lax.psum(v.sum(), "a"), "b"), P("a", "b"), P()),
    "gathered": (lambda v: ts.lax.all_gather(v, "a", tiled=True, to="invarying"), P("a"), P()),
    "whole arguments": (lambda v: v * 2, P(), P()),
    "named in the spec": (lambda v: v + ts.lax.axis_index("b"), P("a"), P("a", "b")),
    "sent from one": (
        lambda v: ts.lax.psum(torch.where(ts.lax.axis_index("a") == 0, v, torch.zeros_like(v)), "a"),
        P("a"),
        P(),
    ),
    "a mean of gradients": (
        lambda v: ts.lax.pmean(ts.grad(lambda w: (v * w).sum())(own(torch.ones(4))), ("a", "b")),
        P(("a", "b")),
        P(),
    ),
    "a vmap inside": (
        lambda v: ts.vmap(lambda r: ts.lax.psum(r, ("a", "i")), axis_name="i")(v),
        P("a"),
        P(),
    ),
    "a constant": (lambda v: torch.ones(3), P("a", "b"), P()),
}


@pytest.mark.parametrize(("body", "in_specs", "out_specs"), KEPT.values(), ids=KEPT)
def test_a_spec_that_the_graph_bears_out_is_no_alarm(body, in_specs, out_specs):
    plain = believed(body, in_specs, out_specs)
    with flag("check_replicated"):
        assert (checked(body, in_specs, out_specs)(X).numpy() == plain(X).numpy()).all()


def test_axes_of_size_one_never_differ():
    alone = ts.make_mesh((1, 4), ("one", "a"))
    f = checked(lambda v: ts.lax.psum(v, "a"), P(("one", "a")), P(), on=alone)
    assert f(X).tolist() == X.reshape(4, 2, 4).sum(0).tolist()


def test_what_is_closed_over_is_whole():
    weight = torch.full((4,), 3.0)
    assert checked(lambda v: weight + ts.lax.psum(v.sum(), "a"), P("a"), P())(X).tolist() == [499.0] * 4


# ---- on values ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64]
)
def test_blocks_that_differ_are_found_on_the_devices(dtype):
    differing, equal = torch.zeros(8, dtype=dtype), torch.ones(8, dtype=dtype)
    differing[5] = 1
    f = believed(lambda v: v, P("a"), P())
    ts.block_until_ready(f(differing))
    with flag("check_replicated"):
        ts.block_until_ready(f(equal))
        with pytest.raises(ts.RemoteError, match=r"(?s)blocks of a result differ.*'a', 'b'"):
            ts.block_until_ready(f(differing))
    ts.block_until_ready(f(differing))


def test_nan_and_scalars_and_empty_results_are_compared_by_their_bits():
    f = believed(lambda v: (v, v.sum(), v[:0]), P("a"), P())
    with flag("check_replicated"):
        ts.block_until_ready(f(torch.full((8,), float("nan"))))
        with pytest.raises(ts.RemoteError, match="result 0"):
            ts.block_until_ready(f(torch.arange(8.0)))


def test_a_result_that_is_cut_along_the_axis_is_not_compared_along_it():
    f = believed(lambda v: v, P("a"), P("a"))
    with flag("check_replicated"):
        assert f(torch.arange(8.0)).tolist() == list(range(8))
        g = believed(lambda v: v, P(("a", "b")), P("a"))
        with pytest.raises(ts.RemoteError, match="along 'b'"):
            ts.block_until_ready(g(torch.arange(8.0)))


def test_pmaps_out_axes_none_is_compared_too():
    f = ts.pmap(lambda v: (v, ts.lax.psum(v, "i")), axis_name="i", out_axes=(None, None))
    with flag("check_replicated"):
        ts.block_until_ready(f(torch.ones(8)))
        with pytest.raises(ts.RemoteError, match="out_axes"):
            ts.block_until_ready(f(torch.arange(8.0)))


def test_inside_jit_and_grad_blocks_are_compared_too():
    f = believed(lambda v: v * v, P("a"), P())
    with flag("check_replicated"):
        # out_specs say that the four blocks are one value: each bears a fourth of the gradient 2 * v
        assert ts.grad(lambda v: ts.jit(f)(v).sum())(torch.ones(8)).tolist() == [0.5] * 8
        with pytest.raises(ts.RemoteError, match="differ"):
            ts.block_until_ready(ts.jit(f)(torch.arange(8.0)))


# ---- what passes through, and what is missing -----------------------------------------------------------------------


def test_none_in_in_specs_passes_a_python_value_through():
    seen = []

    def body(v, n, name, function):
        seen.append((n, name))
        return function(v) * n

    f = ts.shard_map(body, mesh=mesh(), in_specs=(P("a"), None, None, None), out_specs=P("a"))
    assert f(X, 3, "three", torch.neg).tolist() == (-3 * X).tolist()
    assert f(X, 3, "three", torch.neg).tolist() == (-3 * X).tolist()
    assert f(X, 4, "four", torch.neg).tolist() == (-4 * X).tolist()
    assert seen == [(3, "three"), (4, "four")]
    assert ts.jit(lambda v: f(v, 2, "two", torch.neg))(X).tolist() == (-2 * X).tolist()


def test_none_in_in_specs_gives_every_device_a_whole_tensor():
    f = ts.shard_map(lambda v, w: v @ w["w"], mesh=mesh(), in_specs=(P("a"), None), out_specs=P("a"))
    for weight in (torch.eye(4), 2 * torch.eye(4), ts.device_put(3 * torch.eye(4), ts.NamedSharding(mesh(), P("a")))):
        want = X.numpy() @ ts.device_get(weight).numpy()
        assert (f(X, {"w": weight}).numpy() == want).all()
    got = ts.grad(lambda w: f(X, {"w": w}).sum())(torch.eye(4))
    assert got.tolist() == X.sum(0)[:, None].expand(4, 4).tolist()


def test_omitted_in_specs_are_an_error_that_says_so():
    with pytest.raises(ts.DtypeError, match="no in_specs"):
        ts.shard_map(lambda v: v, mesh=mesh(), out_specs=P())
    with pytest.raises(ts.DtypeError, match="no in_specs"):
        ts.shard_map(mesh=mesh(), out_specs=P())(lambda v: v)


def test_axis_names_may_be_those_of_the_mesh():
    f = ts.shard_map(lambda v: v * 2, mesh=mesh(), in_specs=P("a"), out_specs=P("a"), axis_names={"b", "a"})
    assert f(X).tolist() == (2 * X).tolist()
    row = ts.make_mesh((8,), ("row",))
    assert (
        ts.shard_map(lambda v: v * 2, mesh=row, in_specs=P("row"), out_specs=P("row"), axis_names="row")(X)[0, 1] == 2
    )


def outer(f):
    return ts.shard_map(f, mesh=mesh(), in_specs=P("a"), out_specs=P("a"))


def test_one_shard_map_in_another_is_refused_with_one_mesh_for_both():
    with pytest.raises(ts.MappingError, match="mapped over devices already") as caught:
        outer(lambda v: outer(lambda u: u)(v))(X)
    assert "a mesh of two axes" in str(caught.value)

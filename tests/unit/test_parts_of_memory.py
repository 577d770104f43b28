"""as_strided, histogramdd and pictures of traced values: as torch has them, or refused."""

import numpy as np
import pytest
import torch

import tinyshard as ts
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")

X = torch.arange(32.0).reshape(8, 4)

IN_ORDER = {
    "the whole": lambda v: v.as_strided((4, 8), (1, 4)),
    "windows": lambda v: torch.as_strided(v, (3, 4), (4, 1), 2),
    "flattened": lambda v: v.flatten().as_strided((5, 4), (2, 1), 3),
    "with a dim more": lambda v: v[None].as_strided((2, 2), (4, 1), 1),
    "computed": lambda v: (v.T + 1).contiguous().as_strided((4, 2), (1, 2)),
}
PARTS = {
    "a slice from the start of all": lambda v: v[2:].as_strided((2, 2), (4, 1), 0),
    "transposed": lambda v: v.T.as_strided((4, 2), (1, 2)),
    "a column": lambda v: v[:, 1].as_strided((3,), (1,)),
    "a column with a dim more": lambda v: torch.as_strided(v[:, 1].unsqueeze(0), (3,), (1,)),
    "another part": lambda v: v.as_strided((4, 3), (8, 2), 1).as_strided((3,), (1,)),
}
WRAPS = {
    "eager": lambda f: f,
    "jit": ts.jit,
    "vmap": lambda f: lambda v: ts.vmap(f)(v[None])[0],
    "jvp": lambda f: lambda v: ts.jvp(f, (v,), (v,))[0],
    "grad": lambda f: lambda v: ts.grad(lambda v: f(v).sum())(v),
}


def placed():
    return ts.device_put(X, ts.NamedSharding(ts.make_mesh((4, 2), ("a", "b")), P("a", "b")))


@pytest.mark.parametrize("wrap", [lambda f: f, ts.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("function", IN_ORDER.values(), ids=IN_ORDER)
def test_as_strided_of_values_in_order_is_torchs(wrap, function):
    assert torch.equal(ts.device_get(wrap(function)(placed())), function(X))


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("function", PARTS.values(), ids=PARTS)
def test_as_strided_of_a_part_is_refused(wrap, function):
    with pytest.raises(ts.DtypeError, match="as_strided of a part"):
        wrap(function)(placed())


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
def test_as_strided_of_the_contiguous_clone_that_the_refusal_names_is_torchs(wrap):
    def f(v):
        return v.T.clone(memory_format=torch.contiguous_format).as_strided((4, 2), (1, 2))

    want = wrap(f)(X)
    assert torch.equal(ts.device_get(wrap(f)(placed())), ts.device_get(want))


@pytest.mark.parametrize("wrap", [WRAPS[name] for name in ("eager", "jit", "jvp", "grad")])
def test_stft_which_calls_as_strided_itself_takes_a_part(wrap):
    def f(v):
        return torch.stft(v[2:].flatten(), 4, 2, window=torch.ones(4), center=False, return_complex=True).abs()

    torch.testing.assert_close(ts.device_get(wrap(f)(placed())), ts.device_get(wrap(f)(X)))


def test_as_strided_of_a_part_is_refused_in_mapped_functions():
    mesh = ts.make_mesh((4,), "a")
    f = ts.shard_map(lambda v: v.T.as_strided((2, 2), (1, 2)), mesh=mesh, in_specs=P("a"), out_specs=P("a"))
    with pytest.raises(ts.DtypeError, match="as_strided of a part"):
        f(X)


def test_a_view_does_not_forbid_as_strided_of_the_whole():
    x = placed()
    x.T.sum()
    assert torch.equal(ts.device_get(x.as_strided((3, 4), (4, 1), 2)), X.as_strided((3, 4), (4, 1), 2))


def test_histogramdd_has_an_edge_for_each_dim():
    points = torch.from_numpy(np.random.default_rng(0).random((8, 3), dtype=np.float32))
    want = torch.histogramdd(points, [2, 3, 4])
    for values in (ts.array(points), ts.device_put(points, ts.NamedSharding(ts.make_mesh((8,), "x"), P("x")))):
        got = torch.histogramdd(values, [2, 3, 4])
        assert type(got) is type(want) and type(got.bin_edges) is type(want.bin_edges)
        assert torch.equal(ts.device_get(got.hist), want.hist)
        assert [e.tolist() for e in got.bin_edges] == [e.tolist() for e in want.bin_edges]
    got = torch.histogramdd(ts.array(points), 2)
    assert [e.tolist() for e in got.bin_edges] == [e.tolist() for e in torch.histogramdd(points, 2).bin_edges]


@pytest.mark.parametrize("transform", [ts.jit, ts.vmap, ts.pmap])
@pytest.mark.parametrize("make", [lambda: X, placed], ids=["tensor", "Array"])
def test_a_traced_value_is_not_drawn(transform, make, capsys):
    def f(v):
        ts.debug.visualize_array_sharding(v)
        return v

    with pytest.raises(ts.DtypeError, match="a traced value has no place yet"):
        transform(f)(make())
    with pytest.raises(ts.DtypeError, match="a traced value has no place yet"):
        ts.grad(lambda v: f(v).sum())(make())
    assert capsys.readouterr().out == ""


def test_an_array_that_is_closed_over_is_drawn(capsys):
    x = ts.device_put(X, ts.devices()[3])
    ts.jit(lambda v: (ts.debug.visualize_array_sharding(x), v)[1])(X)
    assert "CPU 3" in capsys.readouterr().out

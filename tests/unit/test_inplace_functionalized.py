"""In-place ops on values that torch's own functions make, and on parts of them, held against plain torch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tinyshard as ts
from tests.extent import IS_WHOLE, every, mostly_whole
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")

SPECS = [P(), P("x"), P(None, "y"), P("y", "x"), P(("x", "y"))]


@pytest.fixture(scope="module")
def mesh(local: None) -> ts.Mesh:
    return ts.make_mesh((4, 2), ("x", "y"))


def numbers(*shape: int) -> Tensor:
    """Normal numbers that are the same in every run."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(17))


# ---- in-place ops inside one call, on parts of values that the call made ----------------------------------------


def _siblings(w: Tensor) -> Tensor:
    left, right = w[:, :5], w[:, 3:]
    left.mul_(2)
    right.add_(left.sum())
    return w + F.pad(right, (0, 3))


def _after_the_source(w: Tensor) -> Tensor:
    part, copy = w[2:6], w.detach()
    w.mul_(3)
    return w + copy + part.sum()


def _through_the_alias(w: Tensor) -> Tensor:
    w.detach().zero_()
    return w + 1


def _two_parts(w: Tensor) -> Tensor:
    a, b = w.split(4, 1)
    a.copy_(b)
    b.neg_()
    return w


def _unbound(w: Tensor) -> Tensor:
    for i, row in enumerate(w.unbind()):
        row.mul_(i)
    return w


def _copied_by_reshape(w: Tensor) -> Tensor:
    w.t().reshape(-1).zero_()
    return w


def _set(w: Tensor) -> Tensor:
    w[1:3, 2] = 5
    w[:, 0] = w[:, 1]
    return w


def _complex(w: Tensor) -> Tensor:
    z = torch.complex(w, w + 1)
    torch.view_as_real(z)[..., 0].mul_(2)
    z.imag.add_(1)
    return (z * z).real


PARTS: dict[str, Callable[[Tensor], Any]] = {
    "narrow": lambda w: (w.narrow(1, 2, 3).mul_(2), w)[1],
    "a slice with a step": lambda w: (w[1::2].sub_(1), w)[1],
    "select": lambda w: (w.select(-1, 3).fill_(7), w)[1],
    "diagonal": lambda w: (w.diagonal().copy_(torch.arange(8.0)), w)[1],
    "diagonal with negative dims": lambda w: (w.diagonal(1, -1, -2).mul_(2), w)[1],
    "transpose": lambda w: (w.mT.mul_(torch.arange(8.0)), w)[1],
    "permute, slice, diagonal": lambda w: (w.view(2, 4, 8).permute(2, 1, 0)[:4].diagonal().add_(1), w)[1],
    "view": lambda w: (w.view(-1)[5:50].zero_(), w)[1],
    "unflatten": lambda w: (w.unflatten(0, (2, 4))[1].exp_(), w)[1],
    "squeeze and unsqueeze": lambda w: (w.unsqueeze(0).squeeze().clamp_(min=0), w)[1],
    "unfold": lambda w: (w.unfold(1, 4, 4)[:, 1].mul_(3), w)[1],
    "as_strided": lambda w: (w.as_strided((3, 2), (8, 2), 9).zero_(), w)[1],
    "tril_": lambda w: (w[:4, :4].tril_(), w)[1],
    "masked_fill_": lambda w: (w[2:].masked_fill_(w[2:] > 0, 9.0), w)[1],
    "index_put_": lambda w: (w[2:].index_put_((torch.tensor([0, 3]),), torch.tensor(4.0)), w)[1],
    "a number to a power": lambda w: (w.abs_().add_(1).pow_(1.5), w)[1],
    "a view after a write through another": lambda w: (w[:4].mul_(2), w[2:6].mul_(5), w.t()[1:3].neg_(), w)[-1],
    "siblings": _siblings,
    "a part and an alias, after their source": _after_the_source,
    "an alias": _through_the_alias,
    "split": _two_parts,
    "unbind": _unbound,
    "what reshape copied": _copied_by_reshape,
    "index assignment": _set,
    "view_as_real": _complex,
    "the part alone": lambda w: w[1:3].mul_(2),
}


def in_one_call(function: Callable[[Tensor], Any], x: Tensor) -> Any:
    """`function` of `x`, as torch calls a function of its own that is written so."""
    return ts.Array.__torch_function__(function, (ts.Array,), (x,))


NO_GRADIENT = {"split", "unbind", "what reshape copied"}  # torch refuses the first two, tinyshard the third


@pytest.mark.parametrize(
    "name, spec",
    mostly_whole(
        itertools.product(PARTS, SPECS),
        lambda row: row[1] == SPECS[3] and row[0] in {*NO_GRADIENT, *list(PARTS)[::4]},  # gradients have values, too
    ),
    ids=str,
)
def test_a_write_into_a_part_of_a_value_made_in_the_call_reaches_the_whole(name: str, spec: P, mesh: ts.Mesh) -> None:
    function, host = PARTS[name], numbers(8, 8)
    x = ts.device_put(host, ts.NamedSharding(mesh, spec))
    out = in_one_call(lambda v: function(v * 1.5), x)
    torch.testing.assert_close(ts.device_get(out), function(host * 1.5))
    assert torch.equal(ts.device_get(x), host)


@pytest.mark.parametrize(
    "name, spec", every(3, itertools.product(sorted(set(PARTS) - NO_GRADIENT), SPECS[1::2])), ids=str
)
def test_the_gradient_of_a_write_into_a_part_equals_torchs(name: str, spec: P, mesh: ts.Mesh) -> None:
    function, host = PARTS[name], numbers(8, 8)

    def loss(v: Tensor) -> tuple[Tensor, Tensor]:
        out = function(v * 1.5)
        return (out * torch.linspace(0, 1, out.numel()).view(out.shape)).sum(), out

    wanted_slope, (wanted, wanted_out) = torch.func.grad_and_value(loss, has_aux=True)(host)
    x = ts.device_put(host, ts.NamedSharding(mesh, spec))
    (value, out), slope = ts.value_and_grad(loss, has_aux=True)(x)
    torch.testing.assert_close(ts.device_get(out), wanted_out)
    torch.testing.assert_close(ts.device_get(value), wanted)
    torch.testing.assert_close(ts.device_get(slope), wanted_slope)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.view(-1).add_(1),
        lambda x: x.detach().add_(1),
        lambda x: x.t()[1].zero_(),
        lambda x: x.split(2)[0].mul_(2),
        lambda x: ts.vmap(lambda v: v.view(-1).mul_(2))(x),
        lambda x: in_one_call(lambda v: v.view(-1).mul_(2), x),
        lambda x: in_one_call(lambda v: [w := v * 2, w.t(), w.t_(), w.add_(1)], x),
        lambda x: in_one_call(lambda v: [w := v * 2, part := w[1:3], part.t_(), w.add_(1)], x),
        lambda x: in_one_call(lambda v: [w := v * 2, part := w[1:3], part.t_(), part.add_(1)], x),
        lambda x: in_one_call(lambda v: [w := v * 2, in_one_call(torch.t, w), w.add_(1)], x),
        lambda x: in_one_call(lambda v: [w := v * 2, part := w[1:3], in_one_call(torch.t, part), w.add_(1)], x),
        lambda x: in_one_call(lambda v: [w := v * 2, part := w[1:3], in_one_call(torch.t, w), part.add_(1)], x),
        lambda x: (lambda y: (y.view(-1), y.add_(1)))(x * 1),
    ],
)
def test_a_users_own_write_into_a_part_is_refused(change: Callable[[Tensor], Any], mesh: ts.Mesh) -> None:
    host = numbers(8, 8)
    x = ts.device_put(host, ts.NamedSharding(mesh, P("x")))
    with pytest.raises(ts.ImmutableError, match="in place"):
        change(x)
    assert torch.equal(ts.device_get(x), host)


# ---- functions of torch that write into parts of their own values ----------------------------------------------------


def _basis(a: Tensor) -> Tensor:
    return torch.linalg.householder_product(a[..., :3], a[..., 0, :3])


FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "qr": torch.linalg.qr,
    "svd": lambda a: torch.linalg.svd(a)[1],
    "svd of a tall matrix": lambda a: torch.linalg.svd(a[..., :3], full_matrices=False)[0].abs(),
    "eigh": lambda a: torch.linalg.eigh(a @ a.mT)[0],
    "eigh with vectors": lambda a: torch.linalg.eigh(a @ a.mT)[1].abs(),
    "cholesky": lambda a: torch.linalg.cholesky(a @ a.mT + torch.eye(4)),
    "lstsq": lambda a: torch.linalg.lstsq(a + 4 * torch.eye(4), a.flip(-1)).solution,
    "householder_product": _basis,
    "ormqr": lambda a: torch.ormqr(a[..., :3], a[..., 0, :3], a),
    "irfft": torch.fft.irfft,
    "irfft2": lambda a: torch.fft.irfft2(torch.complex(a, a + 1)),
    "rfftn": lambda a: torch.view_as_real(torch.fft.rfftn(a)),
    "hfft": torch.fft.hfft,
    "hfft2": torch.fft.hfft2,
    "hfftn": torch.fft.hfftn,
    "ihfft": lambda a: torch.view_as_real(torch.fft.ihfft(a).resolve_conj()),
    "linear of a vector": lambda a: F.linear(a[0, 0], a[0], a[0, :, 0]),
    "linear of a batch": lambda a: F.linear(a, a[0], a[0, 0]),
    "norm of order 3": lambda a: torch.linalg.norm(a, 3, dim=-1),
    "vector_norm of order 2.5": lambda a: torch.linalg.vector_norm(a, 2.5, dim=(0, 1)),
    "norm of order 0.5": lambda a: torch.norm(a, 0.5),
    "dist": lambda a: torch.dist(a, a.flip(0) * 2, 3),
    "normalize": lambda a: F.normalize(a, 4.0, dim=1),
    "pairwise_distance": lambda a: F.pairwise_distance(a, a.flip(-1), 3.0),
    "tensor_split": lambda a: a.tensor_split((1, 3), dim=-1),
    "pad circular": lambda a: F.pad(a, (1, 2), mode="circular"),
    "instance_norm": lambda a: F.instance_norm(a),
    "gaussian_nll_loss": lambda a: F.gaussian_nll_loss(a, a.flip(0), a.abs() + 0.1, full=True),
    "quantile": lambda a: torch.quantile(a, torch.tensor([0.2, 0.7]), dim=0),
    "stft": lambda a: torch.view_as_real(torch.stft(a.view(8, 16), 8, window=torch.ones(8), return_complex=True)),
    "istft": lambda a: torch.istft(torch.complex(a, a)[:, :3], 4, window=torch.ones(4)),
    "pdist": lambda a: F.pdist(a.view(8, 16)),
    "embedding_bag": lambda a: F.embedding_bag(torch.tensor([[0, 7], [3, 3]]), a.view(8, 16), mode="mean"),
}
READS_VALUES = {  # under jit: what only values tell decides
    "istft": (TypeError, "asks for the value"),
    "lstsq": (ts.DtypeError, "shape of a result"),
}


def weighed(out: Any) -> Tensor:
    """One number of all results, each element with a weight of its own."""
    leaves = out if isinstance(out, tuple | list) else [out]
    return sum(((x * torch.linspace(0.5, 2, x.numel()).view(x.shape)).sum() for x in leaves), start=torch.tensor(0.0))


LAYOUTS = [P("x", None, "y"), P(("y", "x")), P(None, "x")]


def value_and_slope(function: Callable[[Tensor], Any], host: Tensor) -> tuple[Tensor, Tensor]:
    """What torch gives."""
    slope, value = torch.func.grad_and_value(lambda a: weighed(function(a)))(host)
    return value, slope


@pytest.mark.parametrize("name, spec", every(4, itertools.product(FUNCTIONS, LAYOUTS)), ids=str)
def test_values_and_gradients_of_functions_that_write_into_parts_equal_torchs(
    name: str, spec: P, mesh: ts.Mesh
) -> None:
    function, host = FUNCTIONS[name], numbers(8, 4, 4)
    x = ts.device_put(host, ts.NamedSharding(mesh, spec))
    got = ts.value_and_grad(lambda a: weighed(function(a)))(x)
    torch.testing.assert_close(ts.device_get(got), value_and_slope(function, host), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name, spec", every(20, itertools.product(FUNCTIONS, LAYOUTS)), ids=str)
def test_and_so_do_gradients_on_torchs_tape(name: str, spec: P, mesh: ts.Mesh) -> None:
    function, host = FUNCTIONS[name], numbers(8, 4, 4)
    leaf = ts.device_put(host, ts.NamedSharding(mesh, spec)).detach().requires_grad_()
    (slope,) = torch.autograd.grad(weighed(function(leaf)), leaf)
    torch.testing.assert_close(ts.device_get(slope), value_and_slope(function, host)[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", every(5, [name for name in FUNCTIONS if name not in READS_VALUES]))
def test_and_so_do_values_and_gradients_under_jit(name: str, mesh: ts.Mesh) -> None:
    function, host = FUNCTIONS[name], numbers(8, 4, 4)
    x = ts.device_put(host, ts.NamedSharding(mesh, P(None, "x")))
    got = ts.jit(ts.value_and_grad(lambda a: weighed(function(a))))(x)
    torch.testing.assert_close(ts.device_get(got), value_and_slope(function, host), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", READS_VALUES)
def test_one_that_values_decide_is_refused_under_jit(name: str, mesh: ts.Mesh) -> None:
    kind, words = READS_VALUES[name]
    x = ts.device_put(numbers(8, 4, 4), ts.NamedSharding(mesh, P(None, "x")))
    with pytest.raises(kind, match=words):
        ts.jit(ts.value_and_grad(lambda a: weighed(FUNCTIONS[name](a))))(x)


def test_tensor_split_at_places_that_only_values_tell(mesh: ts.Mesh) -> None:
    host, at = numbers(8, 4), torch.tensor([1, 5])
    x, places = (ts.device_put(t, ts.NamedSharding(mesh, P("y"))) for t in (host, at))
    for given in (at, places):
        named = torch.tensor_split(input=x, tensor_indices_or_sections=given)
        for got in (torch.tensor_split(x, given), x.tensor_split(given), named):
            torch.testing.assert_close(ts.device_get(got), torch.tensor_split(host, at))
    with pytest.raises(TypeError, match="asks for the value of a traced tensor"):
        ts.jit(torch.tensor_split)(x, places)


@pytest.mark.parametrize("transform", [lambda f: f, ts.jit, lambda f: ts.grad(lambda w, i: f(w, i).sum())])
def test_max_norm_of_an_embedding_which_changes_the_weight_is_refused_by_name(transform: Any, mesh: ts.Mesh) -> None:
    weight, rows = ts.device_put(numbers(8, 4), ts.NamedSharding(mesh, P("x"))), ts.array(torch.tensor([1, 5, 1]))
    for call in (F.embedding, lambda i, w, max_norm: F.embedding_bag(i[None], w, max_norm=max_norm)):
        with pytest.raises(ts.ImmutableError, match=r"max_norm(.|\n)*weight"):
            transform(lambda w, i, call=call: call(i, w, max_norm=0.5))(weight, rows)
    assert torch.equal(ts.device_get(weight), numbers(8, 4))
    wanted = F.embedding(ts.device_get(rows), numbers(8, 4) * 1, max_norm=0.5)
    cure = weight * (0.5 / weight.norm(dim=1, keepdim=True)).clamp(max=1)
    torch.testing.assert_close(ts.device_get(F.embedding(rows, cure)), wanted)


@pytest.mark.parametrize("shape", [(8, 4), (8, 16)])
def test_pdist_of_a_matrix_in_any_layout(shape: tuple[int, int], mesh: ts.Mesh) -> None:
    host = numbers(*shape)
    for spec in (P(None, "x"), P("y", "x"), P("x", "y")):
        x = ts.device_put(host, ts.NamedSharding(mesh, spec))
        torch.testing.assert_close(ts.device_get(F.pdist(x)), F.pdist(host))
        got = ts.jit(ts.grad(lambda a: (F.pdist(a) ** 2).sum()))(x)
        wanted = torch.func.grad(lambda a: (F.pdist(a) ** 2).sum())(host)
        torch.testing.assert_close(ts.device_get(got), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "treat",
    [
        lambda w: w.t().contiguous(),
        lambda w: (w.t() + 1).contiguous(),
        lambda w: w.t().reshape(-1),
        lambda w: torch.reshape(w.t() + 1, (-1,)),
        lambda w: w.t().flatten(),
    ],
)
@pytest.mark.parametrize("transform", [lambda f: ts.grad(lambda v: f(v).sum()), lambda f: ts.vmap(f)])
def test_a_write_into_what_torch_may_have_copied_is_refused(treat: Any, transform: Any, mesh: ts.Mesh) -> None:
    x = ts.device_put(numbers(4, 4, 4), ts.NamedSharding(mesh, P("x")))

    def function(v: Tensor) -> Tensor:
        w = v.select(0, 0).mul(2) if v.dim() == 3 else v * 2
        part = treat(w)
        part.add_(1)
        return w + part.sum()

    with pytest.raises(ts.ImmutableError, match="in place"):
        transform(function)(x)


# ---- writes that reach a value by another way: detach, data, ops on lists, custom ops -------------------------------


def _ema(v: Tensor) -> Tensor:
    e = v.clone()
    e.data.mul_(0.9).add_(v + 10, alpha=0.1)
    return e


def _filled(v: Tensor) -> Tensor:
    e = torch.zeros(v.shape)
    e.detach().copy_(v)
    return e


def _parameter(v: Tensor) -> Tensor:
    e = v * 1
    torch.nn.Parameter(e, requires_grad=False).fill_(7)
    return e


def _read_later(v: Tensor) -> tuple[Tensor, Tensor]:
    e = v.clone()
    d = e.detach()
    part = d.view(-1)[1:]
    e.add_(1)
    return d, part * 2


def _at_a_traced_number(v: Tensor) -> tuple[Tensor, Tensor]:
    y, i = v * 1, (v.sum() > -1e9).long()
    before, after = y[i].detach(), y[0]
    y.mul_(2)
    y[i].data.add_(1)
    return y, before + after


def _foreach(v: Tensor) -> tuple[Tensor, Tensor]:
    y, z = v * 1, v + 2
    torch._foreach_add_([y, z[1:2]], 1.0)
    torch._foreach_addcmul_([y], [z], [v], value=2.0)
    torch._foreach_copy_([z], [y])
    return y, z


def _clipped(v: Tensor) -> Tensor | None:
    p = torch.nn.Parameter(torch.zeros(8, 8))
    p.grad = v * 1
    torch.nn.utils.clip_grad_norm_([p], 1.0, foreach=True)
    return p.grad


OTHER_WAYS: dict[str, Callable[[Tensor], Any]] = {
    "data": _ema,
    "detach": _filled,
    "Parameter": _parameter,
    "a detached value read after its source was written": _read_later,
    "a detached view by a traced number": _at_a_traced_number,
    "foreach": _foreach,
    "clip_grad_norm_ with foreach": _clipped,
}


@pytest.mark.parametrize("name", OTHER_WAYS)
def test_a_write_by_another_way_into_a_traced_functions_own_value_equals_torchs(name: str, mesh: ts.Mesh) -> None:
    function, host = OTHER_WAYS[name], numbers(8, 8)
    wanted = function(host.clone())
    for spec in SPECS if IS_WHOLE else SPECS[3:4]:
        x = ts.device_put(host, ts.NamedSharding(mesh, spec))
        torch.testing.assert_close(ts.device_get(ts.jit(function)(x)), wanted)
        assert torch.equal(ts.device_get(x), host)


@pytest.mark.parametrize("name", ["data", "detach", "foreach"])
def test_a_write_by_another_way_inside_of_shard_map_equals_torchs(name: str, mesh: ts.Mesh) -> None:
    function, host = OTHER_WAYS[name], numbers(8, 8)
    cut = host.chunk(4) if name == "foreach" else [host]
    made = [function(part.clone()) for part in cut]
    wanted = tuple(map(torch.cat, zip(*made, strict=True))) if name == "foreach" else made[0]
    mapped = ts.shard_map(function, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    torch.testing.assert_close(ts.device_get(mapped(host)), wanted)


def test_a_gradient_passes_a_write_through_data_as_in_torch(mesh: ts.Mesh) -> None:
    def rounded(v: Tensor) -> Tensor:  # the straight-through estimator
        y = v * 1
        y.data.round_()
        return (y * v).sum() + (y.detach() * v.exp()).sum()

    host = numbers(8, 8)
    wanted = torch.func.grad(rounded)(host)
    x = ts.device_put(host, ts.NamedSharding(mesh, P("x")))
    for transform in (lambda f: ts.jit(ts.grad(f)), lambda f: ts.grad(ts.jit(f)), lambda f: ts.jit(ts.grad(ts.jit(f)))):
        torch.testing.assert_close(ts.device_get(transform(rounded)(x)), wanted)


def test_a_foreach_op_inside_of_grad_equals_torchs(mesh: ts.Mesh) -> None:
    def loss(v: Tensor) -> Tensor:
        y = v * 2
        torch._foreach_mul_([y], 3.0)
        return (y * v).sum()

    host = numbers(8, 8)
    x = ts.device_put(host, ts.NamedSharding(mesh, P("x")))
    for transform in (ts.grad, lambda f: ts.jit(ts.grad(f)), lambda f: ts.grad(ts.jit(f))):
        torch.testing.assert_close(ts.device_get(transform(loss)(x)), torch.func.grad(loss)(host))


@torch.library.custom_op("tinyshard_tests::plus1_", mutates_args=("v",))
def plus1_(v: Tensor) -> None:
    """An op of a user's that writes into its argument."""
    v.add_(1)


@plus1_.register_fake
def _(v: Tensor) -> None:
    pass


def _data_assigned(v: Tensor) -> Tensor:
    y = v * 1
    y.data = v * 3
    return y


WRITES: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "data": (lambda v: v.data.zero_(), "in place"),
    "a part of what was detached": (lambda v: v.detach()[1:].zero_(), "in place"),
    "foreach": (lambda v: torch._foreach_add_([v], 1.0), "in place"),
    "a custom op": (plus1_, "mutates_args"),
    "a custom op on an own value": (lambda v: plus1_(v * 1), "mutates_args"),
    "assignment of data": (_data_assigned, "data"),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_by_another_way_that_cannot_be_is_refused_and_changes_nothing(name: str, mesh: ts.Mesh) -> None:
    change, words = WRITES[name]
    host = numbers(8, 8)
    for spec in (P(), P("x")):
        x = ts.device_put(host, ts.NamedSharding(mesh, spec))
        mapped = ts.shard_map(lambda v: (change(v), v * 1)[1], mesh=mesh, in_specs=spec, out_specs=spec)
        for transformed in (change, ts.jit(lambda v: (change(v), v * 1)[1]), mapped):
            with pytest.raises(ts.ImmutableError, match=words):
                transformed(x)
            assert torch.equal(ts.device_get(x), host)


@pytest.mark.parametrize(
    "change",
    [
        lambda p: p.detach().add_(1),
        lambda p: p.data.mul_(0.5),
        lambda p: torch._foreach_add_([p.detach()], 1.0),
        lambda p: setattr(p, "data", p.data * 2),
    ],
)
def test_a_write_by_another_way_into_a_closed_over_tensor_is_refused(change: Callable[[Tensor], Any]) -> None:
    for outer in (torch.ones(4), torch.nn.Parameter(torch.ones(4)), ts.array(torch.ones(4))):
        with pytest.raises(ts.ImmutableError):
            ts.jit(lambda v, outer=outer: (change(outer), v + outer)[1])(torch.zeros(4))
        assert torch.equal(ts.device_get(outer).detach(), torch.ones(4))


def test_reading_what_is_detached_is_no_write(mesh: ts.Mesh) -> None:
    outer = torch.nn.Parameter(torch.ones(8))

    def function(v: Tensor) -> Tensor:
        own = outer.data.clone().mul_(2)
        return own + v.detach() + v.data.clone().add_(1) + outer.detach()

    wanted = function(torch.arange(8.0))
    torch.testing.assert_close(ts.device_get(ts.jit(function)(torch.arange(8.0))), wanted.detach())

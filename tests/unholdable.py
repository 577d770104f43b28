"""Tensors that no device can hold, and the ways in which a program meets them."""

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import tinyshard as ts
from tests.extent import mostly_whole
from tests.refusals import assert_refused

PARTS = ("  got:  ", "  rule: ", "  try:  ")


def _quietly(make: Callable[[], Any]) -> Any:
    """torch announces that some of these go, or are a prototype."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(4, 4)


def _bits(dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(4, 4, dtype=torch.uint8).view(dtype)


# by kind: the tensor, and a word that its refusal says
TENSORS: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "quantized by tensor": (lambda: torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.qint8), "x.dequantize()"),
    "quantized by channel": (
        lambda: torch.quantize_per_channel(torch.ones(4, 4), torch.ones(4), torch.zeros(4), 0, torch.quint8),
        "x.dequantize()",
    ),
    "quantized, large": (lambda: torch.quantize_per_tensor(torch.ones(200, 200), 0.1, 0, torch.qint8), "qint8"),
    "coo": (lambda: torch.eye(4).to_sparse(), "sparse_coo"),
    "csr": (lambda: torch.eye(4).to_sparse_csr(), "sparse_csr"),
    "csc": (lambda: torch.eye(4).to_sparse_csc(), "sparse_csc"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "to_padded_tensor"),
    "jagged": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
        "to_padded_tensor",
    ),
    "mkldnn": (lambda: torch.ones(4, 4).to_mkldnn(), "x.to_dense()"),
    "meta": (lambda: torch.ones(4, 4, device="meta"), "ShapeDtypeStruct"),
    "fake": (_fake, "ShapeDtypeStruct"),
    "int4": (lambda: _bits(torch.int4), "int4"),
    "uint3": (lambda: _bits(torch.uint3), "uint3"),
}

# how a program meets it
WAYS: dict[str, Callable[[torch.Tensor, ts.Array], Any]] = {
    "device_put": lambda bad, x: ts.device_put(bad),
    "device_put in a tree": lambda bad, x: ts.device_put({"a": [x, bad]}),
    "array": lambda bad, x: ts.array(bad),
    "eager operand": lambda bad, x: torch.ops.aten.mul.Tensor(x, bad),
    "eager operand in a list": lambda bad, x: torch.ops.aten.cat.default([x, bad]),
    "jit argument": lambda bad, x: ts.jit(lambda a, b: a)(x, bad),
    "jit closure": lambda bad, x: ts.jit(lambda a: torch.ops.aten.mul.Tensor(a, bad))(x),
}

# ops on an Array whose result is such a tensor
MAKERS: dict[str, Callable[[Any], Any]] = {
    "quantize_per_tensor": lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8),
    "quantize_per_tensor_dynamic": lambda x: torch.quantize_per_tensor_dynamic(x, torch.qint8, False),
    "quantize_per_channel": lambda x: torch.quantize_per_channel(x, torch.ones(4), torch.zeros(4), 0, torch.qint8),
    "to_sparse": lambda x: x.to_sparse(),
    "to_sparse_csr": lambda x: x.to_sparse_csr(),
    "to_mkldnn": lambda x: x.to_mkldnn(),
}


def check_kind(kind: str, way: str) -> None:
    """It is refused in four parts, and the next call works."""
    make, word = TENSORS[kind]
    bad, x = _quietly(make), ts.array(torch.ones(4, 4))
    assert_refused(lambda: _quietly(lambda: WAYS[way](bad, x)), ts.DtypeError, (word, *PARTS))
    assert (x + 1).sum().item() == 32


def check_maker(maker: str, jitted: bool) -> None:
    """The op is refused in four parts, and the next call works."""
    make, x = MAKERS[maker], ts.array(torch.ones(4, 4))
    call = ts.jit(make) if jitted else make
    assert_refused(lambda: _quietly(lambda: ts.device_get(call(x))), ts.DtypeError, PARTS)
    assert (x + 1).sum().item() == 32


def check_views(size: int) -> None:
    """Views whose values torch computes when it reads them, conj and negative ones, arrive as what they stand for."""
    plain = torch.arange(1.0, 2 * size + 1).reshape(size, 2)
    z = torch.view_as_complex(plain)
    negative = z.conj().imag  # torch keeps the values of z and notes that they should be negated
    assert negative.is_neg() and z.conj().is_conj() and torch._neg_view(z.conj()).is_neg()
    where = ts.devices()[-1]
    for view, right in (
        (z.conj(), torch.complex(plain[:, 0], -plain[:, 1])),
        (negative, -plain[:, 1]),
        (torch._neg_view(plain), -plain),
        (torch._neg_view(z.conj()), torch.complex(-plain[:, 0], plain[:, 1])),
    ):
        x = ts.array(torch.zeros(()))
        for got in (ts.device_put(view, where), x + view, ts.jit(lambda a, b: a + b)(x, view)):
            assert torch.equal(ts.device_get(got), right)
    placed = ts.device_put(z, where)
    assert torch.equal(ts.device_get(placed.conj()), torch.complex(plain[:, 0], -plain[:, 1]))
    assert torch.equal(ts.device_get(placed.conj().imag), -plain[:, 1])


every_kind = pytest.mark.parametrize("kind", TENSORS)
every_way = pytest.mark.parametrize("way", WAYS)
every_maker = pytest.mark.parametrize("maker", MAKERS)
eager_and_jitted = pytest.mark.parametrize("jitted", [False, True], ids=["eager", "jit"])

# each way with one kind
PART = dict(zip(WAYS, list(TENSORS)[::2], strict=True))
mostly_each_way_once = pytest.mark.parametrize(
    "kind, way", mostly_whole(itertools.product(TENSORS, WAYS), lambda row: PART[row[1]] == row[0])
)
mostly_one_maker = pytest.mark.parametrize("maker", mostly_whole(MAKERS, lambda maker: maker == "to_sparse"))

"""Attention in which each head of keys serves several heads of queries, with heads and examples over the devices."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import tinyshard as ts
from tests.extent import every
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")

SPECS = [P(), P("a"), P(None, "b"), P("a", "b"), P(None, "a"), P(None, ("a", "b")), P("b", "a")]


def attend(q, k, v, mask=None):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)


def operands(heads_of_keys):
    generator = torch.Generator().manual_seed(heads_of_keys)
    q, mask = (torch.randn(*shape, generator=generator) for shape in ((4, 8, 6, 16), (4, 8, 6, 6)))
    k, v = (torch.randn(4, heads_of_keys, 6, 16, generator=generator) for _ in range(2))
    return q, k, v, mask


def placed(x, spec):
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    parts = (*spec, None, None)[:2]
    sizes = [{None: 1, "a": 4, "b": 2, ("a", "b"): 8}[n] for n in parts]
    fits = all(size % count == 0 for size, count in zip(x.shape, sizes, strict=False))
    return ts.device_put(x, ts.NamedSharding(mesh, spec if fits else P()))


@pytest.mark.parametrize(
    ("of_queries", "of_keys", "heads_of_keys"), every(9, itertools.product(SPECS, SPECS, (1, 2, 4, 8))), ids=str
)
def test_each_query_meets_its_own_keys(of_queries, of_keys, heads_of_keys):
    q, k, v, mask = operands(heads_of_keys)
    on_devices = (placed(q, of_queries), placed(k, of_keys), placed(v, of_keys))
    torch.testing.assert_close(ts.device_get(attend(*on_devices)), attend(q, k, v))
    masked = attend(*on_devices, placed(mask, of_queries))
    torch.testing.assert_close(ts.device_get(masked), attend(q, k, v, mask))


@pytest.mark.parametrize(("spec", "heads_of_keys"), every(4, itertools.product(SPECS, (1, 2, 4))), ids=str)
def test_and_so_do_the_gradients(spec, heads_of_keys):
    q, k, v, _ = operands(heads_of_keys)

    def loss(q, k, v):
        return attend(q, k, v).sin().sum()

    wanted = torch.func.grad(loss, argnums=(0, 1, 2))(q, k, v)
    found = ts.jit(ts.grad(loss, argnums=(0, 1, 2)))(*(placed(x, spec) for x in (q, k, v)))
    for x, y in zip(found, wanted, strict=True):
        torch.testing.assert_close(ts.device_get(x), y)


def test_nothing_is_sent_where_both_numbers_of_heads_can_be_cut():
    q, k, v, _ = (placed(x, P("a", "b")) for x in operands(2))
    compiled = ts.jit(attend).lower(q, k, v).compile()
    assert not ts.collectives_in(compiled)
    assert compiled.output_shardings.spec == P("a", "b")


def rows_of(x):
    return ts.device_put(x, ts.NamedSharding(ts.make_mesh((8,), ("i",)), P("i")))


def test_a_mask_of_positions_is_none_of_examples_and_heads():
    generator = torch.Generator().manual_seed(0)
    q, mask = torch.randn(8, 8, 8, 16, generator=generator), torch.randn(8, 8, generator=generator)
    found = F.scaled_dot_product_attention(*[rows_of(q)] * 3, attn_mask=ts.array(mask))
    torch.testing.assert_close(ts.device_get(found), F.scaled_dot_product_attention(q, q, q, attn_mask=mask))


@pytest.mark.parametrize(
    ("function", "left", "right"),
    [
        (torch.cdist, (8, 8, 3, 2), (8, 3, 2)),
        (torch.cdist, (8, 4, 8, 2), (4, 8, 2)),
        (lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), (8, 8, 8, 8), (8, 8, 2)),
        (lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), (8, 8, 8), (8, 2)),
    ],
)
def test_an_operand_of_fewer_dims_is_repeated_along_the_first_ones(function, left, right):
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(left, generator=generator), torch.randn(right, generator=generator)
    if left[-1] == left[-2]:
        a = a.triu() + 9 * torch.eye(left[-1])
    for found in (function(rows_of(a), ts.array(b)), ts.jit(function)(rows_of(a), b)):
        torch.testing.assert_close(ts.device_get(found), function(a, b))


def test_one_head_of_keys_needs_no_gather_where_examples_are_cut():
    q, k, v, _ = (placed(x, P("a")) for x in operands(1))
    step = ts.jit(ts.grad(lambda q, k, v: attend(q, k, v).sin().sum(), argnums=(0, 1, 2))).lower(q, k, v).compile()
    assert not ts.collectives_in(step)

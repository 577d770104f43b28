"""Static arguments of jit: each value has its own trace."""

import dataclasses
from typing import Any, NamedTuple

import pytest
import torch

import tinyshard as ts
from tests.traces import Counted, same

pytestmark = pytest.mark.usefixtures("local")


@pytest.mark.parametrize("how", [{"static_argnums": 1}, {"static_argnums": (-1,)}, {"static_argnames": "n"}])
def test_a_static_argument_is_a_python_value_by_position_and_by_name(how):
    f = Counted(lambda x, n: x.sum() if n == 0 else x[:n], **how)
    if how != {"static_argnums": (-1,)}:
        same(f(torch.arange(4.0), n=2), torch.tensor([0.0, 1.0]))
    same(f(torch.arange(4.0), 2), torch.tensor([0.0, 1.0]))
    same(f(torch.arange(4.0), 0), torch.tensor(6.0))
    before = f.traces
    same(f(torch.arange(4.0) + 1, 2), torch.tensor([1.0, 2.0]))
    assert f.traces == before


def test_equal_static_values_of_different_types_do_not_share_a_trace():
    f = ts.jit(lambda x, n: x * n, static_argnums=1)
    assert f(torch.arange(2), 1).dtype == torch.int64
    assert f(torch.arange(2), 1.0).dtype == torch.float32
    assert f(torch.arange(2), True).dtype == torch.int64


@dataclasses.dataclass(frozen=True)
class Scale:
    by: Any


class Pair(NamedTuple):
    by: Any


@pytest.mark.parametrize(
    "wrap, unwrap",
    [
        (lambda n: (n,), lambda c: c[0]),
        (lambda n: ((2, (n,)),), lambda c: c[0][1][0]),
        (lambda n: frozenset([n]), lambda c: next(iter(c))),
        (Scale, lambda c: c.by),
        (lambda n: Scale((Pair(n),)), lambda c: c.by[0].by),
        (lambda n: Pair(Scale(n)), lambda c: c.by.by),
    ],
    ids=["tuple", "nested", "frozenset", "dataclass", "inside a dataclass", "named tuple"],
)
def test_equal_static_values_with_other_types_inside_do_not_share_a_trace(wrap, unwrap):
    f = ts.jit(lambda x, c: torch.full((2,), unwrap(c)) * x, static_argnums=1)
    x = torch.tensor([7, 8])
    for n in (1, 1.0, True, 1):
        out = f(x, wrap(n))
        want = torch.full((2,), n) * x
        assert out.dtype == want.dtype and out.tolist() == want.tolist()
    before = f._cache_size()
    f(x, wrap(1.0))
    assert f._cache_size() == before == 3


def test_types_inside_lists_and_dicts_of_a_static_dataclass_count_too():
    @dataclasses.dataclass
    class Config:
        sizes: Any

        def __hash__(self):
            return 0

    f = ts.jit(lambda x, c: torch.full((2,), c.sizes["n"][0]) * x, static_argnums=1)
    x = torch.tensor([7, 8])
    for n in (1, 1.0, True):
        assert f(x, Config({"n": [n]})).dtype == (torch.full((2,), n) * x).dtype


@pytest.mark.parametrize("how", [{"static_argnums": 1}, {"static_argnames": "sizes"}])
def test_a_static_argument_that_cannot_be_hashed_is_named(how):
    f = ts.jit(lambda x, sizes: x.reshape(sizes), **how)
    same(f(torch.arange(4.0), (2, 2)), torch.arange(4.0).reshape(2, 2))
    with pytest.raises(ValueError, match=r"cannot be hashed\n.*argument 'sizes': list"):
        f(torch.arange(4.0), [2, 2])


def test_a_static_name_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match=r"got:  'k'\n.*'x', 'n'"):
        ts.jit(lambda x, n: x, static_argnames="k")

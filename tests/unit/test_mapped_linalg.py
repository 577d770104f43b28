"""Ops that are called for what they do and have no result, inside shard_map and pmap: torch.linalg's checks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tinyshard as ts
from tests.extent import every
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "inv": torch.linalg.inv,
    "cholesky": lambda a: torch.linalg.cholesky(a @ a.mT),
    "solve": lambda a: torch.linalg.solve(a, a.flip(-1)),
    "eigh": lambda a: torch.linalg.eigh(a @ a.mT)[0],
}


def matrices() -> Tensor:
    """Eight invertible matrices, the same in every run."""
    return torch.randn(8, 3, 3, generator=torch.Generator().manual_seed(5)) + 4 * torch.eye(3)


def over_shard_map(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Any]:
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    return ts.shard_map(function, mesh=mesh, in_specs=P(("a", "b")), out_specs=P(("a", "b")))


MAPPED = {"shard_map": over_shard_map, "pmap": ts.pmap, "jit of shard_map": lambda f: ts.jit(over_shard_map(f))}


@pytest.mark.parametrize("name, mapped", every(5, itertools.product(FUNCTIONS, MAPPED)))
def test_linear_algebra_on_each_device_equals_torchs(name: str, mapped: str) -> None:
    got = MAPPED[mapped](FUNCTIONS[name])(matrices())
    torch.testing.assert_close(ts.device_get(got), FUNCTIONS[name](matrices()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", every(2, FUNCTIONS))
def test_gradients_of_linear_algebra_on_each_device_equal_torchs(name: str) -> None:
    def loss(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda a: (function(a) * torch.arange(1.0, 4.0)).sum()

    got = ts.grad(loss(over_shard_map(FUNCTIONS[name])))(matrices())
    wanted = torch.func.grad(loss(FUNCTIONS[name]))(matrices())
    torch.testing.assert_close(ts.device_get(got), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mapped", every(2, MAPPED))
def test_a_singular_matrix_on_one_device_is_an_error(mapped: str) -> None:
    given = matrices()
    given[5] = 0
    with pytest.raises(ts.RemoteError, match="singular") as caught:
        ts.device_get(MAPPED[mapped](torch.linalg.inv)(given))
    assert "5" in str(caught.value)

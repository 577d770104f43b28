"""Derivatives of determinants and solutions, whose formulas in torch ask how a matrix is laid out in memory."""

import pytest
import torch

import tinyshard as ts
from tests.extent import every, mostly_whole
from tinyshard import P

FUNCTIONS = {
    "det": torch.linalg.det,
    "det of the transposed": lambda m: torch.linalg.det(m.mT),
    "det of a factor": lambda m: (torch.linalg.qr(m)[0] + m).det(),
    "slogdet of the transposed": lambda m: torch.slogdet(m.mT)[1],
    "logdet": lambda m: torch.logdet(m @ m.mT),
    "solve": lambda m: torch.linalg.solve(m, m.sin()).sum(),
    "inverse of the transposed": lambda m: torch.linalg.inv(m.mT).sum(),
}


def matrices() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(8, 3, 3, dtype=torch.float64, generator=generator) + 4 * torch.eye(3, dtype=torch.float64)


def same(got: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(ts.device_get(got), wanted)


@pytest.mark.parametrize("name", mostly_whole(FUNCTIONS, lambda name: name in [*FUNCTIONS][1::3]))
def test_first_and_second_derivatives_are_those_of_reverse_mode(name):
    function, m = FUNCTIONS[name], matrices()[0]
    first = torch.func.jacrev(function)(m)
    second = torch.func.jacrev(torch.func.jacrev(function))(m)
    for x in (m, ts.array(m)):
        same(ts.jacfwd(function)(x), first)
        same(ts.hessian(function)(x), second)
        same(ts.jit(ts.grad(function))(x), first)
        same(ts.jit(ts.jacfwd(function))(x), first)
        same(ts.jit(ts.hessian(function))(x), second)


@pytest.mark.parametrize("name", every(3, FUNCTIONS))
def test_by_examples_and_on_each_device(name):
    function, every = FUNCTIONS[name], matrices()
    wanted = torch.stack([torch.func.jacrev(function)(m) for m in every])
    mesh = ts.make_mesh((4,), ("i",), devices=ts.devices()[:4])
    by_examples = ts.vmap(ts.jacfwd(function))
    same(by_examples(ts.array(every)), wanted)
    same(ts.vmap(ts.jacfwd(function), in_axes=2)(ts.array(every.permute(1, 2, 0))), wanted)
    same(ts.jit(by_examples)(every), wanted)
    same(ts.jit(ts.vmap(ts.jacfwd(function), in_axes=1))(every.movedim(0, 1)), wanted)
    same(ts.pmap(ts.jacfwd(function))(every), wanted)
    same(ts.shard_map(by_examples, mesh=mesh, in_specs=(P("i"),), out_specs=P("i"))(every), wanted)

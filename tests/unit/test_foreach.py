"""Ops on lists of tensors: tensor by tensor in the layout that each has, and one step where they are small."""

import pytest
import torch

import tinyshard as ts
from tests.rows import for_every_row
from tinyshard.partition.foreach import FOREACH

P = ts.P
SHAPES = {(8, 4): P("d"), (16,): P("d"), (3, 8): P(None, "d"), (): P()}


def operands(op, make) -> tuple:
    """Arguments of an op of lists, by its schema."""
    given = []
    for argument in op._schema.arguments:
        kind = str(argument.type)
        if kind == "List[Tensor]":
            given.append([make(shape, spec) for shape, spec in SHAPES.items()])
        elif not argument.kwarg_only:
            given.append(make((), P()) if kind == "Tensor" else 0.5)
    return tuple(given)


@for_every_row(FOREACH)
def test_an_op_of_lists_moves_nothing_and_is_torchs(op) -> None:
    mesh = ts.make_mesh((8,), ("d",))
    generator = torch.Generator().manual_seed(0)
    plain, placed = [], []

    def make(shape, spec):
        plain.append(torch.rand(shape, generator=generator) + 0.5)
        placed.append(ts.device_put(plain[-1], ts.NamedSharding(mesh, spec)))
        return len(plain) - 1

    def filled(given, values):
        return tuple(
            [values[i] for i in a] if isinstance(a, list) else values[a] if type(a) is int else a for a in given
        )

    given = operands(op, make)
    f = ts.jit(lambda *values: op(*filled(given, values)))
    compiled = f.lower(*placed).compile()
    assert not ts.collectives_in(compiled)
    assert len(compiled.program.steps) == 1, "the tensors are small: one step"
    results = compiled(*placed)
    for result, wanted, spec in zip(results, op(*filled(given, plain)), SHAPES.values(), strict=True):
        torch.testing.assert_close(ts.device_get(result), wanted, rtol=1e-6, atol=0)  # a pow rounds as its blocks lie
        assert result.sharding.is_equivalent_to(ts.NamedSharding(mesh, spec), result.ndim)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
def test_an_update_of_many_parameters_takes_few_steps(kind) -> None:
    params = {f"w{i}": torch.zeros(4, 3) for i in range(20)}
    optimizer = ts.optim.functional(kind, lr=0.1)
    state = optimizer.init(params)
    program = ts.jit(optimizer.update).lower(params, params, state).compile().program
    assert len(program.steps) <= 30


ON_ONE_LINE = {
    "a number first": lambda x, y: [torch.sub(1, v) for v in (x, y)],
    "a factor first": lambda x, y: [torch.mul(2.0, v) for v in (x, y)],
    "an alpha": lambda x, y: [torch.add(v, 2.0, alpha=3) for v in (x, y)],
    "an alpha of tensors": lambda x, y: [torch.add(v, w, alpha=3) for v, w in ((x, y), (y, x))],
    "a power": lambda x, y: [3.0**v for v in (x, y)],
}


@for_every_row(ON_ONE_LINE)
def test_two_calls_on_one_line_are_torchs_whether_or_not_an_op_of_lists_takes_them(name: str) -> None:
    x, y = torch.rand(8, 3) + 0.5, torch.rand(8, 3) + 0.5
    for result, wanted in zip(ts.jit(ON_ONE_LINE[name])(x, y), ON_ONE_LINE[name](x, y), strict=True):
        torch.testing.assert_close(ts.device_get(result), wanted)


@pytest.mark.parametrize("kind", ["Adam", "Adamax", "Rprop", "NAdam", "RAdam", "Adagrad", "RMSprop", "SGD"])
def test_an_update_of_parameters_in_parts_communicates_nothing(kind) -> None:
    rows = ts.NamedSharding(ts.make_mesh((8,), ("d",)), P("d"))
    params = {name: ts.device_put(torch.ones(8, 4), rows) for name in "ab"}
    optimizer = ts.optim.functional(getattr(torch.optim, kind), lr=0.1)
    state = optimizer.init(params)
    assert not ts.collectives_in(ts.jit(optimizer.update).lower(params, params, state).compile())

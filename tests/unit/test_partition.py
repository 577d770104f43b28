"""What ops become: which exchanges their programs hold, and none where none is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tinyshard as ts
from tests.expressions import check_same
from tinyshard import P
from tinyshard.compile.text import program_text
from tinyshard.core.cache import Recent
from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.program import Program
from tinyshard.core.types import default_dtype
from tinyshard.dispatch import eager
from tinyshard.partition import plan as plans
from tinyshard.partition.op_table import draws, op_traits

aten = torch.ops.aten
CROSSING = {*(name for name, row in COLLECTIVES.items() if row.communicates), "transfer"}


@pytest.fixture(autouse=True)
def eight_local_devices() -> Iterator[None]:
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


def put(x: Tensor, *shape: int, replicate: int | None = None) -> Tensor:
    sharding = ts.sharding.PositionalSharding(ts.devices()).reshape(shape)
    return ts.device_put(x, sharding if replicate is None else sharding.replicate(replicate))


def ran(function: Callable[..., Any], *operands: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[Program]:
    """The programs that a call sends to the devices; the values are held against plain torch."""
    programs: list[Program] = []
    runtime = ts.platform.current()
    run = runtime.run
    monkeypatch.setattr(runtime, "run", lambda program, *a, **k: programs.append(program) or run(program, *a, **k))
    got = function(*operands)
    monkeypatch.undo()
    check_same(got, function(*map(ts.device_get, operands)), "the op")
    return programs


def exchanges(function: Callable[..., Any], *operands: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    programs = ran(function, *operands, monkeypatch=monkeypatch)
    return [step.op for program in programs for step in program.steps if step.op in CROSSING]


X = torch.arange(256.0).reshape(16, 16) / 100
CUBE = torch.arange(512.0).reshape(8, 8, 8) / 100
IMAGES = torch.arange(1024.0).reshape(8, 4, 8, 4) / 100
HEADS = torch.arange(2048.0).reshape(8, 4, 16, 4).sin()

SILENT: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "sin of tiles": (torch.sin, ((X, 4, 2),)),
    "sum of equal tiles": (torch.add, ((X, 4, 2), (X, 4, 2))),
    "tiles plus a scalar": (lambda x: x + 1, ((X, 4, 2),)),
    "rows sum along columns": (lambda x: x.sum(1), ((X, 8, 1),)),
    "softmax along whole rows": (lambda x: x.softmax(1), ((X, 8, 1),)),
    "cumsum along whole rows": (lambda x: x.cumsum(-1), ((X, 8, 1),)),
    "sort along whole rows": (lambda x: x.sort(-1), ((X, 8, 1),)),
    "transpose": (lambda x: x.T, ((X, 4, 2),)),
    "permute": (lambda x: x.permute(2, 0, 1), ((CUBE, 2, 2, 2),)),
    "unsqueeze": (lambda x: x.unsqueeze(1), ((X, 4, 2),)),
    "split of a whole dim": (lambda x: x.split(4, 1), ((X, 8, 1),)),
    "cat along a whole dim": (lambda x: torch.cat([x, x], 1), ((X, 8, 1),)),
    "stack": (lambda x: torch.stack([x, x]), ((X, 4, 2),)),
    "reshape that splits a cut dim": (lambda x: x.reshape(8, 2, 16), ((X, 8, 1),)),
    "reshape that joins to a cut dim": (lambda x: x.reshape(-1), ((X, 8, 1),)),
    "slice of all of a cut dim": (lambda x: torch.ops.aten.slice.Tensor(x, 0, 0, 16), ((X, 8, 1),)),
    "gradient of a slice of all": (lambda x: aten.slice_backward(x, [16, 16], 0, 0, 16, 1), ((X, 8, 1),)),
    "slice of a whole dim": (lambda x: x[:, 2:5], ((X, 8, 1),)),
    "batches of products": (torch.bmm, ((CUBE, 8, 1, 1), (CUBE, 8, 1, 1))),
    "layer_norm of rows": (lambda x: F.layer_norm(x, [16]), ((X, 8, 1),)),
    "inverses of a batch": (lambda x: torch.linalg.inv(x + 9 * torch.eye(8)), ((CUBE, 8, 1, 1),)),
    "lower triangles of a batch": (torch.tril, ((CUBE, 8, 1, 1),)),
    "channels become pixels": (lambda x: F.pixel_shuffle(x, 2), ((IMAGES, 2, 1, 4, 1),)),
    "pixels become channels": (lambda x: F.pixel_unshuffle(x, 2), ((IMAGES, 2, 1, 4, 1),)),
    "channels are shuffled": (lambda x: F.channel_shuffle(x, 2), ((IMAGES, 2, 1, 4, 1),)),
    "outer product added to tiles": (lambda x: torch.addr(x, torch.ones(16), torch.ones(16)), ((X, 4, 2),)),
    "buckets of tiles": (lambda x: torch.bucketize(x, torch.tensor([0.5, 1.0])), ((X, 4, 2),)),
    "which of tiles are in a list": (lambda x: torch.isin(x, torch.tensor([0.5, 1.0])), ((X, 4, 2),)),
    "columns turned to rows": (lambda x: x.rot90(-1), ((X, 1, 8),)),
    "a copy into tiles": (lambda x, y: aten.copy(x, y), ((X, 4, 2), (X, 4, 2))),
    "conjugate": (lambda x: torch.view_as_complex(x.reshape(16, 8, 2)).conj() + 0, ((X, 8, 1),)),
}


@pytest.mark.parametrize("name", SILENT)
def test_an_op_needs_no_exchange(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, operands = SILENT[name]
    placed = [put(x, *shape) for x, *shape in operands]
    assert exchanges(function, *placed, monkeypatch=monkeypatch) == []


TALKING: dict[str, tuple[Callable[..., Any], tuple[Any, ...], list[str]]] = {
    "rows sum along rows": (lambda x: x.sum(0), ((X, 8, 1),), ["all_reduce"]),
    "mean of all": (torch.mean, ((X, 4, 2),), ["all_reduce"]),
    "max of all": (lambda x: x.amax(), ((X, 4, 2),), ["all_reduce"]),
    "any of all": (lambda x: (x > 1).any(), ((X, 4, 2),), ["all_reduce"]),
    "columns times rows": (torch.mm, ((X, 1, 8), (X, 8, 1)), ["all_reduce"]),
    "softmax along cut rows": (lambda x: x.softmax(1), ((X, 1, 8),), ["all_reduce", "all_reduce"]),
    "logsumexp along cut rows": (lambda x: x.logsumexp(1), ((X, 1, 8),), ["all_reduce", "all_reduce"]),
    "variance along cut rows": (lambda x: x.var(1), ((X, 1, 8),), ["all_reduce", "all_reduce"]),
    "argmax along cut rows": (lambda x: x.argmax(1), ((X, 1, 8),), ["all_reduce", "all_reduce"]),
    "norm along cut rows": (lambda x: torch.linalg.vector_norm(x, ord=1, dim=1), ((X, 1, 8),), ["all_reduce"]),
    "scores of attention, heads cut": (lambda q: q @ q.mT, ((HEADS, 2, 4, 1, 1),), ["all_to_all"] * 2),
    "attention whose length is cut": (
        lambda q: F.scaled_dot_product_attention(q, q, q),
        ((HEADS, 1, 1, 8, 1),),
        ["all_to_all"] * 3,
    ),
    "cat of arrays cut alike": (lambda x: torch.cat([x, x + 1]), ((X, 8, 1),), ["transfer"]),
    "cat along the last of two cut dims": (lambda x: torch.cat([x, x, x + 1], -1), ((X, 2, 4),), ["transfer"]),
    "halves of cut rows": (lambda x: x.chunk(2), ((X, 8, 1),), ["transfer"]),
    "unequal parts of cut columns": (lambda x: x.split([4, 8, 4], 1), ((X, 2, 4),), ["transfer"]),
    "parts that are no whole blocks": (lambda x: x.split(5), ((X, 8, 1),), ["all_gather"]),
    "a list in parts": (lambda x: torch.isin(torch.tensor([0.5, 9.0]), x), ((X, 8, 1),), ["all_reduce"]),
    "pools of images whose rows are cut": (lambda x: F.avg_pool2d(x, 2), ((IMAGES, 2, 1, 4, 1),), ["all_to_all"]),
    "flip of a cut dim": (lambda x: x.flip(0), ((X, 8, 1),), ["all_to_all"]),
    "rows plus columns": (torch.add, ((X, 8, 1), (X, 1, 8)), ["all_to_all"]),
}


@pytest.mark.parametrize("name", TALKING)
def test_an_op_exchanges_what_it_must(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, operands, want = TALKING[name]
    placed = [put(x, *shape) for x, *shape in operands]
    assert exchanges(function, *placed, monkeypatch=monkeypatch) == want


def test_row_blocks_times_column_blocks_need_no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = put(X, 4, 2, replicate=1), put(X, 4, 2, replicate=0)
    assert exchanges(torch.mm, x, y, monkeypatch=monkeypatch) == []
    assert (x @ y).sharding.is_equivalent_to(ts.sharding.PositionalSharding(ts.devices()).reshape(4, 2), 2)


def test_attention_over_whole_heads_needs_no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = put(torch.arange(1024.0).reshape(2, 4, 16, 8).sin(), 2, 4, 1, 1)
    attend = F.scaled_dot_product_attention
    assert exchanges(lambda q: attend(q, q, q, is_causal=True), heads, monkeypatch=monkeypatch) == []


def test_a_plain_tensor_is_sent_as_the_op_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    x = put(X, 4, 2)
    programs = ran(lambda x: x + X, x, monkeypatch=monkeypatch)
    assert [m.shape for m in programs[0].metas if m is not None] == [(4, 8)] * 3


def test_a_linear_layer_of_rows_needs_no_exchange(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias = torch.ones(4, 16), torch.ones(4)
    assert exchanges(lambda x: F.linear(x, weight, bias), put(X, 8, 1), monkeypatch=monkeypatch) == []


def test_text_shows_local_shapes_and_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = ran(lambda x: x.sum(0), put(X, 8, 1), monkeypatch=monkeypatch)
    text = program_text(program)
    assert "all_reduce" in text
    assert "f32[2, 16] = input" in text
    assert program.communicates


def test_an_op_without_a_rule_gathers_and_runs_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    programs = ran(torch.histc, put(X, 8, 1), monkeypatch=monkeypatch)
    assert [s.op for s in programs[0].steps] == ["all_gather", "aten.contiguous.default", "aten.histc.default"]


def test_layouts_without_common_axes_meet() -> None:
    x = torch.arange(36.0).reshape(6, 6)
    devices = ts.sharding.PositionalSharding(ts.devices()[:6])
    a, b = ts.device_put(x, devices.reshape(3, 2)), ts.device_put(x, devices.reshape(2, 3))
    check_same(a @ b + b, x @ x + x, "(3, 2) with (2, 3)")


@pytest.mark.parametrize("shape", [(0, 8), (8, 0)])
def test_views_of_empty_arrays_come_back(shape: tuple[int, int]) -> None:
    x = ts.device_put(torch.zeros(shape), ts.sharding.PositionalSharding(ts.devices()).reshape(8, 1))
    check_same(x.reshape(0, 4, 2).flatten(), torch.zeros(0), "an empty view")


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_negative_dim_of_cat_is_counted_beside_an_empty_tensor_of_one_dim(at: int) -> None:
    x, y = torch.arange(16.0).reshape(8, 2), torch.arange(24.0).reshape(8, 3)

    def joined(x: Tensor, y: Tensor) -> Tensor:
        parts = [x, y]
        parts.insert(at, torch.empty(0))
        return torch.cat(parts, -1)

    for function in (joined, ts.jit(joined)):
        torch.testing.assert_close(ts.device_get(function(put(x, 8, 1), put(y, 8, 1))), torch.cat([x, y], -1))


def test_facts_of_ops() -> None:
    assert op_traits(aten.detach.default).is_alias
    assert op_traits(aten.transpose.int).is_view
    assert op_traits(aten.add_.Tensor).is_mutable
    assert op_traits(aten.item.default).is_answer
    assert op_traits(aten.split.Tensor).container is list
    assert op_traits(aten.max.dim).container is tuple
    assert op_traits(aten.add.Tensor).container is None


def test_attention_draws_only_with_dropout() -> None:
    op = aten._scaled_dot_product_flash_attention_for_cpu.default
    q = torch.ones(1, 1, 2, 2)
    assert not draws(op, (q, q, q), {})
    assert draws(op, (q, q, q, 0.1), {})


# ---- what is kept -------------------------------------------------------------------------------------------------


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every op that is planned; nothing is known at the start."""
    from tinyshard.partition import partitioner

    ops: list[Any] = []
    monkeypatch.setattr(eager, "_executables", Recent(1000))
    monkeypatch.setattr(partitioner, "plan", lambda op, *a: ops.append(op) or plans.plan(op, *a))
    return ops


def test_the_same_call_is_planned_once(planned: list[Any]) -> None:
    x = put(X, 4, 2)
    for _ in range(3):
        x @ x
    assert planned == [aten.mm.default]


def test_another_shape_dtype_or_layout_is_planned_anew(planned: list[Any]) -> None:
    for x in (put(X, 4, 2), put(X, 2, 4), put(X.double(), 4, 2), put(X[:8], 4, 2)):
        torch.sin(x)
    assert len(planned) == 4


@pytest.mark.parametrize("scalars", [(1, 1.0, True), (0.0, -0.0), (float("nan"), 0.0), (1, 1 + 0j)])
def test_scalars_that_compare_equal_do_not_share_a_program(scalars: tuple[Any, ...], planned: list[Any]) -> None:
    whole = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128])
    x = put(whole, 8)
    for _ in range(2):
        for scalar in scalars:
            for function in (torch.add, torch.mul, lambda a, s: torch.atan2(a * 0.0, torch.full((), s).real)):
                check_same(function(x, scalar), function(whole, scalar), f"{function} with {scalar!r}")
    first = len(planned)
    for scalar in scalars:  # nan finds its own program again
        torch.add(x, scalar)
    assert len(planned) == first


def test_the_number_of_executables_is_bounded(planned: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "_executables", Recent(3))
    x = put(X, 4, 2)
    for n in range(6):
        x + n
    assert len(eager._executables) == 3
    assert len(ts.platform.current()._programs) <= 4  # one is released by the next that is made
    x + 5
    x + 0
    assert len(planned) == 7


REDUCTIONS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum": lambda x: x.sum(()),
    "mean": lambda x: x.mean([]),
    "nansum": lambda x: x.nansum(()),
    "std": lambda x: x.std(()),
    "var_mean": lambda x: torch.var_mean(x, ()),
    "count_nonzero": lambda x: torch.count_nonzero(x, ()),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, 3, ()),
    "kept": lambda x: x.sum((), keepdim=True),
}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("spec", [P("a"), P(None, "a"), P()], ids=str)
def test_no_dims_are_all_dims_in_a_reduction(name: str, spec: P) -> None:
    x = torch.arange(32.0, dtype=torch.float64).reshape(4, 8)
    mesh = ts.make_mesh((4,), ("a",), devices=ts.devices()[:4])
    cut = ts.device_put(x, ts.NamedSharding(mesh, spec))
    for function in (REDUCTIONS[name], ts.jit(REDUCTIONS[name])):
        torch.testing.assert_close(ts.device_get(function(cut)), REDUCTIONS[name](x))


@pytest.mark.parametrize("wrap", [lambda f: f, ts.jit])
def test_floats_made_of_integers_are_of_the_default_dtype_of_each_call(wrap: Callable[..., Any]) -> None:
    x, total = torch.arange(16).reshape(8, 2), wrap(lambda x: torch.logsumexp(x, 0))
    cut = put(x, 8, 1)
    for dtype in (torch.float32, torch.float64, torch.float32):
        with default_dtype(dtype):
            torch.testing.assert_close(ts.device_get(total(cut)), torch.logsumexp(x, 0))


def test_factorizations_are_repeated_for_several_right_sides_each() -> None:
    a = torch.eye(4, dtype=torch.float64) * 5 + torch.arange(48.0, dtype=torch.float64).sin().reshape(3, 4, 4)
    b = torch.arange(120.0, dtype=torch.float64).cos().reshape(3, 5, 4, 2)
    for place in (lambda x: x, ts.array):
        lu, pivots = ts.jit(torch.linalg.lu_factor)(place(a))
        got = ts.jit(lambda lu, pivots, b: torch.linalg.lu_solve(lu[:, None], pivots[:, None], b))(lu, pivots, place(b))
        torch.testing.assert_close(a[:, None] @ ts.device_get(got), b)


def test_derivatives_of_solve_by_examples_are_those_of_each_example() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(torch.diag(x) + torch.outer(x, x) + torch.eye(4, dtype=x.dtype) * 4, x.sin()).sum()

    x = torch.arange(12.0, dtype=torch.float64).cos().reshape(3, 4)
    wanted = torch.stack([torch.func.hessian(function)(row) for row in x])
    for place in (lambda x: x, ts.array):
        torch.testing.assert_close(ts.device_get(ts.jit(ts.vmap(ts.hessian(function)))(place(x))), wanted)
    torch.testing.assert_close(ts.device_get(ts.vmap(ts.hessian(function))(ts.array(x))), wanted)

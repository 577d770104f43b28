"""From layout to layout: the values are those of the tensor cut again, and the exchanges are the cheap ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinyshard as ts
from tests.expressions import device_orders, shapes, shardings
from tests.extent import examples
from tinyshard.arrays.transfer import move_program
from tinyshard.core.collectives import COLLECTIVES, group_positions, local_slice, reduce_stack
from tinyshard.core.layout import Layout, coarsest
from tinyshard.core.program import Builder, Program
from tinyshard.core.types import ShapedType
from tinyshard.partition import partitioner
from tinyshard.partition.reshard import ShardedVar, reduce_partial, reshard
from tinyshard.runtime.controller.refs import Wanted

F32 = torch.float32


@pytest.fixture(scope="module", autouse=True)
def eight_local_devices() -> Iterator[None]:
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


def steps(program: Program) -> list[str]:
    return [step.op for step in program.steps]


def moved(axes: tuple[int, ...], have: Any, want: Any, shape: tuple[int, ...], partial: Any = ()) -> Program:
    builder = Builder(tuple(range(math.prod(axes))), axes)
    x = ShardedVar(0, shape, F32, have, partial)
    builder.input(x.local(axes))
    return builder.finish([reshard(builder, x, want).number])


@given(data=st.data())
@settings(max_examples=examples(40, 150))
def test_an_array_put_elsewhere_is_the_tensor_cut_anew(data: Any) -> None:
    order = data.draw(device_orders())
    shape = data.draw(shapes())
    x = torch.arange(math.prod(shape), dtype=F32).reshape(shape)
    first, second = data.draw(shardings(order, shape)), data.draw(shardings(order, shape))
    y = ts.device_put(ts.device_put(x, first), second)
    assert y.sharding.is_equivalent_to(second, len(shape))
    for shard in y.addressable_shards:
        assert torch.equal(ts.device_get(shard.data), x[shard.index])
    assert torch.equal(ts.device_get(y), x)


@given(data=st.data())
@settings(max_examples=examples(20, 60))
def test_an_array_moves_between_any_two_sets_of_devices(data: Any) -> None:
    shape = data.draw(shapes())
    x = torch.arange(math.prod(shape)).reshape(shape)
    first = data.draw(shardings(data.draw(device_orders()), shape))
    second = data.draw(shardings(data.draw(device_orders()), shape))
    y = ts.device_put(ts.device_put(x, first), second)
    for shard in y.addressable_shards:
        assert torch.equal(ts.device_get(shard.data), x[shard.index])


def test_rows_to_whole_is_one_all_gather() -> None:
    assert steps(moved((8,), ((0,), ()), ((), ()), (16, 16))) == ["all_gather"]


def test_rows_by_two_axes_to_whole_is_one_all_gather() -> None:
    assert steps(moved((4, 2), ((0, 1), ()), ((), ()), (16, 16))) == ["all_gather"]


def test_rows_to_columns_is_one_all_to_all() -> None:
    assert steps(moved((8,), ((0,), ()), ((), (0,)), (16, 16))) == ["all_to_all"]


def test_whole_to_rows_moves_nothing() -> None:
    program = moved((8,), ((), ()), ((0,), ()), (16, 16))
    assert steps(program) == ["local_slice"]
    assert not program.communicates


def test_a_further_cut_moves_nothing() -> None:
    assert not moved((4, 2), ((0,), ()), ((0,), (1,)), (16, 16)).communicates


def test_swapped_axes_of_equal_size_are_one_permutation() -> None:
    assert steps(moved((2, 2), ((0,), (1,)), ((1,), (0,)), (4, 4))) == ["collective_permute"]
    assert steps(moved((2, 2), ((0, 1), ()), ((1, 0), ()), (4, 4))) == ["collective_permute"]


def test_a_pending_sum_that_is_to_be_cut_is_one_reduce_scatter() -> None:
    assert steps(moved((8,), ((), ()), ((0,), ()), (16, 16), ((0, "sum"),))) == ["reduce_scatter"]


def test_a_pending_sum_that_is_to_be_whole_is_one_all_reduce() -> None:
    assert steps(moved((4, 2), ((), ()), ((), ()), (16, 16), ((0, "sum"), (1, "sum")))) == ["all_reduce"]


def test_nothing_is_done_where_nothing_changes() -> None:
    assert steps(moved((4, 2), ((0,), (1,)), ((0,), (1,)), (16, 16))) == []


def test_a_stop_that_splits_axes_used_together_sends_less_than_the_path_that_keeps_them() -> None:
    mesh, mebibyte = ts.AbstractMesh((2, 2, 2), ("a", "b", "c")), 2**20
    have, stop, want = ts.P(("a", "b"), "c"), ts.P("a", ("c", "b")), ts.P("c", ("a", "b"))

    def sent(start: ts.PartitionSpec, end: ts.PartitionSpec) -> int:
        like = ts.ShapeDtypeStruct((1024, 8192), F32, sharding=ts.NamedSharding(mesh, start))
        target = ts.NamedSharding(mesh, end)
        return ts.jit(lambda x: x, out_shardings=target).lower(like).compile().cost_analysis().nbytes

    assert sent(have, want) == 7.5 * mebibyte
    assert [sent(have, stop), sent(stop, want)] == [2 * mebibyte, 4 * mebibyte]


def test_a_value_that_two_ops_need_elsewhere_moves_once() -> None:
    builder = Builder(tuple(range(8)), (8,))
    x = ShardedVar(0, (16, 16), F32, ((0,), ()))
    builder.input(x.local((8,)))
    assert reshard(builder, x, ((), ())) == reshard(builder, x, ((), ()))
    assert len(builder.steps) == 1


def test_a_value_kept_pending_for_one_op_is_still_combined_for_another() -> None:
    builder = Builder(tuple(range(4)), (2, 2))
    both = ShardedVar(0, (4,), F32, ((),), ((0, "sum"), (1, "sum")))
    builder.input(both.local((2, 2)))
    one = reshard(builder, both, ((),), ((1, "sum"),))
    assert one.partial == ((1, "sum"),)
    assert one.number != reshard(builder, both, ((),)).number


@given(data=st.data())
@settings(max_examples=examples(30, 100))
def test_no_device_receives_more_than_the_whole_tensor(data: Any) -> None:
    order = data.draw(device_orders())
    shape = data.draw(shapes(1, 3))
    layouts = [coarsest(data.draw(shardings(order, shape)).layout(len(shape))) for _ in range(2)]
    program = move_program(*layouts, shape, F32)
    whole = math.prod(shape) * 4
    for step in program.steps:
        if step.op in COLLECTIVES:
            params = {k: v for k, v in step.kwargs.items() if k != "axes"}
            before = program.metas[step.args[0].number]
            assert before is not None
            group = math.prod(program.axes[a] for a in step.kwargs["axes"])
            assert COLLECTIVES[step.op].moved(before, group, params) <= whole


def test_layouts_without_common_axes_are_moved_by_index_ranges() -> None:
    x = torch.arange(36.0).reshape(6, 6)
    devices = np.array(ts.devices()[:6], dtype=object)
    three, two = (ts.sharding.PositionalSharding(devices.reshape(s)) for s in ((3, 2), (2, 3)))
    y = ts.device_put(ts.device_put(x, three), two)
    program = move_program(three.layout(2), two.layout(2), (6, 6), F32)
    assert steps(program) == ["transfer"]
    assert program.communicates
    assert torch.equal(ts.device_get(y), x)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0)])
def test_an_empty_array_moves_between_devices(shape: tuple[int, ...]) -> None:
    x = ts.device_put(torch.zeros(shape), ts.devices()[0])
    y = ts.device_put(x, ts.devices()[1])
    assert tuple(ts.device_get(y).shape) == shape


# ---- each collective is what its name says ------------------------------------------------------------------------


@st.composite
def groups(draw: Any) -> list[torch.Tensor]:
    count = draw(st.integers(1, 4))
    shape = (count * draw(st.integers(1, 2)), count * draw(st.integers(1, 2)))
    seeds = draw(st.permutations(range(count)))
    return [torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape).sin() + s for s in seeds]


@settings(max_examples=examples(30, 100))
@given(groups())
def test_all_reduce_gives_all_the_sum(shards: list[torch.Tensor]) -> None:
    for out in on_stack("all_reduce", shards, op="sum"):
        np.testing.assert_allclose(out, sum(x.numpy() for x in shards))


@pytest.mark.parametrize(
    ("op", "numpy"), [("avg", np.mean), ("product", np.prod), ("max", np.max), ("min", np.min), ("sum", np.sum)]
)
@settings(max_examples=examples(20, 100))
@given(shards=groups())
def test_reductions_are_numpys(op: str, numpy: Any, shards: list[torch.Tensor]) -> None:
    np.testing.assert_allclose(reduce_stack(shards, op), numpy([x.numpy() for x in shards], axis=0))


def test_bools_reduce_by_any_and_all() -> None:
    shards = [torch.tensor([True, False, True]), torch.tensor([False, False, True])]
    assert reduce_stack(shards, "max").tolist() == [True, False, True]
    assert reduce_stack(shards, "min").tolist() == [False, False, True]


@settings(max_examples=examples(30, 100))
@given(groups(), st.integers(0, 1))
def test_all_gather_gives_all_the_concatenation(shards: list[torch.Tensor], dim: int) -> None:
    for out in on_stack("all_gather", shards, dim=dim):
        np.testing.assert_array_equal(out, np.concatenate([x.numpy() for x in shards], dim))


def on_stack(name: str, shards: list[torch.Tensor], **params: Any) -> list[torch.Tensor]:
    form = COLLECTIVES[name].form
    assert form is not None
    return list(form(torch.stack(shards), **params))


@settings(max_examples=examples(30, 100))
@given(groups(), st.integers(0, 1))
def test_reduce_scatter_gives_device_i_block_i_of_the_sum(shards: list[torch.Tensor], dim: int) -> None:
    want = np.split(sum(x.numpy() for x in shards), len(shards), dim)
    for out, block in zip(on_stack("reduce_scatter", shards, dim=dim, op="sum"), want, strict=True):
        np.testing.assert_allclose(out, block)


@settings(max_examples=examples(30, 100))
@given(groups(), st.integers(0, 1), st.integers(0, 1))
def test_all_to_all_gives_device_i_block_i_of_each(shards: list[torch.Tensor], split: int, join: int) -> None:
    for i, out in enumerate(on_stack("all_to_all", shards, split=split, join=join)):
        want = np.concatenate([np.split(x.numpy(), len(shards), split)[i] for x in shards], join)
        np.testing.assert_array_equal(out, want)


@settings(max_examples=examples(30, 100))
@given(groups(), st.data())
def test_collective_permute_gives_the_target_the_sources_shard(shards: list[torch.Tensor], data: Any) -> None:
    targets = data.draw(st.permutations(range(len(shards))))
    pairs = list(enumerate(targets))[: data.draw(st.integers(0, len(shards)))]
    out = on_stack("collective_permute", shards, pairs=pairs)
    given_to = {target: source for source, target in pairs}
    for i, x in enumerate(out):
        np.testing.assert_array_equal(x, shards[given_to[i]] if i in given_to else np.zeros(shards[0].shape))


@settings(max_examples=examples(30, 100))
@given(groups(), st.integers(0, 1))
def test_own_block_is_the_ith_of_numpys_split(shards: list[torch.Tensor], dim: int) -> None:
    for i, x in enumerate(shards):
        out = local_slice(x, i, len(shards), dim=dim)
        np.testing.assert_array_equal(out, np.split(x.numpy(), len(shards), dim)[i])


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("all_reduce", {"op": "sum"}),
        ("all_gather", {"dim": 1}),
        ("reduce_scatter", {"dim": 0, "op": "sum"}),
        ("all_to_all", {"split": 0, "join": 1}),
        ("collective_permute", {"pairs": ((0, 1), (1, 0), (2, 2), (3, 3))}),
    ],
)
def test_the_promised_shape_is_the_shape_that_comes_out(name: str, params: dict[str, Any]) -> None:
    row = COLLECTIVES[name]
    shards = [torch.full((4, 8), float(i)) for i in range(4)]
    promised = row.meta(ts_meta(shards[0]), 4, params)
    assert [ts_meta(x) for x in on_stack(name, shards, **params)] == [promised] * 4


def ts_meta(x: torch.Tensor) -> Any:
    from tinyshard.core.types import ShapedType

    return ShapedType(tuple(x.shape), x.dtype)


@given(st.sampled_from([(4, 2), (2, 2, 2), (3, 2), (6,)]), st.data())
def test_a_group_is_a_line_of_the_grid_of_positions(axes: tuple[int, ...], data: Any) -> None:
    named = data.draw(st.permutations(range(len(axes))))[: data.draw(st.integers(1, len(axes)))]
    grid = np.arange(math.prod(axes)).reshape(axes)
    position = data.draw(st.integers(0, grid.size - 1))
    at = np.unravel_index(position, axes)
    line = grid[tuple(slice(None) if a in named else at[a] for a in range(len(axes)))]
    kept = sorted(named)
    want = line.transpose([kept.index(a) for a in named]).ravel()
    assert group_positions(axes, named, position) == want.tolist()


def test_a_layout_of_permuted_devices_cuts_in_their_order() -> None:
    layout = Layout((3, 0, 2, 1), (4,), ((0,),))
    order = [ts.devices()[i] for i in layout.devices]
    x = ts.device_put(torch.arange(4), ts.sharding.PositionalSharding(order))
    assert [(s.device.id, s.data.item()) for s in x.addressable_shards] == [(3, 0), (0, 1), (2, 2), (1, 3)]


def test_parts_of_a_sum_do_not_change_places_where_only_some_axes_are_combined(local: None) -> None:
    builder = Builder(tuple(range(8)), (2, 2, 2))
    runtime = ts.platform.current()
    whole, operands, buffers = [], [], []
    for dims, partial in ((((), (0,)), (1, 2)), (((), ()), (1, 2)), (((), (2,)), (1,))):
        x = torch.arange(16.0).reshape(4, 4) + 100 * len(whole)
        value = ShardedVar(0, (4, 4), torch.float32, dims, tuple((a, "sum") for a in partial))
        value = replace(value, number=builder.input(value.local((2, 2, 2))))
        layout = Layout(tuple(range(8)), (2, 2, 2), dims)
        first = {d for d in range(8) if all(d // (4, 2, 1)[a] % 2 == 0 for a in partial)}
        blocks = {d: (x if d in first else torch.zeros(4, 4))[layout.index(d, (4, 4))].clone() for d in range(8)}
        whole.append(x)
        operands.append(value)
        buffers.append(runtime.put(blocks))
    (joined,) = partitioner.apply(builder, torch.ops.aten.cat.default, (operands,), {})
    made = reduce_partial(builder, joined)
    (buffer,) = runtime.run(builder.finish([made.number]), buffers)
    layout = Layout(tuple(range(8)), (2, 2, 2), made.dims)
    expected = torch.cat(whole)
    for device in range(8):
        index = layout.index(device, (12, 4))
        shape = expected[index].shape
        places = {device: tuple(slice(0, n) for n in shape)}
        (got,) = runtime.gather([Wanted(buffer, places, tuple(shape), torch.float32)])
        assert torch.equal(got, expected[index]), device


@pytest.mark.parametrize(
    "view",
    [lambda w: w.t(), lambda w: w.permute(1, 0).transpose(0, 1), lambda w: w.t().permute(1, 0).mT],
    ids=["a transpose", "a transpose of a permutation", "a chain of three"],
)
def test_a_matrix_and_a_view_of_its_dims_in_another_order_share_an_exchange(view: Any) -> None:
    mesh = ts.make_mesh((8,), ("d",))
    whole = ts.NamedSharding(mesh, ts.P())
    w = torch.arange(48.0).reshape(8, 6)
    x = ts.device_put(w, ts.NamedSharding(mesh, ts.P("d")))
    both = ts.jit(lambda w: (w, view(w)), out_shardings=(whole, whole))
    assert [(each.kind, each.count) for each in both.lower(x).compile().cost_analysis().traffic] == [("all_gather", 1)]
    first, second = both(x)
    assert torch.equal(ts.device_get(first), w)
    assert torch.equal(ts.device_get(second), view(w))


def test_a_part_of_a_tensor_is_no_view_of_its_dims_in_another_order() -> None:
    builder = Builder(tuple(range(4)), (4,))
    w = ShardedVar(builder.input(ShapedType((2, 6), F32)), (8, 6), F32, ((0,), ()))
    (part,) = partitioner.apply(builder, torch.ops.aten.slice.Tensor, (w, 1, 0, 3), {})
    program = builder.finish([reshard(builder, part, ((), ())).number])
    assert steps(program) == ["aten.slice.Tensor", "all_gather"]

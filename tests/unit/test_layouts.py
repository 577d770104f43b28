"""The plan of an op by its rule: where operands agree nothing moves, else what sends the fewest bytes."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tinyshard.partition.plan import Plan, plan
from tinyshard.partition.reshard import ShardedVar, bytes_between

aten = torch.ops.aten
AXES = (4, 2)
Dims = tuple[tuple[int, ...], ...]


def operand(shape: tuple[int, ...], dims: Dims, partial: Any = (), dtype: torch.dtype = torch.float32) -> ShardedVar:
    return ShardedVar(0, shape, dtype, dims, partial)


def wanted(planned: Plan) -> list[Dims]:
    return [x.dims for x in planned.leaves if isinstance(x, ShardedVar)]


def test_operands_that_agree_stay_and_the_result_is_partial() -> None:
    x, w = operand((8, 8), ((1,), (0,))), operand((8, 16), ((0,), ()))
    planned = plan(aten.mm.default, (x, w), {}, AXES)
    assert wanted(planned) == [x.dims, w.dims]
    assert planned.results[0] == ShardedVar(0, (8, 16), torch.float32, ((1,), ()), ((0, "sum"),))
    assert planned.why == ("", "")


def test_an_operand_that_is_whole_is_cut_as_the_other_is() -> None:
    x, w = operand((8, 8), ((), (0,))), operand((8, 16), ((), ()))
    assert wanted(plan(aten.mm.default, (x, w), {}, AXES)) == [((), (0,)), ((0,), ())]


def test_where_operands_disagree_the_plan_is_the_one_that_sends_least() -> None:
    g, w = operand((2048, 512), ((0, 1), ())), operand((512, 128), ((0, 1), ()))
    planned = plan(aten.mm.default, (g, w), {}, AXES)
    assert wanted(planned) == [g.dims, ((), ())]
    sent = sum(bytes_between(have, want, AXES) for have, want in zip((g, w), planned.leaves, strict=True))
    assert sent == 512 * 128 * 4 * 7 // 8, "all but a device's own block of w"
    assert planned.why == ("", "to gather k of `i k, k j -> i j +k` sends the fewest bytes")


def test_a_dim_that_must_be_whole_is_gathered_and_the_plan_says_so() -> None:
    planned = plan(aten.cumsum.default, (operand((4, 8), ((0,), (1,))), 1), {}, AXES)
    assert wanted(planned) == [((0,), ())]
    assert planned.why == ("b of `a [b] -> a [b]` must be whole",)


def test_an_axis_moves_from_a_dim_that_must_be_whole_to_one_that_it_cuts_evenly() -> None:
    planned = plan(aten.cumsum.default, (operand((8, 8), ((0,), (1,))), 1), {}, AXES)
    assert wanted(planned) == [((0, 1), ())]


def test_an_op_that_is_replaced_where_it_is_cut_does_not_move() -> None:
    planned = plan(aten._softmax.default, (operand((8, 8), ((0,), (1,))), 1, False), {}, AXES)
    assert wanted(planned) == [((0,), ())]


def test_a_cut_that_is_no_block_of_a_view_moves_to_one_that_is() -> None:
    x = operand((8, 4), ((), (0,)))
    planned = plan(aten.view.default, (x, [32]), {}, AXES)
    assert wanted(planned) == [((0,), ())]
    assert planned.leaves[1:] == (8,), "a size among the arguments is that of a block"
    assert planned.results[0] is not None and planned.results[0].dims == ((0,),)


def test_the_second_factor_of_a_dim_is_cut_where_the_first_is_cut_into_single_elements() -> None:
    x = operand((4, 2, 3), ((0,), (1,), ()))
    planned = plan(aten.view.default, (x, [8, 3]), {}, AXES)
    assert wanted(planned) == [x.dims]
    assert planned.results[0] is not None and planned.results[0].dims == ((0, 1), ())


PARTIAL = ((0, "sum"),)


def test_a_sum_stays_partial_where_the_op_is_linear() -> None:
    x = operand((8,), ((),), PARTIAL)
    for op, args in ((aten.neg.default, (x,)), (aten.mul.Tensor, (x, 0.5)), (aten.add.Tensor, (x, x))):
        planned = plan(op, args, {}, AXES)
        assert planned.leaves[0].partial == PARTIAL, op
        assert planned.results[0] is not None and planned.results[0].partial == PARTIAL


@pytest.mark.parametrize(
    ("op", "rest"), [(aten.exp.default, ()), (aten.mul.Tensor, (2.0,)), (aten.add.Tensor, (1.0,))], ids=str
)
def test_a_sum_is_combined_before_an_op_that_is_not_linear_in_it(op: Any, rest: tuple[Any, ...]) -> None:
    planned = plan(op, (operand((8,), ((),), PARTIAL), *rest), {}, AXES)
    assert planned.leaves[0].partial == ()
    assert planned.results[0] is not None and planned.results[0].partial == ()


def test_parts_of_integers_are_combined_before_a_linear_op() -> None:
    planned = plan(aten.neg.default, (operand((8,), ((),), PARTIAL, torch.int32),), {}, AXES)
    assert planned.leaves[0].partial == ()


def test_parts_of_a_maximum_pass_an_op_that_only_moves_elements() -> None:
    x = operand((8, 2), ((), ()), ((0, "max"),))
    assert plan(aten.t.default, (x,), {}, AXES).leaves[0].partial == x.partial
    assert plan(aten.neg.default, (x,), {}, AXES).leaves[0].partial == ()


def test_an_op_that_reads_no_element_leaves_its_operand_partial_and_its_result_whole() -> None:
    planned = plan(aten.ones_like.default, (operand((8,), ((),), PARTIAL),), {}, AXES)
    assert planned.leaves[0].partial == PARTIAL
    assert planned.results[0] is not None and planned.results[0].partial == ()


def test_sizes_of_a_plan_are_those_of_blocks() -> None:
    planned = plan(aten.expand.default, (operand((8, 1), ((0,), ())), [8, 5]), {}, AXES)
    assert planned.leaves[1:] == (2, 5)
    planned = plan(aten.select_backward.default, (operand((8,), ((0,),)), [3, 8], 0, 1), {}, AXES)
    assert planned.leaves[1:] == (3, 2, 0, 1)


def test_a_plan_on_many_axes_is_found() -> None:
    axes = (2,) * 6
    x = operand((64, 64), ((0, 1, 2), (3, 4, 5)))
    w = operand((64, 64), ((3, 4), (0, 5)))
    planned = plan(aten.mm.default, (x, w), {}, axes)
    local = [y.local(axes).shape for y in planned.leaves]
    assert local[0][1] == local[1][0], "blocks of the same k"
    assert math.prod(planned.results[0].local(axes).shape) < 64 * 64  # type: ignore[union-attr]

"""The memory line against numbers counted by hand."""

import torch

from course.memory import memory_line
from tinyshard.core.program import Builder, Program, Value
from tinyshard.core.types import ShapedType

ROW = ShapedType((8,), torch.float32)  # 32 bytes
TALL = ShapedType((16,), torch.float32)  # 64 bytes


def program_of(*steps: tuple[str, list, dict, ShapedType], inputs: int = 1, outputs: tuple[int, ...] = ()) -> Program:
    """Steps (op, arguments, named arguments, result); the results are numbered on from the inputs."""
    builder = Builder((0, 1), (2,))
    for _ in range(inputs):
        builder.input(ROW)
    for op, args, kwargs, made in steps:
        builder.emit(op, args, kwargs, [made])
    return builder.finish(outputs)


def test_inputs_are_held_to_the_end_and_other_values_until_their_last_use() -> None:
    program = program_of(
        ("aten.sin.default", [Value(0)], {}, ROW),
        ("aten.cos.default", [Value(1)], {}, ROW),
        ("aten.neg.default", [Value(2)], {}, ROW),
        outputs=(3,),
    )
    line = memory_line(program)
    # x and its sine; x, sine, cosine; then the sine is gone
    assert [m.nbytes for m in line.moments] == [64, 96, 96]
    assert (line.inputs_nbytes, line.peak_nbytes, line.peak_step) == (32, 96, 1)


def test_a_result_is_held_to_the_end() -> None:
    program = program_of(
        ("aten.sin.default", [Value(0)], {}, ROW),
        ("aten.cos.default", [Value(0)], {}, ROW),
        ("aten.neg.default", [Value(0)], {}, ROW),
        outputs=(1, 3),
    )
    assert [m.nbytes for m in memory_line(program).moments] == [64, 96, 96]


def test_a_view_takes_no_memory_and_keeps_alive_what_it_looks_at() -> None:
    program = program_of(
        ("aten.sin.default", [Value(0)], {}, ROW),
        ("aten.view.default", [Value(1), [2, 4]], {}, ShapedType((2, 4), torch.float32)),
        ("aten.neg.default", [Value(0)], {}, ROW),
        ("aten.cos.default", [Value(2)], {}, ShapedType((2, 4), torch.float32)),
        outputs=(4,),
    )
    assert [m.nbytes for m in memory_line(program).moments] == [64, 64, 96, 96]


def test_a_gathered_block_takes_its_whole_size_and_one_s_own_block_none() -> None:
    program = program_of(
        ("all_gather", [Value(0)], {"axes": (0,), "dim": 0}, TALL),
        ("local_slice", [Value(1)], {"axes": (0,), "dim": 0}, ROW),
        outputs=(2,),
    )
    line = memory_line(program)
    assert [m.nbytes for m in line.moments] == [96, 96]
    assert [m.is_exchange for m in line.moments] == [True, False]
    assert line.moments[0].result == "%1: f32[16]"


def test_a_program_without_steps_holds_its_inputs() -> None:
    line = memory_line(program_of(inputs=3, outputs=(0,)))
    assert (line.inputs_nbytes, line.peak_nbytes, line.peak_step) == (96, 96, -1)

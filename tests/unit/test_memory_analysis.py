"""The memory of a program against numbers counted by hand."""

import torch

import tinyshard as ts
from tinyshard.compile.memory import memory_of
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
    memory = memory_of(program)
    # x and its sine; x, sine, cosine; then the sine is gone
    assert [m.nbytes for m in memory.steps] == [64, 96, 96]
    assert (memory.argument_nbytes, memory.peak_nbytes, memory.peak_step) == (32, 96, 1)


def test_a_result_is_held_to_the_end() -> None:
    program = program_of(
        ("aten.sin.default", [Value(0)], {}, ROW),
        ("aten.cos.default", [Value(0)], {}, ROW),
        ("aten.neg.default", [Value(0)], {}, ROW),
        outputs=(1, 3),
    )
    assert [m.nbytes for m in memory_of(program).steps] == [64, 96, 96]


def test_a_view_takes_no_memory_and_keeps_alive_what_it_looks_at() -> None:
    program = program_of(
        ("aten.sin.default", [Value(0)], {}, ROW),
        ("aten.view.default", [Value(1), [2, 4]], {}, ShapedType((2, 4), torch.float32)),
        ("aten.neg.default", [Value(0)], {}, ROW),
        ("aten.cos.default", [Value(2)], {}, ShapedType((2, 4), torch.float32)),
        outputs=(4,),
    )
    assert [m.nbytes for m in memory_of(program).steps] == [64, 64, 96, 96]


def test_a_gathered_block_takes_its_whole_size_and_one_s_own_block_none() -> None:
    program = program_of(
        ("all_gather", [Value(0)], {"axes": (0,), "dim": 0}, TALL),
        ("local_slice", [Value(1)], {"axes": (0,), "dim": 0}, ROW),
        outputs=(2,),
    )
    memory = memory_of(program)
    assert [m.nbytes for m in memory.steps] == [96, 96]
    assert [m.communicates for m in memory.steps] == [True, False]
    assert memory.steps[0].result == "%1: f32[16]"


def test_a_program_without_steps_holds_its_inputs() -> None:
    memory = memory_of(program_of(inputs=3, outputs=(0,)))
    assert (memory.argument_nbytes, memory.peak_nbytes, memory.peak_step) == (96, 96, -1)


def test_a_compiled_function_says_what_its_arguments_results_and_peak_take() -> None:
    mesh = ts.AbstractMesh((4,), ("d",))
    x = ts.ShapeDtypeStruct((16, 8), torch.float32, sharding=ts.NamedSharding(mesh, ts.P("d")))
    memory = ts.jit(lambda x: (x @ x.T).sum(1)).lower(x).compile().memory_analysis()
    # a shard f32[4, 8] comes in; all rows f32[16, 8] and the product f32[4, 16] are held with it; f32[4] goes out
    assert (memory.argument_nbytes, memory.output_nbytes) == (128, 16)
    assert memory.peak_nbytes == 128 + 512 + 256
    assert "<- peak" in str(memory).splitlines()[1 + memory.peak_step]

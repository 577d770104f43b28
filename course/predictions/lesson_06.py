"""Lesson 06: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "06.a",
        question="An 8 x 4 matrix on a 4 x 2 mesh, in_specs=P('a', 'b'). What shape does the function see?",
        choices=(
            Choice(
                "(4,), one row",
                misconception="shard_map takes a dim away, as vmap does",
                answer="vmap takes the mapped dim away. shard_map keeps all dims, and makes them shorter.",
            ),
            Choice("(2, 2)"),
            Choice(
                "(8, 4)",
                misconception="the function sees the whole",
                answer="The whole has this shape. The function is what one device runs, on the block that it has.",
            ),
            Choice(
                "(1, 4)",
                misconception="eight devices, eight rows",
                answer="Dim 0 is cut by axis `a` alone, in 4 parts of 2 rows; axis `b` cuts dim 1.",
            ),
        ),
        why="8 rows over 4 devices along a, 4 columns over 2 along b: blocks of 2 x 2.",
    ),
    Prediction(
        "06.b",
        question="`half_row_sums` forgets the psum, with out_specs=P('a'). What do you get?",
        choices=(
            Choice("an error when it is called"),
            Choice(
                "the right sums",
                misconception="out_specs adds up what is missing",
                answer="`out_specs` communicates nothing, so it cannot add the halves.",
            ),
            Choice(
                "16 numbers, two for each row",
                misconception="all results are put together",
                answer="`b` is not in `out_specs`: along it, the value of one device stands for all.",
            ),
            Choice(
                "8 numbers, each the sum of half a row",
                misconception="out_specs is believed",
                answer="That is what `check_vma=False` returns. By default the promise of `out_specs` is checked.",
            ),
        ),
        why="out_specs=P('a') promises equal values along b, and the devices along b hold different half sums. No psum "
        "over b made them equal, so the call is refused when the function is traced.",
    ),
    Prediction(
        "06.c",
        question="`matrix` is distributed as P('b', 'a'), and in_specs says P('a', 'b'). What happens?",
        choices=(
            Choice("it is resharded first; right sums, more bytes"),
            Choice(
                "an error: the shardings differ",
                misconception="in_specs describes the argument",
                answer="In JAX with Explicit axes it is. Here `in_specs` is an instruction.",
            ),
            Choice(
                "wrong sums",
                misconception="the devices take the blocks that they have",
                answer="Each device gets the block that `in_specs` names, even if another device has it now.",
            ),
            Choice(
                "the same, with the same bytes",
                misconception="blocks are free to move",
                answer="The blocks are on other devices than the function needs them: they are sent.",
            ),
        ),
        why="in_specs is an instruction: an argument with another sharding is resharded, and that is communication.",
    ),
    Prediction(
        "06.d",
        question="24 examples on 8 devices, w whole on each. What is sent, so that each has the mean loss's gradient?",
        choices=(
            Choice(
                "the examples: one all_gather",
                misconception="a device needs all examples",
                answer="A device needs what the other examples say about `w`, not the examples.",
            ),
            Choice(
                "nothing",
                misconception="w is whole on each device, and so is its gradient",
                answer="Each device has seen 3 examples, and has their gradient only.",
            ),
            Choice("gradients, of the size of w: one all_reduce"),
            Choice(
                "the 24 losses: one all_gather",
                misconception="a loss is enough to get its gradient",
                answer="A loss is one number; its gradient is computed where the example is.",
            ),
        ),
        why="The gradient of a mean is the mean of the gradients: 3 numbers a device, 2 * 12 * 7/8 = 21 bytes.",
    ),
)

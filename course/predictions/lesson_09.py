"""Lesson 09: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "09.a",
        question="Eager sends 16,384 bytes for (left @ right).sum(), to complete the product. How many does jit send?",
        choices=(
            Choice(
                "16,384: the same operations need the same bytes",
                misconception="jit changes the time, not the communication",
                answer="A whole function can leave sums partial; the product itself is never asked for.",
            ),
            Choice(
                "8,192: half, by a reduce_scatter",
                misconception="the product must still be completed, in parts",
                answer="Even its parts need not be complete: the sum of a partial matrix is a partial sum.",
            ),
            Choice("4: one number"),
            Choice(
                "0",
                misconception="one program is one device",
                answer="Each device has half of every sum. The halves must be added at some point.",
            ),
        ),
        why="Each device adds up its partial matrix to one partial number of 4 bytes; only that is reduced.",
    ),
    Prediction(
        "09.b",
        question="Three calls with a matrix sharded by rows, one with it sharded by columns: how often is "
        "`tracing` printed?",
        choices=(
            Choice("once"),
            Choice(
                "twice",
                misconception="another layout needs another trace",
                answer="The graph is on whole tensors, and knows no layout. Another layout is another program.",
            ),
            Choice(
                "four times",
                misconception="the function runs at each call",
                answer="After the trace only the program runs, on the devices.",
            ),
            Choice(
                "never: a traced function does not print",
                misconception="Python is compiled as well",
                answer="At the trace Python runs as always; what it does to tensors is written down.",
            ),
        ),
        why="Shape and dtype are the same in all four calls, so one trace serves them; the layouts need two programs.",
    ),
    Prediction(
        "09.c",
        question="times(rows, 2), times(rows, 3), times(rows, 2.0): how many traces?",
        choices=(
            Choice(
                "1",
                misconception="a Python number has no dtype",
                answer="An int becomes i64, a float f32: two dtypes, so two traces.",
            ),
            Choice(
                "3",
                misconception="the value of a number is part of the key",
                answer="That holds for static arguments. A traced number is a tensor, whose value is in no key.",
            ),
            Choice("2"),
        ),
        why="2 and 3 are i64[], and find one trace; 2.0 is f32[], and needs another one.",
    ),
    Prediction(
        "09.d",
        question="The tensor `scale` is 10 now and the number `offset` is 100. What does scaled(ones) give?",
        choices=(
            Choice(
                "4",
                misconception="a trace remembers all that was outside",
                answer="So it is in JAX. Here the tensor is an input of the graph, and is looked up at each call.",
            ),
            Choice("12"),
            Choice(
                "102",
                misconception="numbers are looked up, tensors are not",
                answer="It is the other way round: the number was written into the graph.",
            ),
            Choice(
                "110",
                misconception="a function sees the outside as it is now",
                answer="The function does not run again. Only its graph does, and there the number is 2.0.",
            ),
        ),
        why="10 x 1 + 2: the tensor is looked up at each call, the Python number is the one of the trace.",
    ),
    Prediction(
        "09.e",
        question="How often is a function traced in the first loop, and how often in the second?",
        choices=(
            Choice(
                "once, and once",
                misconception="functions with the same code are the same",
                answer="Python makes a new function object each time it runs a `def`, and the object is the key.",
            ),
            Choice(
                "3 times, and 3 times",
                misconception="each ts.jit(f) has a cache of its own",
                answer="Traces belong to the function, not to what ts.jit returns. `plus_two` is one function.",
            ),
            Choice(
                "once, and 3 times",
                misconception="jit of a function inside a loop is always new",
                answer="It is the other way round: what counts is where the function was defined.",
            ),
            Choice("3 times, and once"),
        ),
        why="The key is the function object: three of them in the first loop, one in the second.",
    ),
)

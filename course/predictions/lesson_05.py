"""Lesson 05: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "05.a",
        question="vmap(telling) gets 1000 examples of shape (5,). How many times does `telling` print, and what shape?",
        choices=(
            Choice(
                "1000 times, (5,)",
                misconception="vmap is a loop over examples",
                answer="A loop in Python would call the function for each example. vmap calls it once.",
            ),
            Choice(
                "once, (1000, 5)",
                misconception="the function sees the batch",
                answer="The batch is carried along unseen: `x.shape` inside is that of one example.",
            ),
            Choice("once, (5,)"),
            Choice(
                "8 times, (125, 5)",
                misconception="vmap uses the eight devices",
                answer="No device takes part in a vmap of plain tensors.",
            ),
        ),
        why="The function runs once, on a tensor that looks like one example. Each operation in it is replaced by its "
        "batched form.",
    ),
    Prediction(
        "05.b",
        question="The two examples are the columns of a matrix of shape (5, 2). What is the shape of "
        "vmap(convolve, in_axes=(1, None), out_axes=1)(matrix, w)?",
        choices=(
            Choice(
                "(2, 3)",
                misconception="the dim of the examples always comes first",
                answer="So it would be with `out_axes=0`. Here the results stand side by side, as the examples do.",
            ),
            Choice("(3, 2)"),
            Choice(
                "(5, 2)",
                misconception="the function sees the columns as they are",
                answer="The function sees one column, five numbers, and returns three sums for it.",
            ),
        ),
        why="The function sees (5,) and returns (3,). `out_axes=1` makes the examples dim 1 of the result.",
    ),
    Prediction(
        "05.c",
        question="24 examples, one w of three weights. What is the shape of "
        "vmap(grad(loss), in_axes=(None, 0, 0))(w, examples, targets)?",
        choices=(
            Choice(
                "(3,)",
                misconception="a gradient is added up over the batch",
                answer="That is what `backward` leaves after a batch. Each call of `grad` here has seen one example.",
            ),
            Choice(
                "(24,)",
                misconception="there is one number for each example",
                answer="A loss is one number for each example. Its gradient has one for each weight.",
            ),
            Choice("(24, 3)"),
        ),
        why="For one example the gradient has the shape of w, (3,). vmap adds the 24 examples as dim 0.",
    ),
    Prediction(
        "05.d",
        question="power(v, n) is mapped over eight devices with a static n, and called with n = 3, 3 and 2. How many "
        "times does it print?",
        choices=(
            Choice(
                "24 times: each device, in each call",
                misconception="each device runs the Python function",
                answer="The devices run a program. The controller makes it, by running the function once.",
            ),
            Choice(
                "three times: once in each call",
                misconception="a function is traced whenever it is called",
                answer="The second call finds the program of the first, with the same shapes and the same n.",
            ),
            Choice("twice"),
            Choice(
                "once",
                misconception="n is an input of the program",
                answer="A static argument is a part of the program: the loop was written out for n = 3.",
            ),
        ),
        why="Once for n = 3 and once for n = 2: another static value is another program.",
    ),
)

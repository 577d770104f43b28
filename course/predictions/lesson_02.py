"""Lesson 02: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "02.a",
        question='P("a", "b") on a mesh of 4 × 2: which device holds the block in the top right corner?',
        choices=(
            Choice("CPU 1"),
            Choice(
                "CPU 4",
                misconception="devices are numbered down the columns",
                answer="Devices are numbered as you read: along a row of the mesh first, then the next row.",
            ),
            Choice(
                "CPU 7",
                misconception="the last column has the last device at its top",
                answer="CPU 7 is last along both axes: the bottom right corner.",
            ),
        ),
        why="The top right block is first along a and second along b, and so is CPU 1 in the mesh.",
    ),
    Prediction(
        "02.b",
        question='P("b", "a") on the same mesh of 4 × 2: which device is directly to the right of CPU 0?',
        choices=(
            Choice(
                "CPU 1",
                misconception="what is side by side in the mesh is side by side in the picture",
                answer="CPU 1 is the next one along b, and b cuts the rows now: CPU 1 is below CPU 0.",
            ),
            Choice("CPU 2"),
            Choice(
                "CPU 4",
                misconception="axis a has 4 devices, so a step along it adds 4",
                answer="A step along a passes the 2 devices of b: from CPU 0 to CPU 2.",
            ),
        ),
        why="The columns are cut by a. One step to the right is one step along a, which adds 2 to the number.",
    ),
    Prediction(
        "02.c",
        question='P("a", None): which devices hold rows 0 to 511?',
        choices=(
            Choice("CPU 0 and CPU 1"),
            Choice(
                "CPU 0 alone",
                misconception="an axis that is not named is left empty",
                answer="Each device holds a block: along an axis that is not named, the same one.",
            ),
            Choice(
                "CPU 0 and CPU 4",
                misconception="copies are half of the devices apart",
                answer="CPU 4 is two steps along a from CPU 0, and a cuts: it holds other rows.",
            ),
        ),
        why="The block depends on the place along a only. CPU 0 and CPU 1 are at the same place along a.",
    ),
    Prediction(
        "02.d",
        question='P(("b", "a"), None): which device holds the second block from the top?',
        choices=(
            Choice(
                "CPU 1",
                misconception="the order of the names in a tuple does not matter",
                answer="It would be CPU 1 with (a, b). The last name in the tuple changes fastest.",
            ),
            Choice(
                "CPU 4",
                misconception="there are only two blocks, since b comes first and has two devices",
                answer="Both axes cut, into eight blocks. b makes two halves, a cuts each of them into four.",
            ),
            Choice("CPU 2"),
        ),
        why="b cuts into two halves. Within a half the blocks follow axis a, and a step along a adds 2.",
    ),
    Prediction(
        "02.e",
        question='P(None, "b"): how much of the 16 MiB does each device hold?',
        choices=(
            Choice(
                "2 MiB",
                misconception="eight devices hold an eighth each",
                answer="That takes eight different blocks. Only b is named, so there are two.",
            ),
            Choice("8 MiB"),
            Choice(
                "16 MiB",
                misconception="None says that the array is not cut",
                answer="None stands for dim 0 only; dim 1 is cut by b.",
            ),
        ),
        why="Two different blocks of 8 MiB each, and four copies of each block.",
    ),
    Prediction(
        "02.f",
        question='32 pictures of shape (3, 64, 64) under P("a", None, "b"): what is the shape of a shard?',
        choices=(
            Choice(
                "(8, 3, 64, 32)",
                misconception="the last name cuts the last dim",
                answer="Entries count from the first dim. The third one is dim 2, the rows of a picture.",
            ),
            Choice(
                "(16, 3, 16, 64)",
                misconception="a is the short axis of the mesh",
                answer="a has 4 devices and b has 2: a quarter of the pictures, half of the rows.",
            ),
            Choice("(8, 3, 32, 64)"),
        ),
        why="32 pictures in 4 parts by a, 64 rows in 2 parts by b. Colours and columns stay whole.",
    ),
)

"""Lesson 04: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "04.a",
        question="A matrix of 64 x 64 has the layout P('a', 'b') on a mesh of 4 x 2. Of which matrix does CPU "
        "0 compute the sine?",
        choices=(
            Choice(
                "64 x 64",
                misconception="a device computes the whole operation",
                answer="CPU 0 has only its own shard, and the sine of a shard needs nothing else.",
            ),
            Choice(
                "8 x 64",
                misconception="eight devices always mean eight groups of rows",
                answer="Only axis a, with 4 devices, shards the rows; axis b shards the columns.",
            ),
            Choice("16 x 32"),
            Choice(
                "no device computes before the matrix is gathered",
                misconception="an operation needs its operand in one place",
                answer="An element of the sine needs one element of the operand. Nothing has to be gathered.",
            ),
        ),
        why="64 / 4 rows and 64 / 2 columns: its shard. The sine is computed where the operand is, and stays there.",
    ),
    Prediction(
        "04.b",
        question="CPU 3 has rows 16 to 31 of `left` and columns 32 to 63 of `right`. What of the product can "
        "it compute without receiving anything?",
        choices=(
            Choice("rows 16 to 31 and columns 32 to 63 of it, complete"),
            Choice(
                "rows 16 to 31 of it, complete",
                misconception="the rows of `left` are enough for rows of the product",
                answer="A whole row of the product needs all columns of `right`; CPU 3 has half of them.",
            ),
            Choice(
                "all of it, but only as a partial sum",
                misconception="every sharded product is a sum of parts",
                answer="CPU 3 has whole rows and whole columns, so its sums over k are complete.",
            ),
            Choice(
                "nothing",
                misconception="a product of sharded matrices always needs communication",
                answer="For an element it takes a whole row and a whole column. CPU 3 has some of both.",
            ),
        ),
        why="Whole rows by whole columns give a block of 16 x 32, complete. The eight blocks are the product.",
    ),
    Prediction(
        "04.c",
        question="CPU 0 has the left half of `left` and the upper half of `right`, and multiplies them. What is that?",
        choices=(
            Choice(
                "a block of 32 x 32 of the product",
                misconception="half an operand gives a block of the result",
                answer="Its half of `left` has all 64 rows, its half of `right` all 64 columns: the result "
                "has 64 x 64.",
            ),
            Choice(
                "the whole product",
                misconception="64 x 64 numbers are the whole product",
                answer="The size is that of the product, but each sum has only 32 of its 64 terms.",
            ),
            Choice(
                "not possible: the shapes do not fit",
                misconception="shards of a product do not multiply",
                answer="64 x 32 by 32 x 64 is an ordinary product of matrices.",
            ),
            Choice("64 x 64 numbers, each of them half of a sum"),
        ),
        why="Of the 64 terms of each sum CPU 0 has 32. The partial sums of two devices must be added: one all_reduce.",
    ),
    Prediction(
        "04.d",
        question="The all_reduce sent 16,384 bytes. Now the rows of `left` are sharded by `a` as well. How "
        "many bytes are sent?",
        choices=(
            Choice(
                "16,384",
                misconception="the bytes depend on the array alone",
                answer="Each device now has only 16 of the 64 rows of the partial sum, so its message is smaller.",
            ),
            Choice("4,096"),
            Choice(
                "8,192",
                misconception="one more axis halves the bytes",
                answer="Axis a has 4 devices: a quarter of the rows, not half of them.",
            ),
            Choice(
                "28,672",
                misconception="with two axes the sum runs over eight devices",
                answer="The contracted dim is sharded by b only. Devices along a have different rows: there "
                "is nothing to add.",
            ),
        ),
        why="The partial sum is f32[16, 64] now: a quarter of the rows, of the work and of the bytes.",
    ),
    Prediction(
        "04.e",
        question="`up` by rows, `down` by columns. Which collectives does relu(x @ up) @ down need?",
        choices=(
            Choice(
                "one all_reduce of f32[64, 1024], as before",
                misconception="rows-columns and columns-rows are the same",
                answer="The first product is the partial sum now, and its matrix is f32[64, 8192].",
            ),
            Choice(
                "none: each device goes on with its partial sum",
                misconception="relu may be applied to partial sums",
                answer="relu(-3 + 5) is 2, but relu(-3) + relu(5) is 5. relu needs the complete sum.",
            ),
            Choice("one all_reduce of f32[64, 8192]: eight times the bytes"),
            Choice(
                "two all_reduces, one for each product",
                misconception="each product costs an all_reduce",
                answer="Once the middle is complete on every device, the second product is by whole columns, "
                "which is free.",
            ),
        ),
        why="The first product has a sharded contracted dim, and relu needs its complete sums; the second "
        "is by columns, and free.",
    ),
    Prediction(
        "04.f",
        question="One array is committed to the devices 0 to 3, another one to the devices 4 to 7. What is their sum?",
        choices=(
            Choice("an error"),
            Choice(
                "an array on the devices 0 to 3",
                misconception="the left operand decides",
                answer="Both places are your decisions. tinyshard does not prefer the left one.",
            ),
            Choice(
                "an array on all eight devices",
                misconception="two sets of devices become one",
                answer="Then both would have to be moved, each against your decision.",
            ),
            Choice(
                "an array in the controller's memory",
                misconception="the controller computes what no device can",
                answer="The controller gives orders: an operation on Arrays always runs on devices.",
            ),
        ),
        why="Committed arrays can be added only on the same devices, in the same order. device_put moves one of them.",
    ),
)

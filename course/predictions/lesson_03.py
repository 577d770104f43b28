"""Lesson 03: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "03.a",
        question='8 rows, P("a") on a mesh of 4 × 2: which rows does CPU 3 hold?',
        choices=(
            Choice(
                "row 3 alone",
                misconception="eight devices hold a row each",
                answer="Only a cuts, into four blocks of two rows; along b there are copies.",
            ),
            Choice(
                "rows 6 and 7",
                misconception="device 3 has block 3",
                answer="The number of the block is the place along a: CPU 3 is at a = 1, b = 1.",
            ),
            Choice("rows 2 and 3"),
        ),
        why="CPU 2 and CPU 3 are at place 1 along a, and hold block 1: rows 2 and 3.",
    ),
    Prediction(
        "03.b",
        question="How many of the 32 numbers does CPU 7 hold before and after the move?",
        choices=(
            Choice("8 before, 4 after"),
            Choice(
                "8 before, 8 after",
                misconception="a move keeps the size of a shard",
                answer="It keeps the array. The number of different blocks grows from four to eight.",
            ),
            Choice(
                "4 before, 4 after",
                misconception="eight devices hold an eighth each, always",
                answer="Before the move b is not named: there are copies, and a block is a quarter.",
            ),
        ),
        why="P('a') makes four different blocks of 8 numbers, P('b', 'a') eight of 4. There are no copies any more.",
    ),
    Prediction(
        "03.c",
        question="From P() to P('a'): how much does the busiest device send?",
        choices=(
            Choice(
                "8 MiB",
                misconception="a device that gets a block must be sent it",
                answer="A shard of P('a') has 8 MiB, but each device has these 8 MiB already.",
            ),
            Choice("nothing"),
            Choice(
                "24 MiB",
                misconception="what a device gives up goes to the others",
                answer="The other devices have it too. A copy that is not needed is dropped, not sent.",
            ),
        ),
        why="Each device has the whole array, so it also has its part of it: it cuts, and sends nothing.",
    ),
    Prediction(
        "03.d",
        question="From eight row blocks to eight column blocks, 4 MiB on each device: how much does a device send?",
        choices=(
            Choice(
                "28 MiB",
                misconception="each device must gather the whole array first",
                answer="That is what an all-gather would send. A device needs only its own columns.",
            ),
            Choice(
                "4 MiB",
                misconception="a device gives away all that it has",
                answer="Nearly: one of the eight pieces of its rows is within its own columns, and stays.",
            ),
            Choice("3.5 MiB"),
        ),
        why="A device cuts its rows into eight pieces of 0.5 MiB, keeps one, and sends each of the others elsewhere.",
    ),
    Prediction(
        "03.e",
        question="How much does a device hold at the worst moment of the move?",
        choices=(
            Choice(
                "8 MiB",
                misconception="only the old and the new shard are there",
                answer="So it would be with one exchange. But there are values in between.",
            ),
            Choice("12 MiB"),
            Choice(
                "36 MiB",
                misconception="each device must gather the whole array on the way",
                answer="A gather of everything would need that and more: 4 + 16 + 32 MiB. No device needs all of it.",
            ),
        ),
        why="The old shard (4), what an exchange reads (4) and what it makes of that (4) are there together.",
    ),
    Prediction(
        "03.f",
        question="torch.chunk cuts 10 rows into 4 parts: how many rows has each?",
        choices=(
            Choice(
                "3, 3, 2, 2",
                misconception="the parts are as equal as possible",
                answer="torch.tensor_split and np.array_split do that. torch.chunk makes full parts while it can.",
            ),
            Choice("3, 3, 3, 1"),
            Choice(
                "2, 2, 2, 4",
                misconception="the size is rounded down, and the last part takes what is left over",
                answer="The size is rounded up. So the last part has less than the other ones, never more.",
            ),
        ),
        why="A full part has 10 / 4 rows, rounded up: 3. Three of them leave one row for the last part.",
    ),
)

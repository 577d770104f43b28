"""Lesson 07: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "07.a",
        question="Each of eight devices holds a row of eight numbers. What does device 0 hold after psum of the rows?",
        choices=(
            Choice(
                "one number, 28",
                misconception="psum sums the device's own row",
                answer="That is row.sum(), and needs no communication: psum adds across the devices.",
            ),
            Choice(
                "one number, 2016",
                misconception="psum sums everything to one number",
                answer="psum does not touch the dims of the row: it adds number 0 of all rows, number 1 of all rows, "
                "and so on.",
            ),
            Choice("eight numbers, 224, 232, …, 280"),
            Choice(
                "its own row; only one device holds the sum",
                misconception="an all-reduce leaves the sum on one device",
                answer="That is a reduce. After an all-reduce every device has the sum.",
            ),
        ),
        why="psum adds elementwise across the devices, and every device gets the sum: 0 + 8 + 16 + … + 56 = 224 "
        "comes first.",
    ),
    Prediction(
        "07.b",
        question="The layer's y, f32[64, 1024], has 262,144 bytes. What does the busiest device send for its "
        "all-reduce?",
        choices=(
            Choice("458,752 bytes, 2 · 7/8 of y"),
            Choice(
                "262,144 bytes, y once",
                misconception="an all-reduce sends each byte once",
                answer="An all-reduce has two halves: adding up, and giving the sum to all devices. Each half costs "
                "7/8 of y.",
            ),
            Choice(
                "1,835,008 bytes, y to seven others",
                misconception="an all-reduce sends whole blocks to all others",
                answer="That would be an all-gather of y, after which each device adds up by itself.",
            ),
            Choice(
                "8 MiB, its parts of up and down",
                misconception="weights are sent",
                answer="The weights stay where they are: only the partial sums of y are added.",
            ),
        ),
        why="Only y is added up: 2 · 262,144 · 7/8 = 458,752 bytes, far less than the weights of 64 MiB.",
    ),
    Prediction(
        "07.c",
        question="How many bytes does the busiest device send for an all_gather of rows of 32 bytes on 8 devices?",
        choices=(
            Choice(
                "32",
                misconception="a device sends its row once",
                answer="Once to one neighbour; but seven others need it.",
            ),
            Choice(
                "56",
                misconception="all collectives cost the same",
                answer="That is the all-reduce: it sends pieces of sums. Here nothing is added, and every row must "
                "arrive whole.",
            ),
            Choice(
                "256",
                misconception="a device also sends to itself",
                answer="Its own copy is there already: of eight copies, seven travel.",
            ),
            Choice("224"),
        ),
        why="Each row must reach seven other devices: 7 × 32 = 224.",
    ),
    Prediction(
        "07.d",
        question="What does device 0 hold after the all-to-all of rows 0 … 7, 8 … 15, …, 56 … 63?",
        choices=(
            Choice(
                "all 64 numbers",
                misconception="an all-to-all is an all-gather",
                answer="After an all-gather. Here a device sends each of the others a different piece.",
            ),
            Choice("0, 8, 16, …, 56: number 0 of each row"),
            Choice(
                "0, 1, 2, …, 7, as before",
                misconception="an all-to-all leaves the order of numbers",
                answer="Only number 0 stays: number j of its row goes to device j.",
            ),
            Choice(
                "the sum of all rows",
                misconception="every collective adds up",
                answer="Nothing is added in an all-to-all: it only moves pieces.",
            ),
        ),
        why="Piece 0 of every device goes to device 0. All together, the table is transposed.",
    ),
    Prediction(
        "07.e",
        question="Every device but the last sends its row to the right. What does device 0 hold then?",
        choices=(
            Choice(
                "its own row, since none came",
                misconception="without a sender a device keeps its value",
                answer="ppermute returns what arrived. A device that wants its own value still has it, in row.",
            ),
            Choice(
                "row 7, which goes around",
                misconception="a chain is a ring",
                answer="Only if the pair (7, 0) is in the list. It is not.",
            ),
            Choice("eight zeros"),
            Choice(
                "an error is raised",
                misconception="every device must receive",
                answer="Senders and receivers must be unique, but not all devices must be in the list.",
            ),
        ),
        why="A device to which no device sends gets zeros, as in JAX. Lesson 08 makes use of that.",
    ),
    Prediction(
        "07.f",
        question="4,096 times the bytes: how much longer does the all-reduce of 16 MiB take than that of 4 KiB?",
        choices=(
            Choice(
                "about 4,096 times as long",
                misconception="time is in proportion to bytes",
                answer="Then the small one would cost nearly nothing; but sending the order and waiting for "
                "eight workers always take time.",
            ),
            Choice("longer, but by far less than 4,096 times"),
            Choice(
                "about as long",
                misconception="communication costs only the call",
                answer="True for small blocks, where the floor is all; 16 MiB must be read and added, too.",
            ),
        ),
        why="Time is a floor plus bytes divided by a rate. For 4 KiB the floor is nearly all of it.",
    ),
)

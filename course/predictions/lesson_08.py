"""Lesson 08: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "08.a",
        question="Whole rows of 32 bytes go around a ring of eight, in 7 steps. What does each device send in all?",
        choices=(
            Choice(
                "32 bytes",
                misconception="a device sends only its own row",
                answer="It sends its own row once, and then passes on six rows of others.",
            ),
            Choice(
                "56 bytes, as psum",
                misconception="every all-reduce sends the same bytes",
                answer="What is sent depends on how it is done: whole rows are more than pieces of sums.",
            ),
            Choice("224 bytes"),
            Choice(
                "256 bytes",
                misconception="n devices need n steps",
                answer="After 7 steps a device has seen all eight rows: its own was there from the start.",
            ),
        ),
        why="7 steps of one row: 7 × 32 = 224 bytes, four times the 56 of the model of psum.",
    ),
    Prediction(
        "08.b",
        question="Three devices start with a2, b0 and c1. Each sends what it holds to the right, and to what arrives "
        "it adds its own piece with the same number. What does device 1 hold after step 1?",
        choices=(
            Choice("a2 + b2"),
            Choice(
                "a2 + b0",
                misconception="what arrives is added to what is held",
                answer="a2 and b0 are different places of the row: only pieces with the same number belong in one sum.",
            ),
            Choice(
                "c1 + b1",
                misconception="to the right means from the right",
                answer="Device 1 gets from its left neighbour, device 0, which held a2.",
            ),
            Choice(
                "a0 + b0",
                misconception="a device keeps the number of its piece",
                answer="The sum moves on, and its number moves with it: what arrived is a2.",
            ),
        ),
        why="a2 arrives from device 0, and device 1 adds its own piece number 2, b2.",
    ),
    Prediction(
        "08.c",
        question="me = axis_index('i') inside the function. What does pieces[me] give for a Python list of 8 pieces?",
        choices=(
            Choice(
                "on each device its own piece",
                misconception="the function runs on each device",
                answer="The function runs once, in the controller, while it is traced: me has no value there.",
            ),
            Choice(
                "piece 0 on all devices",
                misconception="the controller is device 0",
                answer="The controller is not a device. It runs the function on stand-ins, and me stands for eight "
                "numbers at once.",
            ),
            Choice(
                "all eight pieces",
                misconception="a traced list becomes a tensor",
                answer="The list stays Python's own: it must choose an entry while the function is traced.",
            ),
            Choice("an error while the function is traced"),
        ),
        why="A list needs a Python number at once, and me is a tensor without a value until the program runs.",
    ),
    Prediction(
        "08.d",
        question="y has 262,144 bytes, and is all-reduced by the ring of pieces. What does the program have?",
        choices=(
            Choice(
                "7 collective_permutes, 262,144 bytes each",
                misconception="the ring passes whole blocks",
                answer="That is the ring of rows, for four times the bytes.",
            ),
            Choice("14 collective_permutes, 32,768 bytes each"),
            Choice(
                "7 collective_permutes, 32,768 bytes each",
                misconception="a reduce-scatter is an all-reduce",
                answer="After 7 steps each device has one finished piece; 7 more hand them around.",
            ),
            Choice(
                "1 all_reduce, 458,752 bytes",
                misconception="the compiler recognises an all-reduce",
                answer="The program has what you wrote. Only psum becomes an all_reduce.",
            ),
        ),
        why="y is cut in 8 pieces of 32,768 bytes: 7 steps to add up, 7 to hand around, 458,752 bytes in all.",
    ),
    Prediction(
        "08.e",
        question="Eight devices exchange halves, quarters and eighths of their rows of 32 bytes, then the sums the "
        "other way round. How many steps, and how many bytes does each device send?",
        choices=(
            Choice("6 steps, 56 bytes"),
            Choice(
                "6 steps, 192 bytes",
                misconception="each step sends the whole row",
                answer="That is doubling, twice. Here a step of the first half sends half as much as the one before.",
            ),
            Choice(
                "14 steps, 56 bytes",
                misconception="fewest bytes need most steps",
                answer="The bytes are right. But each exchange is with one partner, and there are three distances.",
            ),
            Choice(
                "6 steps, 28 bytes",
                misconception="a reduce-scatter is an all-reduce",
                answer="16 + 8 + 4 bytes are the first half. The finished pieces must be handed around as well.",
            ),
        ),
        why="16 + 8 + 4 bytes, then 4 + 8 + 16: the bytes of the ring, in 6 steps instead of 14.",
    ),
    Prediction(
        "08.f",
        question="Rows of 4 KiB. Which all-reduce by hand is the slowest?",
        choices=(
            Choice(
                "the ring of rows, with the most bytes",
                misconception="bytes are time",
                answer="It sends four times the bytes of the ring of pieces, but 28 KiB are little; it has half the "
                "steps.",
            ),
            Choice(
                "all are equally fast: 4 KiB are nothing",
                misconception="a small message costs nothing",
                answer="Each message costs its latency, however small it is, and the steps wait for each other.",
            ),
            Choice("the ring of pieces, with the most steps"),
        ),
        why="For small rows a step costs its latency, whether it sends a row or an eighth of one: 14 steps wait for "
        "each other, and only 7, 6 and 3 in the other ways.",
    ),
)

"""Lesson 18: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "18.a",
        question="chain sends a row on twice, fan sends it to two devices. How many rounds does each have?",
        choices=(
            Choice(
                "2 and 2",
                misconception="every exchange is a round",
                answer="The second message of fan does not need the first: both may travel at once.",
            ),
            Choice(
                "1 and 2",
                misconception="two messages from one device must follow each other",
                answer="Nothing in fan waits for an answer. In chain the second message is what the first one brought.",
            ),
            Choice("2 and 1"),
        ),
        why="A round waits for the one before. In chain the second move sends what the first one brought; in fan both "
        "moves send x.",
    ),
    Prediction(
        "18.b",
        question="twice gathers shard in two lines. twice_cloned gathers shard in one, and shard.clone() in the "
        "next. How many all_gather does the program of each have?",
        choices=(
            Choice("1 and 2"),
            Choice(
                "2 and 2",
                misconception="each line of the function is a step of the program",
                answer="Equal steps of a program are done once, and the result is kept.",
            ),
            Choice(
                "1 and 1",
                misconception="a clone is the same value",
                answer="To the program a clone is another value, so gathering it is another step.",
            ),
        ),
        why="Gathering the same shard again is an equal step, and is done once. A clone is another value.",
    ),
    Prediction(
        "18.c",
        question="q, k and v have 32 KiB each. What does one device hold at the peak of attention?",
        choices=(
            Choice(
                "about 0.1 MiB: the inputs and the result",
                misconception="only inputs and results need memory",
                answer="Between them there are scores: one for each pair of words.",
            ),
            Choice(
                "about 1.1 MiB: the inputs and the scores",
                misconception="a value and what is made of it are never held at the same time",
                answer="While the weights are made, the scores that they are made of are still there.",
            ),
            Choice("about 2.1 MiB: the inputs, and twice the size of the scores"),
        ),
        why="The scores are 512 x 512 numbers, 1 MiB. A step holds its operand and its result at the same time.",
    ),
    Prediction(
        "18.d",
        question="Eight blocks in the order of the text, and each word sees itself and the words before it. How much "
        "more does device 7 compute than device 0?",
        choices=(
            Choice(
                "as much: each device has 64 words",
                misconception="equal blocks are equal work",
                answer="Each device has as many queries, but the words of the last block see the whole text.",
            ),
            Choice(
                "8 times as much",
                misconception="device 0 computes a whole block of scores",
                answer="Nearly: device 7 has seven whole blocks and half of one, but device 0 has only half a block.",
            ),
            Choice("15 times as much"),
            Choice(
                "64 times as much",
                misconception="work grows by the square of the position",
                answer="The work of all blocks together grows so; that of one device by its position alone.",
            ),
        ),
        why="Device 0 sees half of one block, device 7 seven blocks and a half: 0.5 and 7.5.",
    ),
    Prediction(
        "18.e",
        question="4 stages, 8 micro-batches, forward and backward. What does 1F1B have less of than GPipe?",
        choices=(
            Choice(
                "idle slots",
                misconception="1F1B fills the bubble",
                answer="The first micro-batch must still go through all stages and back: the bubble is the same.",
            ),
            Choice("micro-batches held at once"),
            Choice(
                "both",
                misconception="what is better in one way is better in every way",
                answer="Both take 22 slots. Only what waits for the backward pass is less.",
            ),
            Choice(
                "bytes sent",
                misconception="who holds less sends less",
                answer="Each micro-batch passes the same links forward and backward.",
            ),
        ),
        why="A stage goes backward as soon as it can, so that no more than 4 inputs wait, not 8. The number of slots "
        "is the same.",
    ),
)

"""Lesson 18: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "18.a",
        question="q, k and v have 128 KiB each. What does one device hold at the peak of attention?",
        choices=(
            Choice(
                "about 0.5 MiB: the inputs and the result",
                misconception="only inputs and results need memory",
                answer="Between them there are scores: one for each pair of words.",
            ),
            Choice(
                "about 4.4 MiB: the inputs and the scores",
                misconception="a value and what is made of it are never held at the same time",
                answer="While the weights are made, the scores that they are made of are still there.",
            ),
            Choice("about 8.4 MiB: the inputs, and twice the size of the scores"),
        ),
        why="The scores are 1,024 x 1,024 numbers, 4 MiB. A step holds its operand and its result at the same time.",
    ),
    Prediction(
        "18.b",
        question="A block of keys is 16 KiB, as is one of values. How much does a device send to gather both?",
        choices=(
            Choice(
                "32,768 bytes: its own two blocks",
                misconception="a block is sent once and all others have it",
                answer="Seven other devices need them, and each of the seven copies must be sent.",
            ),
            Choice("229,376 bytes: seven times two blocks"),
            Choice(
                "262,144 bytes: eight times two blocks",
                misconception="a device also sends to itself",
                answer="Its own blocks are there already: seven devices are left.",
            ),
        ),
        why="Seven blocks of keys and seven of values must reach every device: 14 times 16,384 bytes.",
    ),
    Prediction(
        "18.c",
        question="How many all_gather are in the program of twice, and how many in that of twice_cloned?",
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
        "18.d",
        question="How many ticks do 16 micro-batches need in 8 stages, without waiting?",
        choices=(
            Choice(
                "128",
                misconception="the next micro-batch waits until the last one is through",
                answer="That is 16 times 8: one after the other.",
            ),
            Choice(
                "16",
                misconception="a full pipeline has no bubble",
                answer="Stage 0 is done after 16 ticks. The last micro-batch still has seven stages to go.",
            ),
            Choice(
                "24",
                misconception="16 micro-batches and 8 stages add up",
                answer="Nearly. In the tick in which stage 0 takes the last micro-batch, it is already computed once.",
            ),
            Choice("23"),
        ),
        why="Stage 0 starts the last micro-batch in the 16th tick, and seven more stages follow: 16 + 8 - 1.",
    ),
)

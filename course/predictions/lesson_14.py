"""Lesson 14: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "14.a",
        question="A ring of 64 GPUs adds up a gradient of 4 MiB. How much of the time is latency?",
        choices=(
            Choice(
                "nearly nothing: the bytes decide",
                misconception="megabytes are much",
                answer="8 MB at 400 GB/s are 21 µs. And how many rounds does the ring wait for?",
            ),
            Choice(
                "about half",
                misconception="latency and bytes are of the same size",
                answer="They are at one size of message. Here the bytes take 21 µs, and the rounds 1,890.",
            ),
            Choice("nearly all of it"),
        ),
        why="126 rounds of 15 µs are 1,890 µs; the bytes take 21 µs. That is why small gradients travel in buckets.",
    ),
    Prediction(
        "14.b",
        question="In TF32, with numbers of 4 bytes, how many rows make a product compute-bound?",
        choices=(
            Choice(
                "about 150",
                misconception="half the speed needs half the rows",
                answer="Half as many operations a byte are needed. But each number has twice as many bytes.",
            ),
            Choice(
                "about 600",
                misconception="twice the bytes need twice the rows",
                answer="There are twice as many bytes to read. But the arithmetic takes twice as long, too.",
            ),
            Choice("about 300 again"),
        ),
        why="Reading takes twice as long and computing takes twice as long: both sides of the balance double.",
    ),
    Prediction(
        "14.c",
        question="Eight GPUs need 65 ms for a step, around a ring and without overlap. And 4096?",
        choices=(
            Choice(
                "about 0.1 ms",
                misconception="512 times the devices, 512 times as fast",
                answer="That is the computing alone. The gradients are as large as before.",
            ),
            Choice(
                "about 15 ms",
                misconception="communicating stays the same, however many devices there are",
                answer="The bytes of a device stay nearly the same, but each ring has 8,190 rounds.",
            ),
            Choice(
                "about 65 ms",
                misconception="what is saved in computing goes into communicating, in equal parts",
                answer="There is no such balance: computing falls to nothing, and the rounds of the ring grow.",
            ),
            Choice("about 620 ms"),
        ),
        why="8,190 rounds of 15 µs in each of five all-reduces, one for each matrix and one for the loss: the ring "
        "makes 4096 devices ten times as slow as eight.",
    ),
    Prediction(
        "14.d",
        question="Products at 40 % of the peak, 7.6 ms of them in a step of 14.7 ms. The MFU is …",
        choices=(
            Choice(
                "40 %",
                misconception="the MFU is that of the products",
                answer="That is the speed while a device computes. Nearly half of the step it does not.",
            ),
            Choice(
                "52 %",
                misconception="the MFU is the share of the time in which a device computes",
                answer="7.6 / 14.7 is the share of the time. While it computes, a device reaches 40 % of its peak.",
            ),
            Choice("21 %"),
        ),
        why="40 % of the peak in 52 % of the time. Perfect overlap would double it, and faster products need larger "
        "or better shaped matrices.",
    ),
)

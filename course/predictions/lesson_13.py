"""Lesson 13: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "13.a",
        question="Every byte to and from CPU 1 is 50 ms late. Ten additions and a fetch take about …",
        choices=(
            Choice(
                "1,000 ms",
                misconception="each order waits for the answer to the one before",
                answer="Ten round trips: that would be so if the controller waited for each addition. It does not.",
            ),
            Choice("100 ms"),
            Choice(
                "50 ms",
                misconception="only the way there counts",
                answer="The orders need 50 ms to CPU 1, and the value needs 50 ms back.",
            ),
            Choice(
                "600 ms",
                misconception="each order is late by itself, and the answer once more",
                answer="All ten are late by the same 50 ms: they are under way at the same time.",
            ),
        ),
        why="The orders travel one behind the other, without waiting. One way there and one way back: 100 ms.",
    ),
    Prediction(
        "13.b",
        question="The wire to host b is cut, then joined. What do the two prints of the sum show?",
        choices=(
            Choice("no progress for 2 seconds; then the sum"),
            Choice(
                "an error at once, as for a dead device; then the same error",
                misconception="a cut wire is noticed at once",
                answer="A killed process ends its connections, and that is noticed. Behind a cut wire nothing ends.",
            ),
            Choice(
                "no progress for 2 seconds; then an error: the order is lost",
                misconception="what was sent into a cut wire is lost",
                answer="TCP, the network software of both hosts, keeps what was not acknowledged, and sends it again.",
            ),
        ),
        why="A cut ends no connection. The order waits in the network software, and arrives in the end.",
    ),
    Prediction(
        "13.c",
        question="In TF32, with numbers of 4 bytes, how many rows does a product need until arithmetic decides?",
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
        "13.d",
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
        "13.e",
        question='The mesh is ("model", "data") instead of ("data", "model"). What becomes larger?',
        choices=(
            Choice(
                "nothing: the same program, the same bytes",
                misconception="the order of the axes is a matter of taste",
                answer="The order of the axes says which devices share a matrix, and on which hosts these are.",
            ),
            Choice("the bytes that leave each host, six times"),
            Choice(
                "the bytes that each device sends, six times",
                misconception="a device sends more when its neighbours are far away",
                answer="A device sends what the program says, and that is the same. Only the way is another.",
            ),
        ),
        why="With `model` first, the eight devices that share a matrix are in eight boxes: all of it goes through "
        "the narrow wires.",
    ),
)

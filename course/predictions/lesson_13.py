"""Lesson 13: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "13.a",
        question="torchrun starts four workers on each of two hosts. The mesh is 2 x 4, with axes host and device. "
        "Which devices are on the same host as CPU 5?",
        choices=(
            Choice(
                "1, 3 and 7",
                misconception="ranks are dealt out to the hosts in turn",
                answer="Then each pair of neighbours would be on two hosts. torchrun numbers one host after the other.",
            ),
            Choice("4, 6 and 7"),
            Choice(
                "1: they share a column of the mesh",
                misconception="the first axis of a mesh counts fastest",
                answer="A column has one device of each host. A row of the mesh is a host.",
            ),
        ),
        why="Ranks count host by host, so host b has 4, 5, 6 and 7, which is the second row of the mesh.",
    ),
    Prediction(
        "13.b",
        question="Every byte to and from CPU 1 is delayed by 50 ms. Ten additions and a fetch take about …",
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
                answer="All ten are delayed by the same 50 ms: they travel at the same time.",
            ),
        ),
        why="The orders travel one behind the other, without waiting. One way there and one way back: 100 ms.",
    ),
    Prediction(
        "13.c",
        question="The link to host b is cut, then joined. What do the two prints of the sum show?",
        choices=(
            Choice("no progress for 2 seconds; then the sum"),
            Choice(
                "an error at once, as for a dead device; then the same error",
                misconception="a cut link is noticed at once",
                answer="A killed process ends its connections, and that is noticed. Behind a cut link nothing ends.",
            ),
            Choice(
                "no progress for 2 seconds; then an error: the order is lost",
                misconception="what was sent into a cut link is lost",
                answer="TCP, the network software of both hosts, keeps what was not acknowledged, and sends it again.",
            ),
        ),
        why="A cut ends no connection. The order waits in the network software, and arrives in the end.",
    ),
    Prediction(
        "13.d",
        question='The mesh is ("model", "data") instead of ("data", "model"). What becomes larger?',
        choices=(
            Choice(
                "nothing: the same program, the same bytes",
                misconception="the order of the axes is a matter of taste",
                answer="The order of the axes says which devices share a matrix, and on which hosts these are.",
            ),
            Choice("the bytes that leave each host, sixfold"),
            Choice(
                "the bytes that each device sends, sixfold",
                misconception="a device sends more when its neighbours are far away",
                answer="A device sends what the program says, and that is the same. Only the path differs.",
            ),
        ),
        why="With `model` first, the eight devices that share a matrix are in eight boxes: all their traffic goes "
        "through the narrow links.",
    ),
)

"""Lesson 12: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "12.a",
        question="CPU 3 is stopped. CPU 3 and CPU 4 each get an addition. What happens?",
        choices=(
            Choice(
                "an error at once: CPU 3 does not answer",
                misconception="giving an order to a device means communicating with it",
                answer="The controller only puts the order into a queue. It does not ask whether the device runs.",
            ),
            Choice(
                "neither result comes",
                misconception="one stopped device holds up all of them",
                answer="CPU 4 has a queue of its own, and its order needs nothing of CPU 3.",
            ),
            Choice("the result of CPU 4 comes, that of CPU 3 does not yet"),
        ),
        why="Each device has its own queue. The order for CPU 3 waits there until the process continues.",
    ),
    Prediction(
        "12.b",
        question="CPU 5 is dead. What do the sum of all rows, and the row of CPU 2, give?",
        choices=(
            Choice(
                "the sum waits without end; the row of CPU 2 is there",
                misconception="a dead device looks like a stopped one",
                answer="The end of a process is noticed at once: its connections end with it.",
            ),
            Choice("the sum gives an error, and nobody waits; the row of CPU 2 is there"),
            Choice(
                "the sum leaves out the row of CPU 5; the row of CPU 2 is there",
                misconception="a sum goes on without the dead device",
                answer="A sum without one of its rows would be a wrong number. It is an error instead.",
            ),
            Choice(
                "both fail: the array is lost",
                misconception="with one device the whole array is lost",
                answer="Only the row of CPU 5 is lost. The seven others are where they were.",
            ),
        ),
        why="A death is noticed at once, and everything that needs CPU 5 fails. Other devices keep their values.",
    ),
    Prediction(
        "12.c",
        question="The wait was given up. Now CPU 3 continues. What does print(total) show?",
        choices=(
            Choice("120.0"),
            Choice(
                "the same error again",
                misconception="a wait that was given up is an order that has failed",
                answer="The wait was given up, not the order: seven devices still wait in the collective.",
            ),
            Choice(
                "105.0, the sum without CPU 3",
                misconception="a collective goes on without a device that is late",
                answer="A collective ends only when all its devices have reached it.",
            ),
        ),
        why="Only the controller's wait ended. The seven devices waited on, CPU 3 came, and the sum was complete.",
    ),
    Prediction(
        "12.d",
        question="Both threads first receive and then send. What happens?",
        choices=(
            Choice(
                "both are done: they do the same in the same order",
                misconception="the same order everywhere is enough",
                answer="The order is the same, and yet each waits for what the other one sends only afterwards.",
            ),
            Choice(
                "one is done, one gives up",
                misconception="one of the two is always first",
                answer="Neither can be first: whichever begins has to receive, and nothing was sent.",
            ),
            Choice("both give up"),
        ),
        why="Each waits for a number that the other one sends only after it has received: a circle of two.",
    ),
    Prediction(
        "12.e",
        question="After Ctrl-C: what has become of the hundred computations, and of the Array `numbers`?",
        choices=(
            Choice(
                "the computations run to their end; `numbers` is there",
                misconception="Ctrl-C ends the wait and nothing else",
                answer="It ends the wait, and it also cancels what is queued on the devices.",
            ),
            Choice("those not finished are cancelled; `numbers` is there"),
            Choice(
                "everything on CPU 1 is gone",
                misconception="an interrupt empties the device",
                answer="What was finished before the interrupt stays valid.",
            ),
        ),
        why="An interrupt cancels what is queued and not finished. Arrays that were finished before stay valid.",
    ),
    Prediction(
        "12.f",
        question="v is 64 x 64 over 4 x 2 devices. How many bytes does v / v.sum(1, keepdim=True) send?",
        choices=(
            Choice(
                "0",
                misconception="a sum along a row stays on the device",
                answer="The columns are cut in two, so each device has only half of each of its rows.",
            ),
            Choice("64"),
            Choice(
                "2,048",
                misconception="a sum needs the whole row on one device",
                answer="2,048 bytes would gather half rows. A sum can be put together from partial sums.",
            ),
            Choice(
                "14,336",
                misconception="what communicates gathers everything",
                answer="That would bring the whole array to every device. Only the partial sums are exchanged.",
            ),
        ),
        why="A device holds 16 half rows and exchanges one partial sum for each: 16 x 4 bytes, between two devices.",
    ),
)

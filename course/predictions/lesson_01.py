"""Lesson 01: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "01.a",
        question="When does the line `product = ones @ ones` return, and when is the result there?",
        choices=(
            Choice(
                "both at the same time, after a noticeable part of a second",
                misconception="a line ends when its result is computed",
                answer="That is how plain tensors on a CPU work. This line only sent an order to another process.",
            ),
            Choice(
                "both at once, within a millisecond",
                misconception="16 billion operations take no time",
                answer="The order is sent that fast. The 16 billion operations keep a core busy for much longer.",
            ),
            Choice("the line returns within about a millisecond, the result is there much later"),
        ),
        why="The line writes an order into the queue of CPU 0 and returns. The device computes while Python goes on.",
    ),
    Prediction(
        "01.b",
        question="`product` was ordered a moment ago. What is known of it at once, without waiting?",
        choices=(
            Choice(
                "nothing: to ask for the shape is to wait for the result",
                misconception="a future is empty until it is there",
                answer="The shape follows from those of the operands, by the rule of the product. No number is needed.",
            ),
            Choice("its shape and dtype, but not its values"),
            Choice(
                "its shape, dtype and values: `is_ready()` waits until it can say True",
                misconception="is_ready() waits",
                answer="`is_ready()` asks and returns at once. `block_until_ready()` is what waits.",
            ),
        ),
        why="Shape and dtype follow from the operands, so the controller knows them. The values are computed on "
        "the device.",
    ),
    Prediction(
        "01.c",
        question="Three big products on CPU 0, then a tiny sum on CPU 1; we wait for the sum. What is ready then?",
        choices=(
            Choice("the sum, but not the last product"),
            Choice(
                "all of it: the products were ordered first",
                misconception="all orders stand in one queue",
                answer="They would be ready, in one queue. But each device has a queue of its own, and CPU 1 had "
                "nothing before the sum.",
            ),
            Choice(
                "all of it: waiting waits for all devices",
                misconception="waiting for one array waits for all devices",
                answer="`block_until_ready` waits for this array, and for what it is made from. The products "
                "are neither.",
            ),
        ),
        why="Each device works through a queue of its own, and the sum has nothing to do with what CPU 0 computes.",
    ),
    Prediction(
        "01.d",
        question="What does `seconds(order)` measure, where `order` is `ones @ ones` without a wait?",
        choices=(
            Choice(
                "how long the product takes",
                misconception="a watch around a line measures what the line asks for",
                answer="The watch stops when the line returns, and that is before the product is computed.",
            ),
            Choice("how long it takes to send the order"),
            Choice(
                "how long the product takes, and a bit for sending the order",
                misconception="dispatch is added to computing",
                answer="That is what the second watch measures. The first one stops when the order has been sent.",
            ),
            Choice(
                "nothing: without a wait the product is never computed",
                misconception="a future is computed only when it is asked for",
                answer="The device begins as soon as the order arrives, whether the result is asked for or not.",
            ),
        ),
        why="The line returns when the order is in the queue. A matrix with ten times as many rows would give "
        "about the same time.",
    ),
    Prediction(
        "01.e",
        question="The layer is cut over eight devices of this laptop. How many times faster is it, at best?",
        choices=(
            Choice(
                "eight times, whatever the number of cores",
                misconception="eight devices are eight times as fast, anywhere",
                answer="With a core for each of them, perhaps. Eight workers on fewer cores take turns.",
            ),
            Choice(
                "just as fast: the number of multiplications is the same",
                misconception="the amount of work decides, not how much of it runs at the same time",
                answer="The work is the same, but several cores may do parts of it at the same time.",
            ),
            Choice("at most as many times as there are cores, and often less"),
        ),
        why="Eight processes share the cores of this machine: on two cores, two of them compute at a time. Sending "
        "orders to eight workers takes time, and so does the all-reduce; where other programs run, eight devices may "
        "even be slower.",
    ),
    Prediction(
        "01.f",
        question="`found = table[positions]` asks for position 9 of 8, and a later cell prints `found`. Which "
        "line fails?",
        choices=(
            Choice(
                "the lookup",
                misconception="an error appears in the line that is wrong",
                answer="It is the line to fix. But it only sent an order; the positions are values, which the "
                "controller "
                "does not have.",
            ),
            Choice("the print"),
            Choice(
                "neither: the position is clamped to the last one",
                misconception="an index out of range gives some number",
                answer="In JAX it is. Here the device runs PyTorch's lookup, which refuses position 9.",
            ),
            Choice(
                "the line that sends `positions` to the device",
                misconception="values are checked when they are sent",
                answer="2 and 9 are fine numbers. Only together with a table of 8 is the 9 wrong.",
            ),
        ),
        why="The error happens on the device, when it computes. It reaches you in the first line that needs the "
        "values.",
    ),
)

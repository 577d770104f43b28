"""Lesson 00: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "00.a",
        question="A device may keep 16 MiB. `ts.device_put` sends it the 32 MiB of `up`. What happens?",
        choices=(
            Choice(
                "the device keeps the 16 MiB that fit",
                misconception="a device takes as much of an array as it has room for",
                answer="A device keeps an array whole or not at all: a product with half a matrix would be wrong.",
            ),
            Choice(
                "it works, slowly: the rest goes to the disk",
                misconception="a device's memory can be extended by a disk",
                answer="Your laptop's memory can. A GPU's cannot, and here each worker enforces the limit.",
            ),
            Choice(
                "`device_put` raises the error, and does not return",
                misconception="the controller checks the limit before it sends",
                answer="The device checks, when the numbers arrive. By then `device_put` has returned (lesson 01).",
            ),
            Choice("`device_put` returns, and waiting for the numbers raises the error"),
        ),
        why="The device refuses what exceeds its limit. You learn of it at the first line that needs the numbers.",
    ),
    Prediction(
        "00.b",
        question="In which steps of the layer must the eight devices communicate?",
        choices=(
            Choice(
                "before each product, to get the whole of `up` and of `down`",
                misconception="a device needs the whole matrix for its share of a product",
                answer="Then it would not fit after all. A column of the product needs one column of the "
                "matrix, and each device has whole columns of `up`.",
            ),
            Choice(
                "after each of the two products",
                misconception="every product of a cut matrix must be put together",
                answer="After the first one each device has whole columns of the product, and these are exactly "
                "what its rows of `down` are multiplied by.",
            ),
            Choice("once, after the second product"),
            Choice(
                "never",
                misconception="devices that compute with their own pieces need nothing from each other",
                answer="A number of y is a sum of 8192 products, and each device has 1024 of them. The eight "
                "sums must be added up.",
            ),
        ),
        why="The first product needs nothing from other devices, since each has whole columns; the second "
        "leaves eight sums, which one all_reduce adds up.",
    ),
    Prediction(
        "00.c",
        question="Which processes do the work of the eight devices?",
        choices=(
            Choice("eight processes, none of which is the one that runs the cell"),
            Choice(
                "one process, the one that runs the cell: it does the work of all eight",
                misconception="devices are parts of the notebook's process",
                answer="Then all eight would have one pid and share one memory. Each has a pid of its own. "
                "(The CPU devices of JAX do share one process.)",
            ),
            Choice(
                "eight processes, one of which is the one that runs the cell",
                misconception="the process of the notebook is device 0",
                answer="With torchrun, your script is itself rank 0. Here the process of the cells computes nothing.",
            ),
            Choice(
                "as many processes as the machine has cores",
                misconception="a device is a core",
                answer="The number of devices is chosen by ts.init. Processes without a core of their own take turns.",
            ),
        ),
        why="ts.init started eight worker processes. The process that runs your cells is a ninth one.",
    ),
    Prediction(
        "00.d",
        question="`square` was sent to CPU 3. Which process computes `square @ square`?",
        choices=(
            Choice(
                "the controller",
                misconception="the line is computed by the process that runs it",
                answer="The controller does not have the numbers. It sends an order to where they are.",
            ),
            Choice(
                "the worker of CPU 0",
                misconception="CPU 0 is the default for all work",
                answer="CPU 0 is where an array goes when you do not say where. This one was sent to CPU 3.",
            ),
            Choice(
                "all eight workers, each a part",
                misconception="work is divided among the devices by itself",
                answer="Work follows the numbers. This array was not cut, so seven devices have nothing of it.",
            ),
            Choice("the worker of CPU 3"),
        ),
        why="The numbers are in the memory of CPU 3, and computation follows the data.",
    ),
    Prediction(
        "00.e",
        question="`total = square.sum()` is printed. How many bytes go from CPU 3 to the controller for that?",
        choices=(
            Choice(
                "4,194,304",
                misconception="an array is fetched before anything is done with it",
                answer="All of `square` would be fetched if you printed `square`. The sum is computed where the "
                "numbers are.",
            ),
            Choice("4"),
            Choice(
                "0",
                misconception="printing needs no values",
                answer="The digits must be drawn by the controller, so it needs the number.",
            ),
        ),
        why="CPU 3 adds up its million numbers. Only the sum, one 32-bit float of 4 bytes, is fetched.",
    ),
)

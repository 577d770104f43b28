"""Lesson 11: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "11.a",
        question="Batch sharded over eight devices, parameters copied. What do the devices send in one training step?",
        choices=(
            Choice(
                "nothing: each device trains on its own examples",
                misconception="the gradient of a device's examples is the gradient",
                answer="Then the eight copies of the parameters would differ after one step: each saw 32 examples.",
            ),
            Choice(
                "their examples, so that every device sees the whole batch",
                misconception="the gradient of all examples needs all examples in one place",
                answer="A gradient of a mean can be added up from parts: the gradients travel, the examples stay.",
            ),
            Choice("one all-reduce for each parameter, and one for the loss"),
            Choice(
                "one all-reduce for each layer's outputs",
                misconception="the forward pass needs the other devices",
                answer="Outputs belong to examples, and each device has its own: the forward pass sends nothing.",
            ),
        ),
        why="Each device has a partial sum of the gradient of every parameter; the sum of all is an all-reduce. "
        "The loss is a mean over all examples too.",
    ),
    Prediction(
        "11.b",
        question="Each W is sharded by rows, and gathered by a constraint in the loss. What happens to its gradient?",
        choices=(
            Choice("an all-reduce: each device gets the whole gradient"),
            Choice(
                "a reduce-scatter: each device gets its rows",
                misconception="a gradient is always sharded as its parameter is",
                answer="It will be sharded in the end, but the constraint comes first: its gradient is constrained as "
                "well, to the whole.",
            ),
            Choice(
                "nothing: each device has the whole matrix, so also its gradient",
                misconception="a gathered matrix gives a finished gradient",
                answer="The matrix is whole, but the examples are not: what a device has is a partial sum.",
            ),
        ),
        why="The derivative of a constraint is the same constraint: what is made whole on the way forward is made "
        "whole on the way back. A partial sum that is wanted whole is an all-reduce.",
    ),
    Prediction(
        "11.c",
        question="fsdp_step gathers four matrices and reduce-scatters four gradients. How many bytes does it send?",
        choices=(
            Choice(
                "an eighth of 2,345,805, since each device keeps an eighth",
                misconception="a device that keeps less sends less",
                answer="Memory shrinks, traffic does not: every device still needs every matrix.",
            ),
            Choice(
                "half as many again: 3,515,981",
                misconception="gathering comes on top of the all-reduce",
                answer="That was the step before, and lesson 07's, which gathers twice. This one gathers once, and a "
                "reduce-scatter is only half of an all-reduce.",
            ),
            Choice(
                "twice as many, as there are two collectives for each matrix",
                misconception="each collective costs the same",
                answer="An all-gather and a reduce-scatter send 7/8 of the matrix each, an all-reduce 2 × 7/8.",
            ),
            Choice("the same 2,345,805"),
        ),
        why="An all-reduce is a reduce-scatter and an all-gather. FSDP does the same two halves, with the update "
        "between them.",
    ),
    Prediction(
        "11.d",
        question="4 × 2, W2 by columns and W3 by rows. Which bytes grow when the batch has twice as many examples?",
        choices=(
            Choice(
                "all of them",
                misconception="more examples, more bytes everywhere",
                answer="A gradient has the size of its parameter, however many examples it was added up from.",
            ),
            Choice("those over model"),
            Choice(
                "those over data",
                misconception="the batch is sharded along data, so its bytes travel there",
                answer="Over data the gradients are added up. They have the size of the parameters, not of the batch.",
            ),
            Choice(
                "none, as under data parallelism",
                misconception="only parameters are sent",
                answer="Between W3 and the next layer partial sums of activations are added up, a row an example.",
            ),
        ),
        why="Over model the devices add up activations and their gradients, with one row for each example. Over data "
        "they add up gradients of parameters.",
    ),
    Prediction(
        "11.e",
        question="A training step of the layer (64 MiB of weights) on eight devices of 16 MiB. Which layout fits?",
        choices=(
            Choice(
                "only FSDP: each device keeps 8 MiB",
                misconception="what is kept at the start is the peak",
                answer="8 MiB at the start. But a product needs the whole matrix, and that alone has 32 MiB.",
            ),
            Choice(
                "only columns and rows: no whole matrix is ever built",
                misconception="what fits in the forward pass fits in training",
                answer="No whole matrix, true. But gradients and new weights are as large as the weights: 20.5 MiB.",
            ),
            Choice("none of them"),
            Choice(
                "FSDP, and columns and rows",
                misconception="an eighth of 64 MiB is all that counts",
                answer="Both keep 8 MiB of weights, and both hold more at the peak: gathered matrices, or gradients.",
            ),
        ),
        why="At the peak a device holds weights, gradients and new weights, and whatever was gathered. By columns and "
        "rows these are 20.5 MiB on eight devices, and 10.5 on sixteen.",
    ),
)

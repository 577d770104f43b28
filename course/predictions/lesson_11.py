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
                answer="Then the eight copies of the parameters would differ after one step: each saw 40 examples.",
            ),
            Choice(
                "their examples, so that every device sees the whole batch",
                misconception="the gradient of all examples needs all examples in one place",
                answer="A gradient of a mean can be added up from parts: the gradients travel, the examples stay.",
            ),
            Choice("one all-reduce for each parameter, and one or two numbers for the loss"),
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
        question="Data parallelism on eight devices, with AdamW. What takes less memory on each of them than on one "
        "device alone?",
        choices=(
            Choice(
                "everything: each device holds an eighth",
                misconception="eight devices share whatever there is",
                answer="Only the batch is sharded. Each device has all parameters, and so updates all of them.",
            ),
            Choice(
                "activations and gradients",
                misconception="the gradients of 40 examples are smaller than those of 320",
                answer="A gradient has the size of its parameter, however many examples it was added up from.",
            ),
            Choice(
                "AdamW's state",
                misconception="the optimizer's work is shared, so its state is",
                answer="Each device makes the whole update, so it needs the whole state. Sharing it is ZeRO-1.",
            ),
            Choice("activations only"),
        ),
        why="A device has 40 of 320 examples, so an eighth of the batch and of the values between layers. All that "
        "belongs to parameters is there eight times.",
    ),
    Prediction(
        "11.c",
        question="FSDP: all parameters are sharded by rows along `data`, the batch too. What happens to a weight and "
        "to its gradient in a step?",
        choices=(
            Choice(
                "nothing is sent: each device works with its own rows",
                misconception="what is sharded is also computed in shards",
                answer="Its rows give 32 of 256 outputs, and its 40 examples need all of them.",
            ),
            Choice(
                "the weight is gathered, its gradient all-reduced",
                misconception="a gathered weight has a whole gradient everywhere",
                answer="The update happens where the rows are, and so each device needs its rows of the sum only.",
            ),
            Choice("the weight is gathered, its gradient reduce-scattered"),
            Choice(
                "the examples are gathered, and the gradient is complete",
                misconception="to move the examples is always cheaper",
                answer="So it would be with fewer than 256 examples. Here the weight is the smaller of the two.",
            ),
        ),
        why="The product needs the whole weight for a device's own examples. The gradient is a partial sum, and a "
        "device needs only the part that it updates.",
    ),
    Prediction(
        "11.d",
        question="FSDP gathers eight parameters and reduce-scatters eight gradients. How many bytes are sent?",
        choices=(
            Choice(
                "an eighth of 2,356,606, since each device keeps an eighth",
                misconception="a device that keeps less sends less",
                answer="Memory shrinks, traffic does not: every device still needs every weight.",
            ),
            Choice("the same 2,356,606"),
            Choice(
                "1.5 times as many: 3,534,902",
                misconception="gathering comes on top of the all-reduce",
                answer="It would with an all-reduce of the gradients, or if the weights were gathered twice. A "
                "reduce-scatter is half of an all-reduce.",
            ),
            Choice(
                "twice as many, as there are two collectives for each parameter",
                misconception="each collective costs the same",
                answer="An all-gather and a reduce-scatter send 7/8 of the parameter each, an all-reduce 2 × 7/8.",
            ),
        ),
        why="An all-reduce is a reduce-scatter and an all-gather. FSDP does the same two halves, with the update "
        "between them.",
    ),
    Prediction(
        "11.e",
        question="4 × 2, layers.1 by outputs and layers.2 by inputs. Which bytes grow when the batch has twice as many "
        "examples?",
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
                answer="After layers.2 partial sums of activations are added up, one row for each example.",
            ),
        ),
        why="Over model the devices add up activations and their gradients, with one row for each example. Over data "
        "they add up gradients of parameters.",
    ),
    Prediction(
        "11.f",
        question="64 MiB of weights, divided evenly among eight devices and trained with AdamW. How much does a device "
        "hold at least?",
        choices=(
            Choice(
                "8 MiB, as in lesson 00",
                misconception="what fits in the forward pass fits in training",
                answer="Those are the weights. A gradient and AdamW's two numbers come for each of them.",
            ),
            Choice(
                "16 MiB: its weights and their gradients",
                misconception="the optimizer keeps nothing",
                answer="Plain gradient descent would need that. AdamW keeps two numbers more for each weight.",
            ),
            Choice("32 MiB"),
            Choice(
                "64 MiB: whole matrices have to be gathered",
                misconception="every sharded weight is gathered before it is used",
                answer="FSDP would gather them. By outputs, then by inputs, no device has a whole matrix.",
            ),
        ),
        why="16 bytes a parameter: weight, gradient and two numbers of state are 4 × 8 MiB. Devices of 40 MiB are "
        "enough; with copies each device would need 256.",
    ),
)

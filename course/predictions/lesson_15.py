"""Lesson 15: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "15.a",
        question="Training in float32 with AdamW on one device, few examples. How many bytes a parameter at the peak?",
        choices=(
            Choice(
                "about 4",
                misconception="a model in memory is its weights",
                answer="That is enough to use a model, not to train it: a weight also has a gradient and two means.",
            ),
            Choice(
                "about 8",
                misconception="training is weights and gradients",
                answer="That is SGD. Adam keeps two more numbers for each parameter between the steps.",
            ),
            Choice("about 16"),
            Choice(
                "about 24",
                misconception="old and new values are both in memory",
                answer="They would be, without donation. Here the new weights take the place of the old ones.",
            ),
        ),
        why="4 for the weight, 4 for its gradient, 4 for each of the two means of Adam.",
    ),
    Prediction(
        "15.b",
        question="The same step, but nothing is donated. How many MiB more does a device need at the peak?",
        choices=(
            Choice(
                "none: the caller assigns the new values to the old names",
                misconception="a name that is assigned again frees the memory in time",
                answer="The old values are freed after the call, when the name changes. During the step both exist.",
            ),
            Choice(
                "4: the new weights",
                misconception="only the weights are new in each step",
                answer="Both means of Adam are new as well, 8 MiB of them.",
            ),
            Choice("about 8"),
            Choice(
                "12: new weights and new state",
                misconception="new values come on top of everything else",
                answer="They are made while gradients go: by the time all are there, 4 MiB of gradients are freed.",
            ),
        ),
        why="In the last update old and new weights and means are held, 24 MiB; but no gradient is left. With donation "
        "the peak is in the first update: 12 MiB, and nearly all of the gradients.",
    ),
    Prediction(
        "15.c",
        question="ZeRO-1: each device updates an eighth of the weights. How many bytes does it send, compared with "
        "data parallelism?",
        choices=(
            Choice(
                "1.5 times as many: the gradients as before, and then the new weights",
                misconception="gathering comes on top of the all-reduce",
                answer="A device needs the sum for its own eighth only: a reduce-scatter, half of an all-reduce.",
            ),
            Choice("the same number"),
            Choice(
                "an eighth",
                misconception="a device that keeps less sends less",
                answer="Every device still needs all new weights, and contributes to every gradient.",
            ),
        ),
        why="A reduce-scatter of the gradients and an all-gather of the new weights: the two halves of an all-reduce, "
        "with the update between them.",
    ),
    Prediction(
        "15.d",
        question="512 examples a device in place of 8, ZeRO-1. What decides the peak now?",
        choices=(
            Choice(
                "still the state of Adam: it is the largest part in every training",
                misconception="Adam's state is always the problem",
                answer="It is divided by eight already. What grew is the number of rows in each layer.",
            ),
            Choice("the activations, at the beginning of the backward pass"),
            Choice(
                "the activations, at the end of the backward pass",
                misconception="everything piles up until the end",
                answer="The backward pass frees the activations of a layer as soon as it has used them.",
            ),
        ),
        why="When the backward pass begins, all layers have saved their values, 17 MiB. The first gradients of "
        "activations come on top, and then the saved values are freed, one layer after the other.",
    ),
)

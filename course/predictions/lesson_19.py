"""Lesson 19: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "19.a",
        question="The model has 38 parameter tensors. How many all_reduces does a step have, by hand and with "
        "tinyshard?",
        choices=(
            Choice(
                "1 and 1",
                misconception="a backward pass is one communication",
                answer="The loop calls all_reduce for each gradient. Only a library can pack them.",
            ),
            Choice("39 and 2"),
            Choice(
                "38 and 38",
                misconception="each gradient is reduced by itself, everywhere",
                answer="tinyshard has the whole program, and packs collectives that do not wait for one another.",
            ),
            Choice(
                "76 and 2",
                misconception="an all_reduce counts twice, as it sends twice",
                answer="It sends about twice the bytes, but it is one call.",
            ),
        ),
        why="By hand one for each gradient and one for the loss: 39. tinyshard packs all gradients into one, and has "
        "one for the loss. The bytes are the same.",
    ),
    Prediction(
        "19.b",
        question="Two processes, FSDP2, each parameter gathered once. How many bytes does one send, compared with DDP?",
        choices=(
            Choice(
                "half as many: it has half of the parameters",
                misconception="half of the memory means half of the traffic",
                answer="What a process does not hold it must receive, so another must send it.",
            ),
            Choice(
                "1.5 times as many",
                misconception="FSDP always gathers twice",
                answer="That is near its default. Here a layer's parameters are kept after the forward pass.",
            ),
            Choice("the same"),
        ),
        why="An all_reduce is a reduce_scatter and an all_gather. FSDP2 does the second half at the beginning of the "
        "next step, for the new parameters.",
    ),
    Prediction(
        "19.c",
        question="Without the line for `before`, q, k and v each get a plain tensor. 4 all_reduces of a layer become …",
        choices=(
            Choice("6"),
            Choice(
                "4",
                misconception="the forward pass decides what is communicated",
                answer="The forward pass has 2 in any case. The backward pass has three gradients to add up.",
            ),
            Choice(
                "12",
                misconception="each of the six products is reduced forward and backward",
                answer="A product with columns communicates backward only, one with rows forward only.",
            ),
        ),
        why="Forward o and down: 2. Backward up, and q, k and v: with the line the three partial gradients are added "
        "first and reduced once, without it each is reduced: 2 + 1 + 3.",
    ),
    Prediction(
        "19.d",
        question='Four processes, mesh data x model = 2 x 2; the two that differ along "model" share a node. What '
        "is sent between nodes?",
        choices=(
            Choice(
                "the all_reduces of the activations",
                misconception="everything crosses the network",
                answer='They run along "model", whose two processes are on one node.',
            ),
            Choice(
                "nothing: each node has a whole copy",
                misconception="a node is a copy of the model",
                answer='Parameters are sharded along "data" as well: each node has half of every parameter.',
            ),
            Choice(
                "the tokens of all examples",
                misconception="every process needs all examples",
                answer="Each node has its own half of the examples, and reads them itself.",
            ),
            Choice("gathered parameters and scattered gradients"),
        ),
        why='FSDP2 runs along "data": 121,600 bytes of parameters, as many of gradients, and the loss. The '
        "activations, 262,144 bytes, stay within a node.",
    ),
)

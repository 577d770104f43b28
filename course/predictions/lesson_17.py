"""Lesson 17: predictions."""

from course.predictions.prediction import Choice, Prediction

__all__ = ["PREDICTIONS"]

PREDICTIONS = (
    Prediction(
        "17.a",
        question="Eight experts, each token goes to one. Beside one dense layer of an expert's size, they have …",
        choices=(
            Choice(
                "8 times the parameters, and do 8 times the operations for a token",
                misconception="every parameter works for every token",
                answer="That would be a dense layer of eight times the size. Seven experts never see the token.",
            ),
            Choice("8 times the parameters, and do about as many operations for a token"),
            Choice(
                "as many parameters, and do an eighth of the operations for a token",
                misconception="the experts share one layer",
                answer="Each expert is as large as the dense layer, and a token passes through a whole one.",
            ),
        ),
        why="There are eight experts to store, and one to compute. The router adds a small product. So a model can "
        "have many more parameters for the same arithmetic.",
    ),
    Prediction(
        "17.b",
        question="The layer and its gradients, with respect to router, experts and tokens: which collectives are there "
        "in both passes together?",
        choices=(
            Choice(
                "2 all_to_alls, and an all_reduce of all parameters' gradients",
                misconception="the backward pass sends no tokens",
                answer="The gradients of the results must reach the experts, and those of the tokens must come back.",
            ),
            Choice(
                "4 all_to_alls, and an all_reduce of all parameters' gradients",
                misconception="every gradient is all-reduced, as in data parallelism",
                answer="An expert is on one device, where it has seen all tokens that chose it: nothing is missing.",
            ),
            Choice("4 all_to_alls, and an all_reduce of the router's gradient"),
        ),
        why="Each all_to_all has one in the backward pass. The router is on all devices, and each has seen a part of "
        "the tokens: its gradient is added up. An expert is on one device, which gets all its tokens.",
    ),
    Prediction(
        "17.c",
        question="30 steps without a balancing loss. How many of the eight experts does the router still use?",
        choices=(
            Choice(
                "all eight: each learns one of the eight kinds of tokens",
                misconception="experts specialise by themselves, and fairly",
                answer="Two kinds can share an expert. One without tokens gets no gradient, and does not learn.",
            ),
            Choice("five or six"),
            Choice(
                "one",
                misconception="the best expert takes everything",
                answer="One expert would serve eight kinds badly: the error falls where a kind goes to another.",
            ),
        ),
        why="Some kinds share an expert that serves both well. An expert without tokens gets no gradient, and nothing "
        "brings it back.",
    ),
    Prediction(
        "17.d",
        question="The dispatch takes longer than the experts' arithmetic. What makes it a smaller part of the time?",
        choices=(
            Choice("a larger hidden size of each expert"),
            Choice(
                "wider tokens",
                misconception="more arithmetic for a token always helps",
                answer="A token twice as wide has twice the operations, and twice the bytes: the ratio stays.",
            ),
            Choice(
                "more tokens on each device",
                misconception="a larger batch hides every communication",
                answer="Each further token brings its own bytes. Only latency is shared by more tokens.",
            ),
            Choice(
                "two experts for each token",
                misconception="more experts, more arithmetic, same bytes",
                answer="The token is sent to both: twice the operations, twice the bytes.",
            ),
        ),
        why="A token of width d has 4 · d · hidden operations at its expert, and is sent there and back: bytes "
        "in proportion to d. The operations for each byte are in proportion to the hidden size alone.",
    ),
)

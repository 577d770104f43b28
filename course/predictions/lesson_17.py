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
        why="There are eight experts to store, and one to compute. The router adds a small product. That is why the "
        "largest models have experts: memory is cheaper than arithmetic.",
    ),
    Prediction(
        "17.b",
        question="The capacity is doubled, and the router chooses as before. The bytes of the all_to_alls …",
        choices=(
            Choice(
                "stay: as many tokens travel as before",
                misconception="only what is in a box is sent",
                answer="A program has fixed shapes. An empty place is sent as zeros.",
            ),
            Choice(
                "grow by the tokens that are no longer dropped",
                misconception="only what is in a box is sent",
                answer="The shape of a box decides, not what is in it.",
            ),
            Choice("double"),
        ),
        why="A box has the shape [capacity, width], whatever the router chose. A capacity too small drops tokens, one "
        "too large sends zeros.",
    ),
    Prediction(
        "17.c",
        question="30 steps without a balancing loss. How many of the eight experts does the router still use?",
        choices=(
            Choice(
                "all eight: each learns one of the eight kinds of tokens",
                misconception="experts specialise by themselves, and fairly",
                answer="An expert that gets few tokens learns little, so the router chooses it even less.",
            ),
            Choice("five or six"),
            Choice(
                "one",
                misconception="the best expert takes everything",
                answer="Not here: the dropped tokens of a full expert give no gradient that draws more to it.",
            ),
        ),
        why="What is chosen often learns faster and is chosen more often. Some experts get nothing, and nothing brings "
        "them back.",
    ),
    Prediction(
        "17.d",
        question="Dispatch takes too long beside the experts' arithmetic. What helps?",
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
        "in proportion to d. Their ratio is in proportion to the hidden size alone.",
    ),
)

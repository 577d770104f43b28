"""The predictions: `lesson_NN.py` holds those of lesson NN as `PREDICTIONS`, and is found by its name alone.

A lesson has four to six. Each is in a separate cell, `predict("07.a")`, before the cell that shows the result;
`explain("07.a")` follows it. One is written like this:

    Prediction(
        "07.a",
        question="How many bytes does the busiest device send for one all_gather of rows of 32 bytes on 8 devices?",
        choices=(
            Choice("32", misconception="a device sends its row once", answer="Once to one neighbour: seven need it."),
            Choice("224"),  # the right one: the only one without a misconception
            Choice("256", misconception="a device also sends to itself", answer="Its own copy is there already."),
        ),
        why="Each row must reach seven other devices: 7 × 32 = 224.",
    )
"""

from course.by_lesson import lessons_in, module_of
from course.predictions.prediction import Prediction

__all__ = ["UnknownPredictionError", "lesson_numbers", "prediction_of", "predictions_of"]


class UnknownPredictionError(LookupError):
    """No lesson has a prediction of this id."""


def lesson_numbers() -> list[str]:
    """The lessons that have predictions, such as "05", in order."""
    return lessons_in(__path__)


def predictions_of(lesson: str) -> dict[str, Prediction]:
    """The predictions of one lesson, by their ids, in the lesson's order.

    Args:
        lesson: its number, such as "05".

    Returns:
        An empty dict for a lesson without predictions.
    """
    if lesson not in lesson_numbers():
        return {}
    return {prediction.id: prediction for prediction in module_of(__name__, lesson).PREDICTIONS}


def prediction_of(id: str) -> Prediction:
    """The prediction of this id, such as "07.a".

    Raises:
        UnknownPredictionError: there is none.
    """
    known = predictions_of(id.partition(".")[0]) if isinstance(id, str) else {}
    if id not in known:
        names = ", ".join(known) or "lessons " + ", ".join(lesson_numbers())
        raise UnknownPredictionError(
            f"there is no prediction {id!r}\n"
            f"  got:  {id!r}\n"
            f"  rule: the lesson, a point and the prediction's letter; there are {names}\n"
            '  try:  predict("07.a")'
        )
    return known[id]

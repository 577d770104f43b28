"""The exercises: `lesson_NN.py` holds those of lesson NN as `EXERCISES`, and is found by its name alone.

An exercise is an `Exercise` (exercise.py). To it belong

    a judge    says what differs; it asks for the means that the task names, not for the values alone (means.py)
    hints      two or three; the last one leads to the answer, and none shows half of it (tests/course/test_hints.py)
    why        why the answer is right: printed after "passed"; a function of the answer where that depends on it
    answers    in `course/solutions/lesson_NN.py`: the solution, and two or more wrong ones, each with the hint that it
               must get
"""

from course.by_lesson import lessons_in, module_of
from course.exercises.exercise import Exercise

__all__ = ["UnknownExerciseError", "exercise_of", "exercises_of", "lesson_numbers"]


class UnknownExerciseError(LookupError):
    """No lesson has an exercise of this number."""


def lesson_numbers() -> list[str]:
    """The lessons that have exercises, such as "04", in order."""
    return lessons_in(__path__)


def exercises_of(lesson: str) -> dict[str, Exercise]:
    """The exercises of one lesson, by their ids, in the lesson's order.

    Args:
        lesson: its number, such as "04".

    Returns:
        An empty dict for a lesson without exercises.
    """
    if lesson not in lesson_numbers():
        return {}
    return {exercise.id: exercise for exercise in module_of(__name__, lesson).EXERCISES}


def exercise_of(id: str) -> Exercise:
    """The exercise of this id, such as "05.2".

    Raises:
        UnknownExerciseError: there is none.
    """
    known = exercises_of(id.partition(".")[0]) if isinstance(id, str) else {}
    if id not in known:
        names = ", ".join(known) or "lessons " + ", ".join(lesson_numbers())
        raise UnknownExerciseError(
            f"there is no exercise {id!r}\n"
            f"  got:  check({id!r}, ...)\n"
            f"  rule: the lesson, a point and the exercise's number; there are {names}\n"
            '  try:  check("05.2", answer)'
        )
    return known[id]

"""Lesson 14: answers."""

from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

DAY = 24 * 3600


def days(parameters, tokens, devices, peak, mfu):  # type: ignore[no-untyped-def]
    """14.3: six operations a parameter and token."""
    return 6 * parameters * tokens / (devices * peak * mfu) / DAY


def days_forward(parameters, tokens, devices, peak, mfu):  # type: ignore[no-untyped-def]
    """Forgets the backward pass."""
    return days(parameters, tokens, devices, peak, mfu) / 3


def days_at_peak(parameters, tokens, devices, peak, mfu):  # type: ignore[no-untyped-def]
    """Takes the data sheet's speed."""
    return days(parameters, tokens, devices, peak, 1)


def seconds(parameters, tokens, devices, peak, mfu):  # type: ignore[no-untyped-def]
    """Forgets to divide by the seconds of a day."""
    return days(parameters, tokens, devices, peak, mfu) * DAY


ANSWERS = {
    "14.1": Answers(
        solution=310,
        wrong=(
            Wrong(295, "the matrix alone"),
            Wrong(299, "the result is not"),
            Wrong(309, "the next whole number"),
            Wrong(148, "Write both times as functions of B"),
        ),
    ),
    "14.2": Answers(
        solution=1997,
        wrong=(
            Wrong(2048, "not the smallest"),
            Wrong(64 * 1997, "each of the 64 devices"),
            Wrong(1024, "the batch of the tables"),
            Wrong(716, "The bytes alone"),
            Wrong(1996, "What does each of the two times depend on"),
        ),
    ),
    "14.3": Answers(
        solution=days,
        wrong=(
            Wrong(days_forward, "twice as many"),
            Wrong(days_at_peak, "shorter or longer"),
            Wrong(seconds, "These are seconds"),
        ),
    ),
}

"""What is known to be right and wrong for one exercise."""

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["Answers", "Made", "Wrong"]


@dataclass(frozen=True)
class Made:
    """An answer that can be made only when there are devices: `make()` gives it."""

    make: Callable[[], object]


@dataclass(frozen=True)
class Wrong:
    """A wrong answer, and words of the hint that it must get at the first attempt."""

    answer: object
    hint: str


@dataclass(frozen=True)
class Answers:
    """A `solution`, and two or more `wrong` answers; an answer that is a function is given as the function.

    Example:
        >>> Answers(solution=8, wrong=(Wrong(1, "How many processes"), Wrong(9, "the kernel"))).solution
        8
    """

    solution: object
    wrong: tuple[Wrong, ...]

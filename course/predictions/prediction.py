"""A prediction: a question before a cell runs, and choices; each wrong choice names its misconception."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["LETTERS", "Choice", "Prediction", "UnknownChoiceError"]

LETTERS = "abcd"
FEWEST = 3
ID = re.compile(r"(\d\d|[A-Z])\.[a-z]")


class UnknownChoiceError(LookupError):
    """The prediction has no choice of this letter."""


@dataclass(frozen=True)
class Choice:
    """One of the answers that are offered.

    Args:
        text: the answer itself.
        misconception: what somebody believes for whom it is the right one; empty for the answer that is right.
        answer: what to say to that; empty for the answer that is right.

    Example:
        >>> Choice("256", misconception="a device also sends to itself", answer="Its copy is there already.").is_right
        False
    """

    text: str
    misconception: str = ""
    answer: str = ""

    @property
    def is_right(self) -> bool:
        """Whether no misconception leads to it."""
        return not self.misconception


@dataclass(frozen=True)
class Prediction:
    """One question of a lesson, and 3 or 4 choices; their letters are a, b, c, d, in the order given.

    Args:
        id: the lesson, a point and a letter, such as "07.a".
        question: what will happen in the cell that follows.
        choices: exactly one of them is right.
        why: why that one is right, for everybody.

    Raises:
        ValueError: the id has another form, there are more or fewer choices, not exactly one is right, or a wrong one
            lacks its misconception or the answer to it.

    Example:
        >>> wrong = Choice("7", "counting from 0 loses one", "From 0 to 7 are eight."), Choice("9", "one more", "No.")
        >>> Prediction("00.a", "How many devices are there?", (Choice("8"), *wrong), why="We asked for 8.").right
        'a'
    """

    id: str
    question: str
    choices: tuple[Choice, ...]
    why: str

    def __post_init__(self) -> None:
        rights = [choice for choice in self.choices if choice.is_right]
        bare = [choice for choice in self.choices if bool(choice.misconception) != bool(choice.answer)]
        rules = (
            (ID.fullmatch(self.id), repr(self.id), 'an id is the lesson, a point and a letter, such as "07.a"'),
            (FEWEST <= len(self.choices) <= len(LETTERS), f"{len(self.choices)} choices", "there are 3 or 4 choices"),
            (len(rights) == 1, f"{len(rights)} without a misconception", "exactly one choice is right"),
            (not bare, f"{bare}", "a wrong choice has a misconception and an answer to it, the right one neither"),
            (self.question and self.why, "an empty text", "question and why are for everybody"),
        )
        for is_kept, got, rule in rules:
            if not is_kept:
                raise ValueError(
                    f"that is no prediction: {self.id!r}\n"
                    f"  got:  {got}\n"
                    f"  rule: {rule}\n"
                    "  try:  the form shown in course/predictions/__init__.py"
                )

    @property
    def letters(self) -> str:
        """The letters of its choices, such as "abc"."""
        return LETTERS[: len(self.choices)]

    @property
    def right(self) -> str:
        """The letter of the right choice."""
        return next(letter for letter in self.letters if self.choice(letter).is_right)

    def choice(self, letter: str) -> Choice:
        """The choice of this letter.

        Raises:
            UnknownChoiceError: there is none.
        """
        if not isinstance(letter, str) or len(letter) != 1 or letter not in self.letters:
            raise UnknownChoiceError(
                f"prediction {self.id} has no choice {letter!r}\n"
                f'  got:  predict("{self.id}", {letter!r})\n'
                f"  rule: one letter of {', '.join(self.letters)}\n"
                f'  try:  predict("{self.id}", "{self.letters[0]}")'
            )
        return self.choices[self.letters.index(letter)]

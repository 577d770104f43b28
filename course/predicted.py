"""What a learner has predicted: a small file in the folder where the lessons are opened; it holds no name."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course import jsonfile
from course.edition import EDITION

__all__ = ["PREDICTED", "Guess", "forget", "guesses_in", "learner_in", "note_choice", "note_explained", "read_guesses"]

PREDICTED = ".predictions.json"

# Explained in this process without a choice: a learner who chooses afterwards has read the answer. Not kept in the
# file: a learner who runs all cells of a lesson once may still predict in the next kernel.
_explained: set[str] = set()


@dataclass(frozen=True)
class Guess:
    """The letter that was chosen, and whether it was explained, which settles it."""

    choice: str
    is_explained: bool = False


def read_guesses(folder: Path) -> dict[str, Guess]:
    """Prediction id → what was chosen; what is missing or damaged in the file, or
    of another edition of the lessons, counts as not chosen.

    Args:
        folder: The folder of the learner's lessons.
    """
    return guesses_in(jsonfile.read_dict(folder / PREDICTED))


def guesses_in(kept: Mapping[str, Any]) -> dict[str, Guess]:
    """The same from what such a file holds."""
    found = kept.get("predictions") if kept.get("edition") == EDITION else None
    entries = found.items() if isinstance(found, dict) else ()
    return {
        id: Guess(each["choice"], each.get("explained") is True)
        for id, each in entries
        if isinstance(each, dict) and isinstance(each.get("choice"), str)
    }


def learner_in(kept: Mapping[str, Any]) -> str | None:
    """The random name of the learner in what such a file holds; None where there is none."""
    learner = kept.get("learner")
    return learner if isinstance(learner, str) and re.fullmatch("[0-9a-f]{16}", learner) else None


def note_choice(folder: Path, id: str, choice: str) -> bool:
    """Write down the choice, unless an earlier one is settled or the answer was read.

    Returns:
        Whether the choice counts.

    Raises:
        OSError: the file cannot be written.
    """
    with jsonfile.alone_in(folder):
        kept = jsonfile.read_dict(folder / PREDICTED)
        known = guesses_in(kept)
        if id in _explained or (id in known and known[id].is_explained):
            return False
        _write(folder, learner_in(kept), {**known, id: Guess(choice)})
        return True


def note_explained(folder: Path, id: str) -> Guess | None:
    """Settle the choice for this prediction.

    Returns:
        The choice; None if there is none.

    Raises:
        OSError: the file cannot be written.
    """
    with jsonfile.alone_in(folder):
        kept = jsonfile.read_dict(folder / PREDICTED)
        known = guesses_in(kept)
        if id not in known:
            _explained.add(id)
            return None
        if not known[id].is_explained:
            _write(folder, learner_in(kept), {**known, id: Guess(known[id].choice, is_explained=True)})
        return known[id]


def forget(folder: Path, lesson: str) -> None:
    """Remove the choices of one lesson: they can be made again.

    Args:
        folder: The folder of the learner's lessons.
        lesson: Its number, such as "05".

    Raises:
        OSError: the file cannot be written.
    """
    with jsonfile.alone_in(folder):
        kept = jsonfile.read_dict(folder / PREDICTED)
        known = guesses_in(kept)
        others = {id: guess for id, guess in known.items() if id.partition(".")[0] != lesson}
        if others != known:
            _write(folder, learner_in(kept), others)


def _write(folder: Path, learner: str | None, guesses: dict[str, Guess]) -> None:
    lines: dict[str, Any] = {
        id: {"choice": guess.choice, "explained": guess.is_explained} for id, guess in sorted(guesses.items())
    }
    kept = {"edition": EDITION, "learner": learner or secrets.token_hex(8), "predictions": lines}
    jsonfile.write(folder / PREDICTED, kept)

"""A room's predictions: how many chose which answer, and what that says of them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from course import jsonfile
from course.errors import MissingRoomError
from course.predicted import PREDICTED, guesses_in, learner_in
from course.predictions.prediction import Prediction
from course.wrapping import WIDTH

__all__ = ["choices_in", "poll"]

BAR = 24


def choices_in(folder: Path) -> dict[str, Counter[str]]:
    """Prediction id → letter → how many chose it, each learner counted once; damaged files count as empty.

    Args:
        folder: what learners share, a file each; or collected working folders, with `.predictions.json` in each.

    Raises:
        MissingRoomError: the folder does not exist.
    """
    if not folder.is_dir():
        raise MissingRoomError(
            "there is no room to look at\n"
            f"  got:  {folder}, which is no folder\n"
            "  rule: the folder that TINYSHARD_ROOM names for all, or one that holds collected working folders\n"
            "  try:  make it, and tell everybody: tinyshard lab --room FOLDER"
        )
    learners = {}
    for path in [*sorted(folder.glob("[!.]*.json")), *sorted(folder.glob(f"*/{PREDICTED}"))]:
        kept = jsonfile.read_dict(path)
        learners[learner_in(kept) or str(path)] = guesses_in(kept)
    counts: dict[str, Counter[str]] = {}
    for guesses in learners.values():
        for id, guess in guesses.items():
            counts.setdefault(id, Counter())[guess.choice] += 1
    return counts


def poll(predictions: Sequence[Prediction], counts: Mapping[str, Mapping[str, int]]) -> Iterator[str]:
    """The lines that show how a room has answered; the right choice is marked with ✓.

    Args:
        predictions: those to show.
        counts: prediction id → letter → how many.

    Example:
        >>> from course.predictions.prediction import Choice
        >>> wrong = Choice("7", "one is lost", "No."), Choice("9", "one comes in addition", "No.")
        >>> asked = Prediction("00.a", "How many devices are there?", (wrong[0], Choice("8"), wrong[1]), "We asked.")
        >>> for line in poll([asked], {"00.a": {"a": 2, "b": 4}}):
        ...     print(line)
        00.a  6 answers  How many devices are there?
          a   ████████████              2  7: one is lost
          b ✓ ████████████████████████  4  8
          c                             0  9: one comes in addition
    """
    for prediction in predictions:
        found = counts.get(prediction.id, {})
        chosen = {letter: found.get(letter, 0) for letter in prediction.letters}
        total, most = sum(chosen.values()), max(1, *chosen.values())
        heading = f"{prediction.id}  {total} answer{'' if total == 1 else 's'}  {_flat(prediction.question)}"
        yield from _folded(heading, 6)
        for letter, count in chosen.items():
            choice = prediction.choice(letter)
            mark, bar = "✓" if choice.is_right else " ", "█" * round(BAR * count / most)
            words = _flat(choice.text) + (f": {_flat(choice.misconception)}" if choice.misconception else "")
            yield from _folded(f"  {letter} {mark} {bar:{BAR}} {count:>2}  {words}", BAR + 11)


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _folded(line: str, indent: int) -> Iterator[str]:
    """The line, broken at blanks behind the indent; the blanks before it are part of the picture."""
    while len(line) > WIDTH and (cut := line.rfind(" ", indent + 1, WIDTH)) > 0:
        yield line[:cut]
        line = " " * indent + line[cut + 1 :]
    yield line

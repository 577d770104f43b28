"""What a learner has done so far: a small file in the folder where the lessons are opened."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from course import jsonfile
from course.edition import EDITION

__all__ = ["MARKS", "PROGRESS", "Record", "forget_wrong", "note", "read_progress"]

PROGRESS = ".progress.json"
# What is shown for an exercise, by its state.
MARKS = {"passed": "■", "tried": "▪", "still to do": "□"}


@dataclass(frozen=True)
class Record:
    """What was answered to one exercise.

    Args:
        wrong: how many wrong answers there were.
        is_passed: whether one was right, which it stays.
        recognised: how many of the wrong ones had a hint of their own.
    """

    wrong: int = 0
    is_passed: bool = False
    recognised: int = 0

    @property
    def rung(self) -> int:
        """How many rungs of the hint ladder were shown."""
        return self.wrong - self.recognised

    @property
    def state(self) -> str:
        """One of the keys of MARKS."""
        return "passed" if self.is_passed else "tried" if self.wrong else "still to do"


def read_progress(folder: Path) -> dict[str, Record]:
    """Exercise id → what was noted there; a file that is missing, damaged or of another edition counts as empty.

    Args:
        folder: The folder of the learner's lessons.
    """
    found = jsonfile.read_dict(folder / PROGRESS)
    try:
        entries = found["exercises"].items() if found["edition"] == EDITION else ()
        return {
            id: Record(int(each["wrong"]), bool(each["passed"]), int(each.get("recognised", 0))) for id, each in entries
        }
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def note(folder: Path, id: str, is_passed: bool, is_recognised: bool = False) -> Record:
    """Write down one more answer to the exercise `id`; a wrong one `is_recognised` where it has a hint of its own.

    Returns:
        What is known of the exercise now, the new answer included.

    Raises:
        OSError: the file cannot be written.
    """
    with jsonfile.alone_in(folder):
        known = read_progress(folder)
        before = known.get(id, Record())
        recognised = before.recognised + (is_recognised and not is_passed)
        known[id] = Record(before.wrong + (not is_passed), before.is_passed or is_passed, recognised)
        _write(folder, known)
    return known[id]


def forget_wrong(folder: Path, lesson: str) -> None:
    """Set the counts of wrong answers of one lesson to zero; what is passed stays passed.

    Args:
        folder: The folder of the learner's lessons.
        lesson: Its number, such as "04".

    Raises:
        OSError: the file cannot be written.
    """
    with jsonfile.alone_in(folder):
        known = read_progress(folder)
        ours = {id: Record(is_passed=each.is_passed) for id, each in known.items() if id.partition(".")[0] == lesson}
        if ours:
            _write(folder, {**known, **ours})


def _write(folder: Path, known: Mapping[str, Record]) -> None:
    lines = {
        id: {"wrong": each.wrong, "passed": each.is_passed, "recognised": each.recognised}
        for id, each in sorted(known.items())
    }
    jsonfile.write(folder / PROGRESS, {"edition": EDITION, "exercises": lines})

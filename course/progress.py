"""What a learner has done so far: a small file in the folder where the lessons are opened."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["PROGRESS", "Record", "note", "read_progress"]

PROGRESS = ".progress.json"


@dataclass(frozen=True)
class Record:
    """One exercise: how many `wrong` answers there were, and whether it `is_passed`, which it stays."""

    wrong: int = 0
    is_passed: bool = False


def read_progress(folder: Path) -> dict[str, Record]:
    """Exercise id → what was noted there; a file that is missing or damaged counts as empty.

    Args:
        folder: The folder of the learner's lessons.
    """
    try:
        found = json.loads((folder / PROGRESS).read_text("utf-8"))
        return {id: Record(int(each["wrong"]), bool(each["passed"])) for id, each in found.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def note(folder: Path, id: str, is_passed: bool) -> Record:
    """Write down one more answer to the exercise `id`.

    Returns:
        What is known of the exercise now, the new answer included.

    Raises:
        OSError: the file cannot be written.
    """
    known = read_progress(folder)
    before = known.get(id, Record())
    known[id] = Record(before.wrong + (not is_passed), before.is_passed or is_passed)
    lines = {each: {"wrong": record.wrong, "passed": record.is_passed} for each, record in sorted(known.items())}
    # by way of a second file: a cell that is interrupted must not leave half of one
    partial = folder / f"{PROGRESS}.{os.getpid()}.partial"
    partial.write_text(json.dumps(lines, indent=1) + "\n", "utf-8")
    os.replace(partial, folder / PROGRESS)
    return known[id]

"""A lesson as its reader meets it: which cells teach, which are an exercise's or the pencil's, and their minutes."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.lessons import find_lessons, shipped_folder

LESSONS = {lesson.number: lesson.path for lesson in find_lessons(shipped_folder())}
# The appendix is to be read, and the capstone is three large exercises at its end.
APPENDIX, CAPSTONE = "A", "18"

# What a minute goes to, for somebody who reads every word, writes each prediction down and touches the picture.
WORDS_A_MINUTE = 200
CELL, PREDICTION, PICTURE = 0.5, 0.5, 5.0

EXERCISE = re.compile(r"^### Exercise ((?:\d\d|[A-Z])\.\d+): .*\((\d+) minutes?\)", flags=re.MULTILINE)
CHECK = re.compile(r'^check\("((?:\d\d|[A-Z])\.\d+)", ', flags=re.MULTILINE)
PREDICT = re.compile(r'^predict\("([^"]+)"\)$', flags=re.MULTILINE)
PENCIL = re.compile(r"^## With a pencil", flags=re.MULTILINE)
SECTION = re.compile(r"^## ", flags=re.MULTILINE)


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        kind: "markdown" or "code".
        source: its text.
        part: "teaching"; "exercise" from the task's heading to its check; "pencil" from that heading to the next one.
        minutes: what it takes, if it teaches; else 0.
    """

    kind: str
    source: str
    part: str
    minutes: float


@functools.cache
def stored_cells(path: Path) -> list[dict[str, Any]]:
    """The cells of a notebook as they are stored, the source of each in one text."""
    return [{**cell, "source": "".join(cell["source"])} for cell in json.loads(path.read_text("utf-8"))["cells"]]


@functools.cache
def cells_of(path: Path) -> list[Cell]:
    """The cells of a notebook, with the part of the lesson to which each belongs."""
    return parted([(cell["cell_type"], cell["source"]) for cell in stored_cells(path)])


def parted(raw: Sequence[tuple[str, str]]) -> list[Cell]:
    """The cells, given as (kind, source), with the part of the lesson to which each belongs."""
    cells, part, is_touched = [], "teaching", False
    for kind, source in raw:
        if kind == "markdown" and EXERCISE.search(source):
            part = "exercise"
        elif kind == "markdown" and PENCIL.search(source):
            part = "pencil"
        elif part == "pencil" and kind == "markdown" and SECTION.search(source):
            part = "teaching"
        minutes = _minutes(kind, source) if part == "teaching" else 0.0
        if minutes and kind == "code" and "widgets." in source and not is_touched:
            is_touched, minutes = True, minutes + PICTURE
        cells.append(Cell(kind, source, part, minutes))
        if part == "exercise" and kind == "code" and CHECK.search(source):
            part = "teaching"
    return cells


def _minutes(kind: str, source: str) -> float:
    if kind == "code":
        return CELL
    return len(source.split()) / WORDS_A_MINUTE + source.count("**Predict") * PREDICTION


def promised(cells: Sequence[Cell]) -> tuple[int, int]:
    """Minutes of teaching and of exercises, on the first page."""
    found = re.search(r"about (\d+) minutes of teaching and (\d+) (?:minutes )?of", " ".join(cells[0].source.split()))
    assert found, "**Time** about N minutes of teaching and M minutes of exercises."
    return int(found[1]), int(found[2])


def exercising(cells: Sequence[Cell]) -> dict[str, int]:
    """Exercise id → the minutes in its heading."""
    return {id: int(minutes) for cell in cells for id, minutes in EXERCISE.findall(cell.source)}


def longest_stretch(cells: Sequence[Cell]) -> float:
    """The most minutes of teaching before an exercise or a recorded prediction, since the last one or the start."""
    longest = stretch = 0.0
    for cell in cells:
        if cell.part == "exercise" or (cell.kind == "code" and PREDICT.search(cell.source)):
            longest, stretch = max(longest, stretch), 0.0
        else:
            stretch += cell.minutes
    return longest

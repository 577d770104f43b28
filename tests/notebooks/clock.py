"""`python -m tests.notebooks.clock`: half a day of the plan, against the clock, with a worker that is killed.

It runs the cells of the plan's lessons in fresh kernels, one lesson after the other, and counts for each row of
`course/instructor/half-day.md` what a learner needs: every word of the sections that are taken, 200 a minute, half a
minute for each prediction, the seconds that each cell takes, and the minutes of the exercises. In lesson 16 it does
what the plan says of the room: it trains until step 100,000, and `kill -9` comes from outside after ten seconds.
"""

import json
import re
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import nbformat
from nbclient import NotebookClient

from tests.course.lesson_cells import (
    LESSONS,
    PREDICT,
    PREDICTION,
    WORDS_A_MINUTE,
    cells_of,
    exercising,
    stored_cells,
)

PLAN = Path(__file__).resolve().parents[2] / "course" / "instructor" / "half-day.md"
ROW = re.compile(r"^\| (\d:\d\d) \| (\d+) \| (\d\d) \| ([^|]+) \| ([^|]*) \|$", flags=re.MULTILINE)
TAKEN = re.compile(r"(\d+)(?: to (\d+))?")
HEAD = re.compile(r"^## (\d+)\. ", flags=re.MULTILINE)
TRANSFORMER = "16"


@dataclass(frozen=True)
class Row:
    """A lesson of the plan: the minutes that it has, and the sections and exercises that are taken."""

    at: str
    minutes: int
    lesson: str
    sections: frozenset[int]
    exercises: tuple[str, ...]


def plan() -> list[Row]:
    """The rows of the plan that have a lesson; lesson 16 is taken whole."""
    rows = []
    for at, minutes, lesson, what, exercises in ROW.findall(PLAN.read_text("utf-8")):
        named = re.search(r"sections? ([\d, and to]+)", what)
        ranges = TAKEN.findall(named[1]) if named else [("1", "99")]
        sections = frozenset(n for low, high in ranges for n in range(int(low), int(high or low) + 1))
        rows.append(Row(at, int(minutes), lesson, sections, tuple(filter(None, exercises.split(", ")))))
    return rows


def section_of(sources: list[str]) -> list[int]:
    """The section in which each cell is, 0 before the first one; a cell that begins one belongs to it."""
    found, now = [], 0
    for source in sources:
        heads = HEAD.findall(source)
        now = int(heads[-1]) if heads else now
        found.append(now)
    return found


def minutes_to_read(row: Row) -> float:
    """Every word of the teaching in the sections that are taken, and half a minute for each prediction."""
    cells = cells_of(LESSONS[row.lesson])
    sections = section_of([cell.source for cell in cells])
    minutes = 0.0
    for cell, section in zip(cells, sections, strict=True):
        if cell.part == "teaching" and (section == 0 or section in row.sections):
            is_text = cell.kind == "markdown"
            minutes += (
                len(cell.source.split()) / WORDS_A_MINUTE if is_text else PREDICTION * bool(PREDICT.search(cell.source))
            )
    return minutes


def kill_when_told(notebook: Any) -> None:
    """Types the line that the lesson prints, ten seconds after it is there."""
    while True:
        printed = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
        if line := re.search(r"kill -9 (\d+)", printed):
            time.sleep(10)
            subprocess.run(["kill", "-9", line[1]], check=True)
            print(f"         typed: {line[0]}")
            return
        time.sleep(0.2)


def run(row: Row) -> tuple[float, str]:
    """The seconds that the cells of the sections that are taken ran, and what the killed worker left on the screen."""
    path = LESSONS[row.lesson]
    notebook = nbformat.read(path, as_version=4)
    sections = section_of([cell["source"] for cell in stored_cells(path)])
    for cell in notebook.cells:
        cell.outputs = [] if cell.cell_type == "code" else None
    if row.lesson == TRANSFORMER:
        (trains,) = [cell for cell in notebook.cells if "before=room)" in cell.source]
        trains.source = trains.source.replace("until=60, before=room", "until=100_000")
        Thread(target=kill_when_told, args=(notebook,), daemon=True).start()
    seconds = 0.0
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=300, store_widget_state=False, resources={"metadata": {"path": folder}}
        )
        with client.setup_kernel():
            for number, (cell, section) in enumerate(zip(notebook.cells, sections, strict=True)):
                start_s = time.perf_counter()
                client.execute_cell(cell, number)
                seconds += time.perf_counter() - start_s if section == 0 or section in row.sections else 0.0
    printed = "".join(o.get("text", "") for c in notebook.cells if c.cell_type == "code" for o in c.outputs)
    lost = re.search(r"^.*CPU 3.*(?:killed|SIGKILL).*$", printed, flags=re.MULTILINE)
    return seconds, lost[0] if lost else ""


def main() -> None:
    """Print a line for each lesson; fail if one of them does not fit."""
    fits = True
    for row in plan():
        reading, doing = (
            minutes_to_read(row),
            sum(exercising(cells_of(LESSONS[row.lesson]))[id] for id in row.exercises),
        )
        ran, lost = run(row)
        needed = reading + ran / 60 + doing
        fits &= needed <= row.minutes
        print(
            f"{row.at}  lesson {row.lesson}: {row.minutes:3} minutes; words and predictions {reading:4.1f}, cells"
            f" {ran / 60:4.1f}, exercises {doing:2}: {needed:4.1f}",
            flush=True,
        )
        if row.lesson == TRANSFORMER:
            fits &= bool(lost)
            print(f"         {lost or 'nobody was killed'}")
    raise SystemExit(0 if fits else "the plan does not fit")


if __name__ == "__main__":
    main()

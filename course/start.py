"""The start page of a working copy, in Markdown: what to do first, the lessons with one's progress, how to start over.

It is written at each `tinyshard lab` and after each `check`, and read from the lessons themselves: there is no second
list of them. JupyterLab shows it as a page; course/jupyter/labextensions reads it again when the learner comes back.
"""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from course.errors import MissingLessonsError
from course.lessons import Lesson, find_lessons, shipped_folder
from course.progress import MARKS, Record, read_progress

__all__ = ["PAGES", "START", "renew_start", "start_page", "write_start"]

START = "START.md"
# In the working copy: glossary, dictionary, solutions and the instructor's pages. JupyterLab opens nothing above it.
PAGES = "pages"

# JupyterLab lets a Markdown page have styles at its elements, and no sheet of styles. Colours are those of the cards in
# notebooks (tinyshard/core/page.py); each has a contrast of 3 and more on light pages and on dark ones.
_COLOURS = {"passed": "#009e73", "tried": "#d55e00", "still to do": "#777777"}
_CARD = (
    "border: 1px solid #8888; border-left: 5px solid #56b4e9; border-radius: 4px;"
    " padding: 10px 16px 0; margin-bottom: 1em"
)
_UNTOUCHED = Record()
_UNBROKEN = "\N{NO-BREAK SPACE}"

_PAGE = """# One laptop, eight devices

<div style="{card}">

{what_next}

</div>

**How a lesson goes.** Run its cells from the top, one by one, with <kbd>Shift</kbd> + <kbd>Enter</kbd>. Where it asks
what a cell will show, click a letter before you run that cell. Write your answer to an exercise into its cell: `check`
says at once what differs, or why the answer is right. The copy is your own: change it, break it.

## The lessons

| | the question | minutes: lesson + exercises | exercises |
|---:|:---|:---|:---|
{rows}

{legend}. All together: {hours}.

## Beside the lessons

{pages}

## Start over

- **A cell does not end**: ■ above the lesson interrupts it. **All is confused**: *Kernel → Restart Kernel and Clear
  Outputs of All Cells…*, and run from the top.
- **One lesson as it was**: type `tinyshard reset 3` in a terminal, *File → New → Terminal*. What you wrote is
  kept beside it, under the same name and `(mine)`.
- **All of it**: stop JupyterLab, rename this folder, and start again with `tinyshard lab`, or `make lab` in a clone.
- **The devices do not start**: type `tinyshard doctor` in a terminal. It says what this machine lacks.
{teaching}"""


def start_page(lessons: Sequence[Lesson], known: Mapping[str, Record], pages: Collection[str] = ()) -> str:
    """The page.

    Args:
        lessons: in their order.
        known: what was written down of each exercise.
        pages: paths of the pages that can be linked to, in the working copy, such as "pages/GLOSSARY.md".

    Example:
        >>> lesson = Lesson("04", "Who?", Path("04-who.ipynb"), (35, 20), ("04.1", "04.2"))
        >>> page = start_page([lesson], {"04.1": Record(is_passed=True)})
        >>> "**Go on with [04 Who?](04-who.ipynb)**, exercise 04.2. 1 of 2 exercises passed." in page
        True
    """
    minutes = [lesson.minutes or (0, 0) for lesson in lessons]
    after = [lesson for lesson in lessons if any(not _of(known, id).is_passed for id in lesson.exercises)]
    return _PAGE.format(
        card=_CARD,
        what_next=_what_next(lessons, known, after[0] if after else None),
        rows="\n".join(_row(lesson, known, is_next=lesson in after[:1]) for lesson in lessons),
        legend=", ".join(f"{_marks(state, 1)} {state}" for state in MARKS),
        hours=" + ".join(f"{sum(each) / 60:.0f}" for each in zip(*minutes, strict=True)) + " hours",
        pages="\n".join(_beside(lessons, pages)),
        teaching=_teaching(lessons, pages),
    )


def write_start(lessons: Sequence[Lesson], working: Path) -> None:
    """Write the page into a working copy.

    Raises:
        OSError: it cannot be written.
    """
    pages = {path.relative_to(working).as_posix() for path in (working / PAGES).rglob("*.md")}
    (working / START).write_text(start_page(lessons, read_progress(working), pages), "utf-8")


def renew_start(working: Path) -> None:
    """Write the page again, where there is one; an exercise does not fail because that fails."""
    with contextlib.suppress(OSError, MissingLessonsError):
        if (working / START).exists():
            write_start(find_lessons(shipped_folder()), working)


def _of(known: Mapping[str, Record], id: str) -> Record:
    return known.get(id, _UNTOUCHED)


def _what_next(lessons: Sequence[Lesson], known: Mapping[str, Record], at: Lesson | None) -> str:
    ids = [id for lesson in lessons for id in lesson.exercises]
    if at is None:
        return f"**All {len(ids)} exercises are passed.**"
    link = f"[{at.number} {at.title}]({at.path.name})"
    if all(_of(known, id) == _UNTOUCHED for id in ids):
        return f"**Begin with {link}**"
    first = next(id for id in at.exercises if not _of(known, id).is_passed)
    passed = sum(_of(known, id).is_passed for id in ids)
    return f"**Go on with {link}**, exercise {first}. {passed} of {len(ids)} exercises passed."


def _row(lesson: Lesson, known: Mapping[str, Record], *, is_next: bool) -> str:
    link = f"[{lesson.title}]({lesson.path.name})"
    minutes = "{} + {}".format(*lesson.minutes).replace(" ", _UNBROKEN) if lesson.minutes else ""
    states = [_of(known, id).state for id in lesson.exercises]
    marks = "".join(_marks(state, len([*run])) for state, run in groupby(states))
    count = f"{states.count('passed')} of {len(states)}".replace(" ", _UNBROKEN)
    exercises = f"{marks}{_UNBROKEN}{count}" if states else ""
    cells = (f"▸{_UNBROKEN}{lesson.number}", f"**{link}**") if is_next else (lesson.number, link)
    return f"| {' | '.join((*cells, minutes, exercises))} |"


def _marks(state: str, count: int) -> str:
    return f'<span style="color: {_COLOURS[state]}">{MARKS[state] * count}</span>'


def _beside(lessons: Sequence[Lesson], pages: Collection[str]) -> list[str]:
    """A line for each kind of page that is there."""
    named = (
        ("GLOSSARY.md", "[Glossary]({}): every word that the lessons explain"),
        ("DICTIONARY.md", "[Dictionary]({}): the same in tinyshard, JAX, PyTorch and MPI"),
    )
    lines = [words.format(path) for name, words in named if (path := f"{PAGES}/{name}") in pages]
    solved = _by_lesson(lessons, pages, "solutions/pencil_{}.md")
    if solved:
        lines.append(f"The problems for a pencil, solved: {solved}")
    return [f"- {line}" for line in lines]


def _teaching(lessons: Sequence[Lesson], pages: Collection[str]) -> str:
    """The last line of the page, where the instructor's pages are there."""
    guide = f"{PAGES}/teaching/README.md"
    sheets = _by_lesson(lessons, pages, "teaching/lessons/{}.md")
    told = f"\nFor those who teach: [the guide]({guide}), and a run sheet for each lesson: {sheets}\n"
    return told if guide in pages else ""


def _by_lesson(lessons: Sequence[Lesson], pages: Collection[str], form: str) -> str:
    paths = {lesson.number: f"{PAGES}/{form.format(lesson.number)}" for lesson in lessons}
    return " ".join(f"[{number}]({path})" for number, path in paths.items() if path in pages)

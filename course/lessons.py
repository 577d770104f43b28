"""The lessons that tinyshard ships: where they are, what each is called, how long it takes, what it asks."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.by_lesson import number_in
from course.errors import MissingLessonsError, UnknownLessonError

__all__ = ["Lesson", "find_lesson", "find_lessons", "shipped_folder", "without_outputs"]

PACKAGE = Path(__file__).resolve().parent
# The folder that holds `notebooks`: the package itself where a wheel was installed, the repository in a clone of it.
HOME = PACKAGE if (PACKAGE / "notebooks").is_dir() else PACKAGE.parent
TITLE = re.compile(r"^# (.*)", flags=re.MULTILINE)
EXERCISE = re.compile(r"^### Exercise ((?:\d\d|[A-Z])\.\d+)", flags=re.MULTILINE)
MINUTES = re.compile(r"about (\d+) minutes of teaching and (\d+) (?:minutes )?of")


@dataclass(frozen=True)
class Lesson:
    """One lesson, as its notebook says.

    Attributes:
        number: "01", of an appendix "A".
        title: the question that it answers.
        path: its notebook.
        minutes: of teaching and of exercises, as its first page promises; None where it does not.
        exercises: the ids of its exercises, such as "04.2", from their headings.
    """

    number: str
    title: str
    path: Path
    minutes: tuple[int, int] | None = None
    exercises: tuple[str, ...] = ()


def shipped_folder(home: Path = HOME) -> Path:
    """The folder of the lessons as they are shipped.

    Raises:
        MissingLessonsError: `home` has no lessons.
    """
    folder = home / "notebooks"
    if not any(folder.glob("*.ipynb")):
        raise MissingLessonsError(
            "the lessons are not here\n"
            f"  got:  no notebook in {folder}\n"
            "  rule: lessons come with a wheel of tinyshard, and with a clone of its repository\n"
            "  try:  pip install --force-reinstall --no-deps tinyshard"
        )
    return folder


def find_lessons(folder: Path) -> list[Lesson]:
    """The lessons in `folder`, in the order of their numbers; an appendix comes last."""
    return [_read(path) for path in sorted(folder.glob("*.ipynb"))]


def find_lesson(folder: Path, name: str) -> Lesson:
    """The lesson in `folder` that `name` means: "3", "03", "A", "03-where…" or the file's whole name.

    Raises:
        UnknownLessonError: there is none, or `name` fits more than one.
    """
    lessons = find_lessons(folder)
    wanted = Path(name).name
    number = number_in(wanted) if wanted.isdigit() or len(wanted) == 1 else None
    found = [each for each in lessons if number == each.number or (not number and each.path.name.startswith(wanted))]
    if len(found) != 1 or not wanted:
        raise UnknownLessonError(
            f"there is no lesson {name!r}\n"
            f"  got:  {name!r}, which fits {len(found) if wanted else 'every one'} of the lessons\n"
            "  rule: a lesson is called by its number or by its file\n"
            f"  try:  one of {' '.join(lesson.number for lesson in lessons)}"
        )
    return found[0]


def without_outputs(text: str) -> str:
    """A notebook as it was before its first run.

    Args:
        text: The notebook, as JSON.

    Returns:
        The same cells without outputs, counts, and the states of widgets.

    Example:
        >>> cell = '{"cell_type": "code", "execution_count": 3, "outputs": ["4"], "source": ["2 + 2"], "metadata": {}}'
        >>> without_outputs(f'{{"cells": [{cell}], "metadata": {{"widgets": 1}}}}').split()
        ['{', '"cells":', '[', '{', '"cell_type":', '"code",', '"execution_count":', 'null,', '"outputs":', '[],', \
'"source":', '[', '"2', '+', '2"', '],', '"metadata":', '{}', '}', '],', '"metadata":', '{}', '}']
    """
    notebook: dict[str, Any] = json.loads(text)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    notebook["metadata"].pop("widgets", None)
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _read(path: Path) -> Lesson:
    """A lesson from the Markdown of its notebook; without a heading, the words of its file name are its title."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    number, _, words = path.stem.partition("-")
    title, minutes = TITLE.search(text), MINUTES.search(" ".join(text.split()))
    return Lesson(
        number,
        title[1].strip() if title else words.replace("-", " "),
        path,
        (int(minutes[1]), int(minutes[2])) if minutes else None,
        tuple(EXERCISE.findall(text)),
    )

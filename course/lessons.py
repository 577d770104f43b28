"""The lessons that tinyshard ships, and the working copy in which a learner edits them.

A lesson is copied if the learner does not have it, or has never edited it. An edited lesson is never
overwritten: the new version is put beside it, as `01-… (new).ipynb`; and if the learner asks for the shipped
lesson back, the edited one is kept as `01-… (mine).ipynb`. A lesson of an earlier edition that is shipped no longer
goes, unless it was edited.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from course import jsonfile
from course.by_lesson import number_in
from course.errors import MissingLessonsError, UnknownLessonError

__all__ = ["Lesson", "find_lesson", "find_lessons", "put_back", "refresh", "shipped_folder", "working_folder"]

PACKAGE = Path(__file__).resolve().parent
# The folder that holds `notebooks`: the package itself where a wheel was installed, the repository in a clone of it.
HOME = PACKAGE if (PACKAGE / "notebooks").is_dir() else PACKAGE.parent
# In the working copy: for each file, the hash of the version that it was copied from. Same hash = not edited.
MANIFEST = ".shipped.json"
BESIDE = re.compile(r" \((?:new|mine)(?: \d+)?\)\.ipynb$")


@dataclass(frozen=True)
class Lesson:
    """One lesson: `number` is "01", of an appendix "A"; `title` the question that it answers, `path` its notebook."""

    number: str
    title: str
    path: Path


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


def working_folder(named: str | None = None, home: Path = HOME) -> Path:
    """The folder of the learner's working copy; it need not exist yet.

    Args:
        named: The folder that the learner named; None: the present folder if it is a working copy, else `my-lessons`
            in the clone, or in the present folder where tinyshard was installed without one.
        home: The folder that holds `notebooks`.
    """
    if named is not None:
        return Path(named).expanduser().resolve()
    here = Path.cwd()
    if (here / MANIFEST).exists():
        return here
    return (here if home == PACKAGE else home) / "my-lessons"


def find_lessons(folder: Path) -> list[Lesson]:
    """The lessons in `folder`, in the order of their numbers; an appendix comes last."""
    return [Lesson(path.name.split("-")[0], _title(path), path) for path in sorted(folder.glob("*.ipynb"))]


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


def put_back(lesson: Lesson, working: Path) -> list[str]:
    """Put the shipped lesson into the working copy; an edited one is moved to `… (mine).ipynb` beside it first.

    Args:
        lesson: The lesson as it is shipped.
        working: The folder of the working copy; made where it is missing.

    Returns:
        One line for the learner about each thing that was done.
    """
    working.mkdir(parents=True, exist_ok=True)
    known = _read_manifest(working)
    name = lesson.path.name
    now = _hash(lesson.path)
    mine = working / name
    if mine.exists() and _hash(mine) == now:
        return [f"{name}: it is as it was shipped"]
    lines = []
    if _is_edited(mine, known):
        kept = next(path for path in _names_beside(mine, "mine") if not path.exists())
        os.replace(mine, kept)
        lines.append(f"{name}: yours is kept as {kept.name}")
    _copy(lesson.path, mine)
    _write_manifest(working, {**known, name: now})
    return [*lines, f"{name}: put back; where it is open in JupyterLab, choose File > Reload Notebook from Disk"]


def refresh(shipped: Path, working: Path) -> list[str]:
    """Bring the working copy up to date, without writing over what the learner edited.

    Args:
        shipped: The folder of the lessons as they are shipped.
        working: The folder of the working copy; made where it is missing.

    Returns:
        One line for the learner about each file that was written; none where all was up to date.
    """
    working.mkdir(parents=True, exist_ok=True)
    known = _read_manifest(working)
    lines = []
    lessons = find_lessons(shipped)
    for lesson in lessons:
        name = lesson.path.name
        now = _hash(lesson.path)
        mine = working / name
        is_edited = mine.exists() and _hash(mine) not in (known.get(name), now)
        if is_edited and known.get(name) == now:
            continue
        if is_edited:
            beside = next(path for path in _names_beside(mine, "new") if not _is_edited(path, known))
            _copy(lesson.path, beside)
            known[beside.name] = now
            lines.append(f"{name}: you edited it, so its new version is beside it: {beside.name}")
        elif not mine.exists() or _hash(mine) != now:
            lines.append(f"{name}: {'new version' if mine.exists() else 'copied'}")
            _copy(lesson.path, mine)
        known[name] = now
    lines += _clear_earlier_editions({lesson.path.name for lesson in lessons}, working, known)
    _write_manifest(working, known)
    return lines


def _clear_earlier_editions(shipped: set[str], working: Path, known: dict[str, str]) -> list[str]:
    """Remove copies of lessons that are shipped no longer, except edited ones, and forget both.

    Versions put beside an edited lesson, `… (new).ipynb`, stay: they may be all that the learner has of it.
    """
    lines = []
    for name in sorted(known.keys() - shipped):
        mine = working / name
        if BESIDE.search(name):
            continue
        if _is_edited(mine, known):
            lines.append(f"{name}: kept: of an earlier edition, and you edited it")
        elif mine.exists():
            mine.unlink()
            lines.append(f"{name}: removed: of an earlier edition, and you did not edit it")
        del known[name]
    return lines


def _title(notebook: Path) -> str:
    """The first heading of the notebook; without one, the words of its file name."""
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        for line in "".join(cell["source"]).splitlines():
            if cell["cell_type"] == "markdown" and line.startswith("# "):
                return line.removeprefix("# ").strip()
    return notebook.stem.partition("-")[2].replace("-", " ")


def _names_beside(mine: Path, word: str) -> Iterator[Path]:
    """`01-a.ipynb`, "new" → `01-a (new).ipynb`, `01-a (new 2).ipynb`, …"""
    yield mine.with_stem(f"{mine.stem} ({word})")
    for number in count(2):
        yield mine.with_stem(f"{mine.stem} ({word} {number})")


def _is_edited(path: Path, known: dict[str, str]) -> bool:
    return path.exists() and _hash(path) != known.get(path.name)


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _copy(source: Path, target: Path) -> None:
    """Copy by way of a second file: a copy that was cut off would later pass for an edited lesson."""
    partial = target.with_name(f".{target.name}.partial")
    shutil.copyfile(source, partial)
    os.replace(partial, target)


def _read_manifest(working: Path) -> dict[str, str]:
    """File name → hash. One that is lost or damaged counts as empty: then every copy passes for edited."""
    return jsonfile.read_dict(working / MANIFEST)


def _write_manifest(working: Path, known: dict[str, str]) -> None:
    jsonfile.write(working / MANIFEST, dict(sorted(known.items())))

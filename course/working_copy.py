"""The working copy: the folder in which a learner opens and edits the lessons, with its start page and other pages.

A lesson is copied without outputs, if the learner does not have it or has not edited it. An edited lesson is never
overwritten: the new version is put beside it, as `01-… (new).ipynb`; and if the learner asks for the shipped
lesson back, the edited one is kept as `01-… (mine).ipynb`. A lesson that is shipped no longer goes, unless it was
edited. To run a lesson is not to edit it: what counts is the text of its cells.
"""

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path

from course import jsonfile
from course.errors import MissingCopyError
from course.lessons import HOME, PACKAGE, Lesson, find_lessons, without_outputs
from course.start import PAGES, START, write_start

__all__ = ["existing_copy", "put_back", "refresh", "working_folder"]

# In the working copy: for each file, the hash of the version that it was copied from. Same hash = not edited.
MANIFEST = ".shipped.json"
BESIDE = re.compile(r" \((?:new|mine)(?: \d+)?\)\.ipynb$")
# What a link begins with in a shipped lesson, and in a page → what it begins with in the working copy.
LINKS_OF_LESSONS = {
    "](../course/solutions/": f"]({PAGES}/solutions/",
    "](GLOSSARY.md": f"]({PAGES}/GLOSSARY.md",
    "](DICTIONARY.md": f"]({PAGES}/DICTIONARY.md",
}
LINKS_OF_PAGES = {"](../../notebooks/README.md)": f"](../../{START})", "](lessons)": f"](../../{START})"}


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


def existing_copy(named: str | None = None) -> Path:
    """The folder of the learner's working copy, which exists.

    Args:
        named: As for `working_folder`.

    Raises:
        MissingCopyError: The folder is not a working copy.
    """
    folder = working_folder(named)
    if not (folder / MANIFEST).exists():
        raise MissingCopyError(
            "there is no working copy here\n"
            f"  got:  {folder}, which has no {MANIFEST}\n"
            "  rule: `tinyshard lab` makes the working copy, in ./my-lessons or in the folder that --folder names\n"
            "  try:  --folder with the path of your copy"
        )
    return folder


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
    text = _text_of(lesson)
    mine = working / name
    if mine.exists() and mine.read_bytes() == text.encode():
        return [f"{name}: it is as it was shipped"]
    lines = []
    if _is_edited(mine, known):
        kept = next(path for path in _names_beside(mine, "mine") if not path.exists())
        os.replace(mine, kept)
        lines.append(f"{name}: yours is kept as {kept.name}")
    _write(mine, text)
    _write_manifest(working, {**known, name: _hash_of_cells(text)})
    return [*lines, f"{name}: put back; where it is open in JupyterLab, choose File > Reload Notebook from Disk"]


def refresh(shipped: Path, working: Path) -> list[str]:
    """Bring the working copy up to date, without writing over what the learner edited.

    Args:
        shipped: The folder of the lessons as they are shipped.
        working: The folder of the working copy; made where it is missing.

    Returns:
        One line for the learner about each lesson that was written; none where all was up to date.
    """
    working.mkdir(parents=True, exist_ok=True)
    known = _read_manifest(working)
    lines = []
    lessons = find_lessons(shipped)
    for lesson in lessons:
        name, text, mine = lesson.path.name, _text_of(lesson), working / lesson.path.name
        now = _hash_of_cells(text)
        this_version = {now, *_hashes(lesson.path)}
        is_edited = mine.exists() and _hashes(mine).isdisjoint({known.get(name), *this_version})
        if is_edited and known.get(name) in this_version:
            continue
        if is_edited:
            beside = next(path for path in _names_beside(mine, "new") if not _is_edited(path, known))
            _write(beside, text)
            known[beside.name] = now
            lines.append(f"{name}: you edited it, so its new version is beside it: {beside.name}")
        elif not mine.exists():
            _write(mine, text)
            lines.append(f"{name}: copied")
        elif now not in _hashes(mine) or _has_shipped_outputs(mine, lesson.path, text, known.get(name)):
            _write(mine, text)
            lines.append(f"{name}: new version")
        known[name] = now
    lines += _clear_earlier_editions({lesson.path.name for lesson in lessons}, working, known)
    _write_manifest(working, known)
    _write_pages(shipped, working)
    write_start(lessons, working)
    return lines

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


def _write_pages(shipped: Path, working: Path) -> None:
    """Copy what is read beside the lessons, and remove copies of what is there no longer."""
    pages = working / PAGES
    copies = {pages / path.name: path for path in shipped.glob("[A-Z]*.md") if path.name != "README.md"}
    copies |= {pages / "solutions" / path.name: path for path in (PACKAGE / "solutions").glob("*.md")}
    teaching = PACKAGE / "instructor"
    copies |= {pages / "teaching" / path.relative_to(teaching): path for path in teaching.rglob("*.md")}
    for folder in ("solutions", "teaching"):
        for path in (pages / folder).rglob("*.md"):
            if path not in copies:
                path.unlink()
    for copy, path in copies.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        _write(copy, _with_links(path.read_text("utf-8"), LINKS_OF_PAGES))


def _text_of(lesson: Lesson) -> str:
    """A lesson as it is copied: without outputs, and its links lead to pages of the working copy."""
    return _with_links(without_outputs(lesson.path.read_text("utf-8")), LINKS_OF_LESSONS)


def _with_links(text: str, links: Mapping[str, str]) -> str:
    for shipped, copied in links.items():
        text = text.replace(shipped, copied)
    return text


def _names_beside(mine: Path, word: str) -> Iterator[Path]:
    """`01-a.ipynb`, "new" → `01-a (new).ipynb`, `01-a (new 2).ipynb`, …"""
    yield mine.with_stem(f"{mine.stem} ({word})")
    for number in count(2):
        yield mine.with_stem(f"{mine.stem} ({word} {number})")


def _is_edited(path: Path, known: dict[str, str]) -> bool:
    return path.exists() and known.get(path.name) not in _hashes(path)


def _has_shipped_outputs(mine: Path, shipped: Path, text: str, known: str | None) -> bool:
    """Whether it is a copy with the outputs that lessons are shipped with, as they once were copied."""
    data = mine.read_bytes()
    return data != text.encode() and _hash(data) in (known, _hash(shipped.read_bytes()))


def _hashes(path: Path) -> set[str]:
    """The hashes by which a manifest may know a notebook: of its cells, or in older manifests of all of it."""
    data = path.read_bytes()
    found = {_hash(data)}
    with contextlib.suppress(ValueError, KeyError, TypeError):
        found.add(_hash_of_cells(data))
    return found


def _hash_of_cells(notebook: str | bytes) -> str:
    """The hash of what is written in the cells: it stays the same when they are run."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(notebook)["cells"]]
    return _hash(json.dumps(cells).encode())


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _write(path: Path, text: str) -> None:
    """Write by way of a second file: a copy that was cut off would later pass for an edited lesson."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(text.encode())
    os.replace(partial, path)


def _read_manifest(working: Path) -> dict[str, str]:
    """File name → hash. One that is lost or damaged counts as empty: then every changed copy passes for edited."""
    return jsonfile.read_dict(working / MANIFEST)


def _write_manifest(working: Path, known: dict[str, str]) -> None:
    jsonfile.write(working / MANIFEST, dict(sorted(known.items())))

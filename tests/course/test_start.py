"""The start page: what comes next, how far each lesson is, and which pages are there."""

import re
from pathlib import Path

import pytest

from course import check
from course.lessons import Lesson, find_lessons, shipped_folder
from course.progress import Record, note
from course.start import START, start_page
from course.working_copy import refresh

LINK = r"\]\(([^)#\s:]+\.(?:md|ipynb)|[a-z]+)(?:#[^)]*)?\)"  # JupyterLab opens no folder
PASSED = Record(is_passed=True)
LESSONS = [
    Lesson("01", "When?", Path("01-when.ipynb"), (35, 20), ("01.1", "01.2")),
    Lesson("02", "Where?", Path("02-where.ipynb"), (30, 10), ("02.1",)),
    Lesson("A", "What was it?", Path("A-was.ipynb")),
]


def rows(page: str) -> list[str]:
    """The rows of the table, without styles."""
    lines = [line for line in page.splitlines() if re.match(r"\| (▸\N{NO-BREAK SPACE})?(\d\d|A) ", line)]
    return [re.sub(r"<[^>]+>", "", line).replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def test_at_first_the_first_lesson_is_next() -> None:
    page = start_page(LESSONS, {})
    assert "**Begin with [01 When?](01-when.ipynb)**" in page
    assert rows(page) == [
        "| ▸ 01 | **[When?](01-when.ipynb)** | 35 + 20 | □□ 0 of 2 |",
        "| 02 | [Where?](02-where.ipynb) | 30 + 10 | □ 0 of 1 |",
        "| A | [What was it?](A-was.ipynb) |  |  |",
    ]
    assert "All together: 1 + 0 hours." in page


def test_what_is_passed_and_tried_is_marked_and_the_first_lesson_with_more_to_do_is_next() -> None:
    page = start_page(LESSONS, {"01.1": PASSED, "01.2": Record(wrong=2)})
    assert "**Go on with [01 When?](01-when.ipynb)**, exercise 01.2. 1 of 3 exercises passed." in page
    assert rows(page)[0] == "| ▸ 01 | **[When?](01-when.ipynb)** | 35 + 20 | ■▪ 1 of 2 |"
    page = start_page(LESSONS, {"01.1": PASSED, "01.2": PASSED})
    assert "**Go on with [02 Where?](02-where.ipynb)**" in page
    assert [row for row in rows(page) if "▸" in row] == rows(page)[1:2]


def test_when_all_is_passed_nothing_is_next() -> None:
    page = start_page(LESSONS, dict.fromkeys(("01.1", "01.2", "02.1"), PASSED))
    assert "**All 3 exercises are passed.**" in page
    assert "▸" not in page


def test_only_pages_that_are_there_are_linked() -> None:
    page = start_page(LESSONS, {}, {"pages/GLOSSARY.md", "pages/solutions/pencil_02.md", "pages/other.md"})
    assert re.findall(r"\((pages/[^)]*)\)", page) == ["pages/GLOSSARY.md", "pages/solutions/pencil_02.md"]


def test_the_working_copy_has_a_page_with_every_lesson_whose_links_lead_somewhere(tmp_path: Path) -> None:
    refresh(shipped_folder(), tmp_path)
    page = (tmp_path / START).read_text("utf-8")
    links = re.findall(r"\]\(([^)]*)\)", page)
    lessons = [lesson.path.name for lesson in find_lessons(shipped_folder())]
    assert set(lessons) <= set(links)
    assert [link for link in links if not (tmp_path / link).is_file()] == []
    assert "(pages/teaching/README.md)" in page.splitlines()[-1]


def test_what_the_pages_link_to_is_in_the_working_copy_too(tmp_path: Path) -> None:
    refresh(shipped_folder(), tmp_path)
    lost = [
        f"{path.relative_to(tmp_path)}: {link}"
        for path in [*tmp_path.glob("*.ipynb"), *tmp_path.rglob("*.md")]
        for link in re.findall(LINK, path.read_text("utf-8"))
        if not (path.parent / link).is_file()
    ]
    assert lost == []


def test_a_check_renews_the_page_of_a_working_copy_and_makes_none_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, working = tmp_path / "elsewhere", tmp_path / "working"
    elsewhere.mkdir()
    refresh(shipped_folder(), working)
    lesson = next(lesson for lesson in find_lessons(shipped_folder()) if lesson.exercises)
    for folder in (elsewhere, working):
        monkeypatch.chdir(folder)
        check(lesson.exercises[0], "no answer")
    assert not (elsewhere / START).exists()
    assert f"exercise {lesson.exercises[0]}. 0 of " in (working / START).read_text("utf-8")
    note(working, lesson.exercises[0], is_passed=True)
    refresh(shipped_folder(), working)
    assert "1 of " in rows((working / START).read_text("utf-8"))[0]

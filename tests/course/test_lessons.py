"""The working copy: what a learner edited survives every refresh."""

import hashlib
import json
from pathlib import Path

import pytest

from course.errors import MissingLessonsError, UnknownLessonError
from course.lessons import PACKAGE, find_lesson, find_lessons, shipped_folder, without_outputs
from course.progress import PROGRESS, Record, note, read_progress
from course.working_copy import put_back, refresh, working_folder

NAME = "01-when-is-the-result-there.ipynb"
BESIDE = "01-when-is-the-result-there (new).ipynb"
MINE = "01-when-is-the-result-there (mine).ipynb"
MINE_2 = "01-when-is-the-result-there (mine 2).ipynb"
BESIDE_2 = "01-when-is-the-result-there (new 2).ipynb"


def notebook(heading: str, outputs: list[str] | None = None) -> str:
    """A heading and one code cell, in the form in which a copy is written if it has no outputs."""
    heading_cell = {"cell_type": "markdown", "metadata": {}, "source": [heading]}
    code: dict = {"cell_type": "code", "metadata": {}, "source": ["2 + 2"]}
    code |= {"execution_count": 1 if outputs else None, "outputs": outputs or []}
    whole = {"cells": [heading_cell, code], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    folder = tmp_path / "notebooks"
    folder.mkdir()
    (folder / NAME).write_text(notebook("# When is the result there?"))
    return folder


@pytest.fixture
def working(tmp_path: Path) -> Path:
    return working_folder(home=tmp_path)


def test_a_missing_lesson_is_copied_and_said_once(shipped: Path, working: Path) -> None:
    assert refresh(shipped, working) == [f"{NAME}: copied"]
    assert (working / NAME).read_bytes() == (shipped / NAME).read_bytes()
    assert refresh(shipped, working) == []


def test_a_copy_has_no_outputs_and_its_links_lead_to_pages_of_the_copy(shipped: Path, working: Path) -> None:
    solution = "[course/solutions/pencil_01.md](../course/solutions/pencil_01.md)"
    (shipped / NAME).write_text(notebook(f"# One: {solution}", ["4"]))
    (shipped / "GLOSSARY.md").write_text("the [dictionary](DICTIONARY.md)")
    refresh(shipped, working)
    told = "[course/solutions/pencil_01.md](pages/solutions/pencil_01.md)"
    assert (working / NAME).read_text() == notebook(f"# One: {told}")
    assert (working / "pages/solutions/pencil_01.md").is_file()
    assert (working / "pages/GLOSSARY.md").read_text() == "the [dictionary](DICTIONARY.md)"


def test_pages_of_lessons_that_are_shipped_no_longer_go(shipped: Path, working: Path) -> None:
    old, kept = working / "pages/solutions/pencil_77.md", working / "pages/notes.md"
    for path in (old, kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    refresh(shipped, working)
    assert not old.exists()
    assert kept.exists()


@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_copy_that_still_has_the_shipped_outputs_was_not_edited(
    shipped: Path, working: Path, has_manifest: bool
) -> None:
    """As earlier versions made it: the shipped file itself, and in the manifest the hash of that."""
    working.mkdir()
    for folder in (shipped, working):
        (folder / NAME).write_text(notebook("# first", ["4"]))
    if has_manifest:
        whole = hashlib.sha256((working / NAME).read_bytes()).hexdigest()
        (working / ".shipped.json").write_text(json.dumps({NAME: whole}))
        (shipped / NAME).write_text(notebook("# second", ["4"]))
    assert refresh(shipped, working) == [f"{NAME}: new version"]
    assert (working / NAME).read_text() == without_outputs((shipped / NAME).read_text())
    assert refresh(shipped, working) == []


def test_an_edited_copy_of_the_present_version_stays_though_its_manifest_is_of_the_older_form(
    shipped: Path, working: Path
) -> None:
    (shipped / NAME).write_text(notebook("# first", ["4"]))
    working.mkdir()
    whole = hashlib.sha256((shipped / NAME).read_bytes()).hexdigest()
    (working / ".shipped.json").write_text(json.dumps({NAME: whole}))
    (working / NAME).write_text(notebook("# mine", ["4"]))
    assert refresh(shipped, working) == []
    assert [path.name for path in working.glob("*.ipynb")] == [NAME]


def test_to_run_a_lesson_is_not_to_edit_it(shipped: Path, working: Path) -> None:
    refresh(shipped, working)
    ran = notebook("# When is the result there?", ["4"])
    (working / NAME).write_text(ran)
    assert refresh(shipped, working) == []
    assert (working / NAME).read_text() == ran
    (shipped / NAME).write_text(notebook("# second"))
    assert refresh(shipped, working) == [f"{NAME}: new version"]
    (working / NAME).write_text(notebook("# second", ["5"]))
    assert len(put_back(find_lesson(shipped, "1"), working)) == 1
    assert (working / NAME).read_text() == notebook("# second")
    assert not (working / MINE).exists()


def test_a_lesson_that_was_not_edited_follows_the_shipped_one(shipped: Path, working: Path) -> None:
    refresh(shipped, working)
    (shipped / NAME).write_text(notebook("# second"))
    assert refresh(shipped, working) == [f"{NAME}: new version"]
    assert (working / NAME).read_text() == notebook("# second")


def test_an_edited_lesson_stays_and_nothing_is_said_while_the_shipped_one_is_the_same(
    shipped: Path, working: Path
) -> None:
    refresh(shipped, working)
    (working / NAME).write_text("mine")
    assert refresh(shipped, working) == []
    assert (working / NAME).read_text() == "mine"


def test_the_new_version_of_an_edited_lesson_is_put_beside_it_once(shipped: Path, working: Path) -> None:
    refresh(shipped, working)
    (working / NAME).write_text("mine")
    (shipped / NAME).write_text(notebook("# second"))
    (line,) = refresh(shipped, working)
    assert BESIDE in line
    assert (working / NAME).read_text() == "mine"
    assert (working / BESIDE).read_text() == notebook("# second")
    assert refresh(shipped, working) == []


def test_a_version_beside_is_replaced_unless_it_was_edited_too(shipped: Path, working: Path) -> None:
    refresh(shipped, working)
    (working / NAME).write_text("mine")
    for heading in ("# second", "# third"):
        (shipped / NAME).write_text(notebook(heading))
        refresh(shipped, working)
    assert (working / BESIDE).read_text() == notebook("# third")
    (working / BESIDE).write_text("mine too")
    (shipped / NAME).write_text(notebook("# fourth"))
    refresh(shipped, working)
    assert (working / BESIDE).read_text() == "mine too"
    assert (working / BESIDE_2).read_text() == notebook("# fourth")


FIRST_EDITION = (
    "00-one-laptop-eight-devices.ipynb",
    "01-when-is-the-result-there.ipynb",
    "02-one-example-at-a-time.ipynb",
    "03-where-does-the-array-live.ipynb",
    "04-talking-to-the-others.ipynb",
    "11-capstone.ipynb",
)
SECOND_EDITION = (
    "00-one-laptop-eight-devices.ipynb",
    "01-when-is-the-result-there.ipynb",
    "02-where-does-the-array-live.ipynb",
    "03-who-holds-which-shard.ipynb",
    "04-one-function-many-examples-many-devices.ipynb",
    "A-positional-sharding.ipynb",
)


@pytest.fixture
def learner_of_the_first_edition(tmp_path: Path) -> tuple[Path, Path]:
    """The second edition, and a working copy of the first, in which 01 and 03 were edited and 04 was deleted."""
    first, second, working = (tmp_path / name for name in ("first", "second", "my-lessons"))
    for folder, names in ((first, FIRST_EDITION), (second, SECOND_EDITION)):
        folder.mkdir()
        for name in names:
            (folder / name).write_text(notebook(f"# {folder.name}: {name}"))
    refresh(first, working)
    for name in (FIRST_EDITION[1], FIRST_EDITION[3]):
        (working / name).write_text(notebook("# my answers"))
    (working / FIRST_EDITION[4]).unlink()
    return second, working


def test_of_the_first_edition_only_what_the_learner_edited_stays(
    learner_of_the_first_edition: tuple[Path, Path],
) -> None:
    second, working = learner_of_the_first_edition
    lines = refresh(second, working)
    assert lines[-3:] == [
        "02-one-example-at-a-time.ipynb: removed: of an earlier edition, and you did not edit it",
        "03-where-does-the-array-live.ipynb: kept: of an earlier edition, and you edited it",
        "11-capstone.ipynb: removed: of an earlier edition, and you did not edit it",
    ]
    assert "00-one-laptop-eight-devices.ipynb: new version" in lines
    assert "02-where-does-the-array-live.ipynb: copied" in lines
    assert {path.name for path in working.glob("*.ipynb")} == {*SECOND_EDITION, BESIDE, FIRST_EDITION[3]}
    assert (working / FIRST_EDITION[3]).read_text() == notebook("# my answers")
    assert (working / NAME).read_text() == notebook("# my answers")
    assert refresh(second, working) == []


def test_what_was_put_beside_or_kept_by_hand_survives_the_second_edition(
    learner_of_the_first_edition: tuple[Path, Path],
) -> None:
    second, working = learner_of_the_first_edition
    first = second.with_name("first")
    (first / FIRST_EDITION[3]).write_text(notebook("# a later version"))
    refresh(first, working)
    put_back(find_lesson(first, "03"), working)
    refresh(second, working)
    assert (working / FIRST_EDITION[3]).exists() is False
    for beside in ("03-where-does-the-array-live (new).ipynb", "03-where-does-the-array-live (mine).ipynb"):
        assert (working / beside).exists()
    assert refresh(second, working) == []


def test_only_shipped_lessons_are_put_back(learner_of_the_first_edition: tuple[Path, Path]) -> None:
    second, working = learner_of_the_first_edition
    refresh(second, working)
    for name in ("03-where", FIRST_EDITION[3], "11"):
        with pytest.raises(UnknownLessonError):
            find_lesson(second, name)
    put_back(find_lesson(second, "3"), working)
    assert (working / FIRST_EDITION[3]).read_text() == notebook("# my answers")


@pytest.mark.parametrize("earlier", ['"edition": 2, "exercises": {"03.1": %s}', '"03.1": %s'])
def test_the_progress_of_an_earlier_edition_is_not_counted(tmp_path: Path, earlier: str) -> None:
    (tmp_path / PROGRESS).write_text("{" + earlier % '{"wrong": 1, "passed": true}' + "}")
    assert read_progress(tmp_path) == {}
    note(tmp_path, "03.1", is_passed=False)
    assert read_progress(tmp_path) == {"03.1": Record(wrong=1)}


@pytest.mark.parametrize("damage", [None, "", "{", "[]"])
def test_a_lost_or_damaged_manifest_overwrites_nothing(shipped: Path, working: Path, damage: str | None) -> None:
    refresh(shipped, working)
    (working / NAME).write_text("mine")
    manifest = working / ".shipped.json"
    if damage is None:
        manifest.unlink()
    else:
        manifest.write_text(damage)
    refresh(shipped, working)
    assert (working / NAME).read_text() == "mine"
    assert (working / BESIDE).read_bytes() == (shipped / NAME).read_bytes()


def test_a_lesson_that_the_learner_deleted_comes_back(shipped: Path, working: Path) -> None:
    refresh(shipped, working)
    (working / NAME).unlink()
    assert refresh(shipped, working) == [f"{NAME}: copied"]


def test_lessons_come_in_order_with_the_heading_or_else_the_file_name_as_title(shipped: Path) -> None:
    (shipped / "00-one-laptop.ipynb").write_text(notebook("no heading"))
    assert [(lesson.number, lesson.title) for lesson in find_lessons(shipped)] == [
        ("00", "one laptop"),
        ("01", "When is the result there?"),
    ]


def test_exercises_are_read_from_the_headings_of_a_lesson(tmp_path: Path) -> None:
    sources = [
        "## Exercises\n",
        "### Exercise 04.1: a ring (5 minutes)\n\nDo it.",
        "### Exercise 04.2: bytes (2 minutes)",
    ]
    cells = [{"cell_type": "markdown", "source": source.splitlines(keepends=True)} for source in sources]
    cells.append({"cell_type": "code", "source": ["### Exercise 04.3"]})
    (tmp_path / "04-talk.ipynb").write_text(json.dumps({"cells": cells}))
    assert find_lessons(tmp_path)[0].exercises == ("04.1", "04.2")


def test_an_appendix_may_have_exercises_too(tmp_path: Path) -> None:
    cells = [{"cell_type": "markdown", "source": ["### Exercise A.1: boxes (5 minutes)"]}]
    (tmp_path / "A-boxes.ipynb").write_text(json.dumps({"cells": cells}))
    assert find_lessons(tmp_path)[0].exercises == ("A.1",)


def test_the_minutes_are_those_of_the_first_page(tmp_path: Path) -> None:
    (tmp_path / "04-talk.ipynb").write_text(
        notebook("# Talk\n\n**Time** about 35 minutes of teaching\nand 20 minutes of exercises.")
    )
    (tmp_path / "05-sing.ipynb").write_text(notebook("# Sing"))
    assert [lesson.minutes for lesson in find_lessons(tmp_path)] == [(35, 20), None]


def test_without_the_lessons_the_error_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(MissingLessonsError, match="pip install --force-reinstall"):
        shipped_folder(tmp_path)


def test_a_clone_has_its_own_working_copy_and_an_installation_the_present_folders(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clone, here = tmp_path / "clone", tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert working_folder(home=clone) == clone / "my-lessons"
    assert working_folder(home=PACKAGE) == here / "my-lessons"
    assert working_folder("chosen", clone) == here / "chosen"


def test_within_a_working_copy_that_one_is_meant(
    monkeypatch: pytest.MonkeyPatch, shipped: Path, working: Path, tmp_path: Path
) -> None:
    refresh(shipped, working)
    monkeypatch.chdir(working)
    assert working_folder(home=PACKAGE) == working_folder(home=tmp_path / "clone") == working


def test_a_lesson_that_is_put_back_keeps_the_edited_one_beside_it(shipped: Path, working: Path) -> None:
    refresh(shipped, working)
    lesson = find_lesson(shipped, "1")
    for text, kept in (("first answer", MINE), ("second answer", MINE_2)):
        (working / NAME).write_text(text)
        lines = put_back(lesson, working)
        assert kept in lines[0]
        assert (working / kept).read_text() == text
        assert (working / NAME).read_bytes() == (shipped / NAME).read_bytes()
    assert (working / MINE).read_text() == "first answer"
    assert refresh(shipped, working) == []


def test_a_lesson_that_is_as_shipped_is_left_alone(shipped: Path, working: Path) -> None:
    refresh(shipped, working)
    assert put_back(find_lesson(shipped, "01"), working) == [f"{NAME}: it is as it was shipped"]
    assert [path.name for path in working.glob("*.ipynb")] == [NAME]


def test_an_older_copy_that_was_not_edited_is_replaced_and_not_kept(shipped: Path, working: Path) -> None:
    refresh(shipped, working)
    (shipped / NAME).write_text(notebook("# second"))
    put_back(find_lesson(shipped, "01"), working)
    assert (working / NAME).read_text() == notebook("# second")
    assert not (working / MINE).exists()


def test_without_a_manifest_what_is_there_is_kept(shipped: Path, working: Path) -> None:
    working.mkdir()
    (working / NAME).write_text("mine")
    put_back(find_lesson(shipped, "01"), working)
    assert (working / MINE).read_text() == "mine"


@pytest.mark.parametrize("name", ["1", "01", NAME, "01-when", f"notebooks/{NAME}"])
def test_a_lesson_is_found_by_its_number_or_its_file(shipped: Path, name: str) -> None:
    (shipped / "10-more.ipynb").write_text(notebook("# More"))
    assert find_lesson(shipped, name).path.name == NAME


def test_an_appendix_comes_last_and_is_called_by_its_letter(shipped: Path, working: Path) -> None:
    (shipped / "A-more.ipynb").write_text(notebook("# More"))
    (shipped / "13-capstone.ipynb").write_text(notebook("# Capstone"))
    assert [lesson.number for lesson in find_lessons(shipped)] == ["01", "13", "A"]
    for name in ("A", "a", "A-more.ipynb", "A-m"):
        assert find_lesson(shipped, name).title == "More"
    refresh(shipped, working)
    (working / "A-more.ipynb").write_text("mine")
    assert "A-more (mine).ipynb" in put_back(find_lesson(shipped, "A"), working)[0]


@pytest.mark.parametrize("name", ["7", "", "0", "when", "B", "w"])
def test_an_unknown_lesson_is_an_error_that_lists_the_numbers(shipped: Path, name: str) -> None:
    (shipped / "02-two.ipynb").write_text(notebook("# Two"))
    with pytest.raises(UnknownLessonError, match="one of 01 02"):
        find_lesson(shipped, name)

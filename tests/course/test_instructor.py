"""The instructor's pack: its clocks add up, its exercises exist, and the hints that it quotes are the notebook's."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from course.commands.progress import exercises_of as exercises_in
from course.lessons import find_lessons, shipped_folder

PACK = Path(__file__).parents[2] / "course/instructor"
ROOT = PACK.parents[1]
DAYS = {"half-day.md": 210, "full-day.md": 510}
LESSONS = {lesson.number: lesson for lesson in find_lessons(shipped_folder())}


def rows(page: str, header: str) -> Iterator[list[str]]:
    """The cells of each row of the page's tables that have this header's first column."""
    is_inside = False
    for line in (PACK / page).read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        is_inside = bool(cells) and (is_inside or cells[0] == header)
        if is_inside and cells[0] != header and not set(cells[0]) <= {"-"}:
            yield cells


def minutes(clock: str) -> int:
    hours, past = clock.split(":")
    return 60 * int(hours) + int(past)


def planned(number: str) -> tuple[int, int]:
    """The minutes of a lesson and of its exercises, as its first page promises."""
    text = " ".join(LESSONS[number].path.read_text("utf-8").replace('\\n",', "").replace('"', "").split())
    teaching, exercises = re.search(
        r"about (\d+) minutes of teaching and (\d+) (?:minutes )?of exercises", text
    ).groups()
    return int(teaching), int(exercises)


@pytest.mark.parametrize("page, total", DAYS.items())
def test_the_clock_of_a_day_adds_up(page: str, total: int) -> None:
    clock = [(minutes(row[0]), int(row[1])) for row in rows(page, "clock")]
    assert clock[0][0] == 0
    assert all(start + lasts == after for (start, lasts), (after, _) in pairwise(clock))
    assert sum(clock[-1]) == total
    assert f"It ends at {total // 60}:{total % 60:02}." in (PACK / page).read_text("utf-8")


@pytest.mark.parametrize("page", DAYS)
def test_nobody_teaches_longer_than_the_lesson_says(page: str) -> None:
    for _, lasts, number, _, exercises in rows(page, "clock"):
        if number:
            teaching, exercising = planned(number)
            assert int(lasts) <= (exercising if exercises else teaching), (page, number)


@pytest.mark.parametrize("page", DAYS)
def test_the_exercises_of_a_day_are_those_of_its_lessons_and_have_their_minutes(page: str) -> None:
    for _, lasts, number, _, exercises in rows(page, "clock"):
        if exercises:
            ids = exercises.split(", ")
            assert set(ids) <= set(exercises_in(LESSONS[number].path)), (page, number)
            text = LESSONS[number].path.read_text("utf-8")
            need = sum(int(re.search(rf"### Exercise {id}: .*?\((\d+) minutes\)", text)[1]) for id in ids)
            assert need <= int(lasts), (page, exercises, need)


@pytest.mark.parametrize("page", DAYS)
def test_who_is_late_gets_fifteen_minutes_back_by_leaving_out_what_is_still_to_come(page: str) -> None:
    clock = list(rows(page, "clock"))
    starts = {row[0] for row in clock if not row[2]}
    for late_at, what, saves in rows(page, "late at"):
        assert late_at in starts, f"{late_at} is no break"
        number = what.partition(":")[0]
        still = [int(row[1]) for row in clock if row[2] == number and minutes(row[0]) >= minutes(late_at)]
        assert 15 <= int(saves) < sum(still), (page, what)


HINTS = [
    pytest.param(*row[1:], id=f"{row[1]}-{place}")
    for place, row in enumerate(rows("misconceptions.md", "they believe"))
]


@pytest.mark.parametrize("id, quoted", HINTS)
def test_a_hint_that_answers_a_misconception_is_the_notebooks(id: str, quoted: str) -> None:
    source = (ROOT / f"course/exercises/lesson_{id.partition('.')[0]}.py").read_text("utf-8")
    assert f'        "{id}",' in source
    joined = re.sub(r'"\s*\n\s*f?"', "", source)
    assert quoted in joined


def test_every_lesson_with_exercises_has_three_misconceptions_or_more() -> None:
    files = (ROOT / "course/exercises").glob("lesson_*.py")
    counts = {path.stem.removeprefix("lesson_"): 0 for path in files}
    for _, id, _ in rows("misconceptions.md", "they believe"):
        counts[id.partition(".")[0]] += 1
    assert all(count >= 3 for count in counts.values()), counts


def test_links_of_the_pack_lead_somewhere() -> None:
    for page in PACK.glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), (page.name, target)


def test_every_finding_that_the_doctor_can_stop_at_is_in_the_room_page() -> None:
    told = (PACK / "room.md").read_text("utf-8")
    code = "".join(path.read_text("utf-8") for path in (ROOT / "course/doctor").glob("*.py"))
    fatal = set(re.findall(r'Finding\(\s*"([^"]+)",\s*State\.FATAL', code))
    assert {"loopback", "torch", "devices", "kernel", "widgets"} <= fatal
    assert all(f"`STOP {what}`" in told for what in fatal)

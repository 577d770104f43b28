"""The instructor's pages: the clocks of days add up, links lead somewhere, the room page knows what the doctor says."""

import re
from itertools import pairwise
from pathlib import Path

from course.exercises import exercises_of
from course.predictions import predictions_of
from tests.course import lesson_cells
from tests.course.lesson_cells import cells_of, exercising, promised
from tests.course.tables import minutes, tables
from tests.rows import for_every_row

PACK = Path(__file__).parents[2] / "course/instructor"
ROOT = PACK.parents[1]
DAYS = {"half-day.md": [210], "full-day.md": [510], "two-days.md": [480, 480]}  # minutes of each day
ASKED = re.compile(r'^(?:predict\("([^"]+)"\)$|### Exercise ([^:]+):)', flags=re.MULTILINE)
LESSONS = {number: cells_of(path) for number, path in lesson_cells.LESSONS.items()}


def clocks(page: str) -> list[list[list[str]]]:
    """Of each day the rows: when, how many minutes, which lesson, what you do, which exercises."""
    return tables((PACK / page).read_text("utf-8"), "clock")


@for_every_row(DAYS.items())
def test_the_clock_of_a_day_adds_up(page: str, totals: list[int]) -> None:
    assert len(clocks(page)) == len(totals)
    for rows, total in zip(clocks(page), totals, strict=True):
        clock = [(minutes(row[0]), int(row[1])) for row in rows]
        assert clock[0][0] == 0
        assert all(start + lasts == after for (start, lasts), (after, _) in pairwise(clock))
        assert sum(clock[-1]) == total
        assert f"It ends at {total // 60}:{total % 60:02}." in (PACK / page).read_text("utf-8")


@for_every_row(DAYS)
def test_a_lesson_gets_no_more_minutes_than_it_promises_and_enough_for_its_exercises(page: str) -> None:
    for rows in clocks(page):
        for _, lasts, number, _, exercises in rows:
            if number:
                cells = LESSONS[number]
                chosen = exercises.split(", ") if exercises else []
                assert set(chosen) <= set(exercising(cells)), (page, number)
                need = sum(exercising(cells)[id] for id in chosen)
                assert need < int(lasts) <= promised(cells)[0] + need, (page, number)
            else:
                assert not exercises


@for_every_row(DAYS)
def test_who_is_late_gets_fifteen_minutes_back_by_leaving_out_what_is_still_to_come(page: str) -> None:
    late = tables((PACK / page).read_text("utf-8"), "late at")
    assert len(late) == len(clocks(page))
    for rows, chances in zip(clocks(page), late, strict=True):
        breaks = {row[0] for row in rows if not row[2]}
        for late_at, what, saves in chances:
            assert late_at in breaks, f"{late_at} is no break"
            number = what.partition(":")[0]
            still = [int(row[1]) for row in rows if row[2] == number and minutes(row[0]) >= minutes(late_at)]
            assert 15 <= int(saves) <= sum(still), (page, what)


def test_half_a_day_asks_a_question_every_ten_minutes_of_a_lesson_that_is_on() -> None:
    questions, moments = tables((PACK / "half-day.md").read_text("utf-8"), "at")[::-1]
    (rows,) = clocks("half-day.md")
    asked = [(minutes(at), id) for at, _, id in questions]
    pauses = [(minutes(at), int(lasts)) for at, lasts, lesson, *_ in rows if not lesson]
    for (before, _), (after, _) in pairwise([(minutes(rows[1][0]), ""), *asked, (minutes(rows[-1][0]), "")]):
        assert after - before - sum(lasts for at, lasts in pauses if before <= at < after) <= 10, (before, after)
    for at, id in asked:
        (lesson,) = [row[2] for row in rows if minutes(row[0]) <= at < minutes(row[0]) + int(row[1])]
        assert id in {**predictions_of(lesson), **exercises_of(lesson)}, id
    begin, lasts = next((minutes(row[0]), int(row[1])) for row in rows if row[2] == "16")
    at = [minutes(moment) for moment, *_ in moments]
    assert at == sorted(at) and at[0] == begin and at[-1] < begin + lasts


def test_half_a_day_asks_a_question_before_the_exercises_below_it_must_begin() -> None:
    (rows,) = clocks("half-day.md")
    asked = {id: minutes(at) for at, _, id in tables((PACK / "half-day.md").read_text("utf-8"), "at")[1]}
    for at, lasts, lesson, _, exercises in rows:
        chosen, end = exercises.split(", ") if exercises else [], minutes(at) + int(lasts)
        order = [found[1] or found[2] for cell in LESSONS.get(lesson, []) for found in ASKED.finditer(cell.source)]
        for exercise in reversed(chosen):
            end -= exercising(LESSONS[lesson])[exercise]
            above = order[: order.index(exercise)]
            late = {id: asked[id] for id in above if id not in chosen and asked.get(id, 0) > end}
            assert not late, (late, exercise, end)
            assert set(above) & set(asked), exercise


LINKS = [
    (page.relative_to(PACK).as_posix(), target)
    for page in sorted(PACK.rglob("*.md"))
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8"))
]


@for_every_row(LINKS)
def test_links_of_the_pack_lead_somewhere(page: str, target: str) -> None:
    assert (PACK / page).parent.joinpath(target).exists()


def test_the_front_page_of_the_pack_names_every_page() -> None:
    front = (PACK / "README.md").read_text("utf-8")
    pages = [page.name for page in PACK.glob("*.md") if page.name != "README.md"]
    assert [name for name in pages if f"({name})" not in front] == []
    assert "(lessons)" in front


def test_every_finding_that_the_doctor_can_stop_at_is_in_the_room_page() -> None:
    told = (PACK / "room.md").read_text("utf-8")
    code = "".join(path.read_text("utf-8") for path in (ROOT / "course/doctor").glob("*.py"))
    fatal = set(re.findall(r'Finding\(\s*"([^"]+)",\s*State\.FATAL', code))
    assert {"loopback", "torch", "devices", "kernel", "widgets"} <= fatal
    assert [what for what in sorted(fatal) if f"`STOP {what}`" not in told] == []

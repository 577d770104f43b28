"""Every lesson in real JupyterLab: it runs to its end, its pictures answer, in the light theme and in the dark one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from course.doctor.machine import NEEDED_BYTES
from course.lessons import Lesson, find_lessons, shipped_folder
from tests.browser.jupyterlab import JupyterLab
from tests.memory import Peak

if TYPE_CHECKING:
    from tests.browser.notebook_page import NotebookPage

LESSONS = find_lessons(shipped_folder())
ANSWER_MS = 20_000


@pytest.mark.parametrize("lesson", LESSONS, ids=[lesson.number for lesson in LESSONS])
def test_a_lesson_runs_to_its_end_and_its_pictures_answer(
    lesson: Lesson, lesson_page: NotebookPage, jupyterlab: JupyterLab, memory: list[str], screenshots: Path
) -> None:
    from tests.browser.controls import changes, moves
    from tests.browser.notebook_page import is_visualizer

    lesson_page.change_theme(is_dark=False)
    lesson_page.open(lesson.path.name)
    try:
        with Peak(jupyterlab.pid) as peak:
            lesson_page.run_all()
        memory.append(f"{lesson.number} {peak.nbytes / 1e9:.2f} GB")
        assert lesson_page.errors() == []
        assert peak.nbytes < NEEDED_BYTES, "JupyterLab, kernel and devices together"
        code = [cell for cell in lesson_page.cells() if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]
        assert [cell["id"] for cell in code if cell["execution_count"] is None] == []

        shipped = json.loads(lesson.path.read_text("utf-8"))["cells"]
        stored = [each["id"] for each in shipped if any(is_visualizer(output) for output in each.get("outputs", []))]
        cells = lesson_page.cells()
        assert [cells[number]["id"] for number in lesson_page.visualizers()] == stored

        for number in lesson_page.visualizers():
            name = f"{lesson.number}-{cells[number]['id']}"
            lesson_page.screenshot(lesson_page.output_of(number), screenshots / f"{name}-light.png")
            output = lesson_page.output_of(number)
            tried = []
            for what, move in moves(output):
                tried.append(what)
                if changes(output, move, ANSWER_MS):
                    break
            else:
                pytest.fail(f"{name}: no control changes the picture; tried {tried or 'none, as there is none'}")
            lesson_page.change_theme(is_dark=True)
            lesson_page.screenshot(lesson_page.output_of(number), screenshots / f"{name}-dark.png")
            lesson_page.change_theme(is_dark=False)
    finally:
        lesson_page.close()

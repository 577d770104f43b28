"""Every lesson in real JupyterLab: it runs to its end, its pictures answer, in the light theme and in the dark one."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from course.doctor.machine import NEEDED_BYTES
from course.lessons import Lesson, find_lessons, shipped_folder
from tests.browser.jupyterlab import JupyterLab
from tests.extent import mostly_whole
from tests.memory import CUDA_BUILD_BYTES, CUDA_BUILD_BYTES_EACH, Peak

if TYPE_CHECKING:
    from playwright.sync_api import ElementHandle

    from tests.browser.notebook_page import NotebookPage

LESSONS = find_lessons(shipped_folder())
# a button, predictions, exercises and a picture of the processes themselves
PART = ("00",)
# by lesson: two launchers on two hosts, and an agent of each; torchrun, from which four processes are forked
MORE_THAT_IMPORT_TORCH = {"13": 4, "19": 1}


def visualizers_of(lesson: Lesson) -> dict[str, str]:
    """Name of each visualizer that a stored lesson shows → id of the cell in which it is touched.

    That is the first one without arguments: a picture of one moment, as of an error, has nothing to choose.
    """
    whole: dict[str, str] = {}
    found: dict[str, str] = {}
    for cell in json.loads(lesson.path.read_text("utf-8"))["cells"]:
        calls = re.findall(r"\bwidgets\.(\w+)\((\))?", "".join(cell["source"]))
        if any("image/svg+xml" in output.get("data", {}) for output in cell.get("outputs", [])):
            for name, is_whole in calls:
                (whole if is_whole else found).setdefault(name, cell["id"])
    return {**found, **whole}


def touch(output: ElementHandle, name: str) -> None:
    """Move one control after the other, until the picture changes."""
    from tests.browser.controls import changes, moves

    tried = []
    for what, move in moves(output):
        tried.append(what)
        if changes(output, move):
            return
    pytest.fail(f"{name}: no control changes the picture; tried {tried or 'none, as there is none'}")


@pytest.mark.parametrize(
    "lesson", mostly_whole(LESSONS, lambda lesson: lesson.number in PART), ids=lambda lesson: lesson.number
)
def test_a_lesson_runs_to_its_end_and_its_pictures_answer(
    lesson: Lesson, lesson_page: NotebookPage, jupyterlab: JupyterLab, memory: list[str], screenshots: Path
) -> None:
    lesson_page.change_theme(is_dark=False)
    lesson_page.open(lesson.path.name)
    try:
        with Peak(jupyterlab.pid) as peak:
            lesson_page.run_all()
        memory.append(f"{lesson.number} {peak.nbytes / 1e9:.2f} GB")
        assert lesson_page.errors() == []
        of_cuda = CUDA_BUILD_BYTES + MORE_THAT_IMPORT_TORCH.get(lesson.number, 0) * CUDA_BUILD_BYTES_EACH
        assert peak.nbytes < NEEDED_BYTES + of_cuda, "JupyterLab, kernel and devices together"
        code = [cell for cell in lesson_page.cells() if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]
        assert [cell["id"] for cell in code if cell["execution_count"] is None] == []

        cells = lesson_page.cells()
        shown = {cells[number]["id"]: number for number in lesson_page.visualizers()}
        wanted = visualizers_of(lesson)
        assert set(wanted.values()) <= set(shown)
        for what, id in wanted.items():
            name = f"{lesson.number}-{what}"
            lesson_page.screenshot(lesson_page.output_of(shown[id]), screenshots / f"{name}-light.png")
            touch(lesson_page.output_of(shown[id]), name)
            lesson_page.change_theme(is_dark=True)
            lesson_page.screenshot(lesson_page.output_of(shown[id]), screenshots / f"{name}-dark.png")
            lesson_page.change_theme(is_dark=False)
    finally:
        lesson_page.close()

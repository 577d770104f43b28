"""JupyterLab opens on the start page, which shows what a check has noted when the learner comes back to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from course.lessons import find_lessons, shipped_folder
from course.progress import PROGRESS, note
from course.start import START, renew_start
from tests.browser.jupyterlab import JupyterLab

if TYPE_CHECKING:
    from tests.browser.notebook_page import NotebookPage

ANSWER_MS = 60_000
PAGE = ".jp-MarkdownViewer:not(.lm-mod-hidden)"
IS_WIDE = f"() => document.querySelector('{PAGE} table').scrollWidth > document.querySelector('{PAGE}').clientWidth"


def test_the_start_page_comes_first_leads_to_other_pages_and_shows_progress(
    lesson_page: NotebookPage, jupyterlab: JupyterLab, screenshots: Path
) -> None:
    page = lesson_page.page
    before = page.viewport_size
    assert lesson_page.first == START
    id = find_lessons(shipped_folder())[0].exercises[0]
    try:
        lesson_page.command("docmanager:open", {"path": START})
        page.click(f"{PAGE} >> text=Glossary")
        page.wait_for_selector(f"{PAGE} >> h1:has-text('Glossary')", timeout=ANSWER_MS)
        note(jupyterlab.working, id, is_passed=True)
        renew_start(jupyterlab.working)
        lesson_page.command("docmanager:open", {"path": START})
        page.wait_for_selector(f"{PAGE} >> text=exercises passed", timeout=ANSWER_MS)
        for width in (900, 1280):
            page.set_viewport_size({"width": width, "height": 1300})
            for is_dark in (False, True):
                lesson_page.change_theme(is_dark=is_dark)
                theme = "dark" if is_dark else "light"
                page.screenshot(path=screenshots / f"start-{width}-{theme}.png")
                assert not page.evaluate(IS_WIDE)
    finally:
        lesson_page.change_theme(is_dark=False)
        page.set_viewport_size(before or {"width": 1280, "height": 900})
        (jupyterlab.working / PROGRESS).unlink(missing_ok=True)

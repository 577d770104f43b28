"""Controls without a mouse: Tab reaches each, arrows move a dropdown and a slider, Enter and Space press a button."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.browser.jupyterlab import JupyterLab

if TYPE_CHECKING:
    from tests.browser.notebook_page import NotebookPage

NAME = "keyboard.ipynb"
ANSWER_MS = 60_000
SOURCE = """from course.widgets.base import Choice, Explorer, Press, Step
from course.widgets.card import Sheet, paragraph
Explorer(
    "three controls",
    [
        Choice("colour", "colour", [("red", "red"), ("green", "green"), ("blue", "blue")]),
        Step("count", "count", most=3, start=1),
        Press("again", "again"),
    ],
    look=lambda **chosen: " ".join(f"{name}={value}" for name, value in chosen.items()),
    draw=lambda words: Sheet(words, paragraph([words])),
    describe=str,
)"""
IS_READY = "([output, words]) => output.querySelector('svg').textContent.includes(words)"
# a cell that is chosen, not edited: there JupyterLab has keys of its own
CHOOSE_CELL = """() => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    notebook.activeCellIndex = 0;
    notebook.mode = 'command';
    notebook.activate();
}"""
FOCUSED = """() => {
    const { tagName, className } = document.activeElement;
    return className.includes('noUi-handle') ? 'slider' : className.includes('jupyter-button') ? 'button' : tagName;
}"""


def cell(k: int, source: str) -> dict[str, Any]:
    made = {"cell_type": "code", "id": f"c{k}", "metadata": {}, "execution_count": None, "outputs": []}
    return {**made, "source": source}


def test_tab_arrows_enter_and_space_are_enough(lesson_page: NotebookPage, jupyterlab: JupyterLab) -> None:
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cells = [cell(0, SOURCE), cell(1, "1 + 1")]
    notebook = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (jupyterlab.working / NAME).write_text(json.dumps(notebook), "utf-8")
    lesson_page.open(NAME)
    page = lesson_page.page
    try:
        lesson_page.run_all()
        assert lesson_page.errors() == []
        output = lesson_page.output_of(0)
        page.evaluate(CHOOSE_CELL)

        def reach(wanted: str) -> None:
            for _ in range(10):
                page.keyboard.press("Tab")
                if page.evaluate(FOCUSED) == wanted:
                    return
            raise AssertionError(f"Tab does not come to the {wanted}")

        def press(key: str, words: str) -> None:
            page.keyboard.press(key)
            page.wait_for_function(IS_READY, arg=[output, words], timeout=ANSWER_MS)

        reach("SELECT")
        press("ArrowDown", "colour=green count=1 again=0")
        press("ArrowDown", "colour=blue count=1 again=0")
        press("ArrowUp", "colour=green count=1 again=0")
        reach("slider")
        press("ArrowRight", "colour=green count=2 again=0")
        press("ArrowLeft", "colour=green count=1 again=0")
        reach("button")
        press("Enter", "colour=green count=1 again=1")
        press("Space", "colour=green count=1 again=2")
    finally:
        lesson_page.close()
        (jupyterlab.working / NAME).unlink()

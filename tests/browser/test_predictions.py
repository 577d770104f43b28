"""A prediction in real JupyterLab: its buttons are reached by the keyboard, and answer within the cell's own output.

When their kernel has ended, or the lesson is opened again, they say what to do.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from course.predictions import lesson_numbers, predictions_of
from tests.browser.jupyterlab import JupyterLab

if TYPE_CHECKING:
    from tests.browser.notebook_page import NotebookPage

ANSWER_MS = 60_000
SAYS = """() => [...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-OutputArea-output')].some(
    each => [each, each.firstElementChild].some(
        box => box && getComputedStyle(box, '::before').content.includes('run the cell again')))"""
IS_LOST = """() => [...document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jupyter-widgets')].some(
    each => each.innerText.startsWith('Error displaying widget'))"""


def test_a_letter_that_is_pressed_is_noted_beside_it(
    lesson_page: NotebookPage, jupyterlab: JupyterLab, screenshots: Path
) -> None:
    from tests.browser.notebook_page import PANEL

    id, other, *_ = predictions_of(lesson_numbers()[0])
    sources = ["from course import explain, predict", f'predict("{id}")', f'explain("{other}")', f'explain("{other}")']
    cells = [
        {"cell_type": "code", "id": f"c{k}", "metadata": {}, "execution_count": None, "outputs": [], "source": [source]}
        for k, source in enumerate(sources)
    ]
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (jupyterlab.working / "prediction.ipynb").write_text(json.dumps(notebook))
    lesson_page.open("prediction.ipynb")
    try:
        lesson_page.run_all()
        assert lesson_page.errors() == []
        stored = [cell["outputs"] for cell in lesson_page.cells()]
        asked, explained = ("".join(outputs[0]["data"]["text/plain"]) for outputs in stored[2:])
        assert asked.startswith(f"{other}: what did you expect?")
        assert "is right: " in explained
        output = lesson_page.output_of(1, awaited="button")
        button = output.query_selector("button")
        assert button is not None
        assert [each.inner_text().strip() for each in output.query_selector_all("button")][:3] == ["a", "b", "c"]
        button.focus()
        button.press("Enter")
        lesson_page.page.wait_for_function(
            "output => output.innerText.includes('a is noted.')", arg=output, timeout=ANSWER_MS
        )
        assert [cell["outputs"] for cell in lesson_page.cells()] == stored
        assert json.loads((jupyterlab.working / ".predictions.json").read_text())["predictions"][id]["choice"] == "a"

        page = lesson_page.page
        assert not page.evaluate(SAYS)
        page.evaluate(f"() => {PANEL}.sessionContext.session.kernel.restart().then(() => null)")
        page.wait_for_function(SAYS, timeout=ANSWER_MS)
        lesson_page.screenshot(lesson_page.output_of(1, awaited="button"), screenshots / "ended-kernel.png")
        lesson_page.command("docmanager:save")
        lesson_page.close()
        lesson_page.open_as_stored("prediction.ipynb")
        page.wait_for_function(IS_LOST, timeout=ANSWER_MS)
        assert page.evaluate(SAYS)
    finally:
        lesson_page.close()
        (jupyterlab.working / "prediction.ipynb").unlink()

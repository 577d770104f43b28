"""A prediction in real JupyterLab: its buttons are reached by the keyboard, and answer within the cell's own output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from course.predictions import lesson_numbers, predictions_of
from tests.browser.jupyterlab import JupyterLab

if TYPE_CHECKING:
    from tests.browser.notebook_page import NotebookPage

ANSWER_MS = 60_000


def test_a_letter_that_is_pressed_is_noted_beside_it(lesson_page: NotebookPage, jupyterlab: JupyterLab) -> None:
    id = next(iter(predictions_of(lesson_numbers()[0])))
    sources = ["from course import explain, predict", f'predict("{id}")']
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
    finally:
        lesson_page.close()
        (jupyterlab.working / "prediction.ipynb").unlink()

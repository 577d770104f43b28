"""The browser test itself: a cell that fails and a control that does nothing are both noticed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.browser.jupyterlab import JupyterLab

if TYPE_CHECKING:
    from tests.browser.notebook_page import NotebookPage

NAME = "99-broken.ipynb"
CELLS = {
    "meant": "raise ValueError('meant')",
    "inert": """from course.widgets.base import Choice, Explorer
from course.widgets.card import Sheet, paragraph
controls = [Choice("side", "side", (("one", 1), ("two", 2)))]
Explorer("inert", controls, look=lambda side: side, draw=lambda side: Sheet("", paragraph(["same"])), describe=str)""",
    "lively": """draw = lambda side: Sheet("", paragraph([str(side)]))
Explorer("lively", controls, look=lambda side: side, draw=draw, describe=str)""",
    "broken": "raise ValueError('not meant')",
}


def code_cell(id: str, source: str) -> dict[str, Any]:
    metadata = {"tags": ["raises-exception"]} if id == "meant" else {}
    return {
        "id": id,
        "cell_type": "code",
        "execution_count": None,
        "metadata": metadata,
        "outputs": [],
        "source": source,
    }


def test_what_is_broken_in_a_lesson_is_noticed(lesson_page: NotebookPage, jupyterlab: JupyterLab) -> None:
    from tests.browser.controls import changes, moves

    cells = [code_cell(id, source) for id, source in CELLS.items()]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    notebook = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (jupyterlab.working / NAME).write_text(json.dumps(notebook), "utf-8")
    lesson_page.open(NAME)
    try:
        lesson_page.run_all()
        assert [(error.id, error.raised) for error in lesson_page.errors()] == [("broken", "ValueError: not meant")]
        inert, lively = lesson_page.visualizers()
        for cell, expected in ((inert, False), (lively, True)):
            output = lesson_page.output_of(cell)
            ((_, move),) = moves(output)
            assert changes(output, move) is expected
    finally:
        lesson_page.close()

"""What a notebook draws, in real JupyterLab: it fits a narrow window, reads on both themes, scrolls by the keyboard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.jupyterlab import JupyterLab
from tests.browser.test_keyboard import CHOOSE_CELL, cell

if TYPE_CHECKING:
    from tests.browser.notebook_page import NotebookPage

NAME = "drawn.ipynb"
SOURCES = {
    "program": """import torch, tinyshard as ts
from course import explain
ts.init(devices=8, runtime="local")
mesh = ts.make_mesh((4, 2), ("data", "model"))
x = ts.device_put(torch.ones(64, 64), ts.NamedSharding(mesh, ts.P("data", "model")))
compiled = ts.jit(lambda x: torch.relu(x @ x.T).sum(0)).lower(x).compile()
compiled""",
    "memory": "compiled.memory_analysis()",
    "asked": 'explain("00.a")',
    "answer": 'explain("00.a")',
    "error": "display(ts.ShardingError('it is odd', got='3', rule='it is even'))",
    "layout": "ts.debug.visualize_array_sharding(x)",
    "live": "ts.live_arrays()",
}
# the parts of a page that reach beyond its cell without a box that scrolls, boxes that do, the contrast of its letters
SEEN = """output => {
    const light = words => {
        const [r, g, b] = words.match(/[\\d.]+/g).map(Number).map(x => x / 255).map(
            x => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const page = output.querySelector('.ts-page');
    const ground = light(getComputedStyle(document.querySelector('.jp-NotebookPanel-notebook')).backgroundColor);
    const [low, high] = [light(getComputedStyle(page).color), ground].sort((a, b) => a - b);
    const right = output.getBoundingClientRect().right + 1;
    const wide = [...page.querySelectorAll('*')].filter(
        each => !each.closest('.ts-wide > *') && each.getBoundingClientRect().right > right);
    const scrolled = [...page.querySelectorAll('.ts-wide')].filter(each => each.scrollWidth > each.clientWidth + 1);
    const named = found => found.map(each => each.outerHTML.slice(0, 80));
    return {contrast: (high + 0.05) / (low + 0.05), wide: named(wide), scrolled: named(scrolled)};
}"""
FOCUSED = "() => document.activeElement.getAttribute('aria-label')"


@pytest.mark.whole
def test_what_is_drawn_fits_reads_and_is_reached(
    lesson_page: NotebookPage, jupyterlab: JupyterLab, screenshots: Path
) -> None:
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    cells = [cell(k, source) for k, source in enumerate(SOURCES.values())]
    notebook = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
    (jupyterlab.working / NAME).write_text(json.dumps(notebook), "utf-8")
    page = lesson_page.page
    before = page.viewport_size
    lesson_page.open(NAME)
    try:
        lesson_page.run_all()
        assert lesson_page.errors() == []
        for width in (900, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            for is_dark in (False, True):
                lesson_page.change_theme(is_dark=is_dark)
                for k, name in enumerate(SOURCES):
                    output = lesson_page.output_of(k, awaited=".ts-page")
                    theme = "dark" if is_dark else "light"
                    lesson_page.screenshot(output, screenshots / f"drawn-{name}-{width}-{theme}.png")
                    seen = page.evaluate(SEEN, output)
                    assert seen["wide"] == seen["scrolled"] == []
                    assert seen["contrast"] > 7
        page.evaluate(CHOOSE_CELL)
        reached = []
        for _ in range(4):
            page.keyboard.press("Tab")
            reached.append(page.evaluate(FOCUSED))
        assert "program on 8 devices, axes data=4 × model=2" in reached
    finally:
        lesson_page.change_theme(is_dark=False)
        page.set_viewport_size(before or {"width": 1280, "height": 900})
        lesson_page.close()
        (jupyterlab.working / NAME).unlink()

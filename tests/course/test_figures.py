"""Figures of the lessons have no ground of their own, and letters that read on white and on black."""

import pytest

from tests.course.lesson_cells import LESSONS, stored_cells
from tests.rows import for_every_row

PLOTTING = [number for number, path in LESSONS.items() if any("plt." in c["source"] for c in stored_cells(path))]


@for_every_row(PLOTTING)
def test_a_lesson_that_plots_uses_the_style(lesson: str) -> None:
    assert any('plt.style.use("course.figures")' in cell["source"] for cell in stored_cells(LESSONS[lesson]))


def test_the_style_is_for_light_and_for_dark_pages() -> None:
    pytest.importorskip("matplotlib")
    import matplotlib.style
    from matplotlib import colors, rc_context, rcParams

    with rc_context():
        matplotlib.style.use("course.figures")
        grounds = [rcParams[f"{part}.facecolor"] for part in ("figure", "axes", "savefig")]
        letters = [rcParams[name] for name in ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")]
    assert grounds == ["none"] * 3
    for colour in letters:
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colors.to_rgb(colour)]
        light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert min(1.05 / (light + 0.05), (light + 0.05) / 0.05) > 3.5
    # where all ticks are dark, or all light, matplotlib_inline asks the page for a ground of the other kind
    is_light = [
        sum(w * c for w, c in zip((0.299, 0.587, 0.114), colors.to_rgb(x), strict=True)) > 0.5 for x in letters[2:]
    ]
    assert is_light == [False, True]

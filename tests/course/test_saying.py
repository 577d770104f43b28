"""What the kit tells a learner: the same words printed and on a card."""

import html
import re

import pytest

from course.predictions import lesson_numbers, predictions_of
from course.saying import Line, Said
from tests.rows import for_every_row


def words(text: str) -> list[str]:
    """The words of a text or a page, without the signs of its form."""
    if text.startswith("<div"):
        text = html.unescape(re.sub("<[^>]*>", " ", re.sub("<style>.*?</style>", "", text)))
    return re.findall(r"[^\s:`]+", text)


def test_a_terminal_gets_lines_and_a_notebook_a_card(capsys: pytest.CaptureFixture[str]) -> None:
    said = Said("wrong", "99.1: ", "it raised ValueError: x < 1\n  at:   y = x", (Line("hint: ", "Use `x > 1`."),))
    said.show()
    assert capsys.readouterr().out == "99.1: it raised ValueError: x < 1\n  at:   y = x\n  hint: Use `x > 1`.\n"
    assert "ts-is-wrong" in said.html and "x &lt; 1" in said.html and "<code>x &gt; 1</code>" in said.html
    assert "<dt>at</dt>" in said.html and "<dt>hint</dt>" in said.html
    assert words(said.html) == words(said.text)


@for_every_row(lesson_numbers())
def test_every_prediction_says_the_same_printed_and_drawn(lesson: str) -> None:
    from course.predicting import _asked, _explained

    for prediction in predictions_of(lesson).values():
        for said in (_asked(prediction), *(_explained(prediction, chosen) for chosen in (None, *prediction.letters))):
            assert words(said.html) == words(said.text)
            assert max(map(len, said.text.splitlines())) <= 88

"""Wrong copies of stored outputs, without running anything."""

import copy
from typing import Any

import pytest

from tests.notebooks.wrong_digits import wrong_outputs

SKIPPED = ("metadata", "traceback", "output_type", "name", "execution_count", "image/png")
STREAM = {"output_type": "stream", "name": "stdout", "text": "took 99 ms\n"}
SILENT = {"output_type": "stream", "name": "stderr", "text": "no number"}
RESULT = {
    "output_type": "execute_result",
    "execution_count": 4,
    "metadata": {},
    "data": {
        "text/plain": "x = 7",
        "text/html": "<b>7</b>",
        "image/png": "iVBOR0",
        "application/json": {"a": 7},
    },
}
ERROR = {"output_type": "error", "ename": "ValueError", "evalue": "got 3", "traceback": ["line 12"]}


def plain(text: str) -> str:
    return text


@pytest.mark.parametrize(
    "output, expected",
    [
        (STREAM, [{"text": "took 09 ms\n"}]),
        (RESULT, [{"text/plain": "x = 8"}, {"text/html": "<b>8</b>"}]),
        (ERROR, [{"evalue": "got 4"}]),
        (SILENT, []),
    ],
)
def test_each_compared_text_with_a_number_gives_one_copy_that_differs_by_one_digit(
    output: dict[str, Any], expected: list[dict[str, str]]
) -> None:
    before = copy.deepcopy(output)
    found = list(wrong_outputs([SILENT, output], SKIPPED, plain))
    assert output == before
    for corruption, change in zip(found, expected, strict=True):
        right, wrong = ({**given, **given.get("data", {}), "data": None} for given in (output, corruption.outputs[1]))
        assert {kind: text for kind, text in wrong.items() if text != right[kind]} == change
        assert corruption.outputs[0] == SILENT


def test_a_number_that_the_sanitizers_hide_is_left_and_the_next_one_is_changed() -> None:
    (found,) = wrong_outputs([STREAM, SILENT], SKIPPED, lambda text: text.replace("took 9", "took ?"))
    assert found.outputs[0]["text"] == "took ?0 ms\n"
    assert list(wrong_outputs([STREAM], SKIPPED, lambda text: text.replace("99", "<time>"))) == []


def test_only_text_that_a_reader_reads_counts_as_a_number() -> None:
    assert [found.is_plain_text for found in wrong_outputs([RESULT], SKIPPED, plain)] == [True, False]

"""Wrong copies of a cell's stored outputs: each differs from them by one digit of one number.

nbval compares text, HTML, SVG, the name and the words of an error; it does not compare PNG. Nothing here
knows of pytest or of running: outputs in, outputs out.
"""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["WrongOutputs", "wrong_outputs"]

# What a reader reads as text. A drawing has digits in any case: a width, a colour.
PLAIN_TEXT = {"text", "text/plain", "evalue"}


@dataclass(frozen=True)
class WrongOutputs:
    """Wrong outputs of one cell; `place` names what is wrong, `is_plain_text` whether it stands in text."""

    place: str
    outputs: list[Any]
    is_plain_text: bool


def wrong_outputs(
    outputs: Sequence[Any], skipped_kinds: Sequence[str], sanitize: Callable[[str], str]
) -> Iterator[WrongOutputs]:
    """Each wrong copy of `outputs`: one for each compared text that shows a number after `sanitize`.

    Args:
        outputs: What a notebook stores for one cell, in nbformat's form.
        skipped_kinds: Keys of an output, and media types of its data, that are not compared.
        sanitize: Hides what may differ from run to run.
    """
    for number, output in enumerate(outputs):
        for place in _compared_places(output, skipped_kinds):
            wrong = copy.deepcopy(list(outputs))
            holder, kind = _holder(wrong[number], place)
            changed = _change_one_digit(sanitize(holder[kind]), sanitize)
            if changed is not None:
                holder[kind] = changed
                yield WrongOutputs(f"output {number}, {kind}", wrong, kind in PLAIN_TEXT)


def _compared_places(output: Any, skipped_kinds: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """("text",) of a stream, ("data", "text/plain") of a result, ("evalue",) of an error, …"""
    for key, value in output.items():
        if key in skipped_kinds:
            continue
        if key == "data":
            yield from (
                ("data", kind) for kind, text in value.items() if kind not in skipped_kinds and isinstance(text, str)
            )
        elif isinstance(value, str):
            yield (key,)


def _holder(output: Any, place: tuple[str, ...]) -> tuple[Any, str]:
    return (output["data"], place[1]) if place[0] == "data" else (output, place[0])


def _change_one_digit(shown: str, sanitize: Callable[[str], str]) -> str | None:
    """`shown`, which is sanitized, with its first digit changed: 7 → 8, 9 → 0. None where it has no digit."""
    for match in re.finditer(r"[0-9]", shown):
        digit = str((int(match.group()) + 1) % 10)
        changed = shown[: match.start()] + digit + shown[match.end() :]
        if sanitize(changed) != shown:
            return changed
    return None

"""The tables of a Markdown page."""

import re

__all__ = ["minutes", "tables"]


def tables(text: str, first: str) -> list[list[list[str]]]:
    """The rows, without the header, of each table whose first column is called `first`.

    Args:
        text: the page.
        first: such as "clock".

    Returns:
        For each table its rows, for each row its cells.
    """
    found: list[list[list[str]]] = []
    is_inside = False
    for line in text.splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0] == first:
            is_inside = True
            found.append([])
        elif not cells:
            is_inside = False
        elif is_inside and not set(cells[0]) <= set("-:"):
            found[-1].append(cells)
    return found


def minutes(clock: str) -> int:
    """ "1:05" → 65."""
    hours, past = clock.split(":")
    return 60 * int(hours) + int(past)

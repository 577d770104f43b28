"""Paragraphs of what the kit prints into a cell."""

import textwrap

__all__ = ["WIDTH", "filled"]

WIDTH = 88  # characters in an output of JupyterLab that is 900 px wide


def filled(label: str, text: str, indent: str) -> str:
    """The text behind its label, broken at blanks; lines after the first begin with the indent.

    Example:
        >>> filled("why:  ", "one  device sends", "    ")
        'why:  one device sends'
    """
    return textwrap.fill(
        " ".join(text.split()), WIDTH, initial_indent=label, subsequent_indent=indent, break_on_hyphens=False
    )

"""What the kit tells a learner below a cell: a question, a verdict, an answer; printed, or in a notebook on a card."""

from dataclasses import dataclass

from course.wrapping import filled

__all__ = ["Line", "Said"]


@dataclass(frozen=True)
class Line:
    """A paragraph behind its label.

    Args:
        label: what it is, as printed: "why:  "; "" for a sentence of its own.
        words: the paragraph.
        indent: what its further lines begin with in a terminal.
    """

    label: str
    words: str
    indent: str = "    "

    @property
    def text(self) -> str:
        """As it is printed."""
        return filled(f"  {self.label}", self.words, self.indent)


@dataclass(frozen=True)
class Said:
    """What is told.

    Args:
        kind: "right", "wrong" or "asked".
        heading: what it is about, as printed: "05.a: ".
        words: what it says first; it may have lines of its own, which are kept.
        lines: what follows.
    """

    kind: str
    heading: str
    words: str
    lines: tuple[Line, ...] = ()

    @property
    def text(self) -> str:
        """As it is printed."""
        first = f"{self.heading}{self.words}" if "\n" in self.words else filled(self.heading, self.words, "  ")
        return "\n".join([first, *(line.text for line in self.lines)])

    @property
    def html(self) -> str:
        """As a notebook shows it."""
        from tinyshard.core.page import card  # not at the top: the kit's commands start without torch

        first, *more = self.words.splitlines()
        named = [_labelled(each) for each in more]
        named += [(line.label.strip().rstrip(":"), line.words) for line in self.lines]
        return card(self.kind, f"{self.heading}{first}", named)

    def show(self) -> None:
        """Print it; in a notebook draw it."""
        from tinyshard.core.page import Drawing, show

        show(Drawing(self.text, self.html))


def _labelled(line: str) -> tuple[str, str]:
    """A line as a label and the rest, which is code: "  at:   x = y" says which line of the learner's it is.

    Example:
        >>> _labelled("  at:   x = y"), _labelled("two words")
        (('at', '`x = y`'), ('', 'two words'))
    """
    label, is_label, rest = line.strip().partition(":")
    return (label, f"`{rest.strip()}`") if is_label and label.isalpha() else ("", line.strip())

"""What one look at a machine found, in plain data, and the lines that tell it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["Finding", "State", "lines_of", "summary"]

WIDTH = 8  # of the longest name of a look


class State(Enum):
    """How well it is: the lessons run, they run less well, or they do not run."""

    GOOD = "ok"
    WEAK = "mind"
    FATAL = "STOP"


@dataclass(frozen=True)
class Finding:
    """What one look found.

    Args:
        what: What was looked at, in a word or two.
        state: How well it is.
        found: What was found, with its figures.
        remedy: How to fix it, in one line; empty if nothing needs a fix.
    """

    what: str
    state: State
    found: str
    remedy: str = ""


def lines_of(finding: Finding) -> list[str]:
    """The lines for a terminal: what was found, and what to do about it.

    Example:
        >>> for line in lines_of(Finding("cores", State.WEAK, "1", "close what else computes")):
        ...     print(line)
        mind  cores     1
                        → close what else computes
    """
    found = f"{finding.state.value:4}  {finding.what:{WIDTH}}  {finding.found}"
    return [found, f"{'':4}  {'':{WIDTH}}  → {finding.remedy}"] if finding.remedy else [found]


def summary(findings: Sequence[Finding]) -> str:
    """The last line: do the lessons run here?

    Example:
        >>> summary([Finding("torch", State.GOOD, "2.13.0"), Finding("cores", State.WEAK, "1")])
        'The lessons run here; 1 thing to mind.'
    """
    fatal = sum(each.state is State.FATAL for each in findings)
    weak = sum(each.state is State.WEAK for each in findings)
    if fatal:
        return f"The lessons do not run here yet: {_things(fatal)} to fix, marked {State.FATAL.value}."
    return f"The lessons run here; {_things(weak)} to mind." if weak else "The lessons run here."


def _things(count: int) -> str:
    return f"{count} thing{'' if count == 1 else 's'}"

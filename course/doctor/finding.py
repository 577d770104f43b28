"""What one look at a machine found, in plain data, and the lines that tell it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

__all__ = ["Finding", "State", "report"]


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
        remedy: What to do about it, in one line; empty where nothing is to be done.
    """

    what: str
    state: State
    found: str
    remedy: str = ""


def report(findings: Sequence[Finding]) -> list[str]:
    """The lines for a terminal: one for each finding, one more where there is something to do, and a last one.

    Example:
        >>> weak = Finding("cores", State.WEAK, "1", "close what else computes")
        >>> for line in report([Finding("torch", State.GOOD, "2.13.0"), weak]):
        ...     print(line)
        ok    torch  2.13.0
        mind  cores  1
                     → close what else computes
        <BLANKLINE>
        The lessons run here; 1 thing to mind.
    """
    width = max((len(each.what) for each in findings), default=0)
    lines = []
    for each in findings:
        lines.append(f"{each.state.value:4}  {each.what:{width}}  {each.found}")
        if each.remedy:
            lines.append(f"{'':4}  {'':{width}}  → {each.remedy}")
    return [*lines, "", _summary(findings)]


def _summary(findings: Sequence[Finding]) -> str:
    fatal = sum(each.state is State.FATAL for each in findings)
    weak = sum(each.state is State.WEAK for each in findings)
    if fatal:
        return f"The lessons do not run here yet: {_things(fatal)} to fix, marked {State.FATAL.value}."
    return f"The lessons run here; {_things(weak)} to mind." if weak else "The lessons run here."


def _things(count: int) -> str:
    return f"{count} thing{'' if count == 1 else 's'}"

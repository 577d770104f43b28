"""What an exercise is: a number, a judge, a ladder of hints, and its answer cell before it is touched."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import CodeType
from typing import Any

__all__ = ["PASSED", "Exercise", "Verdict", "differs", "is_untouched"]


@dataclass(frozen=True)
class Verdict:
    """What a judge says of an answer.

    Args:
        is_passed: whether the answer is right.
        difference: what differs from what was wanted, in a line or a few.
        hint: the hint that answers the misconception which the judge recognised; empty: the ladder's next rung.
        rule: of an error of tinyshard what its message says below the first line, in place of a hint: "got", "rule" and
            "try", each with its words.
        used: of a right answer to a puzzle what it uses, and par, by count; it is kept for the board.
    """

    is_passed: bool
    difference: str = ""
    hint: str = ""
    rule: tuple[tuple[str, str], ...] = ()
    used: Mapping[str, tuple[int, int]] | None = None

    @property
    def is_recognised(self) -> bool:
        """Whether it comes with a hint of its own, so that the ladder is not climbed."""
        return bool(self.hint or self.rule)


PASSED = Verdict(is_passed=True)
_JUMPS = {*dis.hasjrel, *dis.hasjabs}


def differs(difference: str, hint: str = "") -> Verdict:
    """The verdict on a wrong answer.

    Example:
        >>> differs("sent 224 bytes, not 56").is_passed
        False
    """
    return Verdict(is_passed=False, difference=difference, hint=hint)


@dataclass(frozen=True)
class Exercise:
    """One exercise of a lesson.

    Args:
        id: lesson and number, "05.2".
        judge: takes the answer, whatever it is. An exception that it lets pass counts as the answer's own.
        hints: the ladder, from a question to what leads to the answer; none shows it.
        stub: the untouched answer where it is more than None or an empty function: a value, or the function to correct.
        why: why the answer is right, in a sentence or two; printed after "passed". Where several answers are right and
            one sentence is not true of all, a function from the answer to the sentence.

    Example:
        >>> Exercise("00.1", judge=lambda n: PASSED if n == 8 else differs(f"{n} devices"), hints=("Count.",)).id
        '00.1'
    """

    id: str
    judge: Callable[..., Verdict]
    hints: tuple[str, ...]
    stub: object = None
    why: str | Callable[[Any], str] = ""

    def why_of(self, answer: object) -> str:
        """Why this answer, which has passed, is right.

        Example:
            >>> Exercise("00.1", lambda n: PASSED, ("Count.",), why=lambda n: f"{n} devices are enough.").why_of(8)
            '8 devices are enough.'
        """
        return self.why(answer) if callable(self.why) else self.why


def is_untouched(answer: object, stub: object = None) -> bool:
    """Whether `answer` is what stood in the answer cell from the start.

    None, a function with nothing in it, and `stub` itself are; of functions the code is compared, not the name. Of a
    tuple or list, such as two answers checked together, all must be untouched.

    Example:
        >>> def holders(array, row): ...
        >>> is_untouched(holders), is_untouched([None, None], [None, None]), is_untouched(0)
        (True, True, False)
    """
    if answer is None:
        return True
    code = _code(answer)
    if code is not None:
        stub_code = _code(stub)
        return _is_empty(code) or (stub_code is not None and _steps(code) == _steps(stub_code))
    if stub is None or type(answer) is not type(stub):
        return False
    if isinstance(answer, list | tuple) and type(answer) in (list, tuple) and isinstance(stub, list | tuple):
        return len(answer) == len(stub) and all(map(is_untouched, answer, stub))
    return _is_same(answer, stub)


def _is_same(answer: Any, stub: Any) -> bool:
    """Whether two values of one type are equal; of tensors, all elements."""
    if getattr(answer, "shape", None) != getattr(stub, "shape", None):
        return False
    equal = answer == stub
    return equal if isinstance(equal, bool) else bool(equal.all())


def _code(function: object) -> CodeType | None:
    """The code under every decorator that says what it wraps, as jit does."""
    if not callable(function):
        return None
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code if isinstance(code, CodeType) else None


def _is_empty(code: CodeType) -> bool:
    """Whether it is `...`, `pass`, `return None` or `return ...`, with a docstring or without."""
    steps = _steps(code)
    loaded = [value for name, value in steps if name != "RETURN_VALUE"]
    return loaded in (["None"], ["Ellipsis"]) and all("CONST" in name or name == "RETURN_VALUE" for name, _ in steps)


def _steps(code: CodeType) -> list[tuple[str, str]]:
    """The function's steps, without its position in the file, its docstring and its type hints.

    `time.sleep` is compiled in two ways, of two lengths: which one depends on whether `import time` is in the same
    file or cell. So where a jump leads does not count.
    """
    found = (step for step in dis.get_instructions(code) if step.opname not in ("RESUME", "NOP", "PUSH_NULL"))
    return [
        (
            "LOAD_ATTR" if step.opname == "LOAD_METHOD" else step.opname,
            str(_steps(step.argval)) if _is_code(step.argval) else "" if step.opcode in _JUMPS else str(step.argval),
        )
        for step in found
    ]


def _is_code(value: object) -> bool:
    return isinstance(value, CodeType)

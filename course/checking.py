"""`check("04.2", answer)`: what a lesson calls to say at once how an answer does."""

import re
import sys
import textwrap
import traceback
from collections import Counter
from pathlib import Path

from course.climbs import Climb, note_climb
from course.deadline import OverdueError, deadline
from course.exercises import exercise_of
from course.exercises.exercise import Exercise, Verdict, differs, is_untouched
from course.progress import note
from course.saying import Line, Said
from course.sharing import share_climbs
from course.start import renew_start
from course.wrapping import WIDTH

__all__ = ["check"]

LIMIT_S = 30.0  # the slowest right answer of the course takes two, where nothing else runs
LIBRARIES = ("course", "tinyshard", "torch")

# wrong answers that could not be written down: the ladder is climbed in this kernel all the same
_unkept: Counter[str] = Counter()

# A line of an error's message: "  rule: 10 must be a multiple of 4".
_RULE = re.compile(r"\s+(got|rule|try):\s+(.*)")


def check(id: str, answer: object) -> None:
    """Show how `answer` does: "not yet" for an untouched cell, "passed" and why, or what differs and a hint.

    A wrong answer is not an error: nothing is raised, whatever the answer is or does. Each wrong answer climbs one rung
    of the hint ladder, except that a misconception that the judge recognises gets its own hint, and an error of
    tinyshard says what it got, its rule and what to try. What was answered is
    written into `.progress.json` in the working folder; of a right answer to a puzzle of the ladder also what it uses.

    Args:
        id: lesson and number of the exercise, such as "04.2".
        answer: what the task asks for: a value, an Array, a function.

    Raises:
        UnknownExerciseError: there is no such exercise.

    Communication: what running the answer needs.

    In JAX: has no counterpart.

    Example:
        >>> check("01.1", None)
        01.1: not yet
    """
    exercise = exercise_of(id)
    verdict = judge(exercise, answer)
    if verdict is None:
        Said("asked", f"{id}: ", "not yet").show()
        return
    try:
        rung, unkept = note(Path.cwd(), id, verdict.is_passed, verdict.is_recognised).rung, ""
        if verdict.used is not None:
            note_climb(Path.cwd(), id, Climb(verdict.used, verdict.is_passed))
            unkept = share_climbs(Path.cwd())
    except OSError as error:
        _unkept[id] += not (verdict.is_passed or verdict.is_recognised)
        rung, unkept = _unkept[id], f"progress is not kept: {error.strerror}"
    else:
        renew_start(Path.cwd())
    if verdict.is_passed:
        why = exercise.why_of(answer)
        lines = [Line("why:  ", why)] if why else []
    else:
        lines = _hints(exercise, verdict, rung)
    if unkept:
        lines.append(Line("", unkept))
    kind = "right" if verdict.is_passed else "wrong"
    Said(kind, f"{id}: ", "passed" if verdict.is_passed else verdict.difference, tuple(lines)).show()


def judge(exercise: Exercise, answer: object) -> Verdict | None:
    """What the exercise's judge says; None for an untouched answer.

    An answer that raises, even when it is only inspected, or does not end in time, is wrong.
    """
    try:
        with deadline(LIMIT_S):
            return None if is_untouched(answer, exercise.stub) else exercise.judge(answer)
    except OverdueError:
        return differs(f"it was still running after {LIMIT_S:g} seconds, and was stopped")
    except (Exception, SystemExit) as error:
        return Verdict(is_passed=False, difference=_crash(error, answer), rule=_rule_of(error))


def _crash(error: BaseException, answer: object) -> str:
    """One line of the error, and under it the last line of the learner's own.

    Where no line of theirs was running, it takes other arguments, or the judge has stumbled over what it is, or
    returned.
    """
    from tinyshard.core.errors import RemoteError, TinyshardError  # not at the top: the kit's commands start without it

    lines = str(error).strip().splitlines() or ["no message"]
    # of an op that failed on a device the first line says which op, and the second one why
    first = f"{lines[1].strip()} ({lines[0]})" if type(error) is RemoteError and len(lines) > 1 else lines[0]
    reported = f"{type(error).__name__}: {textwrap.shorten(first, WIDTH)}"
    theirs = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    if theirs and theirs[-1].line:
        return f"it raised {reported}\n  at:   {theirs[-1].line}"
    if theirs or isinstance(error, TinyshardError):
        return f"it raised {reported}"
    name = getattr(answer, "__name__", "")
    if isinstance(error, TypeError) and callable(answer) and name and f"{name}()" in first:
        return f"it cannot be called as the task calls it: {reported}"
    if callable(answer) and "NoneType" in first:
        return f"what it returns is None, or has a None in it, and cannot be checked: {reported}"
    return f"what it {'returns' if callable(answer) else 'is'} cannot be checked: {reported}"


def _rule_of(error: BaseException) -> tuple[tuple[str, str], ...]:
    """What the message of an error of tinyshard says below its first line; of another error nothing.

    Example:
        >>> _rule_of(ValueError("dim 0 cannot be split\\n  got:  10 rows\\n        of 4\\n  try:  pad it"))
        (('got', '10 rows of 4'), ('try', 'pad it'))
    """
    found: list[tuple[str, str]] = []
    for line in str(error).splitlines():
        labelled = _RULE.match(line)
        if labelled:
            found.append((labelled[1], labelled[2]))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return tuple(found)


def _is_ours(filename: str) -> bool:
    """Whether a frame is the kit's or a library's: a learner's cell is in a file that the kernel makes for it.

    torch runs what it has generated as `<string>`.
    """
    homes = [Path(str(sys.modules[name].__file__)).parent for name in LIBRARIES if name in sys.modules]
    return filename.startswith(("<frozen", "<string>")) or any(Path(filename).is_relative_to(home) for home in homes)


def _hints(exercise: Exercise, verdict: Verdict, earned: int) -> list[Line]:
    """The hint of a recognised misconception, or the rule of an error; else the rung that the answers have earned."""
    if verdict.hint:
        return [Line("hint: ", verdict.hint)]
    if verdict.rule:
        return [Line(f"{label}: ".ljust(6), words, "        ") for label, words in verdict.rule]
    rung = min(earned, len(exercise.hints))
    return [Line(f"hint {rung} of {len(exercise.hints)}: ", exercise.hints[rung - 1])]

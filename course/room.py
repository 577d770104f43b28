"""A room's predictions: how many chose which answer, and what that says of them; and its board of the puzzle ladder."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from course import jsonfile
from course.climbs import CLIMBED, RUNGS, Climber, climber_in
from course.errors import MissingRoomError
from course.predicted import PREDICTED, guesses_in, learner_in
from course.predictions.prediction import Prediction
from course.sharing import SHARED_CLIMBS
from course.wrapping import WIDTH

__all__ = ["choices_in", "climbers_in", "poll", "standings"]

BAR = 24


def choices_in(folder: Path) -> dict[str, Counter[str]]:
    """Prediction id → letter → how many chose it, each learner counted once; damaged files count as empty.

    Args:
        folder: what learners share, a file each; or collected working folders, with `.predictions.json` in each.

    Raises:
        MissingRoomError: the folder does not exist.
    """
    _check(folder)
    learners = {}
    for path, kept in _shared(folder, PREDICTED):
        if not path.name.endswith(SHARED_CLIMBS):
            learners[learner_in(kept) or str(path)] = guesses_in(kept)
    counts: dict[str, Counter[str]] = {}
    for guesses in learners.values():
        for id, guess in guesses.items():
            counts.setdefault(id, Counter())[guess.choice] += 1
    return counts


def climbers_in(folder: Path) -> list[Climber]:
    """Who climbs the puzzle ladder, each learner once, those with the most rungs at par first.

    Args:
        folder: as for `choices_in`.

    Raises:
        MissingRoomError: the folder does not exist.
    """
    _check(folder)
    climbers = {}
    for path, kept in _shared(folder, CLIMBED):
        if path.name.endswith(SHARED_CLIMBS):
            climber = climber_in(kept)
            climbers[climber.learner or str(path)] = climber
    return sorted(climbers.values(), key=lambda each: (-each.at_par, -len(each.climbs), each.shown))


def _check(folder: Path) -> None:
    if not folder.is_dir():
        raise MissingRoomError(
            "there is no room to look at\n"
            f"  got:  {folder}, which is no folder\n"
            "  rule: the folder that TINYSHARD_ROOM names for all, or one that holds collected working folders\n"
            "  try:  make it, and tell everybody: tinyshard lab --room FOLDER"
        )


def _shared(folder: Path, own: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The shared files of a room, and those of this name in collected working folders."""
    for path in [*sorted(folder.glob("[!.]*.json")), *sorted(folder.glob(f"*/{own}"))]:
        yield path, jsonfile.read_dict(path)


def standings(climbers: Sequence[Climber]) -> Iterator[str]:
    """The lines of the board: who is on which rung, and what the best answer to the last one uses beside par.

    A square for each rung: ■ at par, ▪ right but above par, □ not yet.

    Example:
        >>> from course.climbs import Climb
        >>> first = Climb({"nbytes": (28672, 28672), "peak_nbytes": (69696, 73728)}, is_par=True)
        >>> second = Climb({"nbytes": (229376, 28672), "rounds": (7, 7)}, is_par=False)
        >>> for line in standings([Climber("ab12", "window table", {"18.1": first, "18.2": second})]):
        ...     print(line)
        The ladder: 1 climber
        ■▪□□□□□□□□□□□□   1 at par  window table
                        on 18.2: bytes 229,376 / 28,672, rounds 7 / 7
    """
    yield f"The ladder: {len(climbers)} climber{'' if len(climbers) == 1 else 's'}"
    ids = [f"18.{number}" for number in range(1, RUNGS + 1)]
    for climber in climbers:
        marks = "".join(_mark(climber, id) for id in ids)
        last = next((id for id in reversed(ids) if id in climber.climbs), "")
        used = climber.climbs[last].used if last else {}
        counts = [f"{_COUNTS[name]} {got:,} / {par:,}" for name, (got, par) in used.items() if name in _COUNTS]
        yield f"{marks}  {climber.at_par:>2} at par  {climber.shown}"
        if last:
            yield from _folded(f"{'':16}on {last}: {', '.join(counts)}", 16)


_COUNTS = {"nbytes": "bytes", "peak_nbytes": "peak", "rounds": "rounds", "flops": "operations"}


def _mark(climber: Climber, id: str) -> str:
    climb = climber.climbs.get(id)
    return "□" if climb is None else "■" if climb.is_par else "▪"


def poll(
    predictions: Sequence[Prediction], counts: Mapping[str, Mapping[str, int]], *, answers: bool = False
) -> Iterator[str]:
    """The lines that show how a room has answered.

    Args:
        predictions: those to show.
        counts: prediction id → letter → how many.
        answers: with ✓ at the right choice, and the belief that each wrong one stands for: a choice without a belief
            is the right one.

    Example:
        >>> from course.predictions.prediction import Choice
        >>> wrong = Choice("7", "one is lost", "No."), Choice("9", "one comes in addition", "No.")
        >>> asked = Prediction("00.a", "How many devices are there?", (wrong[0], Choice("8"), wrong[1]), "We asked.")
        >>> for line in poll([asked], {"00.a": {"a": 2, "b": 4}}):
        ...     print(line)
        00.a  6 answers  How many devices are there?
          a   ████████████              2  7
          b   ████████████████████████  4  8
          c                             0  9
        >>> for line in poll([asked], {"00.a": {"a": 2, "b": 4}}, answers=True):
        ...     print(line)
        00.a  6 answers  How many devices are there?
          a   ████████████              2  7: one is lost
          b ✓ ████████████████████████  4  8
          c                             0  9: one comes in addition
    """
    for prediction in predictions:
        found = counts.get(prediction.id, {})
        chosen = {letter: found.get(letter, 0) for letter in prediction.letters}
        total, most = sum(chosen.values()), max(1, *chosen.values())
        heading = f"{prediction.id}  {total} answer{'' if total == 1 else 's'}  {_flat(prediction.question)}"
        yield from _folded(heading, 6)
        for letter, count in chosen.items():
            choice = prediction.choice(letter)
            mark, bar = "✓" if answers and choice.is_right else " ", "█" * round(BAR * count / most)
            belief = f": {_flat(choice.misconception)}" if answers and choice.misconception else ""
            yield from _folded(f"  {letter} {mark} {bar:{BAR}} {count:>2}  {_flat(choice.text)}{belief}", BAR + 11)


def _flat(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def _folded(line: str, indent: int) -> Iterator[str]:
    """The line, broken at blanks behind the indent; the blanks before it are part of the picture."""
    while len(line) > WIDTH and (cut := line.rfind(" ", indent + 1, WIDTH)) > 0:
        yield line[:cut]
        line = " " * indent + line[cut + 1 :]
    yield line

"""What a learner has reached on the puzzle ladder: a small file in the folder where the lessons are opened.

The best right answer of each rung counts: at par before above it, then the fewest bytes, then the lowest peak. A name
is in the file only where the learner gives one for the room's board.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course import jsonfile
from course.predicted import learner_in

__all__ = ["CLIMBED", "RUNGS", "Climb", "Climber", "climber_in", "name_climber", "note_climb", "read_climber"]

CLIMBED = ".ladder.json"
RUNGS = 14
LONGEST = 24  # characters of a name

Used = Mapping[str, tuple[int, int]]  # count → what the answer uses, and par


@dataclass(frozen=True)
class Climb:
    """The best right answer to a rung: what it uses beside par, and whether all of that is within par."""

    used: Used
    is_par: bool

    @property
    def order(self) -> tuple[bool, int, int]:
        """The smaller, the better."""
        nbytes, peak_nbytes = (self.used.get(name, (0, 0))[0] for name in ("nbytes", "peak_nbytes"))
        return (not self.is_par, nbytes, peak_nbytes)


@dataclass(frozen=True)
class Climber:
    """Who climbs: a random name, the name given for the room, and by exercise id the best answers."""

    learner: str
    name: str
    climbs: Mapping[str, Climb]

    @property
    def shown(self) -> str:
        """The name on the room's board."""
        return self.name or f"learner {self.learner[:4]}"

    @property
    def at_par(self) -> int:
        """How many rungs are within par."""
        return sum(climb.is_par for climb in self.climbs.values())


def read_climber(folder: Path) -> Climber:
    """What was kept in a working folder; what is missing or damaged counts as not climbed."""
    return climber_in(jsonfile.read_dict(folder / CLIMBED))


def climber_in(kept: Mapping[str, Any]) -> Climber:
    """The same from what such a file holds."""
    found, name = kept.get("rungs"), kept.get("name")
    climbs = {}
    for id, each in found.items() if isinstance(found, dict) else ():
        try:
            used = {str(count): (int(got), int(par)) for count, (got, par) in each["used"].items()}
            climbs[str(id)] = Climb(used, each["is_par"] is True)
        except (TypeError, ValueError, KeyError, AttributeError):
            continue
    shown = " ".join(name.split())[:LONGEST] if isinstance(name, str) else ""
    return Climber(learner_in(kept) or "", shown, climbs)


def note_climb(folder: Path, id: str, climb: Climb) -> None:
    """Write down a right answer, unless a better one is there.

    Raises:
        OSError: the file cannot be written.
    """
    with jsonfile.alone_in(folder):
        climber = read_climber(folder)
        before = climber.climbs.get(id)
        if before is None or climb.order < before.order:
            _write(folder, climber, climber.name, {**climber.climbs, id: climb})


def name_climber(folder: Path, name: str) -> None:
    """Write down the name for the room's board; "" for none.

    Raises:
        OSError: the file cannot be written.
    """
    with jsonfile.alone_in(folder):
        climber = read_climber(folder)
        _write(folder, climber, name, climber.climbs)


def _write(folder: Path, climber: Climber, name: str, climbs: Mapping[str, Climb]) -> None:
    rungs = {id: {"is_par": climb.is_par, "used": dict(climb.used)} for id, climb in climbs.items()}
    kept = {"learner": climber.learner or secrets.token_hex(8), "name": name, "rungs": rungs}
    jsonfile.write(folder / CLIMBED, kept)

"""The learner's own board: each rung, what the best answer uses, and par."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from course.climbs import Climb
from course.ladder.rung import Rung
from course.ladder.scoring import MEASURES
from tinyshard.core.page import Drawing, page, table

__all__ = ["board_of"]

MARKS = {None: "", False: "right", True: "par"}


def board_of(rungs: Iterable[Rung], climbs: Mapping[str, Climb]) -> Drawing:
    """A row for each rung: how far it is, and the best right answer's counts with par behind them.

    Args:
        rungs: all, in order.
        climbs: by exercise id, the best right answers.

    Communication: none.

    Example:
        >>> from course.ladder import RUNGS
        >>> climbs = {"18.2": Climb({"nbytes": (28672, 28672), "rounds": (7, 7)}, is_par=True)}
        >>> print(board_of(list(RUNGS.values())[:2], climbs))
                                       bytes sent / par    peak bytes / par        rounds / par
        18.1 all-gather                      - / 28,672          - / 74,752               - / 7
        18.2 reduce-scatter  par        28,672 / 28,672          - / 49,152               7 / 7
    """
    used = [name for name in MEASURES if name != "flops"]
    head = ("rung", "", *(f"{MEASURES[name]} / par" for name in used))
    rows = []
    for rung in rungs:
        climb = climbs.get(rung.id)
        cells = [_beside(climb, name, getattr(rung.par, name)) for name in used]
        rows.append((f"{rung.id} {rung.name}", MARKS[climb.is_par if climb else None], *cells))
    first = max(len(row[0]) for row in rows) + 2
    lines = [f"{'':{first}}{'':6}" + "".join(f"{word:>20}" for word in head[2:])]
    lines += [f"{name:{first}}{mark:6}" + "".join(f"{cell:>20}" for cell in cells) for name, mark, *cells in rows]
    columns = ("rung", "", *(f">{word}" for word in head[2:]))
    return Drawing("\n".join(lines), page(table("The ladder", columns, rows)))


def _beside(climb: Climb | None, name: str, par: int | None) -> str:
    if par is None:
        return ""
    got = climb.used.get(name) if climb else None
    return f"{f'{got[0]:,}' if got else '-'} / {par:,}"

"""Lesson 18: which stage of a pipeline works on which micro-batch, and how many micro-batches it holds meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from course.widgets.bars import legend
from course.widgets.base import Choice, Explorer
from course.widgets.card import INK, MUTED, Piece, Sheet, paragraph, stack
from tinyshard.draw.cell import BORDER, number, text
from tinyshard.draw.colours import OKABE_ITO, ink

__all__ = ["Timetable", "describe", "draw", "look", "orders", "timetable"]

HEADING = "A pipeline's timetable: forward, backward, idle"
NAMES = {
    "GPipe": "GPipe: all forward, then all backward",
    "1F1B": "1F1B: one forward, one backward",
    "in turn": "one micro-batch after the other",
}
STAGES, MICRO_BATCHES = (2, 4, 8), (4, 8, 16)
FORWARD, BACKWARD = OKABE_ITO[0], OKABE_ITO[1]
LEFT, WIDTH, HELD, ROW = 58, 520, 90, 24  # px

Work = tuple[str, int]  # "F" or "B", and the number of a micro-batch


@dataclass(frozen=True)
class Timetable:
    """Who works when.

    Attributes:
        schedule: its name.
        starts: for each stage, from the slot to the work that is done in it.
        held: for each stage, the most micro-batches that have gone forward there and not yet backward.
    """

    schedule: str
    micro_batches: int
    starts: tuple[dict[int, Work], ...]
    held: tuple[int, ...]

    @property
    def slots(self) -> int:
        """From the first work to the last one."""
        return 1 + max(max(row) for row in self.starts)

    @property
    def bubble(self) -> float:
        """The part of all slots in which a stage is idle, from 0 to 1."""
        return 1 - 2 * self.micro_batches / self.slots


def orders(schedule: str, stages: int, micro_batches: int) -> list[list[Work]]:
    """For each stage what it works on, in its order.

    Example:
        >>> orders("1F1B", 2, 3)[0]
        [('F', 0), ('F', 1), ('B', 0), ('F', 2), ('B', 1), ('B', 2)]
    """
    found = []
    for stage in range(stages):
        ahead = {"GPipe": micro_batches, "1F1B": min(stages - stage, micro_batches), "in turn": 1}[schedule]
        first = [("F", m) for m in range(ahead)]
        turns = [work for m in range(ahead, micro_batches) for work in (("B", m - ahead), ("F", m))]
        found.append([*first, *turns, *(("B", m) for m in range(micro_batches - ahead, micro_batches))])
    return found


def look(schedule: str, stages: int, micro_batches: int) -> Timetable:
    """The timetable, where each work takes one slot and starts as soon as its stage and what it needs are ready.

    Example:
        >>> look("1F1B", 4, 8).slots, look("1F1B", 4, 8).held, look("GPipe", 4, 8).held
        (22, (4, 3, 2, 1), (8, 8, 8, 8))
    """
    queues = orders(schedule, stages, micro_batches)
    ready: dict[tuple[int, Work], int] = {}  # stage and work → the slot after it
    rows: list[dict[int, Work]] = [{} for _ in range(stages)]
    free, done = [0] * stages, [0] * stages
    while any(done[stage] < len(queues[stage]) for stage in range(stages)):
        for stage, queue in enumerate(queues):
            while done[stage] < len(queue):
                work = queue[done[stage]]
                needed = list(_needed(stage, work, stages))
                if any(each not in ready for each in needed):
                    break
                slot = max([free[stage], *(ready[each] for each in needed)])
                rows[stage][slot] = work
                free[stage] = ready[stage, work] = slot + 1
                done[stage] += 1
    return Timetable(schedule, micro_batches, tuple(rows), tuple(map(_most_held, rows)))


def _needed(stage: int, work: Work, stages: int) -> Iterator[tuple[int, Work]]:
    kind, m = work
    if kind == "F" and stage:
        yield stage - 1, work
    if kind == "B":
        yield (stage + 1, work) if stage + 1 < stages else (stage, ("F", m))


def _most_held(row: dict[int, Work]) -> int:
    held = most = 0
    for _, (kind, _) in sorted(row.items()):
        held += 1 if kind == "F" else -1
        most = max(most, held)
    return most


def timetable(schedule: str = "GPipe", stages: int = 4, micro_batches: int = 8) -> Explorer[Timetable]:
    """Choose a schedule, and see when each stage works and how many micro-batches it holds.

    Args:
        schedule: "GPipe", "1F1B" or "in turn".
        stages: 2, 4 or 8.
        micro_batches: 4, 8 or 16.

    Communication: none; nothing is run.

    Example:
        >>> print(timetable("1F1B", 2, 4).text.splitlines()[0])
        1F1B: 2 stages, 4 micro-batches: 10 slots, idle 20 %, at most 2 held at once
    """
    return Explorer(
        HEADING,
        [
            Choice("schedule", "schedule", [(words, name) for name, words in NAMES.items()], start=schedule),
            Choice("stages", "stages", [(str(n), n) for n in STAGES], start=stages),
            Choice("micro_batches", "micro-batches", [(str(n), n) for n in MICRO_BATCHES], start=micro_batches),
        ],
        look,
        draw,
        describe,
    )


def _summary(found: Timetable) -> str:
    return (
        f"{found.schedule}: {len(found.starts)} stages, {found.micro_batches} micro-batches: {found.slots} slots, "
        f"idle {100 * found.bubble:.0f} %, at most {max(found.held)} held at once"
    )


def describe(found: Timetable) -> str:
    """A line for each stage, three characters for each slot."""
    lines = [_summary(found)]
    for stage, row in enumerate(found.starts):
        cells = ("{}{}".format(*row[slot]) if slot in row else "." for slot in range(found.slots))
        lines.append(f"stage {stage}  {''.join(f'{cell:4}' for cell in cells)} holds {found.held[stage]}")
    return "\n".join(lines)


def draw(found: Timetable) -> Sheet:
    """A row for each stage, a cell for each slot in which it works; at the right what it holds at most."""
    kinds = legend([("forward", FORWARD, 12), ("backward", BACKWARD, 12)], size=13, height=24)
    rows = Piece(
        "".join(_row(found, stage) for stage in range(len(found.starts))), LEFT + WIDTH + HELD, ROW * len(found.starts)
    )
    return Sheet(_summary(found), stack([paragraph([_summary(found)]), kinds, rows], 6))


def _row(found: Timetable, stage: int) -> str:
    each, y = min(WIDTH / found.slots, ROW), ROW * stage
    parts = [text(f"stage {stage}", 0, y + ROW / 2, 13, fill=INK, anchor="start")]
    for slot in range(found.slots):
        x = LEFT + slot * each
        if slot not in found.starts[stage]:
            continue
        kind, m = found.starts[stage][slot]
        fill = FORWARD if kind == "F" else BACKWARD
        parts.append(
            f'<rect x="{number(x)}" y="{number(y + 2)}" width="{number(each)}" height="{ROW - 4}" fill="{fill}" '
            f'stroke="{BORDER}" stroke-width="0.5"><title>slot {slot}: {kind}{m}</title></rect>'
        )
        parts.append(
            text(str(m), x + each / 2, y + ROW / 2, int(min(12, each * (0.75 if m < 10 else 0.6))), fill=ink(fill))
        )
    words = f"holds {found.held[stage]}"
    parts.append(text(words, LEFT + each * found.slots + 8, y + ROW / 2, 13, fill=MUTED, anchor="start"))
    return "".join(parts)

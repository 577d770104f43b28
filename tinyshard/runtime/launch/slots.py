"""Which slot of a job a process fills, as the launcher that started it says, and what each slot gets: plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinyshard.errors import RuntimeStateError, message

# by launcher: rank, how many ranks, and rank on its machine
LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
}


@dataclass(frozen=True, slots=True)
class Slot:
    """One process of a job.

    Attributes:
        rank: its number, which is the id of its device.
        count: how many there are on all machines.
        local_rank: its number on its machine.
    """

    rank: int
    count: int
    local_rank: int


def slot_of(environment: Mapping[str, str]) -> Slot:
    """Read the launcher's variables.

    Raises:
        RuntimeStateError: there are none.

    Example:
        >>> slot_of({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"})
        Slot(rank=5, count=8, local_rank=1)
    """
    for names in LAUNCHERS.values():
        if all(environment.get(name, "").isdecimal() for name in names):
            return Slot(*(int(environment[name]) for name in names))
    raise RuntimeStateError(
        message(
            "this process does not know which of the workers it is",
            got="none of "
            + ", or of ".join(f"{', '.join(names)} ({launcher})" for launcher, names in LAUNCHERS.items()),
            rule="a launcher starts the workers of all machines and numbers them",
            try_="torchrun --nproc-per-node=4 -m tinyshard.worker --controller HOST:PORT",
        )
    )


def ids_text(ids: Sequence[int]) -> str:
    """Numbers for people, runs of them shortened.

    Example:
        >>> ids_text([0, 1, 2, 3, 6])
        '0-3, 6'
    """
    runs: list[list[int]] = []
    for number in sorted(ids):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)

"""Effects: a running program's requests to the controller, as to print a value.

    debug.print("{}", x) in a traced function     a step  effect(%3, 7)  of the program; 7 is the number of a Site
    the step on a device                          sends its block of x, and goes on
    the controller, which waits for the call      assembles the blocks, and prints

A device never has the function: a Site stays in the controller, and is sent as its number. A derivative that recomputes
a function is silent (`core/evaluate.py`): its output was printed when the function ran.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

Blocks = Mapping[int, list[torch.Tensor]]  # by device, its block of each operand
EFFECT = "effect"  # the op of a step


@dataclass(frozen=True, eq=False)
class Site:
    """An effect in a program.

    Attributes:
        perform: does it, with the blocks of some devices.
        together: whether it needs the blocks of all devices; else each device has its own values.
        number: by which the devices refer to it.
    """

    perform: Callable[[Blocks], None]
    together: bool
    number: int = field(default_factory=itertools.count(1).__next__)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        """As its number: a program is sent to the devices."""
        return int, (self.number,)


class Effects:
    """The blocks that the devices have sent for the effects of one call, in the order of the program."""

    def __init__(self, sites: tuple[Site, ...], devices: tuple[int, ...]) -> None:
        self._sites = {site.number: site for site in sites}
        self._count = len(devices)
        self._sent: dict[tuple[int, int], int] = {}  # by device and site, how many times
        self._groups: dict[tuple[int, int], dict[int, list[torch.Tensor]]] = {}  # by site and earlier times

    def take(self, device: int, site: int, blocks: list[torch.Tensor]) -> None:
        """Note the blocks that a device has sent."""
        times = self._sent.get((device, site), 0)
        self._sent[device, site] = times + 1
        self._groups.setdefault((site, times), {})[device] = blocks

    def perform(self, *, is_over: bool) -> None:
        """Perform, in order, effects that all devices have sent; at the end also those of only some, as in a branch."""
        while self._groups:
            key = next(iter(self._groups))
            blocks, site = self._groups[key], self._sites[key[0]]
            is_whole = len(blocks) == self._count
            if not is_whole and not is_over:
                return
            del self._groups[key]
            if is_whole or not site.together:
                site.perform(dict(sorted(blocks.items())))

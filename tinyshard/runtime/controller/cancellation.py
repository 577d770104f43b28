"""Which queued calls an interrupt leaves out, on which device.

A call whose devices exchange data is left out by all of them or by none: whoever has started it waits for the others.

    started: device 0 call 7, device 1 call 5          all of 6..9 are to be cancelled
    6 on device 1 alone        left out on 1           (on 0 it is not)
    7 on 0 and 1, exchanging   left out nowhere        0 has started it: both run it, with zeros
    8 on 0 and 1, exchanging   left out on 0 and 1
    9 on device 0 alone        left out on 0
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tinyshard.runtime.controller.lineage import Run


def left_out(runs: Iterable[Run], started: Mapping[int, int]) -> dict[int, set[int]]:
    """The numbers of the calls that each device is not to start.

    Args:
        runs: the calls to be cancelled.
        started: by device, the last call that it has started; it starts no other meanwhile.
    """
    out: dict[int, set[int]] = {device: set() for device in started}
    for run in runs:
        late = [device for device in run.devices if started[device] < run.number]
        if run.communicates and len(late) < len(run.devices):
            continue
        for device in late:
            out[device].add(run.number)
    return out

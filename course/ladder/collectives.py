"""Rungs 1 to 5: the collectives, made of single messages. Whole numbers, so that every sum is exact."""

from __future__ import annotations

import functools

import torch

import tinyshard as ts
from course.ladder.rung import DEVICES, PERMUTES, Par, Rung

__all__ = ["RUNGS"]

ROW = 1024  # numbers of a row
NBYTES = 4 * ROW
SMALL = 1024  # bytes, for indices and masks
P = ts.P

EVERY = tuple(map(str, range(DEVICES)))


@functools.cache
def one_row_each() -> tuple[torch.Tensor]:
    """Of each device one row: f32[8 * 1024].

    Example:
        >>> one_row_each()[0].shape
        torch.Size([8192])
    """
    return (torch.randint(-9, 10, (DEVICES * ROW,), generator=torch.Generator().manual_seed(1)).float(),)


@functools.cache
def eight_rows_each() -> tuple[torch.Tensor]:
    """Of each device eight rows: f32[8 * 8, 1024].

    Example:
        >>> eight_rows_each()[0].shape
        torch.Size([64, 1024])
    """
    return (torch.randint(-9, 10, (DEVICES * DEVICES, ROW), generator=torch.Generator().manual_seed(2)).float(),)


def _all_sums(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(0, (DEVICES, DEVICES)).sum(0).repeat(DEVICES, 1)


def _exchanged(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(0, (DEVICES, DEVICES)).transpose(0, 1).flatten(0, 1)


OWN_ROWS = tuple(tuple(f"{device}.{row}" for row in EVERY) for device in EVERY)
SUMS = tuple(f"Σ.{row}" for row in EVERY)

RUNGS = (
    Rung(
        "18.1",
        "all-gather",
        given=(("x", tuple((device,) for device in EVERY)),),
        wanted=(("result", (EVERY,) * DEVICES),),
        # own row and newest one, and two tables: stacked and put in order, or before and after a row is written
        par=Par(nbytes=7 * NBYTES, peak_nbytes=18 * NBYTES + SMALL, rounds=7),
        inputs=one_row_each,
        want=lambda x: x.unflatten(0, (DEVICES, ROW)).repeat(DEVICES, 1),
        in_specs=P("d"),
        out_specs=P("d"),
        kinds=PERMUTES,
    ),
    Rung(
        "18.2",
        "reduce-scatter",
        given=(("x", OWN_ROWS),),
        wanted=(("result", tuple((each,) for each in SUMS)),),
        par=Par(nbytes=7 * NBYTES, peak_nbytes=12 * NBYTES, rounds=7),
        inputs=eight_rows_each,
        want=lambda x: x.unflatten(0, (DEVICES, DEVICES)).sum(0).flatten(),
        in_specs=P("d"),
        out_specs=P("d"),
        kinds=PERMUTES,
    ),
    Rung(
        "18.3",
        "all-reduce, as a ring",
        given=(("x", OWN_ROWS),),
        wanted=(("result", (SUMS,) * DEVICES),),
        par=Par(nbytes=14 * NBYTES, peak_nbytes=28 * NBYTES, rounds=14),
        inputs=eight_rows_each,
        want=_all_sums,
        in_specs=P("d"),
        out_specs=P("d"),
        kinds=PERMUTES,
    ),
    Rung(
        "18.4",
        "all-reduce, by halving and doubling",
        given=(("x", OWN_ROWS),),
        wanted=(("result", (SUMS,) * DEVICES),),
        # x, both halves of the last round, and the result; with a copy of x to write into, four rows more
        par=Par(nbytes=14 * NBYTES, peak_nbytes=28 * NBYTES + SMALL, rounds=6),
        inputs=eight_rows_each,
        want=_all_sums,
        in_specs=P("d"),
        out_specs=P("d"),
        kinds=PERMUTES,
    ),
    Rung(
        "18.5",
        "all-to-all",
        given=(("x", OWN_ROWS),),
        wanted=(("result", tuple(tuple(f"{source}.{device}" for source in EVERY) for device in EVERY)),),
        # x, and two tables as in 18.1
        par=Par(nbytes=7 * NBYTES, peak_nbytes=26 * NBYTES + SMALL, rounds=1),
        inputs=eight_rows_each,
        want=_exchanged,
        in_specs=P("d"),
        out_specs=P("d"),
        kinds=PERMUTES,
    ),
)

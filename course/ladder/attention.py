"""Rungs 11 and 12: attention around a ring, and causal attention whose work is balanced.

Queries and keys are whole numbers, and the root of 16 features is 4: the scores are exact, and only exponentials and
what is made of them are rounded.
"""

from __future__ import annotations

import functools

import torch

import tinyshard as ts
from course.ladder.layers import own, whole_numbers
from course.ladder.rung import CLOSE, DEVICES, Par, Rung

__all__ = ["RUNGS", "zigzag"]

TOKENS, FEATURES = 512, 16
BLOCK = TOKENS // DEVICES
CHUNKS = 2 * DEVICES
CHUNK = TOKENS // CHUNKS
MOVED_NBYTES = 7 * 2 * 4 * BLOCK * FEATURES  # a block of keys and one of values, seven times
PAIR_FLOPS = 2 * 2 * FEATURES  # of one query and one key: a score, and a weight times a value

P = ts.P
Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@functools.cache
def queries_keys_values() -> Three:
    """Three matrices f32[512, 16]; the scores are so large that exp of them overflows.

    Example:
        >>> q, k, v = queries_keys_values()
        >>> float(torch.exp((q @ k.T / 4).amax()))
        inf
    """
    v = torch.randn(TOKENS, FEATURES, generator=torch.Generator().manual_seed(30))
    return whole_numbers(31, 9, TOKENS, FEATURES), whole_numbers(32, 9, TOKENS, FEATURES), v


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
    scores = q.double() @ k.double().T / FEATURES**0.5
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return (torch.softmax(scores, -1) @ v.double()).float()


def zigzag() -> torch.Tensor:
    """The place in the text of each row: device d has chunk d, and chunk 15 - d.

    Example:
        >>> (zigzag()[:64] // 32).unique().tolist(), (zigzag()[-64:] // 32).unique().tolist()
        ([0, 15], [7, 8])
    """
    chunks = torch.arange(TOKENS).unflatten(0, (CHUNKS, CHUNK))
    return torch.cat([chunks[[device, CHUNKS - 1 - device]].flatten() for device in range(DEVICES)])


def _causal(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    places = zigzag()
    return _attention(q, k, v, places[:, None] >= places)


def two_chunks() -> tuple[tuple[str, ...], ...]:
    """Of each device its chunk from the front, and its chunk from the back."""
    return tuple((str(device), str(CHUNKS - 1 - device)) for device in range(DEVICES))


RUNGS = (
    Rung(
        "18.11",
        "ring attention",
        given=(("q, k and v, by tokens", own("qkv")),),
        wanted=(("attention, by tokens", own("y")),),
        # one block of scores; or the three numbers of each row and block, until the end
        par=Par(nbytes=MOVED_NBYTES, peak_nbytes=88 * 1024, rounds=7, flops=PAIR_FLOPS * BLOCK * TOKENS),
        inputs=queries_keys_values,
        want=_attention,
        in_specs=P("d"),
        out_specs=P("d"),
        tolerance=CLOSE,
    ),
    Rung(
        "18.12",
        "causal ring attention, in zigzag",
        given=(("q, k and v, 16 chunks", two_chunks()),),
        wanted=(("causal attention", two_chunks()),),
        # at home three blocks of 32 x 32 scores, and in each of seven rounds two
        par=Par(
            nbytes=MOVED_NBYTES,
            peak_nbytes=48 * 1024,
            rounds=7,
            flops=(3 + 7 * 2) * PAIR_FLOPS * CHUNK**2,
        ),
        inputs=queries_keys_values,
        want=_causal,
        in_specs=P("d"),
        out_specs=P("d"),
        tolerance=CLOSE,
    ),
)

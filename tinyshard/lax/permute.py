"""Each position sends its value to one position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinyshard.core.collectives import selected
from tinyshard.core.errors import MappingError
from tinyshard.lax.gather import all_gather
from tinyshard.lax.index import axis_index
from tinyshard.lax.operands import axes_of, on_leaves, one_by_one, positions_of
from tinyshard.primitives.collective import axis_total, collective


def ppermute(x: Any, axis_name: Any, perm: Sequence[tuple[int, int]]) -> Any:
    """Send values from position to position along a named axis.

    Args:
        x: a tensor, or a tree of them.
        axis_name: a bound name, or a tuple of names, whose positions count the last fastest.
        perm: (source, target) pairs, with unique sources and unique targets.

    Returns:
        The tree; a position that is not a target gets zeros. Its gradient is the ppermute back.

    Raises:
        AxisNameError: the name is not bound.
        MappingError: a source or target that appears twice, or is not a position of the axis.

    Communication: over devices one collective_permute; over names of both kinds an all_gather for each such axis.

    In JAX: a negative position counts from the end; and over a tuple of names that are not in the order of the mesh,
    positions count in the order of the mesh, unlike those of `axis_index` and `all_gather`.

    Example:
        >>> import tinyshard as ts
        >>> ts.vmap(lambda v: ppermute(v, "i", [(0, 1), (1, 2)]), axis_name="i")(torch.tensor([7, 8, 9]))
        tensor([0, 7, 8])
    """
    axes = axes_of(axis_name)
    size = axis_total(axes)
    pairs = _pairs(perm, size)
    source = {t: s for s, t in pairs}

    def one(leaf: torch.Tensor, _: int) -> torch.Tensor:
        if len(one_by_one(axes)) == 1:
            return collective("collective_permute", leaf, axes, pairs=pairs)
        # over axes of both kinds: every position gathers all values, and takes its own
        place = axis_index(axes)
        everyone = all_gather(leaf, axes)
        wanted = torch.tensor([source.get(i, 0) for i in range(size)]).index_select(0, place.reshape(1))
        gets = torch.tensor([i in source for i in range(size)]).index_select(0, place.reshape(1)).squeeze(0)
        mine = selected(everyone, 0, wanted).squeeze(0)
        return torch.where(gets, mine, torch.zeros_like(mine))

    return on_leaves(one, x)


def _pairs(perm: Any, size: int) -> tuple[tuple[int, int], ...]:
    """Check and freeze (source, target) pairs."""
    rows = positions_of(perm, "ppermute's pairs")
    if any(len(row) != 2 for row in rows):
        raise MappingError("ppermute's pairs do not fit", got=f"perm={list(rows)}", rule="(source, target) each")
    pairs = tuple((source, target) for source, target in rows)
    problem = ""
    for what, ends in (("source", [s for s, _ in pairs]), ("target", [t for _, t in pairs])):
        twice = sorted({i for i in ends if ends.count(i) > 1})
        if twice:
            problem = f"{what} {', '.join(map(str, twice))} appears twice; sources and targets must be unique"
        beyond = sorted({i for i in ends if not 0 <= i < size})
        if beyond:
            problem = f"{what} {', '.join(map(str, beyond))} is not a position of an axis of size {size}"
    if problem:
        raise MappingError("ppermute's pairs do not fit", got=f"perm={list(pairs)}", rule=problem)
    return pairs


def pshuffle(x: Any, axis_name: Any, perm: Sequence[int]) -> Any:
    """Position i gets the value of position perm[i].

    Args:
        x: a tensor, or a tree of them.
        axis_name: a bound name, or a tuple of names.
        perm: a permutation of all positions.

    Returns:
        The tree, with the same shapes and dtypes.

    Raises:
        AxisNameError: the name is not bound.
        MappingError: not a permutation.

    Communication: as ppermute.

    Example:
        >>> import tinyshard as ts
        >>> ts.vmap(lambda v: pshuffle(v, "i", [1, 2, 0]), axis_name="i")(torch.tensor([7, 8, 9]))
        tensor([8, 9, 7])
    """
    size = axis_total(axes_of(axis_name))
    (sources,) = positions_of([perm], "pshuffle's perm")
    if sorted(sources) != list(range(size)):
        raise MappingError(
            "perm is not a permutation", got=repr(list(sources)), rule=f"it holds each of 0 .. {size - 1} once"
        )
    return ppermute(x, axis_name, [(source, target) for target, source in enumerate(sources)])

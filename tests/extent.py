"""How much a run tests: `make test` a part of each table, `make test-all` the whole, `make sweep` every draw.

The environment variable TINYSHARD_TESTS says so: whole, or sweep. A test, or a row of a table, that only the whole has
carries the marker `whole`, one for all draws of the sweeps the marker `sweep`; tests/conftest.py leaves these out of
every other run.
"""

import itertools
import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import pytest

IS_SWEEP = os.environ.get("TINYSHARD_TESTS") == "sweep"
IS_WHOLE = IS_SWEEP or os.environ.get("TINYSHARD_TESTS") == "whole"


def examples(part: int, whole: int) -> int:
    """How many cases hypothesis draws."""
    return whole if IS_WHOLE else part


def drawn(part: int, whole: int, sweep: int) -> int:
    """How many a sweep draws in `make test`, in `make test-all`, and in `make sweep`."""
    return sweep if IS_SWEEP else whole if IS_WHOLE else part


def in_words(value: Any) -> str:
    """The id of a parameter: a function's name, and of anything else its str; the same in each process of a run."""
    return getattr(value, "__name__", None) or str(value)


def mostly_whole(rows: Iterable[Any], is_in_part: Callable[[Any], bool]) -> list[Any]:
    """The rows of a table as parameters; those outside the part carry the marker `whole`."""
    return [row if is_in_part(row) else _whole(row) for row in rows]


def every(n: int, rows: Iterable[Any]) -> list[Any]:
    """The rows of a table as parameters; all but every n-th carry the marker `whole`."""
    return [row if i % n == 0 else _whole(row) for i, row in enumerate(rows)]


def in_turn(names: Iterable[Hashable], values: Iterable[Any]) -> list[Any]:
    """The product as parameters of a test; all but one row for each name carry the marker `whole`.

        in_turn("abc", (1, 2))  →  6 rows, of which ("a", 1), ("b", 2) and ("c", 1) have no marker

    Args:
        names: each of them once.
        values: the first name has the first of them in `make test`, and so on, round and round.
    """
    each: Sequence[Hashable] = list(names)
    options = list(values)
    own = dict(zip(each, itertools.cycle(options), strict=False))
    return mostly_whole(itertools.product(each, options), lambda row: own[row[0]] is row[1])


def pairwise(*values: Sequence[Hashable]) -> list[Any]:
    """The product of several parameters' values as parameters of a test.

    Rows that meet a pair of values for the first time are the part: about as many as the two longest lists multiply to.
    The other rows carry the marker `whole`.

        pairwise((1, 2), "ab", (True, False))  →  8 rows, 4 of them without the marker
    """
    missing = {pair for row in itertools.product(*map(enumerate, values)) for pair in _pairs(row)}
    chosen: set[tuple[int, ...]] = set()
    rows = list(itertools.product(*map(enumerate, values)))
    while missing:
        best = max(rows, key=lambda row: len(missing.intersection(_pairs(row))))
        missing.difference_update(_pairs(best))
        chosen.add(tuple(i for i, _ in best))
    made = []
    for row in rows:
        plain = tuple(value for _, value in row)
        made.append(plain if tuple(i for i, _ in row) in chosen else _whole(plain))
    return made


def _pairs(row: Sequence[tuple[int, Any]]) -> list[tuple[int, int, int, int]]:
    places = [(where, index) for where, (index, _) in enumerate(row)]
    return [(*one, *other) for one, other in itertools.combinations(places, 2)]


def _whole(row: Any) -> Any:
    """A row, which may be a pytest.param already, that only `make test-all` runs."""
    if isinstance(row, type(pytest.param())):
        return pytest.param(*row.values, id=row.id, marks=[*row.marks, pytest.mark.whole])
    values = row if type(row) is tuple else (row,)  # a PartitionSpec is a tuple too, and one value
    return pytest.param(*values, marks=pytest.mark.whole)

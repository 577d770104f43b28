"""A check of prose, or of names, on every row of a table: one test, whose message lists all rows that miss it."""

import functools
import inspect
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

__all__ = ["for_every_row"]


def for_every_row(rows: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Make one test of a check of a row: it runs the check on all of them, and then says what each one misses.

    A row that is a tuple is the check's arguments, any other row its only argument. For checks that take no time and
    no fixture: what runs code is a test for each row, by `pytest.mark.parametrize`.
    """
    table = [row if isinstance(row, tuple) else (row,) for row in rows]

    def as_one(check: Callable[..., None]) -> Callable[[], None]:
        @functools.wraps(check)
        def test() -> None:
            misses = [miss for row in table if (miss := _miss(check, row))]
            assert table, "there are no rows"
            assert not misses, "\n".join([f"{len(misses)} of {len(table)} rows:", *misses])

        test.__signature__ = inspect.Signature()  # type: ignore[attr-defined]  # without the rows, which no fixture makes
        return test

    return as_one


def _miss(check: Callable[..., None], row: tuple[Any, ...]) -> str:
    """What a row misses, and in which line; empty where it misses nothing."""
    try:
        check(*row)
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        said = "".join(traceback.format_exception_only(error)).strip().replace("\n", "\n    ")
        return f"  {', '.join(map(repr, row))}: {said} ({Path(where.filename).name}:{where.lineno})"
    return ""

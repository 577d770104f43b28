"""A check on every row of a table: it fails with all rows that miss it, and never without having looked at one."""

import pytest

from tests.rows import for_every_row


@for_every_row([1, 3, (5,)])
def test_rows_that_all_hold_are_one_test_that_passes(number: int) -> None:
    assert number % 2 == 1


def test_the_message_lists_every_row_that_misses_and_no_other() -> None:
    @for_every_row([("a", 1), ("b", 2), ("c", 3), ("d", 0)])
    def check(name: str, number: int) -> None:
        assert 6 // number != 3, name

    with pytest.raises(AssertionError) as failed:
        check()
    told, *lines = str(failed.value).splitlines()
    assert told == "2 of 4 rows:"
    rows = [line for line in lines if line.startswith("  '")]
    assert [row.split(": ")[:2] for row in rows] == [["  'b', 2", "AssertionError"], ["  'd', 0", "ZeroDivisionError"]]
    assert "(test_rows.py:" in lines[-1]


def test_a_table_without_rows_fails() -> None:
    @for_every_row([])
    def check(name: str) -> None: ...

    with pytest.raises(AssertionError, match="there are no rows"):
        check()

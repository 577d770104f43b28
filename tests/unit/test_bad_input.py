"""Every wrong call of tests/wrong_calls.py on the local runtime."""

import pytest

import tinyshard as ts
from tests.wrong_calls import CALLS, check


@pytest.fixture(scope="module", autouse=True)
def four_devices():
    ts.init(devices=4, runtime="local")
    yield
    ts.shutdown()


def test_the_table_is_long_and_says_nothing_twice():
    assert len(CALLS) >= 80
    assert len({call for call, _, _ in CALLS}) == len(CALLS)


@pytest.mark.parametrize("call, error, words", CALLS, ids=[call for call, _, _ in CALLS])
def test_a_wrong_call_says_what_is_wrong_and_harms_nothing(call, error, words):
    check(call, error, words)

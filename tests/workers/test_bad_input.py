"""Wrong calls of tests/wrong_calls.py on one pool of worker processes, which is whole after each.

They are refused before anything is sent, as unit/test_bad_input.py shows of every row: ten rows here in `make test`.
"""

import pytest

import tinyshard as ts
from tests.extent import every
from tests.wrong_calls import CALLS, check


@pytest.fixture(scope="module", autouse=True)
def four_workers():
    ts.init(devices=4, runtime="process")
    pids = [d.pid for d in ts.devices()]
    yield
    assert [d.pid for d in ts.devices()] == pids
    ts.init(devices=8, runtime="local")


@pytest.mark.parametrize("call, error, words", every(17, CALLS), ids=[call for call, _, _ in CALLS])
def test_a_wrong_call_says_what_is_wrong_and_harms_nothing(call, error, words):
    check(call, error, words)

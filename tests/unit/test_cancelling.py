"""Which calls an interrupt leaves out: no device may wait for another that leaves the same call out."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.extent import examples
from tinyshard.core.users_line import Where
from tinyshard.runtime.controller.cancellation import left_out
from tinyshard.runtime.controller.lineage import Run

HERE = Where("file.py", 1)


def run(number, devices, communicates):
    return Run(number, tuple(devices), communicates, HERE)


def test_the_example_of_the_module():
    runs = [run(6, [1], False), run(7, [0, 1], True), run(8, [0, 1], True), run(9, [0], False)]
    assert left_out(runs, {0: 7, 1: 5}) == {0: {8, 9}, 1: {6, 8}}


devices = st.sets(st.integers(0, 3), min_size=1)


@settings(max_examples=examples(40, 100))
@given(st.lists(st.tuples(devices, st.booleans()), max_size=12), st.lists(st.integers(0, 12), min_size=4, max_size=4))
def test_all_leave_out_an_exchange_or_none_and_what_has_started_is_never_left_out(calls, started):
    runs = [run(i + 1, sorted(on), communicates) for i, (on, communicates) in enumerate(calls)]
    out = left_out(runs, dict(enumerate(started)))
    for r in runs:
        without = {d for d in r.devices if r.number in out[d]}
        assert all(started[d] < r.number for d in without)
        if r.communicates:
            assert without in (set(), set(r.devices))
        if all(started[d] < r.number for d in r.devices):
            assert without == set(r.devices)
        elif not r.communicates:
            assert without == {d for d in r.devices if started[d] < r.number}

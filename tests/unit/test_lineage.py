"""What a value depends on, and how errors are told."""

import pickle

import pytest
import torch

import tinyshard as ts
from tinyshard.core.users_line import Where
from tinyshard.runtime.controller.lineage import Run, add_check, ancestry, settle
from tinyshard.runtime.controller.remote_errors import ending, remote_error
from tinyshard.runtime.failure import Failure, failure_of, short

HERE = Where("<cell>", 2)


def run(number, devices, *parents, communicates=False):
    return Run(number, devices, communicates, HERE, parents)


def failed(device, words="boom"):
    return (failure_of(device, "aten.op(f32[2])", ValueError(words)), HERE)


def test_without_communication_a_block_depends_on_its_own_device():
    a = run(1, (0, 1))
    b = run(2, (0, 1), a)
    assert ancestry(b, [1]).needs == {1: 2}


def test_a_check_that_found_nothing_is_dropped_by_the_next_one():
    """A loop that checks one value at every step would be slower at each."""
    a = run(1, (0,))
    good, bad, late = (run(number, (0,), a) for number in (2, 3, 4))
    bad.failures[0] = failed(0)
    for check in (good, bad):
        add_check(a, check)
        settle(check)
    add_check(a, late)
    assert a.checks == [bad, late]
    assert ancestry(a, [0]).failures == bad.failures


def test_a_collective_draws_in_the_others_up_to_itself_only():
    a = run(1, (0, 1, 2))
    total = run(2, (0, 1, 2), a, communicates=True)
    alone = run(5, (0,), total)
    assert ancestry(alone, [0]).needs == {0: 5, 1: 2, 2: 2}


def test_a_check_draws_in_the_devices_of_what_it_judges():
    a = run(1, (0, 1))
    a.failures[1] = failed(1)
    b = run(2, (0,), a)
    check = run(3, (0, 1), b, communicates=True)
    b.checks.append(check)
    known = ancestry(b, [0])
    assert known.needs == {0: 3, 1: 3}
    assert known.failures == a.failures


def test_a_failure_elsewhere_does_not_matter_without_communication():
    a = run(1, (0, 1))
    a.failures[1] = failed(1)
    assert ancestry(run(2, (0, 1), a), [0]).failures == {}
    assert set(ancestry(run(2, (0, 1), a), [1]).failures) == {1}


def test_the_earliest_failing_call_is_told():
    a, b = run(1, (0,)), run(2, (0,))
    a.failures[0], b.failures[0] = failed(0, "first"), failed(0, "second")
    (told, _) = ancestry(run(3, (0,), b, a), [0]).failures[0]
    assert told.error == "ValueError: first"


def test_a_settled_run_keeps_failures_and_forgets_parents():
    a = run(1, (0, 1))
    a.failures[1] = failed(1)
    settle(a)
    total = run(2, (0, 1), a, communicates=True)
    settle(total)
    assert total.parents == ()
    assert set(total.failures) == {0, 1}
    assert "failed on CPU 1\n" in str(remote_error(total.failures, "cpu"))


def test_equal_failures_are_said_once_and_different_ones_each():
    text = str(remote_error({0: failed(0), 1: failed(1, "bang"), 2: failed(2)}, "cpu"))
    assert text.count("boom") == 1
    assert "failed on CPU 0,2" in text and "failed on CPU 1\n" in text


def test_a_device_that_is_gone_outweighs_what_its_peers_report():
    error = remote_error(
        {0: failed(0, "connection closed by peer"), 1: (Failure(1, lost="killed by signal 9"), HERE)}, "cpu"
    )
    assert type(error) is ts.DeviceLostError
    assert str(error).startswith("CPU 1 is gone: killed by signal 9")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_frames_are_short_paths_beneath_the_runtimes_loop():
    try:
        torch.zeros(2) @ torch.zeros(3)
    except RuntimeError as error:
        failure = failure_of(0, "aten.dot(...)", error)
    assert failure.frames.endswith(
        "in test_frames_are_short_paths_beneath_the_runtimes_loop: torch.zeros(2) @ torch.zeros(3)"
    )


@pytest.mark.parametrize(
    "value, expected",
    [(torch.zeros(2, 3), "f32[2, 3]"), ([torch.zeros(2), 1], "[f32[2], 1]"), ("sum", "'sum'"), (None, "None")],
)
def test_operands_are_told_by_dtype_and_shape(value, expected):
    assert short(value) == expected


@pytest.mark.parametrize(
    "status, words",
    [
        (9, "killed by signal 9 (SIGKILL)"),
        (1 << 8, "its process ended with exit code 1"),
        (0, "its connection to the controller ended"),
        (None, "helper process"),
    ],
)
def test_an_ending_is_told_by_signal_or_exit_code(status, words):
    assert words in ending(status)

"""Whether processes can share memory is tried out before the devices trust it; where it fails, they use gloo."""

import pytest

import tinyshard as ts
from tinyshard.runtime import options
from tinyshard.runtime.shm import probe, segment, system

pytestmark = pytest.mark.skipif(not segment.is_possible(), reason="this system has no shared memory")


@pytest.fixture
def unmeasured(monkeypatch):
    """As on a system on which no test was seen to pass; nothing is known from before."""
    monkeypatch.setattr(system, "is_measured", lambda: False)
    probe._failure.cache_clear()
    yield monkeypatch
    probe._failure.cache_clear()


@pytest.mark.parametrize("has_memory_files", [True, False])
def test_two_processes_that_hear_each_other_show_that_it_works(unmeasured, has_memory_files):
    unmeasured.setattr(system, "HAS_MEMORY_FILES", has_memory_files and system.HAS_MEMORY_FILES)
    assert probe.why_not(8) == ""
    assert options.collectives_for(None, 8) == options.collectives_for("shared", 8) == "shared"


HANGS = "import time\nprint('up', flush=True)\ntime.sleep(1000)"
FAILURES = {
    "hangs": (HANGS, "did not exchange anything within 0.1 s"),
    "hangs before it is up": ("import time\ntime.sleep(1000)", "did not start within 0.2 s"),
    "ends": ("raise SystemExit(3)", "codes [3, 3]"),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_where_it_fails_the_devices_use_gloo_and_a_warning_says_why(unmeasured, failure):
    code, words = FAILURES[failure]
    unmeasured.setattr(probe, "_START", code)
    unmeasured.setattr(probe, "_EXCHANGE_WITHIN_S", 0.1)
    if "start" in words:
        unmeasured.setattr(probe, "_START_WITHIN_S", 0.2, raising=False)
    with pytest.warns(UserWarning, match="over gloo") as warned:
        assert options.collectives_for(None, 8) == "gloo"
    (line,) = str(warned[0].message).splitlines()
    assert words in line and "TINYSHARD_COLLECTIVES=gloo" in line
    assert options.collectives_for("gloo", 8) == "gloo"  # without a word
    with pytest.raises(ts.RuntimeStateError, match="cannot share memory here"):
        options.collectives_for("shared", 8)


def test_a_system_that_grants_no_such_file_is_not_tried(unmeasured):
    unmeasured.setattr(segment, "REGIONS_NBYTES", (1 << 56,))
    with pytest.warns(UserWarning, match="address space"):
        assert options.collectives_for(None, 8) == "gloo"


def test_nothing_is_tried_where_it_is_known_to_work(monkeypatch):
    monkeypatch.setattr(system, "is_measured", lambda: True)
    monkeypatch.setattr(probe, "_failure", lambda: pytest.fail("processes were started"))
    assert options.collectives_for(None, 8) == "shared"

"""What all tests share: what is left out of `make test`, threads, hypothesis's settings, a Ctrl-C that arrives.

Hypothesis draws the same cases in each run, and has no deadline, which would assert a timing;
`pytest --hypothesis-profile=explore` draws new ones, and prints what repeats a failure.
"""

import gc
import os

import pytest
from hypothesis import settings

from tests.extent import IS_SWEEP, IS_WHOLE
from tests.foreground import restore_sigint

settings.register_profile("tinyshard", deadline=None, derandomize=True, database=None, print_blob=True)
settings.register_profile("explore", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("tinyshard")

# Two files run at a time, and devices compute with one thread each: torch in a test does too, and in what it starts.
os.environ.setdefault("OMP_NUM_THREADS", "1")

_RESTORED = restore_sigint()


def pytest_report_header() -> list[str]:
    return [_RESTORED] if _RESTORED else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only `make test-all`, or `make sweep`, runs."""
    others = {"whole": IS_WHOLE, "sweep": IS_SWEEP}
    left_out = [item for item in items if not all(others.get(mark.name, True) for mark in item.iter_markers())]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def pytest_collection_finish() -> None:
    """Leave torch and thousands of tests out of each later collection, which is half a second."""
    gc.collect()
    gc.freeze()

"""The garbage collector during imports: it waits, and afterwards is as it was."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from tinyshard.core import collector

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=[True, False], ids=["on", "off"])
def is_on(request):
    was_on = gc.isenabled()
    (gc.enable if request.param else gc.disable)()
    yield request.param
    (gc.enable if was_on else gc.disable)()


def test_it_waits_and_is_then_as_it_was_also_after_an_error(is_on):
    with pytest.raises(ImportError), collector.paused_for_imports():
        assert not gc.isenabled()
        raise ImportError("no such module")
    assert gc.isenabled() == is_on


class Node:
    """Refers to itself, so that only the collector frees it."""

    def __init__(self):
        self.itself = self


def test_what_was_made_meanwhile_is_collected_later_like_anything_else():
    gc.collect()
    frozen = gc.get_freeze_count()  # Python 3.12 freezes some objects at its start
    with collector.paused_for_imports():
        Node()
    assert gc.get_freeze_count() == frozen
    assert any(type(x) is Node for x in gc.get_objects())
    gc.collect()
    assert not any(type(x) is Node for x in gc.get_objects())


FROZEN = """
import gc
gc.freeze()
count = gc.get_freeze_count()
import tinyshard
assert gc.get_freeze_count() > count // 2 > 0 and gc.isenabled()
"""


def test_what_is_frozen_stays_frozen():
    had_frozen = gc.get_freeze_count() > 0
    gc.freeze()
    try:
        with collector.paused_for_imports():
            count = gc.get_freeze_count()
        assert gc.get_freeze_count() > count // 2 > 0
    finally:
        if not had_frozen:
            gc.unfreeze()


@pytest.mark.whole
def test_what_a_user_has_frozen_before_the_import_stays_frozen():
    subprocess.run([sys.executable, "-c", FROZEN], cwd=ROOT, check=True, timeout=60)

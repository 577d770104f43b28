"""Whoever waits lets others run first, and not where that takes long."""

import time

import numpy as np
import pytest

from tinyshard.runtime import arena, yielding
from tinyshard.runtime.yielding import Yielding

pytestmark = pytest.mark.skipif(not arena.is_possible(), reason="shared memory needs Linux on x86-64")


def test_what_comes_soon_is_seen():
    looks = iter([False, False, True])
    assert Yielding(np.zeros(1, np.int64).data).until(lambda: next(looks))
    assert next(looks, None) is None


def test_what_does_not_come_is_not_waited_for():
    start_s = time.monotonic()
    assert not Yielding(np.zeros(1, np.int64).data).until(lambda: False)
    assert yielding.YIELD_FOR_NS / 1e9 <= time.monotonic() - start_s < 1


def test_where_others_compute_for_long_nobody_yields_for_a_while(monkeypatch):
    crowded = np.zeros(1, np.int64)
    mine, other = Yielding(crowded.data), Yielding(crowded.data)
    yields = []
    monkeypatch.setattr(
        yielding, "let_others_run", lambda: (yields.append(1), time.sleep(1.5 * yielding.CROWDED_AFTER_NS / 1e9))
    )
    assert mine.until(lambda: True)  # that may have been what it waited for
    assert not mine.until(lambda: False)
    assert len(yields) == 2
    assert not other.until(lambda: True)
    assert len(yields) == 2
    crowded[0] = time.monotonic_ns()
    assert other.until(lambda: True)

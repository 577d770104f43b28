"""What no device can hold is refused before it reaches one: on worker processes, which are whole afterwards."""

import gc

import pytest

import tinyshard as ts
from tests import unholdable
from tinyshard.runtime import lifecycle


@pytest.fixture(scope="module", autouse=True)
def two_workers():
    """Afterwards they are the same, and hold what they held before: nothing was sent."""
    ts.init(devices=2, runtime="process")
    pool, pids = lifecycle.current(), [d.pid for d in ts.devices()]
    before = [pool.held(d) for d in range(2)]
    yield
    gc.collect()  # errors hold their frames, and frames hold arrays
    assert [pool.held(d) for d in range(2)] == before
    assert [d.pid for d in ts.devices()] == pids
    ts.shutdown()


@unholdable.every_way
@unholdable.every_kind
def test_a_tensor_that_no_device_can_hold_is_refused(kind, way):
    unholdable.check_kind(kind, way)


@unholdable.eager_and_jitted
@unholdable.every_maker
def test_an_op_that_makes_such_a_tensor_is_refused(maker, jitted):
    unholdable.check_maker(maker, jitted)


@pytest.mark.parametrize("size", [3, 20_000])
def test_conjugate_and_negative_views_arrive_as_what_they_stand_for(size):
    unholdable.check_views(size)

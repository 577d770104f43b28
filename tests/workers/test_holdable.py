"""What no device can hold is refused before it reaches one: on worker processes, which are whole afterwards.

unit/test_holdable.py shows it of every kind in every way: ten rows here in `make test`.
"""

import gc

import pytest

import tinyshard as ts
from tests import unholdable
from tests.extent import mostly_whole
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
    ts.init(devices=8, runtime="local")


@unholdable.mostly_each_way_once
def test_a_tensor_that_no_device_can_hold_is_refused(kind, way):
    unholdable.check_kind(kind, way)


@unholdable.eager_and_jitted
@unholdable.mostly_one_maker
def test_an_op_that_makes_such_a_tensor_is_refused(maker, jitted):
    unholdable.check_maker(maker, jitted)


@pytest.mark.parametrize("size", mostly_whole([3, 20_000], lambda size: size > 3))
def test_conjugate_and_negative_views_arrive_as_what_they_stand_for(size):
    unholdable.check_views(size)

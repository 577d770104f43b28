"""The local runtime keeps what somebody holds, and errors until they are asked for."""

import dataclasses
import gc
import weakref

import pytest
import torch

import tinyshard as ts
from tinyshard.core.collectives import COLLECTIVES
from tinyshard.runtime import lifecycle


def test_values_nobody_holds_leave_the_stores(local):
    runtime = lifecycle.current()
    before = [runtime.held(d) for d in range(8)]
    rows = ts.sharding.PositionalSharding(ts.devices()).reshape(8, 1)
    x = ts.device_put(torch.ones(8, 2), rows)
    y = x + 1
    assert [runtime.held(d) - n for d, n in enumerate(before)] == [2] * 8
    del x, y
    assert [runtime.held(d) for d in range(8)] == before


def test_an_error_waits_for_who_asks_and_carries_operands(local):
    bad = ts.array([1.0, 2.0])[torch.tensor([5])]
    later = bad + 1
    with pytest.raises(ts.RemoteError, match=r"aten\.index\.Tensor\(f32\[2\], \[i64\[1\]\]\)"):
        later.tolist()


def test_an_error_in_a_collective_waits_for_who_asks_and_fails_no_other_call(local, monkeypatch):
    def refuse(*args, **params):
        raise RuntimeError("no room for the sum")

    x = ts.device_put(torch.ones(8, 2), ts.sharding.PositionalSharding(ts.devices()).reshape(8, 1))
    refused = dataclasses.replace(COLLECTIVES["all_reduce"], form=refuse)
    with monkeypatch.context() as patch:
        patch.setitem(COLLECTIVES, "all_reduce", refused)
        total = x.sum(0) * 2
    for _ in range(2):
        with pytest.raises(ts.RemoteError, match=r"^all_reduce failed on CPU 0\n  RuntimeError: no room"):
            total.tolist()
    assert (x.sum(0) * 2).tolist() == [16, 16]


def test_arrays_of_a_runtime_that_is_gone_say_so(local):
    x = ts.array([1.0])
    ts.init(devices=8, runtime="local")
    with pytest.raises(ts.RuntimeStateError, match="has been shut down"):
        x.tolist()
    with pytest.raises(ts.RuntimeStateError, match="has been shut down"):
        x + 1


@pytest.mark.parametrize("act", [lambda x, y: x + y, ts.jit(lambda x, y: x + y)], ids=["eager", "jit"])
@pytest.mark.parametrize("committed", [False, True])
def test_an_op_of_an_array_that_is_gone_is_refused_whichever_operand_it_is(local, act, committed):
    def made(value):
        return ts.device_put(torch.tensor([value]), ts.devices()[0] if committed else None)

    old = made(1.0)
    act(old, old)
    ts.init(devices=8, runtime="local")
    new = made(2.0)
    for operands in ((old, new), (new, old), (old, torch.ones(1)), (torch.ones(1), old)):
        with pytest.raises(ts.RuntimeStateError, match="has been shut down"):
            act(*operands)


def test_an_op_of_an_array_that_is_gone_starts_no_devices(local):
    x = ts.array([1.0])
    ts.shutdown()
    with pytest.raises(ts.RuntimeStateError, match="has been shut down"):
        x + 1
    assert lifecycle.running() is None
    ts.init(devices=8, runtime="local")


def test_values_are_ready_at_once(local):
    assert (ts.array([1.0]) + 1).is_ready()


def test_no_device_has_a_process(local):
    assert [d.pid for d in ts.devices()] == [None] * 8


def test_a_kernel_made_of_other_ops_conjugates_what_it_makes() -> None:
    ts.init(devices=2, runtime="local")
    x = torch.complex(torch.arange(25.0).sin(), torch.arange(25.0).cos() ** 3).reshape(5, 5)
    inverse = ts.device_get(torch.linalg.pinv(ts.array(x)))
    assert torch.allclose(inverse, torch.linalg.pinv(x), atol=1e-4)
    ts.shutdown()


def test_a_runtime_that_is_gone_is_forgotten_by_programs_that_are_used_again(local):
    f = ts.jit(lambda x: x * 2)
    gone = []
    for _ in range(3):
        ts.init(devices=8, runtime="local")
        f(ts.array([1.0]))
        gone.append(weakref.ref(lifecycle.current()))
    ts.init(devices=8, runtime="local")
    gc.collect()
    assert [ref() for ref in gone] == [None] * 3

"""The leaves of a tree go between host and devices together: one wait, not one for each."""

import pytest
import torch

import tinyshard as ts
from tests.extent import every
from tinyshard import P
from tinyshard.runtime import lifecycle
from tinyshard.runtime.controller.items import Put, Request
from tinyshard.runtime.controller.pool import ProcessPool
from tinyshard.runtime.controller.waiting import Waiting


@pytest.fixture(params=every(2, ["shared", "gloo"]))
def posted(request, monkeypatch):
    """What the controller sends to the devices and, as "wait", each time that it waits for an answer."""
    ts.init(devices=2, runtime="process", collectives=request.param)
    pool = lifecycle.current()
    assert isinstance(pool, ProcessPool)
    pool.pid(0)
    seen = []
    post, wait = pool._dispatcher.post, Waiting.wait
    monkeypatch.setattr(pool._dispatcher, "post", lambda item: (seen.append(item), post(item))[1])
    monkeypatch.setattr(Waiting, "wait", lambda *args: (args[1] and seen.append("wait"), wait(*args))[1])
    yield seen
    ts.shutdown()


def test_a_tree_is_put_without_a_wait_and_got_back_with_one(posted):
    rows = ts.NamedSharding(ts.make_mesh(2, "d"), P("d"))
    values = {f"layer {i}": torch.arange(4.0) + i for i in range(5)}
    placed = ts.device_put(values, rows)
    assert [type(item) for item in posted] == [Put] * 5
    posted.clear()
    got = ts.device_get({"layers": placed, "bias": None, "step": 3})
    assert got["bias"] is None and got["step"] == 3
    for name, value in values.items():
        assert torch.equal(got["layers"][name], value)
    fetches = [i for i, item in enumerate(posted) if isinstance(item, Request) and item.kind == "fetch"]
    assert len(fetches) == 5
    assert posted.index("wait") > fetches[-1]


@pytest.mark.whole
def test_a_tree_of_small_and_large_values_and_one_that_failed(posted):
    rows = ts.NamedSharding(ts.make_mesh(2, "d"), P("d"))
    small, large = torch.arange(4.0), torch.arange(1 << 18, dtype=torch.float32)
    placed = ts.device_put([small, large, large + 1], rows)
    posted.clear()
    for got, wanted in zip(ts.device_get(placed), [small, large, large + 1], strict=True):
        assert torch.equal(got, wanted)
    fetches = [i for i, item in enumerate(posted) if isinstance(item, Request) and item.kind == "fetch"]
    assert len(fetches) == 3 and posted.index("wait") > fetches[-1]
    failed = torch.gather(placed[0], 0, ts.array([9]))
    with pytest.raises(ts.RemoteError, match="index 9 is out of bounds"):
        ts.device_get([*placed, failed])
    assert torch.equal(ts.device_get(placed)[1], large)

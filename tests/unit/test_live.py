"""Which Arrays are alive and what they take; and trees of Arrays in files."""

import gc
import io

import pytest
import torch

import tinyshard as ts

pytestmark = pytest.mark.usefixtures("local")


@pytest.fixture
def no_garbage():
    gc.collect()  # what failed tests left behind


@pytest.fixture
def rows():
    return ts.sharding.PositionalSharding(ts.devices()).reshape(8, 1)


def test_live_arrays_are_those_that_somebody_holds_the_oldest_first(no_garbage, rows):
    before = ts.live_arrays()
    x = ts.device_put(torch.ones(8, 4), rows)
    y = x + 1
    made = ts.live_arrays()[len(before) :]
    assert [a is b for a, b in zip(made, (x, y), strict=True)] == [True, True]
    del made, x
    assert ts.live_arrays()[-1] is y
    assert len(ts.live_arrays()) == len(before) + 1


def test_nbytes_are_those_of_each_devices_blocks_and_shared_ones_count_once(no_garbage, rows):
    before = ts.live_arrays().nbytes
    x = ts.device_put(torch.ones(8, 4, dtype=torch.float64), rows)
    whole = ts.device_put(torch.ones(3), rows.replicate())
    alone = ts.device_put(torch.ones(5, dtype=torch.int8), ts.devices()[2])
    alias = x.detach()
    grown = {d.id: n - before[d] for d, n in ts.live_arrays().nbytes.items()}
    assert grown == {d: 4 * 8 + 3 * 4 + (5 if d == 2 else 0) for d in range(8)}
    del x, whole, alone, alias
    assert ts.live_arrays().nbytes == before


def test_live_arrays_print_as_a_table_without_moving_values(rows):
    x = ts.device_put(torch.ones(8, 4), rows)
    text = repr(ts.live_arrays())
    assert "float32[8, 4]" in text and "x = ts.device_put(torch.ones(8, 4), rows)" in text
    assert x.shape == (8, 4)


def test_arrays_of_a_runtime_that_is_gone_are_not_alive(rows):
    x = ts.device_put(torch.ones(8, 4), rows)
    ts.init(devices=8, runtime="local")
    assert all(y is not x for y in ts.live_arrays())


TREE_DTYPES = [torch.float32, torch.bfloat16, torch.int16, torch.uint32, torch.complex64, torch.bool, torch.float64]


@pytest.mark.parametrize("dtype", TREE_DTYPES)
def test_a_tree_of_arrays_is_saved_whole_and_loaded_under_any_sharding(rows, dtype):
    host = torch.arange(32).reshape(8, 4).to(dtype)
    tree = {"w": ts.device_put(host, rows), "b": [ts.array(host[0]), 3], "empty": ts.array(host[:0])}
    file = io.BytesIO()
    torch.save(tree, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert loaded["b"][1] == 3 and not loaded["w"].committed
    mesh = ts.make_mesh((2, 4), ("a", "b"))
    for spec in (ts.P("a", "b"), ts.P("b", "a"), ts.P(), ts.P(None, ("a",))):
        placed = ts.device_put(loaded["w"], ts.NamedSharding(mesh, spec))
        assert placed.dtype == dtype and torch.equal(ts.device_get(placed), host)
    assert torch.equal(ts.device_get(loaded["b"][0]), host[0])
    assert loaded["empty"].shape == (0, 4)


def test_host_trees_of_arrays_are_files_of_plain_tensors(rows):
    file = io.BytesIO()
    torch.save(ts.device_get({"w": ts.device_put(torch.ones(8, 4), rows)}), file)
    assert b"tinyshard" not in file.getvalue()


def test_loading_is_on_another_number_of_devices_too(rows):
    file = io.BytesIO()
    torch.save(ts.device_put(torch.arange(32.0).reshape(8, 4), rows), file)
    file.seek(0)
    ts.init(devices=2, runtime="local")
    halves = ts.sharding.PositionalSharding(ts.devices()).reshape(2, 1)
    x = ts.device_put(torch.load(file), halves)
    assert x.addressable_shards[1].data.sum().item() == sum(range(16, 32))
    ts.init(devices=8, runtime="local")

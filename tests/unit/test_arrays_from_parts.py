"""Arrays that are made of parts, and what an Array says of its shards."""

import numpy as np
import pytest
import torch

import tinyshard as ts
from tinyshard import P
from tinyshard.runtime import lifecycle

pytestmark = pytest.mark.usefixtures("local")


@pytest.fixture
def tiles(mesh):
    return ts.NamedSharding(mesh, P("a", "b"))


def test_a_callback_is_asked_for_each_distinct_block_once(mesh, host):
    rows = ts.NamedSharding(mesh, P("a"))
    asked = []

    def block(index):
        asked.append(index)
        return host.numpy()[index]

    x = ts.make_array_from_callback(host.shape, rows, block)
    assert sorted(index[0].start for index in asked) == [0, 2, 4, 6]
    assert x.sharding == rows and x.committed and x.dtype is torch.float32
    assert torch.equal(ts.device_get(x), host)
    for shard in x.addressable_shards:
        assert torch.equal(ts.device_get(shard.data), host[shard.index])


def test_a_callback_may_give_what_becomes_a_tensor_and_the_dtype_may_be_given(tiles, host):
    x = ts.make_array_from_callback((8, 4), tiles, lambda index: host[index].tolist(), torch.float64)
    assert x.dtype is torch.float64 and torch.equal(ts.device_get(x), host.double())
    with ts.set_mesh(tiles.mesh):
        assert ts.make_array_from_callback((8, 4), P("a", "b"), lambda index: host[index]).sharding == tiles


def test_what_a_callback_gives_may_change_afterwards(tiles, host):
    block = torch.zeros(2, 2)

    def again(index):
        block.fill_(float(host[index][0, 0]))
        return block

    x = ts.device_get(ts.make_array_from_callback((8, 4), tiles, again))
    assert torch.equal(x[::2, ::2], host[::2, ::2])


def test_blocks_that_do_not_fit_are_errors(tiles, host):
    with pytest.raises(ts.ShardingError, match=r"shape \(8, 4\) for the slices"):
        ts.make_array_from_callback((8, 4), tiles, lambda index: host)
    with pytest.raises(ts.ShardingError, match="cannot be split evenly"):
        ts.make_array_from_callback((7, 4), tiles, lambda index: host)
    with pytest.raises(ts.ShardingError, match="abstract mesh"):
        ts.make_array_from_callback((4,), ts.NamedSharding(ts.AbstractMesh(2, "i"), P("i")), lambda index: host)


def test_arrays_of_single_devices_are_joined_in_any_order_and_nothing_is_exchanged(tiles, host):
    blocks = [ts.device_put(host[index], d) for d, index in tiles.devices_indices_map(host.shape).items()]
    lifecycle.current().handed()
    x = ts.make_array_from_single_device_arrays(host.shape, tiles, blocks[::-1])
    assert x.sharding == tiles and x.committed
    assert torch.equal(ts.device_get(x), host) and torch.equal(ts.device_get(x @ x.T), host @ host.T)
    again = ts.make_array_from_single_device_arrays(host.shape, tiles, [s.data for s in x.addressable_shards])
    del blocks, x
    assert torch.equal(ts.device_get(again), host)


def test_a_block_that_could_not_be_computed_is_an_error_of_the_array_alone(host):
    devices = ts.devices()[:2]
    sharding = ts.NamedSharding(ts.make_mesh(2, "i", devices=devices), P("i"))
    good, bad = (ts.device_put(host[:4], d) for d in devices)
    x = ts.make_array_from_single_device_arrays(host.shape, sharding, [good, bad[torch.tensor([9, 0, 0, 0])]])
    with pytest.raises(ts.RemoteError, match="on CPU 1"):
        x.block_until_ready()
    assert torch.equal(ts.device_get(good), host[:4])


@pytest.mark.parametrize(
    "change, kind, words",
    [
        (lambda blocks: blocks[:-1], ts.ShardingError, "one array on each device"),
        (lambda blocks: [*blocks, blocks[0]], ts.ShardingError, "one array on each device"),
        (lambda blocks: [blocks[0][:1], *blocks[1:]], ts.ShardingError, "another shape than its block"),
        (lambda blocks: [blocks[0].double(), *blocks[1:]], ts.DtypeError, "have one dtype"),
        (lambda blocks: [torch.ones(2, 2), *blocks[1:]], ts.DtypeError, "takes Arrays"),
    ],
)
def test_arrays_that_do_not_fit_are_errors(change, kind, words, tiles, host):
    blocks = [ts.device_put(host[index], d) for d, index in tiles.devices_indices_map(host.shape).items()]
    with pytest.raises(kind, match=words):
        ts.make_array_from_single_device_arrays(host.shape, tiles, change(blocks))


def test_the_data_of_the_one_process_are_the_whole_array(tiles, host):
    for given in (host, host.numpy(), host.tolist()):
        x = ts.make_array_from_process_local_data(tiles, given, (8, 4))
        assert x.sharding == tiles and x.committed and torch.equal(ts.device_get(x), host)
    with pytest.raises(ts.ShardingError, match="the data of the one process are the whole array"):
        ts.make_array_from_process_local_data(tiles, host, (16, 4))


def test_on_a_shard_no_array_is_made(tiles, host):
    with pytest.raises(ts.ShardingError, match="inside a mapped function"):
        ts.pmap(lambda x: ts.make_array_from_process_local_data(tiles, x))(host)


def test_an_array_says_what_is_where(tiles, host):
    x = ts.device_put(host, tiles)
    assert x.is_fully_addressable is True and x.is_fully_replicated is False
    assert [s.device for s in x.global_shards] == [s.device for s in x.addressable_shards]
    assert torch.equal(ts.device_get(x.addressable_data(3)), host[x.addressable_shards[3].index])


def test_a_copy_that_was_begun_is_what_the_next_reader_gets(tiles, host, monkeypatch):
    x = ts.device_put(host, tiles)
    asked = []
    gather = lifecycle.current().gather
    monkeypatch.setattr(lifecycle.current(), "gather", lambda wanted: (asked.append(len(wanted)), gather(wanted))[1])
    assert x.copy_to_host_async() is None
    first, second = ts.device_get([x, x + 1])
    assert torch.equal(first, host) and torch.equal(second, host + 1) and sorted(asked) == [1, 1]
    np.testing.assert_array_equal(x.numpy(), host)
    assert len(asked) == 3
    first.zero_()
    assert torch.equal(ts.device_get(x), host)


def test_the_error_of_a_value_is_raised_where_it_is_read(host):
    x = ts.array(host)[torch.tensor([99])]
    x.copy_to_host_async()
    with pytest.raises(ts.RemoteError):
        x.numpy()

"""What comes to the host is the user's own: to write into it changes no Array."""

import pytest
import torch

import tinyshard as ts

pytestmark = pytest.mark.usefixtures("local")

HOST = torch.arange(8.0)


def placed():
    """On one device, as copies on all, in parts."""
    mesh = ts.make_mesh((8,), "i")
    return [
        ts.device_put(HOST, at)
        for at in (ts.devices()[3], ts.NamedSharding(mesh, ts.P()), ts.NamedSharding(mesh, ts.P("i")))
    ]


def test_to_write_into_what_device_get_gives_changes_no_array() -> None:
    for x in placed():
        ts.device_get(x).fill_(-1)
        assert torch.equal(ts.device_get(x), HOST)


def test_to_write_into_the_values_of_a_shard_changes_no_array() -> None:
    for x in placed():
        for shard in x.addressable_shards:
            ts.device_get(shard.data).fill_(-1)
        assert torch.equal(ts.device_get(x), HOST)

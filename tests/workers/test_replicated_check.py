"""With the flag `check_replicated` the workers compare the blocks that out_specs call one value."""

import pytest
import torch

import tinyshard as ts
from tinyshard import P


@pytest.fixture
def flag(pool):
    ts.config.update("check_replicated", True)
    yield
    ts.config.update("check_replicated", False)


@pytest.mark.on_gloo
@pytest.mark.usefixtures("flag")
def test_workers_find_blocks_that_differ_and_go_on():
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    f = ts.shard_map(lambda v: v, mesh=mesh, in_specs=P("a"), out_specs=P(), check_vma=False)
    summed = ts.shard_map(lambda v: ts.lax.psum(v, "a"), mesh=mesh, in_specs=P("a"), out_specs=P())
    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        ts.block_until_ready(f(torch.ones(8, dtype=dtype)))
        with pytest.raises(ts.RemoteError, match=r"(?s)blocks of a result differ.*'a', 'b'"):
            ts.block_until_ready(f(torch.arange(8.0).to(dtype)))
    assert summed(torch.arange(8.0)).tolist() == [12.0, 16.0]

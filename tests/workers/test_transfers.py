"""Values under layouts that a program's axes cannot say: transfers between processes, and groups over all axes."""

import pytest
import torch

import tinyshard as ts
from tinyshard import P


@pytest.mark.on_gloo
def test_values_pass_between_meshes_without_common_axes(pool):
    wide, tall = ts.make_mesh((2, 3), ("a", "b")), ts.make_mesh((3, 2), ("c", "d"))
    asked = ts.NamedSharding(tall, P("d", "c"))
    rolled = ts.shard_map(
        lambda v: ts.lax.ppermute(v, "c", [(0, 1), (1, 2), (2, 0)]),
        mesh=tall,
        in_specs=P("c", "d"),
        out_specs=P("c", "d"),
    )
    summed = ts.shard_map(lambda v: ts.lax.psum(v, "a"), mesh=wide, in_specs=P("a", "b"), out_specs=P(None, "b"))
    values = torch.arange(36.0).reshape(6, 6)
    x = ts.device_put(values, ts.NamedSharding(wide, P("a", "b")))
    program = ts.jit(lambda v: (summed(rolled(v)), v + 1), out_shardings=(None, asked))
    for _ in range(3):
        total, moved = program(x)
        wanted = torch.roll(values, 2, 0)
        torch.testing.assert_close(ts.device_get(total), wanted[:3] + wanted[3:])
        torch.testing.assert_close(ts.device_get(moved), values + 1)
        assert moved.sharding.is_equivalent_to(asked, 2)

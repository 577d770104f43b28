"""From nothing to a first result on eight devices: a program a side, run in a fresh process each time."""

TINYSHARD = """
import tinyshard as ts, torch
x = ts.device_put(torch.ones(8), ts.NamedSharding(ts.make_mesh((8,), ("i",)), ts.P("i")))
assert (x + 1).sum().item() == 16
"""

JAX = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, numpy as np
mesh = jax.make_mesh((8,), ("i",))
x = jax.device_put(np.ones(8, np.float32), jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i")))
assert (x + 1).sum().item() == 16
"""

PROGRAMS = {"tinyshard": TINYSHARD, "JAX": JAX}

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

IPYPARALLEL = """
import logging
import ipyparallel
with ipyparallel.Cluster(n=8, log_level=logging.ERROR) as client:
    assert client[:].apply_sync(lambda: 2) == [2] * 8
"""

MONARCH = """
from monarch.actor import Actor, endpoint, this_host
class Two(Actor):
    @endpoint
    def two(self): return 2
made = this_host().spawn_procs(per_host={"gpus": 8}).spawn("two", Two).two.call().get()
assert [two for _, two in made] == [2] * 8
"""

PROGRAMS = {"tinyshard": TINYSHARD, "JAX": JAX, "ipyparallel": IPYPARALLEL, "torchmonarch": MONARCH}
